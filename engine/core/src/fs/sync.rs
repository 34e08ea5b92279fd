//! Durability: of single files, of the whole volume, of all changes up to a sequence.

use smallvec::SmallVec;

use crate::fs::FileSystem;
use crate::fs::locked::attrs;
use crate::fs::observe::Call;
use crate::txn::FsyncRequest;
use cairnfs_disk::error::Result;
use cairnfs_disk::fault::{self, InjectedFault, is_injected};
use cairnfs_disk::group_commit::Watermark;
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};

/// A point in the order of an open volume's changes: see
/// [`Volume::sequence`](crate::Volume::sequence). Later sequences are greater or equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(u64);

/// Syncs of the whole volume, numbered in the order in which they begin.
#[derive(Default)]
pub(super) struct Syncs {
    begun: AtomicU64,
    /// The largest number of a successful sync.
    done: Watermark,
}

impl Sequence {
    /// The sequence with this number, from [`as_u64`](Self::as_u64). Any number is safe: one that
    /// the volume never returned costs at most a sync.
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// Its number, for callers in other languages. It means something only to the open volume that
    /// returned it.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl FileSystem {
    /// A sequence after all changes that returned before this call. Costs one atomic load.
    pub fn sequence(&self) -> Sequence {
        // Every sync that begins later includes these changes.
        Sequence(self.engine.syncs.begun.load(Ordering::Acquire) + 1)
    }

    /// Makes everything up to a sequence durable. Concurrent callers share one sync; returns at
    /// once if any sync that began after the sequence has succeeded.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`].
    pub fn sync_through(&self, sequence: Sequence) -> Result<()> {
        // One sync is enough for a sequence of another volume, which may be any number.
        let mark = sequence.min(self.sequence());
        self.engine.syncs.done.reach(mark.0, || self.sync())?;
        self.core().storage().check()
    }

    /// Whether everything up to a sequence is known to be durable.
    pub fn is_durable(&self, sequence: Sequence) -> bool {
        self.engine.syncs.done.has_reached(sequence.0)
    }

    /// Makes a file or directory durable: data, attributes, extended attributes, all its names and
    /// the directories on the path to it; for a directory also all its entries. With `data_only`
    /// everything except a file's times.
    ///
    /// # Errors
    /// A device failure, during the call or earlier: then it is unknown which of the changes that
    /// were not durable have been written. Or a failed read, which affects only this file: its data
    /// stays dirty, and each fsync of it fails until one has written it.
    pub fn fsync(&self, ino: u64, data_only: bool) -> Result<()> {
        self.observed(Call::Fsync { ino, data_only }, || {
            self.sync_inodes(&[ino], data_only)
        })
    }

    /// Makes several files and directories durable, each as [`FileSystem::fsync`] does, with one
    /// flush for all.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`]; an inode that does not exist. An error of one inode does not stop
    /// the others from becoming durable; the first error is returned.
    pub fn fsync_all(&self, inodes: &[u64]) -> Result<()> {
        self.observed(Call::FsyncAll { inodes }, || {
            self.sync_inodes(inodes, false)
        })
    }

    /// Like [`FileSystem::fsync_all`], with one result for each request: an error of one inode is
    /// returned for it alone, a failure of the shared log write or flush for all.
    pub fn fsync_each(&self, requests: &[FsyncRequest]) -> Vec<Result<()>> {
        if self.engine.watch.is_some() {
            // Watched calls are made one at a time.
            let one = |request: &FsyncRequest| self.fsync(request.ino, request.data_only);
            return requests.iter().map(one).collect();
        }
        let guard = self.core().storage().guard("a call panicked");
        let _forcing = self.core().fsyncs().begin();
        let written: Vec<_> = requests.iter().map(|w| self.write_inode(w.ino)).collect();
        let ready = requests.iter().zip(&written).filter(|(_, w)| w.is_ok());
        let ready: Vec<FsyncRequest> = ready.map(|(request, _)| *request).collect();
        let forced = self.force(&ready);
        guard.done();
        let answer = |written: Result<()>| written.and_then(|()| forced.clone());
        written.into_iter().map(answer).collect()
    }

    /// Writes back a file's dirty data, so that a later fsync has less to do. The data is not
    /// durable afterwards, and may be staged until the next log record. Does nothing if there is an
    /// observer, because all device operations must belong to calls that the observer sees.
    ///
    /// # Errors
    /// A device failure, during the call or earlier; no such file.
    pub fn write_out(&self, ino: u64) -> Result<()> {
        if self.engine.watch.is_some() {
            return Ok(());
        }
        let guard = self.core().storage().guard("a call panicked");
        let _forcing = self.core().fsyncs().begin();
        let written = self.write_inode(ino);
        guard.done();
        written
    }

    /// Like [`FileSystem::write_out`], if it need not wait for the device; returns whether it did.
    /// It may still wait for space in the log, or for another write of the same file.
    ///
    /// # Errors
    /// As [`FileSystem::write_out`].
    pub fn write_out_at_once(&self, ino: u64) -> Result<bool> {
        let little = self.has_little_data(&*self.inode(ino)?);
        if little {
            self.write_out(ino)?;
        }
        Ok(little)
    }

    fn write_inode(&self, ino: u64) -> Result<()> {
        let inode = self.inode(ino)?;
        attrs(&inode.read())?;
        self.check_current()?;
        if self.is_read_only() || is_injected(InjectedFault::FsyncWithoutPages) {
            return Ok(());
        }
        self.write_back_staged(&inode)?;
        // A branch that was replaced meanwhile has forgotten what was not committed.
        self.check_current()
    }

    fn sync_inodes(&self, inodes: &[u64], data_only: bool) -> Result<()> {
        let _forcing = self.core().fsyncs().begin();
        let mut written = Ok(());
        let mut ready = SmallVec::<[FsyncRequest; 2]>::new();
        for ino in inodes.iter().copied() {
            match self.write_inode(ino) {
                Ok(()) => ready.push(FsyncRequest { ino, data_only }),
                Err(e) => written = written.and(Err(e)),
            }
        }
        let forced = self.force(&ready);
        written.and(forced)
    }

    fn force(&self, requests: &[FsyncRequest]) -> Result<()> {
        if self.is_read_only() || requests.is_empty() {
            Ok(())
        } else {
            self.core().force_inodes(self.items(), requests)
        }
    }

    /// Merges everything committed so far into the index and moves the log tail. Workers do this
    /// when it is due; a caller that opened the volume without workers decides when.
    ///
    /// # Errors
    /// A device failure, damage in the index: both stop the volume.
    pub fn merge(&self) -> Result<()> {
        self.core().merge()
    }

    /// Makes everything durable, in all roots. If a file cannot be written back because a read
    /// failed, its data stays dirty for the next sync, and all other files become durable.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`]; the first error.
    pub fn sync(&self) -> Result<()> {
        self.observed(Call::Sync, || self.sync_all())
    }

    /// As [`FileSystem::sync`], and then states on the device that everything is durable: damage to
    /// the end of the log, which without that cannot be told from an end that was never durable, is
    /// recognised from then on. Costs a write and a flush more, if anything became durable.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn sync_stated(&self) -> Result<()> {
        self.observed(Call::Sync, || {
            self.sync_all()?;
            self.core().state_durable()
        })
    }

    /// The number of the last successful sync of the whole volume.
    pub(super) fn syncs_done(&self) -> u64 {
        self.engine.syncs.done.reached()
    }

    pub(super) fn sync_all(&self) -> Result<()> {
        let number = self.engine.syncs.begun.fetch_add(1, Ordering::AcqRel) + 1;
        if !self.core().read_only() {
            let written =
                fault::unless(InjectedFault::SyncWithoutPages, || self.write_back_roots());
            self.engine.roots.retire();
            let forced = self.core().force_all();
            let whole = self.core().storage().check_whole();
            written.and(forced).and(whole)?;
        }
        self.engine.syncs.done.raise(number);
        Ok(())
    }
}
