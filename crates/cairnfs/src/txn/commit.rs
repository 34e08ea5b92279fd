//! Reservation and commit of a transaction.
//!
//! A reservation is made while holding no lock of an inode's state, and covers the worst case. A
//! commit is made under the locks of all inodes it changes and cannot fail: it formats each changed
//! item into its slot's vector, adds the new vectors to the open context, and gives back the unused
//! part of the reservation. Afterwards, with all locks dropped, [`Core::throttle`] holds back
//! committers that are faster than push or merge.

use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::device::{DataStamp, Guard};
use crate::error::{Error, Result};
use crate::fault::{self, InjectedFault};
use crate::format::BLOCK_SIZE;
use crate::format::key::Kind;
use crate::inode::{Inode, InodeState};
use crate::journal::LogSpaceReclaimer;
use crate::journal::cil::{Context, Filled, Hold};
use crate::journal::vector::{LogVector, charge_for, growth_apart};
use crate::mechanism::Mechanism;
use crate::space::{BlockRun, Class, Delayed, Space, growth_units};
use crate::sync::atomic::Ordering;
use crate::sync::thread_local;
use crate::txn::Core;
use crate::txn::change::Changes;
use crate::txn::reservation_cache::{Credit, Done};

/// The worst case of a transaction.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    /// Log bytes, as counted by [`charge_for`].
    pub log: i64,
    /// Units by which the index may grow.
    pub units: u64,
    /// The class that decides which space reserve it may use for index growth.
    pub class: Class,
}

impl Need {
    /// The need of `puts` items with values of up to `len` bytes in total, and of `deletes`
    /// deletions.
    pub fn items(puts: usize, len: usize, deletes: usize) -> Self {
        let log = puts as i64 * charge_for(0) + charge_for(len) + deletes as i64 * charge_for(8);
        Self {
            log,
            units: growth_units(log + growth_apart(len)).max(1),
            class: Class::Ordinary,
        }
    }

    /// The same for delayed data, whose index growth was reserved when the data was accepted.
    pub fn delayed(self) -> Self {
        Self {
            units: 0,
            class: Class::Merge,
            ..self
        }
    }

    /// The same, with access to the reserve for deletions.
    pub fn deleting(self) -> Self {
        let unfunded = InjectedFault::DeletionsUnfunded;
        let class = fault::or(unfunded, || Class::Delete, || Class::Ordinary);
        Self { class, ..self }
    }
}

/// A thread yields to an fsync at every this many of its commits.
const ASIDE_EVERY: u32 = 8;

thread_local! {
    /// Commits of this thread while an fsync was in progress.
    static COMMITS: Cell<u32> = const { Cell::new(0) };
}

/// Log and index space that is reserved for a transaction.
pub struct Reservation<'a> {
    core: &'a Core,
    credit: Credit,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.core.give_back(self.credit);
    }
}

/// Result of a commit, to be passed to [`Core::throttle`].
#[derive(Debug, Clone, Copy, Default)]
#[must_use = "a committer that is not throttled escapes the limits"]
pub struct Receipt {
    /// The context the change belongs to; it is durable once that context is.
    pub seq: u64,
    filled: Filled,
}

impl Core {
    /// Reserves the worst case of a transaction; waits for a merge if the log is full.
    ///
    /// # Errors
    /// No space for the growth of the index; a read-only or failed volume.
    pub fn reserve(&self, need: Need) -> Result<Reservation<'_>> {
        self.check_changeable()?;
        self.check_held(need.class)?;
        let credit = Credit {
            log: need.log,
            units: need.units,
        };
        if !self.reservation_caches.take(credit) && !self.take_with_batch(credit)? {
            self.take_exactly(credit, need.class)?;
        }
        Ok(Reservation { core: self, credit })
    }

    /// Returns an error if the volume is read-only or has failed.
    pub fn check_changeable(&self) -> Result<()> {
        match self.read_only {
            true => Err(Error::ReadOnly),
            false => self.storage.check(),
        }
    }

    /// While writes are held because the host has no space: refuses requests that would add more.
    /// Deletions may go on until the memory limit is reached; writeback may go on because its data
    /// was accepted before.
    fn check_held(&self, class: Class) -> Result<()> {
        if !self.storage.is_holding() {
            return Ok(());
        }
        let refused = match class {
            Class::Ordinary | Class::Rewrite => true,
            Class::Delete => self.dirty_bytes() >= self.limits.dirty_hard,
            Class::Merge => false,
        };
        match refused {
            true => self.storage.retry_held(),
            false => Ok(()),
        }
    }

    /// Takes `need`, and a batch for the next reservations from the cache, if there is plenty.
    /// Returns whether there was.
    fn take_with_batch(&self, need: Credit) -> Result<bool> {
        let batch = self.reservation_caches.batch();
        let (log, units) = (need.log + batch.log, need.units + batch.units);
        if !self.journal.ring().try_take(log) {
            return Ok(false);
        }
        let reserved = self.space.reserve(0, units, Class::Ordinary);
        if !matches!(reserved, Ok(true)) {
            self.journal.ring().give(log);
            return reserved;
        }
        self.put_back_reservation(batch, &Done::default());
        Ok(true)
    }

    fn take_exactly(&self, need: Credit, class: Class) -> Result<()> {
        self.journal.reserve(need.log, self)?;
        let reserved = self.reserve_space(0, need.units, class);
        if reserved.is_err() {
            self.journal.ring().give(need.log);
        }
        reserved
    }

    fn give_back(&self, credit: Credit) {
        if credit.log != 0 {
            self.journal.ring().give(credit.log);
        }
        self.space.unreserve(0, credit.units);
    }

    /// Gives back the credit of all reservation caches, which no transaction has reserved.
    pub fn sweep_reservation_caches(&self) {
        self.give_back(self.reservation_caches.sweep());
    }

    fn put_back_reservation(&self, rest: Credit, done: &Done) {
        let (surplus, memory) = self.reservation_caches.put_back(rest, done);
        self.give_back(surplus);
        if memory != 0 {
            self.dirty_bytes.fetch_add(memory, Ordering::Relaxed);
        }
    }

    /// Reserves data blocks and index units, using the reservation caches' credit if there is too
    /// little. The caller holds no lock of an inode's state.
    ///
    /// # Errors
    /// No space in the volume or on the host; a failed volume.
    pub fn reserve_space(&self, blocks: u64, units: u64, class: Class) -> Result<()> {
        let refusal = || self.space.refusal(blocks, units, class);
        self.reserve_with_sweep(class, |space| space.reserve(blocks, units, class), refusal)
    }

    /// The same for delayed data, which waits in memory.
    ///
    /// # Errors
    /// As [`Self::reserve_space`].
    pub fn reserve_delayed(&self, want: Delayed, class: Class) -> Result<()> {
        let refusal = || self.space.refusal(want.blocks, 0, class);
        self.reserve_with_sweep(class, |space| space.reserve_delayed(want, class), refusal)
    }

    fn reserve_with_sweep(
        &self,
        class: Class,
        attempt: impl Fn(&Space) -> Result<bool>,
        refusal: impl Fn() -> Error,
    ) -> Result<()> {
        self.storage.check()?;
        self.check_held(class)?;
        if attempt(&self.space)? {
            return Ok(());
        }
        self.sweep_reservation_caches();
        match attempt(&self.space)? {
            true => Ok(()),
            false => Err(refusal()),
        }
    }

    /// Free blocks, and those of them that ordinary requests may have, once all delayed data is
    /// placed and all freed blocks are merged.
    pub fn space_left(&self) -> (u64, u64) {
        self.sweep_reservation_caches();
        let space = &self.space;
        let pending = self.pending_free.load(Ordering::Acquire).max(0) as u64;
        let (waiting, committed) = space.delayed_growth();
        let growth = waiting + committed + self.reservation_caches.growth() as u64;
        let taken = space.reserved().0 + growth.div_ceil(BLOCK_SIZE as u64);
        let given = pending + space.trimming() + self.shrinkage() / BLOCK_SIZE as u64;
        let all = self.geometry.total_blocks - self.geometry.data_start();
        let free = (space.free_blocks() + given).saturating_sub(taken).min(all);
        let kept = space.kept_blocks();
        // Partial units may be free, but no file can be created without a whole one.
        let whole = given > 0 || growth > 0 || space.can_grow().unwrap_or(false);
        let available = free.saturating_sub(kept);
        (free, if whole { available } else { 0 })
    }

    /// Merges if that can free space. Returns whether it merged.
    ///
    /// # Errors
    /// As [`Self::merge`].
    pub fn merge_for_space(&self) -> Result<bool> {
        let yields = self.pending_free.load(Ordering::Acquire) > 0
            || self.shrinkage() > 0
            || self.reservation_caches.grows()
            || self.space.delayed_growth().1 > 0
            || self.sealed_bytes.load(Ordering::Acquire) > 0;
        if yields {
            self.merge()?;
        }
        Ok(yields)
    }

    /// Begins to commit. The caller holds the locks of all inodes it will change, and takes no
    /// other inode lock before [`Commit::finish`].
    pub fn commit(&self) -> Commit<'_> {
        Commit {
            core: self,
            hold: self.journal.cil().hold(),
            vectors: SmallVec::new(),
            freed: SmallVec::new(),
            delta: 0,
            done: Done::default(),
            delayed: None,
            unfinished: None,
        }
    }

    /// Holds back a committer that is faster than push or merge. The caller holds no lock.
    ///
    /// # Errors
    /// The failure of a push or merge that was waited for.
    pub fn throttle(&self, receipt: Receipt) -> Result<()> {
        self.yield_to_fsync();
        self.enforce_limits(receipt)
    }

    /// The same without yielding, for writeback, on which fsyncs wait.
    ///
    /// # Errors
    /// As [`Self::throttle`].
    pub fn enforce_limits(&self, receipt: Receipt) -> Result<()> {
        match self.wait_for_limits(receipt) {
            // This change is committed already; the next one is refused.
            Err(Error::HostFull { .. }) => Ok(()),
            other => other,
        }
    }

    fn wait_for_limits(&self, receipt: Receipt) -> Result<()> {
        self.journal.throttle(receipt.filled, receipt.seq, self)?;
        if self.current_bytes() < self.limits.dirty_soft
            && self.journal.ring().free() > self.journal.ring().capacity() / 2
        {
            return Ok(());
        }
        self.press()
    }

    /// Yields the processor if an fsync is in progress. The fsync and the thread that serves the
    /// device sleep and wake several times; each time they would wait until a thread that never
    /// sleeps has used up its time slice.
    pub fn yield_to_fsync(&self) {
        if self.fsyncs_in_progress.load(Ordering::Relaxed) == 0 || !self.signals.has_workers() {
            return;
        }
        let turn = COMMITS.with(|commits| {
            commits.set(commits.get().wrapping_add(1));
            commits.get()
        });
        if turn.is_multiple_of(ASIDE_EVERY) {
            crate::sync::thread::yield_now();
        }
    }

    /// Notes that the calling thread has waited for the device, so that it need not yield soon.
    pub(super) fn has_waited() {
        COMMITS.with(|commits| commits.set(0));
    }

    /// Registers an fsync in progress until the returned value is dropped.
    pub fn fsyncs_in_progress(&self) -> FsyncInProgress<'_> {
        self.fsyncs_in_progress.fetch_add(1, Ordering::Relaxed);
        FsyncInProgress(self)
    }

    /// Whether data may be staged, that is, written together with the log record that refers to it.
    pub fn stages(&self) -> bool {
        self.storage.stages() && !self.journal.is_ablated(Mechanism::OneFlush)
    }

    /// Number of fsyncs in progress.
    pub fn forced(&self) -> u64 {
        self.fsyncs_in_progress.load(Ordering::Relaxed)
    }

    /// Starts a merge, or waits for one if too much memory is held.
    fn press(&self) -> Result<()> {
        if !self.signals.has_workers() {
            let seen = self.merges();
            // A merge that was running at the call and has ended since serves this caller, too.
            drop(self.merging.lock());
            return if self.merges() == seen {
                self.merge()
            } else {
                Ok(())
            };
        }
        self.signals.want_merge();
        match self.dirty_bytes() < self.limits.dirty_hard {
            true => Ok(()),
            false => self.wait_for_memory(),
        }
    }

    /// Waits until merges have released so much that the dirty sets are within their limit, and at
    /// most for two merges: the first may have begun before the caller's changes.
    fn wait_for_memory(&self) -> Result<()> {
        let (ring, merges) = (self.journal.ring(), self.merges());
        loop {
            self.storage.check()?;
            let seen = ring.wakes();
            let enough = || {
                self.dirty_bytes() < self.limits.dirty_hard
                    || self.storage.is_holding()
                    || self.merges() >= merges + 2
                    || !self.signals.has_workers()
            };
            if enough() {
                return Ok(());
            }
            self.signals.want_merge();
            ring.wait(seen, || enough() || self.storage.failure().is_some());
        }
    }
}

/// An fsync in progress.
pub struct FsyncInProgress<'a>(&'a Core);

impl Drop for FsyncInProgress<'_> {
    fn drop(&mut self) {
        self.0.fsyncs_in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LogSpaceReclaimer for Core {
    fn sweep(&self) {
        self.sweep_reservation_caches();
    }

    fn merge(&self) -> Result<()> {
        Core::merge(self)
    }

    fn is_starved(&self) -> bool {
        self.starved.load(Ordering::Acquire)
    }
}

/// A transaction being committed.
pub struct Commit<'a> {
    pub(super) core: &'a Core,
    hold: Hold<'a>,
    pub(super) vectors: SmallVec<[Arc<LogVector>; 8]>,
    freed: SmallVec<[BlockRun; 4]>,
    /// Log bytes that its changes are charged.
    pub(super) delta: i64,
    pub(super) done: Done,
    /// Bytes of growth that delayed data had reserved, and the bytes that its items need.
    delayed: Option<(u64, u64)>,
    /// Set from the first change until `finish`: dirty sets hold changes that no context has yet.
    pub(super) unfinished: Option<Guard<'a>>,
}

impl<'a> Commit<'a> {
    /// Sequence of the context.
    pub fn seq(&self) -> u64 {
        self.hold.seq
    }

    /// Starts changes of an inode's items.
    pub fn of<'c, 'i>(
        &'c mut self,
        inode: &'i Arc<Inode>,
        state: &'c mut InodeState,
    ) -> Changes<'c, 'a, 'i> {
        Changes::new(self, inode, state)
    }

    /// As [`Changes::put`].
    pub fn put(
        &mut self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        kind: Kind,
        offset: u64,
        value: &[u8],
        existed: bool,
    ) {
        self.of(inode, state).put(kind, offset, value, existed);
    }

    /// As [`Changes::delete`].
    pub fn delete(
        &mut self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        kind: Kind,
        offset: u64,
        note: &[u8],
        existed: bool,
    ) {
        self.of(inode, state).delete(kind, offset, note, existed);
    }

    /// As [`Changes::put_inode`].
    pub fn put_inode(&mut self, inode: &Arc<Inode>, state: &mut InodeState) {
        self.of(inode, state).put_inode();
    }

    /// Deletes the inode item and marks the inode as deleted.
    pub fn delete_inode(&mut self, inode: &Arc<Inode>, state: &mut InodeState) {
        let existed = state.persisted;
        self.delete(inode, state, Kind::Inode, 0, &[], existed);
        inode.set_ready(false);
        state.attrs = None;
        state.loaded = true;
        state.uncommitted = false;
    }

    /// Frees data blocks. They become usable once a merge has taken this context.
    pub fn free(&mut self, run: BlockRun) {
        if self.core.space.wrongly_reuses_blocks(run) {
            return;
        }
        self.core
            .pending_free
            .fetch_add(run.len as i64, Ordering::AcqRel);
        self.freed.push(run);
    }

    /// Declares that the items belong to delayed data that had `reserved` bytes of growth reserved,
    /// and that they grow the index by at most `grown` bytes.
    pub fn uses_delayed(&mut self, reserved: u64, grown: u64) {
        self.delayed = Some((reserved, grown));
    }

    /// Declares that changes of this inode refer to data written with `stamp`: `runs` of device
    /// blocks with their checksums. The data is made durable before the changes are logged, or
    /// checked when they are replayed.
    pub fn needs_data(
        &mut self,
        inode: &Inode,
        stamp: &DataStamp,
        runs: impl Iterator<Item = (u64, Vec<u32>)>,
    ) {
        self.hold.needs_data(stamp.get());
        inode.log_deps().enter(self.hold.seq).wrote(stamp, runs);
    }

    /// The open context.
    pub(super) fn hold(&self) -> &Context {
        &self.hold
    }

    /// Adds the changes to the open context and gives back the unused part of the reservation.
    pub fn finish(self, mut reservation: Reservation<'_>) -> Receipt {
        let Commit {
            core,
            hold,
            mut vectors,
            mut freed,
            delta,
            mut done,
            delayed,
            unfinished,
        } = self;
        let reserved = &mut reservation.credit;
        assert!(
            delta <= reserved.log,
            "a transaction needs {delta} log bytes, {} were reserved",
            reserved.log
        );
        done.counts.commits = 1;
        let filled = hold.insert(&mut vectors, &mut freed, delta);
        reserved.log -= delta;
        if let Some((waited, grown)) = delayed {
            done.growth = 0;
            core.space.commit_delayed(waited, grown);
        }
        core.put_back_reservation(std::mem::take(reserved), &done);
        if let Some(guard) = unfinished {
            guard.done();
        }
        Receipt {
            seq: hold.seq,
            filled,
        }
    }
}
