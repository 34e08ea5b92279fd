//! Durability on request: of single files, of everything, of everything up to some point.

use smallvec::SmallVec;

use crate::error::Result;
use crate::fault::{InjectedFault, is_injected};
use crate::fs::FileSystem;
use crate::fs::locked::attrs;
use crate::fs::observe::Call;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::txn::FsyncRequest;

/// A point in the order of a volume's changes, while it is open: see
/// [`Volume::sequence`](crate::Volume::sequence). A later one is greater or equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(u64);

/// Syncs of everything, numbered as they begin.
#[derive(Default)]
pub(super) struct Syncs {
    begun: AtomicU64,
    /// The greatest number of those that have succeeded.
    done: AtomicU64,
    /// Held by who syncs up to a sequence, while others wait to share that.
    turn: Mutex<()>,
}

impl FileSystem {
    /// A point behind all changes that returned before this call. Costs next to nothing.
    pub fn sequence(&self) -> Sequence {
        // A sync that begins later finds them all.
        Sequence(self.syncs.begun.load(Ordering::Acquire) + 1)
    }

    /// Makes everything durable up to a sequence. Whoever needs the same shares one sync; nothing
    /// is left to do if one has begun since, whoever asked for it.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`].
    pub fn sync_through(&self, sequence: Sequence) -> Result<()> {
        if !self.is_durable(sequence) {
            let _turn = self.syncs.turn.lock();
            if !self.is_durable(sequence) {
                return self.sync();
            }
        }
        self.core.storage().check()
    }

    /// Whether everything up to a sequence is known to be durable.
    pub fn is_durable(&self, sequence: Sequence) -> bool {
        self.syncs.done.load(Ordering::Acquire) >= sequence.0
    }

    /// Makes a file or directory durable: data, attributes, extended attributes, every name it has
    /// and the directories that lead to it; of a directory also all its entries. With `data_only`
    /// all but the times of a file.
    ///
    /// # Errors
    /// The device's failure, now or earlier: then nothing is known of what was not yet durable. Or a
    /// failed read, which concerns this file alone: its data waits, and each fsync of it fails until
    /// one has written it.
    pub fn fsync(&self, ino: u64, data_only: bool) -> Result<()> {
        self.observed(Call::Fsync { ino, data_only }, || {
            self.sync_inodes(&[ino], data_only)
        })
    }

    /// Makes several files and directories durable, each as [`FileSystem::fsync`] does, with one
    /// flush for all.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`]; one that does not exist. What is wrong with one of them does not keep
    /// the others from becoming durable; the first error is told.
    pub fn fsync_all(&self, inodes: &[u64]) -> Result<()> {
        self.observed(Call::FsyncAll { inodes }, || {
            self.sync_inodes(inodes, false)
        })
    }

    /// The same, with an answer for each: what is wrong with one of them is said of that alone, a
    /// failure of what they share of all.
    pub fn fsync_each(&self, requests: &[FsyncRequest]) -> Vec<Result<()>> {
        if self.watch.is_some() {
            // Watched calls are made one at a time.
            let one = |request: &FsyncRequest| self.fsync(request.ino, request.data_only);
            return requests.iter().map(one).collect();
        }
        let guard = self.core.storage().guard("a call panicked");
        let _forcing = self.core.fsyncs_in_progress();
        let written: Vec<_> = requests.iter().map(|w| self.write_inode(w.ino)).collect();
        let ready = requests.iter().zip(&written).filter(|(_, w)| w.is_ok());
        let ready: Vec<FsyncRequest> = ready.map(|(request, _)| *request).collect();
        let forced = self.force(&ready);
        guard.done();
        let answer = |written: Result<()>| written.and_then(|()| forced.clone());
        written.into_iter().map(answer).collect()
    }

    /// Takes up the data of a file that waits to be written: an fsync of it has that much less to do.
    /// It is not durable then, and may come to the device only with the next record. While there is an
    /// observer this does nothing: what the device gets belongs to the calls that he sees.
    ///
    /// # Errors
    /// The device's failure, now or earlier; there is no such file.
    pub fn write_out(&self, ino: u64) -> Result<()> {
        if self.watch.is_some() {
            return Ok(());
        }
        let guard = self.core.storage().guard("a call panicked");
        let _forcing = self.core.fsyncs_in_progress();
        let written = self.write_inode(ino);
        guard.done();
        written
    }

    /// Does what [`FileSystem::write_out`] does, if that need not wait for the device; tells whether it
    /// did. It may wait still for room in the log, or for a write of the same file under way.
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
        if self.core.read_only() || is_injected(InjectedFault::FsyncWithoutPages) {
            return Ok(());
        }
        self.write_back_staged(&inode)
    }

    fn sync_inodes(&self, inodes: &[u64], data_only: bool) -> Result<()> {
        let _forcing = self.core.fsyncs_in_progress();
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
        match self.core.read_only() || requests.is_empty() {
            true => Ok(()),
            false => self.core.force_inodes(requests),
        }
    }

    /// Brings everything committed so far into the index and moves the log's tail. Workers do this
    /// when it is due; a program that drives the volume itself does it when it likes.
    ///
    /// # Errors
    /// The device's failure, damage in the index: both stop the volume.
    pub fn merge(&self) -> Result<()> {
        self.core.merge()
    }

    /// Makes everything durable. A file whose data cannot be written back, because a read failed that
    /// this needs, does not keep the others from becoming durable; its data waits for the next sync.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`]; the first that was met.
    pub fn sync(&self) -> Result<()> {
        self.observed(Call::Sync, || self.sync_all())
    }

    /// The number of the last sync of everything that succeeded.
    pub(super) fn syncs_done(&self) -> u64 {
        self.syncs.done.load(Ordering::Acquire)
    }

    pub(super) fn sync_all(&self) -> Result<()> {
        let number = self.syncs.begun.fetch_add(1, Ordering::AcqRel) + 1;
        if !self.core.read_only() {
            let written = match is_injected(InjectedFault::SyncWithoutPages) {
                true => Ok(()),
                false => self.write_back_all(),
            };
            let forced = self.core.force_all();
            let whole = self.core.storage().check_whole();
            written.and(forced).and(whole)?;
        }
        self.syncs.done.fetch_max(number, Ordering::AcqRel);
        Ok(())
    }
}
