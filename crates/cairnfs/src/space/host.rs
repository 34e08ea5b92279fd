//! What the file system that holds the volume's file can still give to promises.
//!
//! A sparse file has less space than its size says, and the file system that holds it may get full
//! first. So a promise is refused that this file system could not keep. The device tells what is
//! left there; the answer is used for a while, with what was allocated since counted as written.
//! Other programs may fill that file system meanwhile: then a promise is broken, and the write waits
//! in the device's storage.

use std::time::{Duration, Instant};

use super::budget::Budget;
use crate::device::Device;
use crate::error::Error;
use crate::format::{BLOCK_SIZE, NODE_BLOCKS};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How long an answer of the device is used.
const USED_FOR: Duration = Duration::from_millis(500);
/// Blocks that may be allocated, and no promise any more, but not on the device yet.
const IN_FLIGHT: u64 = 512;

/// The device's answer.
pub(super) struct Host {
    opened: Instant,
    /// What allocations and promises together may reach, in blocks as [`Budget::moves`] counts them.
    ceiling: AtomicU64,
    /// Until when that holds, in nanoseconds since the volume was opened.
    expires: AtomicU64,
    /// Blocks that are left for merges.
    margin: u64,
    /// Whether a promise was refused since the device had space for all.
    refused: AtomicBool,
}

impl Host {
    /// Nothing is known yet. `units` are left for merges.
    pub fn new(units: u64) -> Self {
        Self {
            opened: Instant::now(),
            ceiling: AtomicU64::new(0),
            expires: AtomicU64::new(0),
            margin: units * NODE_BLOCKS + IN_FLIGHT,
            refused: AtomicBool::new(false),
        }
    }

    /// Nanoseconds since the volume was opened. Time stands still where schedules are replayed.
    fn now(&self) -> u64 {
        if cfg!(shuttle) {
            return 0;
        }
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether `more` blocks can be promised.
    pub fn permits(&self, device: &dyn Device, budget: &Budget, more: u64) -> bool {
        let ceiling = self.ceiling.load(Ordering::Relaxed);
        let known = ceiling == u64::MAX || more <= ceiling.saturating_sub(committed(budget));
        (known && self.now() < self.expires.load(Ordering::Relaxed))
            || more <= self.left(device, budget)
    }

    /// Blocks that can be promised, asked of the device now.
    pub fn left(&self, device: &dyn Device, budget: &Budget) -> u64 {
        // What is allocated from here on is counted, whether the answer knows it or not.
        let taken = budget.moves().1;
        let ceiling = match device.room() {
            Ok(Some(bytes)) => {
                let blocks = bytes / BLOCK_SIZE as u64;
                taken + blocks.saturating_sub(self.margin)
            }
            Ok(None) | Err(_) => u64::MAX,
        };
        self.ceiling.store(ceiling, Ordering::Relaxed);
        let until = self.now().saturating_add(USED_FOR.as_nanos() as u64);
        self.expires.store(until, Ordering::Relaxed);
        let left = match ceiling {
            u64::MAX => u64::MAX,
            ceiling => ceiling.saturating_sub(committed(budget)),
        };
        if left > self.margin && self.refused.swap(false, Ordering::Relaxed) {
            tracing::warn!("there is space below the volume again");
        }
        left
    }

    /// Notes that a promise was refused, and says so if it is the first.
    pub fn refuse(&self, error: &Error) {
        if !self.refused.swap(true, Ordering::Relaxed) {
            tracing::warn!("writes are refused: {error}");
        }
    }
}

/// Blocks allocated so far, and promised.
fn committed(budget: &Budget) -> u64 {
    let (blocks, units) = budget.reserved();
    budget.moves().1 + blocks + NODE_BLOCKS * units
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use crate::device::MemoryDevice;
    use crate::error::Result;
    use crate::space::Class;
    use crate::space::budget::Floors;

    /// A device below which only so much is left.
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
    fn promises_and_allocations_use_up_what_is_left() {
        let room = AtomicU64::new((IN_FLIGHT + 40 + 100) * BLOCK_SIZE as u64);
        let device = Narrow(MemoryDevice::new(16 << 20), room);
        let budget = Budget::new(4000, 1000, Floors::default());
        let host = Host::new(10);
        assert_eq!(host.left(&device, &budget), 100);
        budget.reserve(60, 5, Class::Ordinary).unwrap();
        assert!(host.permits(&device, &budget, 20));
        assert!(!host.permits(&device, &budget, 21));
        // Written or not, what was allocated counts until the device is asked again.
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
}
