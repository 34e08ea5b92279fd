//! The engine, by inode number: for fronts such as a FUSE daemon. Programs use [`Volume`].
//!
//! [`Volume`]: ../struct.Volume.html
//!
//! Floor 5: operations built from transactions (`txn`). Each mutating operation validates
//! under the locks of all inodes it touches, then commits; a commit cannot fail. Locks of several
//! inodes are taken in order of their numbers; what was looked up before is checked again then.

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
    /// The volume is not written. The log is replayed in memory; one that needs more than its part of
    /// the budget is recovered into an unlinked temporary file in [`std::env::temp_dir`] (`TMPDIR`),
    /// which holds the metadata that it changes and is freed when the volume is closed. It should
    /// not be a directory in memory. Each read-only opening recovers anew.
    pub read_only: bool,
    /// The log is replayed. Without, the volume is opened read-only as its last merge left it, even
    /// if log or newest superblock are damaged: what was changed since is missing, and what a later
    /// merge overwrote fails by its checksum. To save files, as with XFS's `norecovery`.
    pub recovery: bool,
    /// Bytes that caches and unwritten changes may take.
    pub cache_budget: usize,
    /// A sync of everything begins this long after the last; `None`: only on request.
    pub durability_interval: Option<Duration>,
    /// Tell the device of freed space.
    pub discard: bool,
    /// Keep data that was just written in the cache. Not for a front whose kernel has a writeback
    /// cache, and sends whole blocks.
    pub keep_written: bool,
    /// BlockRun worker threads. Without them pushes and merges run in the calling threads, which makes
    /// every device operation a function of the calls: a simulation wants that.
    pub workers: bool,
    /// Makes times and random numbers a function of this number and the calls; `None`: the
    /// system's. Two openings of one volume must not have the same.
    pub seed: Option<u64>,
    /// Takes times from the clock with which the kernel stamps files, so that they are in order with
    /// those of its file systems; else from the finest clock. A time costs a microsecond then.
    pub kernel_clock: bool,
    /// Changing a regular file's contents or size sets its mtime and ctime. Not for a front whose
    /// kernel keeps them, and sets them by [`FileSystem::setattr`].
    pub content_times: bool,
    /// A mechanism to be left out, to measure what it saves; every promise holds without it.
    pub ablated: Option<Mechanism>,
    /// Tighter limits for merges and replay, to try both with little data; `None`: those of the
    /// budget.
    pub pressure: Option<Pressure>,
    /// Who is told of every call that changes the volume or makes it durable.
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
    /// Whether every change is refused.
    fn is_read_only(&self) -> bool {
        self.read_only || !self.recovery
    }
}

/// The file system of an open volume. `Send + Sync`.
///
/// Every call that returns the attributes of an inode found or made by name (`lookup`, `mknod`,
/// `mkdir`, `symlink`, `link`, `tmpfile`, `readdir_plus`) takes one use of that inode, to be given
/// back by [`FileSystem::forget`]. An inode without links is removed with its last use.
pub struct FileSystem {
    core: Core,
    /// Files with unwritten data or attributes.
    files: Sharded<Arc<Inode>>,
    /// Bytes of unwritten pages.
    page_bytes: AtomicI64,
    /// Held by a call that found too little space and makes room.
    making_room: Mutex<()>,
    /// Held while the list of files is worked off, so that a sync cannot overtake another.
    syncing: Mutex<()>,
    syncs: sync::Syncs,
    /// Held while a directory moves to another parent: nobody else changes the shape of the tree.
    moving: Mutex<()>,
    /// Grows when a directory is moved or removed: a path of directories may lead elsewhere.
    shape: CachePadded<AtomicU64>,
    closed: AtomicBool,
    /// What closing answered.
    ended: Mutex<Option<Result<()>>>,
    keep_written: bool,
    content_times: bool,
    /// Nanoseconds that opening took, replay and orphans included.
    open_nanos: AtomicU64,
    watch: Option<Watch>,
    /// What was logged of the file's name.
    displaced: Mutex<Option<String>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl FileSystem {
    /// Opens the volume in a file or on a block device.
    ///
    /// # Errors
    /// No volume, a damaged or an incompatible one, one in use, a failing device.
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

    /// Makes everything durable, merges it, lets the device go. Later calls fail, but for this one,
    /// which answers the same again. Dropping the last reference does the same, but cannot report
    /// errors.
    ///
    /// # Errors
    /// The device's failure, now or earlier. A file whose data could not be written back, because a
    /// read failed: that data is lost, all other is durable. [`Error::HostFull`] if
    /// there is no space for what was not durable yet, which is lost then; what the log has is merged
    /// when the volume is opened next.
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
                // What the merge has written waits in memory, and the log has all of it.
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

    /// What is known of the volume without its files.
    pub fn info(&self) -> VolumeInfo {
        let mut info = volume_info(&self.core.superblock());
        let used = self.core.journal().end().lsn - self.core.journal().ring().tail();
        info.log_used = used * BLOCK_SIZE as u64;
        info
    }

    /// Space of the volume. What waits in memory counts as in use, at about what it will take.
    pub fn statfs(&self) -> StatFs {
        let geometry = self.core.geometry();
        let (free, available) = self.core.space_left();
        // An image is no larger than what its file system can still give.
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

    /// Discards all free space, as fstrim(8) does, whether or not the volume was opened to discard;
    /// gives the bytes, of which some may have been discarded before. What was freed lately becomes
    /// usable first.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not discard; a read-only volume; the device's
    /// failure.
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

    /// Whether changes are refused: the volume was opened so.
    pub fn is_read_only(&self) -> bool {
        self.core.read_only()
    }

    /// The failure that stopped all changes, if one did.
    pub fn failure(&self) -> Option<Error> {
        self.core.storage().failure().map(|e| (**e).clone())
    }

    /// Errors met since the volume was opened, also those that stopped nothing.
    pub fn faults(&self) -> FaultCounts {
        self.core.storage().faults()
    }

    /// The volume's file and its name now; `None` for a block device. That it was displaced is logged,
    /// once.
    pub fn host_file(&self) -> Option<HostFile> {
        let file = self.core.storage().host_file()?;
        let mut told = self.displaced.lock();
        if *told != file.displaced {
            told.clone_from(&file.displaced);
            match &file.displaced {
                Some(text) => tracing::warn!("{text}"),
                None => tracing::info!("the volume's file has its name again"),
            }
        }
        drop(told);
        Some(file)
    }

    /// What the file system that holds the volume's file has left; `None` for a block device, and where
    /// that cannot be asked.
    pub fn host_room(&self) -> Option<HostRoom> {
        self.core.storage().host_room().ok().flatten()
    }

    /// The inode of a number, while the volume is open.
    pub(crate) fn inode(&self, ino: u64) -> Result<Arc<Inode>> {
        self.check_open()?;
        self.core.inode(ino)
    }

    /// The count of events that change what a path of directories leads to. One walked before it grew
    /// is to be walked again.
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
        // They cannot reach a volume that nobody holds, so nobody may wait for what they would do.
        self.core.signals().set_workers(false);
        if !self.is_closed()
            && let Err(error) = self.close()
        {
            tracing::error!(%error, "closing the volume failed");
        }
    }
}

/// What a superblock tells people.
/// Inodes for which a block has space: an empty file with its name takes about 256 bytes.
const INODES_PER_BLOCK: u64 = BLOCK_SIZE as u64 / 256;

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
