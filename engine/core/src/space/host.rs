//! Limits reservations by the free space of the host file system.
//!
//! A sparse image has less space allocated than its size, and the host file system may become full
//! before the volume does. So a reservation is refused if the host has not enough space for it. The
//! device reports the free space of the host; the value is cached for [`CACHE_TIME`], and blocks
//! allocated since then are deducted. Other programs may fill the host meanwhile: then a
//! reservation is not backed, and the write is held (see `device::held`).

use std::time::{Duration, Instant};

use super::budget::Budget;
use cairnfs_disk::device::Device;
use cairnfs_disk::error::Error;
use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS};
use cairnfs_disk::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How long a reported value is cached.
const CACHE_TIME: Duration = Duration::from_millis(500);
/// Allowance for blocks that are allocated, so no longer reserved, but not written yet.
const IN_FLIGHT: u64 = 512;

/// The cached free space of the host.
pub(super) struct Host {
    opened: Instant,
    /// Upper limit of allocations plus reservations, in blocks as counted by [`Budget::moves`];
    /// `u64::MAX` if unlimited.
    ceiling: AtomicU64,
    /// When `ceiling` expires, in nanoseconds since the volume was opened.
    expires: AtomicU64,
    /// Blocks that are kept free for merges and writes in flight.
    margin: u64,
    /// Whether a reservation was refused since the host last had enough space.
    refused: AtomicBool,
}

impl Host {
    /// An expired value. Space for `units` is kept free for merges.
    pub fn new(units: u64) -> Self {
        Self {
            opened: Instant::now(),
            ceiling: AtomicU64::new(0),
            expires: AtomicU64::new(0),
            margin: units * NODE_BLOCKS + IN_FLIGHT,
            refused: AtomicBool::new(false),
        }
    }

    /// Nanoseconds since the volume was opened; always 0 under Shuttle, which replays schedules.
    fn now(&self) -> u64 {
        if cfg!(shuttle) {
            return 0;
        }
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether `more` blocks can be reserved.
    pub fn permits(&self, device: &dyn Device, budget: &Budget, more: u64) -> bool {
        let ceiling = self.ceiling.load(Ordering::Relaxed);
        let known = ceiling == u64::MAX || more <= ceiling.saturating_sub(committed(budget));
        (known && self.now() < self.expires.load(Ordering::Relaxed))
            || more <= self.left(device, budget)
    }

    /// Queries the device, and returns the number of blocks that can be reserved.
    pub fn left(&self, device: &dyn Device, budget: &Budget) -> u64 {
        // Read before the query: allocations from here on are deducted even if the reported value
        // already includes them.
        let taken = budget.moves().1;
        let ceiling = match device.room() {
            Ok(Some(bytes)) => {
                let blocks = bytes / BLOCK_SIZE as u64;
                taken + blocks.saturating_sub(self.margin)
            }
            Ok(None) | Err(_) => u64::MAX,
        };
        self.ceiling.store(ceiling, Ordering::Relaxed);
        let until = self.now().saturating_add(CACHE_TIME.as_nanos() as u64);
        self.expires.store(until, Ordering::Relaxed);
        let left = match ceiling {
            u64::MAX => u64::MAX,
            ceiling => ceiling.saturating_sub(committed(budget)),
        };
        if left > self.margin && self.refused.swap(false, Ordering::Relaxed) {
            tracing::warn!("there is free space on the host file system again");
        }
        left
    }

    /// Blocks that the host lacks for `more` blocks beside what is reserved and kept free.
    pub fn missing(&self, device: &dyn Device, budget: &Budget, more: u64) -> u64 {
        let left = device.room().ok().flatten();
        let left = left.map_or(u64::MAX, |bytes| bytes / BLOCK_SIZE as u64);
        let needed = reserved(budget)
            .saturating_add(more)
            .saturating_add(self.margin);
        needed.saturating_sub(left)
    }

    /// Records that a reservation was refused; logs a warning for the first one.
    pub fn refuse(&self, error: &Error) {
        if !self.refused.swap(true, Ordering::Relaxed) {
            tracing::warn!("writes are refused: {error}");
        }
    }
}

/// Blocks allocated since the volume was opened, plus blocks reserved.
fn committed(budget: &Budget) -> u64 {
    budget.moves().1 + reserved(budget)
}

fn reserved(budget: &Budget) -> u64 {
    let (blocks, units) = budget.reserved();
    blocks + NODE_BLOCKS * units
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use crate::space::Class;
    use crate::space::budget::Floors;
    use cairnfs_disk::device::MemoryDevice;
    use cairnfs_disk::error::Result;

    /// A device with a limited amount of free space on its host.
    struct Narrow(MemoryDevice, AtomicU64);

    impl Device for Narrow {
        fn size(&self) -> u64 {
            self.0.size()
        }
        fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.0.read(offset, buf)
        }
        fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
            self.0.write(offset, buf)
        }
        fn flush(&self) -> Result<()> {
            self.0.flush()
        }
        fn discard(&self, offset: u64, len: u64) -> Result<()> {
            self.0.discard(offset, len)
        }
        fn room(&self) -> Result<Option<u64>> {
            Ok(Some(self.1.load(Ordering::Relaxed)))
        }
    }

    #[test]
    fn reservations_and_allocations_reduce_host_space() {
        let room = AtomicU64::new((IN_FLIGHT + 40 + 100) * BLOCK_SIZE as u64);
        let device = Narrow(MemoryDevice::new(16 << 20), room);
        let budget = Budget::new(4000, 1000, Floors::default());
        let host = Host::new(10);
        assert_eq!(host.left(&device, &budget), 100);
        budget.reserve(60, 5, Class::Ordinary).unwrap();
        assert!(host.permits(&device, &budget, 20));
        assert!(!host.permits(&device, &budget, 21));
        assert_eq!(host.missing(&device, &budget, 21), 1);
        // Allocated blocks count, written or not, until the device is queried again.
        budget.took_data(60);
        assert!(!host.permits(&device, &budget, 81));
        device
            .1
            .fetch_add(30 * BLOCK_SIZE as u64, Ordering::Relaxed);
        assert!(host.permits(&device, &budget, 110));
        assert!(!host.permits(&device, &budget, 111));
        assert_eq!(host.left(&MemoryDevice::new(16 << 20), &budget), u64::MAX);
        assert!(host.permits(&device, &budget, 1 << 40));
    }

    #[test]
    fn missing_space_includes_what_is_kept_free() {
        let device = Narrow(MemoryDevice::new(16 << 20), AtomicU64::new(0));
        let budget = Budget::new(4000, 1000, Floors::default());
        let host = Host::new(10);
        assert!(!host.permits(&device, &budget, 4));
        assert_eq!(host.missing(&device, &budget, 4), 4 + 40 + IN_FLIGHT);
        let all = (4 + 40 + IN_FLIGHT) * BLOCK_SIZE as u64;
        device.1.store(all, Ordering::Relaxed);
        assert_eq!(host.missing(&device, &budget, 4), 0);
        assert!(host.permits(&device, &budget, 4));
    }
}
