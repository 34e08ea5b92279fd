//! How to open a volume, and the defaults.
//!
//! Only values: nothing here changes after the opening.

use std::sync::Arc;
use std::time::Duration;

use crate::fs::budget;
use crate::fs::observe::Observer;
use crate::txn::Pressure;
use cairnfs_disk::mechanism::Mechanism;

/// How to open a volume.
#[derive(Debug, Clone)]
pub struct Options {
    /// The volume is not written. The log is replayed in memory. If the replay needs more than its
    /// share of the budget, it goes to an unlinked temporary file in [`std::env::temp_dir`]
    /// (`TMPDIR`), which holds the metadata that it changes and is freed when the volume is closed.
    /// That directory should not be a memory file system. Each read-only opening replays again.
    pub read_only: bool,
    /// The root whose files are opened, by name: a snapshot, for which the volume must be opened
    /// read-only. `None` for the main root.
    pub root: Option<String>,
    /// The log is replayed. If false, the volume is opened read-only as its last merge left it,
    /// even if the log or the newest superblock is damaged: later changes are missing, and blocks
    /// that a later merge overwrote fail their checksum. For salvage, like XFS's `norecovery`.
    pub recovery: bool,
    /// A damaged log is replayed up to the damage, and the volume is opened read-only. For salvage:
    /// [`FileSystem::lost_log`](crate::fs::FileSystem::lost_log) says what is lost.
    pub damaged_log: bool,
    /// Bytes that caches and unwritten changes may use.
    pub cache_budget: usize,
    /// A sync of the whole volume starts this long after the last one; `None`: only on request.
    pub durability_interval: Option<Duration>,
    /// Discard freed space on the device.
    pub discard: bool,
    /// Keep data that was just written in the cache. Useless if the kernel of the front end has a
    /// writeback cache and sends whole blocks.
    pub keep_written: bool,
    /// The kernel of the front end caches file data. If it does not, a volume in a file is read
    /// through the page cache of the host ([`FileDevice::cache_reads`]). And with workers, cached
    /// data may take half of the memory that index nodes, inodes and names leave idle; this is set
    /// with every durability interval, at least every 5 seconds.
    ///
    /// [`FileDevice::cache_reads`]: cairnfs_disk::device::FileDevice::cache_reads
    pub kernel_caches: bool,
    /// Run worker threads. Without them pushes and merges run in the calling threads, which makes
    /// the sequence of device operations depend only on the calls, as a simulation needs.
    pub workers: bool,
    /// Makes times and random numbers depend only on this number and the calls; `None`: they come
    /// from the system. Two openings of one volume must not use the same seed.
    pub seed: Option<u64>,
    /// Takes times from the clock that the kernel uses for file timestamps, so that they are
    /// ordered with those of its file systems; reading it costs a microsecond. Otherwise from the
    /// finest clock.
    pub kernel_clock: bool,
    /// Changing a regular file's contents or size sets its mtime and ctime. False for a front end
    /// whose kernel keeps these times and sets them by
    /// [`FileSystem::setattr`](crate::fs::FileSystem::setattr).
    pub content_times: bool,
    /// A mechanism to disable, to measure what it saves; all guarantees hold without it.
    pub ablated: Option<Mechanism>,
    /// Tighter limits for merges and replay, to test both with little data; `None`: the limits that
    /// follow from the budget.
    pub pressure: Option<Pressure>,
    /// Receives every call that changes the volume or makes it durable.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            read_only: false,
            root: None,
            recovery: true,
            damaged_log: false,
            cache_budget: budget::default_budget(),
            durability_interval: Some(Duration::from_secs(5)),
            discard: true,
            keep_written: true,
            kernel_caches: false,
            workers: true,
            seed: None,
            kernel_clock: false,
            content_times: true,
            ablated: None,
            pressure: None,
            observer: None,
        }
    }
}

impl Options {
    /// Whether all changes are refused.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only || !self.recovery || self.damaged_log
    }
}
