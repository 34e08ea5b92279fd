//! The engine, addressed by inode number, for front ends such as a FUSE daemon. Programs use
//! [`Volume`].
//!
//! [`Volume`]: ../struct.Volume.html
//!
//! Floor 5: operations built from transactions (`txn`). Each mutating operation validates under
//! the locks of all inodes it touches, then commits; a commit cannot fail. Locks of several inodes
//! are taken in order of inode number; after that, results of earlier lookups are checked again.

mod access;
mod allocate;
mod attributes;
mod budget;
mod extents;
pub(crate) mod flags;
mod handle;
mod listing;
mod locked;
mod make;
mod namespace;
mod observe;
mod orphans;
mod paths;
mod read;
mod remove;
mod rename;
mod room;
#[cfg(test)]
#[cfg(shuttle)]
#[path = "tests/schedules.rs"]
mod schedules;
mod sizes;
mod stats;
mod sync;
mod truncate;
mod workers;
mod write;
mod writeback;
mod xattr;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use observe::{Call, Observer, Outcome};

pub use stats::LEVELS;

pub use make::{MakeOptions, inspect, make, make_device};

pub use sync::Sequence;

pub use crate::txn::{FsyncRequest, Pressure};

#[doc(inline)]
pub use crate::types::{Attr, EntryRef, Fallocate, KillPrivileges, SeekTo, SetAttr, SetTime};

use crossbeam_utils::CachePadded;

use crate::device::{Access, Device, FaultCounts, FileDevice, HostFile, HostRoom};
use crate::error::{Error, Result};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK_SIZE, MAX_NAME};
use crate::fs::observe::Watch;
use crate::inode::Inode;
use crate::mechanism::Mechanism;
use crate::shard::Sharded;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use crate::sync::thread::JoinHandle;
use crate::txn::{Core, Limits, OpenMode};
use crate::types::{StatFs, Time, VolumeInfo};

/// How to open a volume.
#[derive(Debug, Clone)]
pub struct Options {
    /// The volume is not written. The log is replayed in memory. If the replay needs more than its
    /// share of the budget, it goes to an unlinked temporary file in [`std::env::temp_dir`]
    /// (`TMPDIR`), which holds the metadata that it changes and is freed when the volume is closed.
    /// That directory should not be a memory file system. Each read-only opening replays again.
    pub read_only: bool,
    /// The log is replayed. If false, the volume is opened read-only as its last merge left it,
    /// even if the log or the newest superblock is damaged: later changes are missing, and blocks
    /// that a later merge overwrote fail their checksum. For salvage, like XFS's `norecovery`.
    pub recovery: bool,
    /// Bytes that caches and unwritten changes may use.
    pub cache_budget: usize,
    /// A sync of the whole volume starts this long after the last one; `None`: only on request.
    pub durability_interval: Option<Duration>,
    /// Discard freed space on the device.
    pub discard: bool,
    /// Keep data that was just written in the cache. Useless if the kernel of the front end has a
    /// writeback cache and sends whole blocks.
    pub keep_written: bool,
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
    /// whose kernel keeps these times and sets them by [`FileSystem::setattr`].
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
            recovery: true,
            cache_budget: budget::default_budget(),
            durability_interval: Some(Duration::from_secs(5)),
            discard: true,
            keep_written: true,
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
    fn is_read_only(&self) -> bool {
        self.read_only || !self.recovery
    }
}

/// The file system of an open volume. `Send + Sync`.
///
/// Every call that returns the attributes of an inode found or created by name (`lookup`, `mknod`,
/// `mkdir`, `symlink`, `link`, `tmpfile`, `readdir_plus`) takes one use of that inode, to be
/// released by [`FileSystem::forget`]. An inode without links is removed with its last use.
pub struct FileSystem {
    core: Core,
    /// Files with unwritten data or attributes.
    files: Sharded<Arc<Inode>>,
    /// Bytes of unwritten pages.
    page_bytes: AtomicI64,
    /// Held by a call that found too little space, while it makes room.
    making_room: Mutex<()>,
    /// Held while the list of files is written back, so that no sync overtakes another.
    syncing: Mutex<()>,
    syncs: sync::Syncs,
    /// Held while a directory moves to another parent: no other thread changes the tree's shape.
    moving: Mutex<()>,
    /// Incremented when a directory is moved or removed: a cached directory path may be stale.
    shape: CachePadded<AtomicU64>,
    closed: AtomicBool,
    /// The result of closing.
    ended: Mutex<Option<Result<()>>>,
    keep_written: bool,
    content_times: bool,
    /// Nanoseconds that opening took, including replay and orphan removal.
    open_nanos: AtomicU64,
    watch: Option<Watch>,
    /// The last logged message about the volume file's name; `None` if it has its name.
    displaced: Mutex<Option<String>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl FileSystem {
    /// Opens the volume in a file or on a block device.
    ///
    /// # Errors
    /// No volume in it; the volume is damaged, incompatible or in use; a device failure.
    pub fn open(path: &Path, options: &Options) -> Result<Arc<FileSystem>> {
        let access = match options.is_read_only() {
            true => Access::ReadOnly,
            false => Access::ReadWrite,
        };
        let device = FileDevice::open(path, access)?;
        if access == Access::ReadWrite
            && let Some(room) = device.host_room()?.filter(|r| r.shortfall() > 0)
        {
            tracing::warn!("{}", room.warning(&path.display()));
        }
        Self::open_device(Arc::new(device), options)
    }

    /// Opens the volume on a device.
    ///
    /// # Errors
    /// As [`FileSystem::open`].
    pub fn open_device(device: Arc<dyn Device>, options: &Options) -> Result<Arc<FileSystem>> {
        let start = Instant::now();
        let core = Core::open(
            device,
            OpenMode {
                read_only: options.is_read_only(),
                recovery: options.recovery,
                discard: options.discard,
                limits: Limits::for_budget(options.cache_budget).under(options.pressure),
                seed: options.seed,
                kernel_clock: options.kernel_clock,
                ablated: options.ablated,
            },
        )?;
        let fs = Arc::new(FileSystem {
            core,
            files: Sharded::default(),
            page_bytes: AtomicI64::new(0),
            making_room: Mutex::default(),
            syncing: Mutex::new(()),
            syncs: sync::Syncs::default(),
            moving: Mutex::new(()),
            shape: CachePadded::default(),
            closed: AtomicBool::new(false),
            ended: Mutex::new(None),
            keep_written: options.keep_written,
            content_times: options.content_times,
            open_nanos: AtomicU64::new(0),
            watch: options.observer.clone().map(Watch::new),
            displaced: Mutex::default(),
            threads: Mutex::new(Vec::new()),
        });
        if !fs.is_read_only() {
            fs.finish_orphans()?;
            if options.workers {
                fs.start_workers(options.durability_interval)?;
            }
        }
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        fs.open_nanos.store(nanos, Ordering::Relaxed);
        Ok(fs)
    }

    /// Makes everything durable, merges it, and releases the device. Later calls fail, except this
    /// one, which returns the same result again. Dropping the last reference does the same, but
    /// cannot report errors, and a worker thread may hold the last one: then the volume is closed
    /// some time after the drop returned.
    ///
    /// # Errors
    /// A device failure, during the call or earlier. A file whose data could not be written back
    /// because a read failed: that data is lost, all other data is durable. [`Error::HostFull`] if
    /// there is no space for data that was not durable yet, which is then lost; the contents of the
    /// log are merged at the next opening.
    pub fn close(&self) -> Result<()> {
        let mut ended = self.ended.lock();
        if self.closed.swap(true, Ordering::AcqRel) {
            let broken = Error::Invalid("closing the volume was broken off");
            return ended.clone().unwrap_or(Err(broken));
        }
        let result = if self.core.read_only() {
            Ok(())
        } else {
            let written = self.write_back_all();
            let logged = self.core.force_all();
            let merged = self.core.merge();
            let flushed = merged.and_then(|()| self.core.storage().flush());
            written.and(match flushed {
                // The merge's writes are held in memory, and the log has all of the changes.
                Err(Error::HostFull { path, .. }) if logged.is_ok() => {
                    tracing::warn!(
                        "the file system that holds {path} is full: closed without a merge; all \
                         changes are durable in the log, and are merged when the volume is opened next"
                    );
                    Ok(())
                }
                other => other,
            })
        };
        self.stop_workers();
        self.core.storage().release();
        *ended = Some(result.clone());
        result
    }

    /// Closes the volume if it is open, for a drop, which cannot return a failure.
    pub(crate) fn close_on_drop(&self) {
        if !self.is_closed()
            && let Err(error) = self.close()
        {
            tracing::error!(%error, "closing the volume failed");
        }
    }

    /// The volume's identity and sizes.
    pub fn info(&self) -> VolumeInfo {
        let mut info = volume_info(&self.core.superblocks().newest());
        let used = self.core.journal().end().lsn - self.core.journal().ring().tail();
        info.log_used = used * BLOCK_SIZE as u64;
        info
    }

    /// Space of the volume, in blocks. Dirty data in memory counts as used, by an estimate.
    pub fn statfs(&self) -> StatFs {
        let geometry = self.core.geometry();
        let (free, available) = self.core.space_left();
        // An image cannot use more than the host has left.
        let host = self.core.space().host_left();
        let blocks = geometry.total_blocks - geometry.data_start();
        let available = available.min(host);
        StatFs {
            block_size: BLOCK_SIZE as u32,
            blocks,
            free,
            available,
            files: blocks.saturating_mul(INODES_PER_BLOCK),
            files_free: available.saturating_mul(INODES_PER_BLOCK),
            name_max: MAX_NAME as u32,
        }
    }

    /// Discards all free space, like fstrim(8), whether or not the volume was opened with
    /// `discard`. Returns the bytes discarded, some of which may have been discarded before. Merges
    /// first, which makes recently freed space usable.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not discard; a read-only volume; a device failure.
    pub fn trim(&self) -> Result<u64> {
        self.check_open()?;
        self.core.merge()?;
        let storage = self.core.storage();
        let guard = storage.guard("a call panicked");
        let trimmed = self.core.space().trim();
        guard.done();
        match storage.discards() {
            true => trimmed,
            false => Err(Error::Unsupported("the device does not discard")),
        }
    }

    /// Whether changes are refused because the volume was opened read-only.
    pub fn is_read_only(&self) -> bool {
        self.core.read_only()
    }

    /// Returns [`Error::Stopped`](crate::Error::Stopped) if a failure stopped all changes.
    pub(crate) fn check_running(&self) -> Result<()> {
        self.core.storage().check()
    }

    /// The failure that stopped all changes, if one did.
    pub fn failure(&self) -> Option<Error> {
        self.core.storage().failure().map(|e| (**e).clone())
    }

    /// Errors since the volume was opened, including those that stopped nothing.
    pub fn faults(&self) -> FaultCounts {
        self.core.storage().faults()
    }

    /// The volume's file and its current name; `None` for a block device. Logs once when the file
    /// was displaced, and once when it has its name again.
    pub fn host_file(&self) -> Option<HostFile> {
        let file = self.core.storage().host_file()?;
        let mut logged = self.displaced.lock();
        if *logged != file.displaced {
            logged.clone_from(&file.displaced);
            match &file.displaced {
                Some(text) => tracing::warn!("{text}"),
                None => tracing::info!("the volume's file has its name again"),
            }
        }
        drop(logged);
        Some(file)
    }

    /// Space left on the host; `None` for a block device, and where the host cannot report it.
    pub fn host_room(&self) -> Option<HostRoom> {
        self.core.storage().host_room().ok().flatten()
    }

    /// The inode with this number; fails once the volume is closed.
    pub(crate) fn inode(&self, ino: u64) -> Result<Arc<Inode>> {
        self.check_open()?;
        self.core.items().inode(ino)
    }

    /// A counter of moved and removed directories. A directory path that was walked before the
    /// counter grew must be walked again.
    pub(crate) fn shape(&self) -> u64 {
        self.shape.load(Ordering::Acquire)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn check_open(&self) -> Result<()> {
        match self.is_closed() {
            true => Err(Error::Invalid("the volume is closed")),
            false => Ok(()),
        }
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // No caller holds the volume, so workers cannot reach it and no thread may wait for them.
        self.core.signals().set_workers(false);
        self.close_on_drop();
    }
}

/// Estimated inodes per block: an empty file with its name takes about 256 bytes.
const INODES_PER_BLOCK: u64 = BLOCK_SIZE as u64 / 256;

/// Converts a superblock to its public form; sizes in bytes.
fn volume_info(superblock: &Superblock) -> VolumeInfo {
    let block = BLOCK_SIZE as u64;
    VolumeInfo {
        uuid: superblock.uuid,
        label: superblock.label_text(),
        created: Time {
            secs: superblock.created.get() as i64,
            nanos: 0,
        },
        size: superblock.total_blocks.get() * block,
        log_size: superblock.log_blocks.get() * block,
        generation: superblock.generation.get(),
        merged_seq: superblock.merged_seq.get(),
        log_used: (superblock
            .required_lsn
            .get()
            .saturating_sub(superblock.tail_lsn.get()))
            * block,
        features: [
            superblock.compatible.get(),
            superblock.ro_compatible.get(),
            superblock.incompatible.get(),
        ],
    }
}
