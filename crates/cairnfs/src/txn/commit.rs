//! Reservation and commit of a transaction.
//!
//! A reservation is made holding no lock of an inode's state and covers the worst case. A commit is
//! made under the locks of all inodes it changes and cannot fail: it formats each changed item into
//! its slot's vector, adds the new vectors to the open context, and gives back what was reserved
//! too much. Afterwards, with all locks dropped, [`Core::settle`] holds back committers that
//! outrun push or merge.

use std::cell::Cell;
use std::mem::offset_of;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::deliberate::{Deliberate, happens};
use crate::device::{DataStamp, Guard};
use crate::error::{Error, Result};
use crate::format::NODE_SIZE;
use crate::format::item::RawInode;
use crate::format::key::{Key, Kind, MAIN_ROOT};
use crate::inode::dirty::Slot;
use crate::inode::{Inode, InodeState};
use crate::journal::Relief;
use crate::journal::cil::{Context, Filled, Hold};
use crate::journal::vector::{Change, LogVector, charge_for};
use crate::mechanism::Mechanism;
use crate::space::{Class, Run};
use crate::sync::atomic::Ordering;
use crate::sync::thread_local;
use crate::txn::Core;
use crate::txn::lanes::{Credit, Done};
use crate::values::Value;

/// The most a transaction may need.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    /// Bytes of log, as [`charge_for`] counts.
    pub log: i64,
    /// Which reserve of space it may use for what the index grows.
    pub class: Class,
}

impl Need {
    /// A need of `puts` items with values of up to `len` bytes together, and of `deletes`.
    pub fn items(puts: usize, len: usize, deletes: usize) -> Self {
        Self {
            log: puts as i64 * charge_for(0) + charge_for(len) + deletes as i64 * charge_for(8),
            class: Class::Ordinary,
        }
    }

    /// The same, from the reserve for deletions.
    pub fn deleting(self) -> Self {
        Self {
            class: Class::Delete,
            ..self
        }
    }
}

/// Commits from one time that a thread steps aside for an fsync to the next.
const ASIDE_EVERY: u32 = 8;

thread_local! {
    /// Commits of this thread beside an fsync.
    static COMMITS: Cell<u32> = const { Cell::new(0) };
}

/// Bytes of memory that an inode takes, about, beside its items.
const INODE_MEMORY: i64 = size_of::<Inode>() as i64 + 64;

/// Space of log and index set aside for a transaction.
pub struct Reservation<'a> {
    core: &'a Core,
    credit: Credit,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.core.give_back(self.credit);
    }
}

/// What a commit tells [`Core::settle`].
#[derive(Debug, Clone, Copy, Default)]
#[must_use = "a committer that is not settled escapes the limits"]
pub struct Receipt {
    /// The context the change belongs to; it is durable once that context is.
    pub seq: u64,
    filled: Filled,
}

/// Index nodes that `bytes` of new items may take in the end: leaves half full, and their parents.
pub(super) fn growth_units(bytes: i64) -> u64 {
    (bytes.max(0) as u64 * 5 / 2).div_ceil(NODE_SIZE as u64)
}

/// Whether two inode items are equal but for the times of access and change.
fn differ_in_times(old: &[u8], new: &[u8]) -> bool {
    let times = offset_of!(RawInode, atime)..offset_of!(RawInode, btime);
    old.get(..times.start) == new.get(..times.start) && old.get(times.end..) == new.get(times.end..)
}

impl Core {
    /// Sets aside what a transaction may need; waits for a merge if the log is full.
    ///
    /// # Errors
    /// No space for what the index may grow; a read-only or failed volume.
    pub fn reserve(&self, need: Need) -> Result<Reservation<'_>> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        self.storage.check()?;
        let credit = Credit {
            log: need.log,
            units: growth_units(need.log).max(1),
        };
        if !self.lanes.take(credit) && !self.take_with_batch(credit)? {
            self.take_exactly(credit, need.class)?;
        }
        Ok(Reservation { core: self, credit })
    }

    /// Takes what is needed, and a batch for the lane's next reservations, if there is plenty.
    fn take_with_batch(&self, need: Credit) -> Result<bool> {
        let batch = self.lanes.batch();
        let (log, units) = (need.log + batch.log, need.units + batch.units);
        if !self.journal.ring().try_take(log) {
            return Ok(false);
        }
        let reserved = self.space.reserve(0, units, Class::Ordinary);
        if !matches!(reserved, Ok(true)) {
            self.journal.ring().give(log);
            return reserved;
        }
        self.settle_lane(batch, &Done::default());
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

    /// Gives back the credit of all lanes, which nobody has reserved yet.
    pub fn sweep_lanes(&self) {
        self.give_back(self.lanes.sweep());
    }

    fn settle_lane(&self, rest: Credit, done: &Done) {
        let (surplus, memory) = self.lanes.settle(rest, done);
        self.give_back(surplus);
        if memory != 0 {
            self.dirty_bytes.fetch_add(memory, Ordering::Relaxed);
        }
    }

    /// Sets aside data blocks and index units; merges before it says that there is no space, if
    /// that can yield any. The caller holds no lock of an inode's state.
    ///
    /// # Errors
    /// No space; a failed volume.
    pub fn reserve_space(&self, blocks: u64, units: u64, class: Class) -> Result<()> {
        self.storage.check()?;
        if self.space.reserve(blocks, units, class)? {
            return Ok(());
        }
        self.sweep_lanes();
        if self.space.reserve(blocks, units, class)? {
            return Ok(());
        }
        // What must not fail waits for those whose promises are on their way back.
        let rounds = if class == Class::Merge { 200 } else { 2 };
        for round in 0..rounds {
            self.storage.check()?;
            if round >= 2 {
                self.journal.ring().pause();
            }
            let yields = self.pending_free.load(Ordering::Acquire) > 0
                || self.lanes.grows()
                || self.frozen_bytes.load(Ordering::Acquire) > 0;
            if yields {
                self.merge()?;
            } else if class != Class::Merge {
                break;
            }
            if self.space.reserve(blocks, units, class)? {
                return Ok(());
            }
        }
        Err(Error::NoSpace)
    }

    /// Begins to commit. The caller holds the locks of all inodes it will change, and takes no
    /// further one before [`Commit::finish`].
    pub fn commit(&self) -> Commit<'_> {
        Commit {
            core: self,
            hold: self.journal.cil().hold(),
            vectors: SmallVec::new(),
            freed: SmallVec::new(),
            delta: 0,
            done: Done::default(),
            unfinished: None,
        }
    }

    /// Holds back a committer that outruns push or merge. No lock is held.
    ///
    /// # Errors
    /// The failure of a push or merge that was waited for.
    pub fn settle(&self, receipt: Receipt) -> Result<()> {
        self.step_aside();
        self.settle_limits(receipt)
    }

    /// The same for whom others step aside.
    ///
    /// # Errors
    /// As [`Self::settle`].
    pub fn settle_limits(&self, receipt: Receipt) -> Result<()> {
        self.journal.throttle(receipt.filled, receipt.seq, self)?;
        if self.current_bytes() < self.limits.dirty_soft
            && self.journal.ring().free() > self.journal.ring().capacity() / 2
        {
            return Ok(());
        }
        self.press()
    }

    /// Lets an fsync have the processor: it, and who serves the device, sleep and wake several times,
    /// and would wait each time until somebody who never sleeps has used up his share.
    fn step_aside(&self) {
        if self.forcing.load(Ordering::Relaxed) == 0 || !self.signals.has_workers() {
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

    /// Says that the calling thread has waited for the device: it need not step aside soon.
    pub(super) fn has_waited() {
        COMMITS.with(|commits| commits.set(0));
    }

    /// Says that an fsync is under way, until the value is dropped.
    pub fn forcing(&self) -> Forcing<'_> {
        self.forcing.fetch_add(1, Ordering::Relaxed);
        Forcing(self)
    }

    /// Whether data may wait for the record that tells of it.
    pub fn stages(&self) -> bool {
        self.storage.stages() && !self.journal.is_without(Mechanism::OneFlush)
    }

    /// How many fsyncs are under way.
    pub fn forced(&self) -> u64 {
        self.forcing.load(Ordering::Relaxed)
    }

    /// Starts a merge, or waits for one if too much memory is held.
    fn press(&self) -> Result<()> {
        if !self.signals.has_workers() {
            let seen = self.merges();
            // One that was running when we came, and has ended since, served us too.
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

    /// Waits until merges have let go so much that the dirty sets are within their limit; for two at most:
    /// the first may have begun before the caller's changes.
    fn wait_for_memory(&self) -> Result<()> {
        let (ring, merges) = (self.journal.ring(), self.merges());
        loop {
            self.storage.check()?;
            let seen = ring.wakes();
            let enough = || {
                self.dirty_bytes() < self.limits.dirty_hard
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

/// An fsync that is under way.
pub struct Forcing<'a>(&'a Core);

impl Drop for Forcing<'_> {
    fn drop(&mut self) {
        self.0.forcing.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Relief for Core {
    fn sweep(&self) {
        self.sweep_lanes();
    }

    fn merge(&self) -> Result<()> {
        Core::merge(self)
    }
}

/// A transaction being committed.
pub struct Commit<'a> {
    core: &'a Core,
    hold: Hold<'a>,
    vectors: SmallVec<[Arc<LogVector>; 8]>,
    freed: SmallVec<[Run; 4]>,
    delta: i64,
    done: Done,
    /// From the first change on: dirty sets hold what no context does yet.
    unfinished: Option<Guard<'a>>,
}

impl Commit<'_> {
    /// Sequence of the context.
    pub fn seq(&self) -> u64 {
        self.hold.seq
    }

    /// Gives an item a value. `existed` tells that the key has a value below the current set; it
    /// counts only if the current set has no slot for it.
    pub fn put(
        &mut self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        kind: Kind,
        offset: u64,
        value: &[u8],
        existed: bool,
    ) {
        self.change(inode, state, kind, offset, &Change::Put(value), existed);
    }

    /// Gives an item a value of two parts; others have the second one, too. `existed` as for
    /// [`Self::put`].
    pub fn put_joined(
        &mut self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        (kind, offset): (Kind, u64),
        (own, shared): (&[u8], &Value),
        existed: bool,
    ) {
        let change = Change::Join(own, shared);
        self.change(inode, state, kind, offset, &change, existed);
    }

    /// Deletes an item; `note` goes with a tombstone. `existed` as for [`Self::put`].
    pub fn delete(
        &mut self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        kind: Kind,
        offset: u64,
        note: &[u8],
        existed: bool,
    ) {
        self.change(inode, state, kind, offset, &Change::Delete(note), existed);
    }

    /// Puts the inode item as the attributes tell.
    pub fn put_inode(&mut self, inode: &Arc<Inode>, state: &mut InodeState) {
        let Some(attrs) = &state.attrs else {
            return;
        };
        let bytes = attrs.encode();
        // Of the first change of a context nobody can say that.
        if let Some(slot) = state.current.get(Kind::Inode, 0)
            && attrs.is_file()
        {
            let same = |old: Option<&[u8]>| old.is_some_and(|old| differ_in_times(old, &bytes));
            let times_only = slot.vector.with(same);
            let mut unlogged = inode.unlogged();
            let before = unlogged.enter(self.hold.seq);
            before.times_only = times_only && (before.inode.is_none() || before.times_only);
        }
        state.uncommitted = false;
        let existed = state.persisted;
        self.put(inode, state, Kind::Inode, 0, &bytes, existed);
    }

    /// Deletes the inode item; the inode is gone then.
    pub fn delete_inode(&mut self, inode: &Arc<Inode>, state: &mut InodeState) {
        let existed = state.persisted;
        self.delete(inode, state, Kind::Inode, 0, &[], existed);
        inode.set_ready(false);
        state.attrs = None;
        state.loaded = true;
        state.uncommitted = false;
    }

    /// Frees data blocks; they become usable once a merge has taken this context.
    pub fn free(&mut self, run: Run) {
        if happens(Deliberate::FreedBlocksReused)
            && self.core.space.release(&mut vec![run], false).is_ok()
        {
            return;
        }
        self.core
            .pending_free
            .fetch_add(run.len as i64, Ordering::AcqRel);
        self.freed.push(run);
    }

    /// Says that changes of this inode refer to data, runs of device blocks with their checksums,
    /// written with that stamp: it is durable before they are logged, or checked when they are
    /// replayed.
    pub fn needs_data(
        &mut self,
        inode: &Inode,
        stamp: &DataStamp,
        runs: impl Iterator<Item = (u64, Vec<u32>)>,
    ) {
        self.hold.needs_data(stamp.get());
        inode.unlogged().enter(self.hold.seq).wrote(stamp, runs);
    }

    /// The open context.
    pub(super) fn hold(&self) -> &Context {
        &self.hold
    }

    /// Prepares an inode for changes of this context: a later merge boundary freezes what it has.
    fn enter(&mut self, inode: &Arc<Inode>, state: &mut InodeState) {
        let storage = &self.core.storage;
        self.unfinished
            .get_or_insert_with(|| storage.guard("a transaction was given up half done"));
        if state.epoch != self.hold.boundary {
            state.freeze();
            state.epoch = self.hold.boundary;
        }
        if state.current.is_empty() {
            let seq = self.hold.seq;
            let dirty = &self.core.dirty;
            let listed = (inode.ino, inode.clone());
            let gone = dirty.push_pruned(listed, |(_, i)| i.has_vanished(seq));
            // It stays in memory until a merge comes by, or it is found to have vanished.
            self.done.memory += INODE_MEMORY * (1 - gone.len() as i64);
            gone.into_iter()
                .for_each(|(_, i)| self.core.table.vanished(i));
        }
    }

    fn change(
        &mut self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        kind: Kind,
        offset: u64,
        change: &Change<'_>,
        existed: bool,
    ) {
        let delete = matches!(change, Change::Delete(_));
        self.done.growth += change.growth();
        self.enter(inode, state);
        let seq = self.hold.seq;
        let key = match kind {
            Kind::Orphan => {
                self.core.orphaned.store(true, Ordering::Relaxed);
                Key::orphan(inode.ino)
            }
            _ => Key::new(inode.ino, kind, offset),
        };
        let counts = &mut self.done.counts;
        // What the caller found in the current set may have been frozen just now.
        let frozen = state.frozen.as_ref();
        let existed = existed || frozen.is_some_and(|f| f.get(kind, offset).is_some());
        let Some(slot) = state.current.get_mut(kind, offset) else {
            if delete && !existed {
                return;
            }
            let vector = LogVector::new(MAIN_ROOT, key, seq, change);
            let charge = vector.charge();
            counts.allocated += 1;
            counts.formatted += charge as u64;
            self.delta += charge;
            self.done.memory += vector.memory() as i64 + 64;
            self.note(inode, kind, &vector);
            self.vectors.push(vector.clone());
            state.current.insert(
                kind,
                offset,
                Slot {
                    vector,
                    baseline: existed,
                },
            );
            return;
        };
        // What was logged ahead of its context is known there.
        slot.baseline |= slot.vector.is_known() && !happens(Deliberate::GroupForgotten);
        let here = slot.vector.seq() == seq
            && (!slot.vector.is_logged() || happens(Deliberate::GroupOverwritten));
        if here || happens(Deliberate::RelogInPlace) {
            let old = slot.vector.charge();
            if delete && (!slot.baseline || happens(Deliberate::TombstoneLost)) {
                // It was counted when it came: no merge has taken it since.
                self.done.growth -= slot.vector.growth();
                slot.vector.kill();
                counts.died += 1;
                self.delta -= old;
                self.done.memory -= slot.vector.memory() as i64 + 64;
                state.current.remove(kind, offset);
                return;
            }
            counts.relogged += old as u64;
            if slot.vector.overwrite(change) {
                let new = slot.vector.charge();
                counts.reused += 1;
                counts.formatted += new as u64;
                self.delta += new - old;
                return;
            }
            slot.vector.kill();
            self.delta -= old;
            self.done.memory -= slot.vector.memory() as i64;
        } else {
            // An earlier context has it: it may be in the log already, or get there.
            slot.baseline = true;
            self.done.memory -= slot.vector.memory() as i64;
        }
        // What an older context noted holds it no more.
        inode.unlogged().enter(seq);
        if !LogVector::renew(&mut slot.vector, seq, change) {
            slot.vector = LogVector::new(MAIN_ROOT, key, seq, change);
            counts.allocated += 1;
        }
        let vector = slot.vector.clone();
        let charge = vector.charge();
        counts.formatted += charge as u64;
        self.delta += charge;
        self.done.memory += vector.memory() as i64;
        self.note(inode, kind, &vector);
        self.vectors.push(vector);
    }

    /// Adds the changes to the open context and settles the reservation.
    pub fn finish(self, mut reservation: Reservation<'_>) -> Receipt {
        let Commit {
            core,
            hold,
            mut vectors,
            mut freed,
            delta,
            mut done,
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
        core.settle_lane(std::mem::take(reserved), &done);
        if let Some(guard) = unfinished {
            guard.done();
        }
        Receipt {
            seq: hold.seq,
            filled,
        }
    }
}
