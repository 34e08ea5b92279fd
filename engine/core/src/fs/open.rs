//! Opening and closing a volume.
//!
//! Opening replays the log, opens a root, whose orphans it removes, drops what interrupted calls on
//! whole roots had prepared, and starts the workers. Closing
//! makes everything durable, merges it and releases the device, once, for all roots.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::fs::host_name::HostNameNotice;
use crate::fs::lifecycle::Lifecycle;
use crate::fs::observe::Watch;
use crate::fs::open_roots::OpenRoots;
use crate::fs::options::Options;
use crate::fs::reclaim::SpaceReclaimer;
use crate::fs::shares::Lender;
use crate::fs::sync::Syncs;
use crate::fs::times::ContentTimes;
use crate::fs::workers::Workers;
use crate::fs::writeback_list::PageMemory;
use crate::fs::{Engine, FileSystem};
use crate::txn::{Core, Limits, OpenMode};
use cairnfs_disk::device::{Access, Device, FileDevice};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::types::RemovedDamage;

fn limits(options: &Options) -> Limits {
    let limits = Limits::for_budget(options.cache_budget);
    let limits = if options.workers {
        limits
    } else {
        limits.alone()
    };
    limits.under(options.pressure)
}

fn mode(options: &Options) -> OpenMode {
    OpenMode {
        read_only: options.is_read_only(),
        recovery: options.recovery,
        damaged_log: options.damaged_log,
        cuts_damaged: false,
        discard: options.discard,
        limits: limits(options),
        seed: options.seed,
        kernel_clock: options.kernel_clock,
        ablated: options.ablated,
    }
}

impl FileSystem {
    /// Removes what is damaged in the index of a volume that is not open, from all branches, so that
    /// a check finds nothing of it any more. Whatever can be read stays: what has lost its name gets
    /// one in `/lost+found`. After a power cut the volume is as it was, or it is done; changes in
    /// the log may be merged.
    ///
    /// # Errors
    /// As [`FileSystem::open_device`]; damage outside the trees of files, or of the top node of main;
    /// no space for the new nodes.
    pub fn remove_damage(device: Arc<dyn Device>, options: &Options) -> Result<RemovedDamage> {
        let alone = Options {
            workers: false,
            ..options.clone()
        };
        let cuts = OpenMode {
            cuts_damaged: true,
            ..mode(&alone)
        };
        Core::open(device, cuts)?.remove_damage()
    }

    /// Opens the volume in a file or on a block device.
    ///
    /// # Errors
    /// No volume in it; the volume is damaged, incompatible or in use; a device failure.
    pub fn open(path: &Path, options: &Options) -> Result<Arc<FileSystem>> {
        let access = if options.is_read_only() {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        };
        let device = FileDevice::open(path, access)?;
        let device = if options.kernel_caches {
            device
        } else {
            device.cache_reads()
        };
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
        let core = Core::open(device, mode(options))?;
        let root = match &options.root {
            Some(name) => core.roots().named(name),
            None => Some(core.main_root()),
        };
        let none = || Error::NoSnapshot(options.root.clone().unwrap_or_default());
        let items = core.open_root(root.ok_or_else(none)?)?;
        if !items.is_head() && !core.read_only() {
            return Err(Error::Invalid(
                "a snapshot is never changed; open the volume read-only",
            ));
        }
        let engine = Arc::new(Engine {
            lifecycle: Lifecycle::default(),
            workers: Workers::default(),
            roots: OpenRoots::default(),
            pages: PageMemory::new(core.limits().pages, options.keep_written),
            lender: Lender::new(!options.kernel_caches),
            reclaimer: SpaceReclaimer::default(),
            yielding: super::yielding::Yielding::default(),
            turns: Arc::default(),
            times: ContentTimes::new(options.content_times),
            syncs: Syncs::default(),
            watch: options.observer.clone().map(Watch::new),
            host_name: HostNameNotice::default(),
            core,
        });
        let fs = Self::open_items(&engine, &items)?;
        fs.drop_unfinished()?;
        if !fs.core().read_only() && options.workers {
            fs.start_workers(options.durability_interval)?;
            // The workers do this again with every interval. Now nearly all memory is idle.
            fs.divide_memory();
        }
        fs.engine.lifecycle.opened(start.elapsed());
        Ok(fs)
    }

    /// Makes everything durable, merges it, and releases the device. Later calls fail, of all
    /// handles to any root of the volume, except this one, which returns the same result again.
    /// Dropping the last handle does the same, but cannot report errors, and a worker thread may
    /// hold the last one: then the volume is closed some time after the drop returned.
    ///
    /// # Errors
    /// A device failure, during the call or earlier. A file whose data could not be written back
    /// because a read failed: that data is lost, all other data is durable. [`Error::HostFull`] if
    /// there is no space for data that was not durable yet, which is then lost; the contents of the
    /// log are merged at the next opening.
    pub fn close(&self) -> Result<()> {
        self.close_with(|| ())
    }

    /// As [`Self::close`]; calls `last` when all is done and no other process can open the volume yet.
    ///
    /// # Errors
    /// As [`Self::close`].
    pub fn close_with(&self, last: impl FnOnce()) -> Result<()> {
        self.engine.lifecycle.close_once(|| {
            let result = if self.core().read_only() {
                Ok(())
            } else {
                self.finish()
            };
            self.stop_workers();
            last();
            self.core().storage().release();
            result
        })
    }

    /// Closes the volume if it is open, for a drop, which cannot return a failure.
    #[doc(hidden)]
    pub fn close_on_drop(&self) {
        if !self.engine.lifecycle.is_closed()
            && let Err(error) = self.close()
        {
            tracing::error!(%error, "closing the volume failed");
        }
    }

    /// Makes everything durable and merges it.
    fn finish(&self) -> Result<()> {
        let written = self.write_back_roots();
        let logged = self.core().force_all();
        let merged = self.core().merge();
        let flushed = merged.and_then(|()| self.core().storage().flush());
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
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        if self.mode.is_of_caller() {
            self.root.callers.remove();
        }
        if self.engine.lifecycle.drop_handle() {
            // No caller has a handle, and no thread may wait for workers.
            self.core().signals().set_workers(false);
            self.close_on_drop();
        }
    }
}
