//! The merge: brings the logged changes into the index, writes a superblock, moves the log's tail.
//!
//! A merge takes exactly the contexts up to its boundary and no later change, and no committer
//! waits for it. The boundary is one for all heads; their trees are changed one after the other, each
//! by its own rule of births. A merge runs in steps if it must rewrite more of the index than it may allocate at
//! once. Each step ends with a superblock, but only the last one moves the tail and records the
//! boundary as merged. After a crash between steps, the same log is replayed over the results of
//! the steps.
//!
//! Reuse: nodes and blocks that a step has freed become usable only once its superblock is durable;
//! data blocks, to which the log may still refer, only after the last step. A merge that makes the
//! tree of a new root does not wait for its last superblock, and leaves all that to the next merge,
//! or to a worker ([`rest`]).
//!
//! [`Merger`] owns the lock of merges, the input of a merge that was not run or found no space
//! ([`MergeInput`]), what waits for a merge ([`backlog`]) and the state of packing ([`compact`]). A
//! merge connects all parts of a volume, so its functions get the [`Core`] and use the interfaces of
//! its parts. A merge feeds [`edits`] to the index in [`steps`], whose nodes come from
//! [`step_space`], on many processors in [`parts`]; [`old_names`] and [`shared`] derive what the log does not have; [`release`] gives
//! memory back.
//!
//! # The life of a merge
//!
//! The lock of merges, [`Merger::left`], is held from one state to the next. Only *kept* and *left*
//! last without it.
//!
//! | From | To | Caused by | Durable then |
//! |---|---|---|---|
//! | | taken | `take_input`: closes the open context under all locks of the list, and writes it | nothing more |
//! | | | the change of roots refuses within that: the context stays open, nothing is taken | nothing more |
//! | taken | kept | `close_with_roots`, for the next merge; a later change of roots may be joined to it | nothing more |
//! | taken, kept | stepping | `merge_taken`, when the rest of the merge before is released | |
//! | stepping | stepping | each step but the last ([`steps`]) | its superblock, with the old tail |
//! | stepping | kept | no space; the same edits have no effect when they are made again | the steps so far |
//! | stepping | done | the last step, and `Rest::move_tail` | its superblock, with the new tail |
//! | stepping | left | the last step, with [`Ending::Left`] | at the next flush |
//! | left | done | `Left::settle`: the next merge, drop, packing, interval, or call without space | its superblock |
//! | any | lost | damage, a failed device, a panic: the volume fails, and the log is replayed | what was before |
//!
//! 1. At most one input is kept, and at most one rest: the one of the newest merge.
//! 2. Boundaries ascend: an input's is after the merged sequence, and its nodes are born up to it.
//! 3. The tail moves, and what was freed is released, when the superblock is durable; never back.
//! 4. Nothing is left if the standing credit closed the context, as the tail alone gives it back.
//! 5. A failure stops the volume, unless the input is kept, or the change of roots refuses.

mod backlog;
#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "tests/boundary.rs"]
mod boundary;
mod compact;
mod edits;
mod old_names;
mod parts;
mod release;
mod rest;
mod shared;
mod step_space;
mod steps;

use self::backlog::Backlog;
use self::compact::Packing;
use self::edits::MergeEdits;
use self::release::release_sealed;
pub(super) use self::rest::Ending;
use self::rest::Rest;
use self::step_space::Retired;
pub(super) use self::step_space::{StepSpace, StepUnits};
use self::steps::{Step, StepEnd, merge_step};
pub(super) use self::steps::{VolumeStep, write_roots};
use crate::journal::position::LogPosition;
use crate::journal::ring::CONTEXT_BASE;
use crate::space::{BlockRun, Class};
use crate::txn::Core;
use crate::txn::copies::{Copies, Heir};
use crate::txn::heads::HeadInput;
use crate::txn::items::NOT_A_HEAD;
use crate::txn::roots::{RootItems, log_vectors};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::metrics::Latency;
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Birth of nodes that are made while no merge runs.
fn newest_birth(core: &Core) -> u64 {
    core.superblocks.newest().merged_seq.get()
}

/// The input of a merge.
struct MergeInput {
    /// Sequence of the last context.
    seq: u64,
    /// Birth of the nodes that the merge writes, see [`Step::birth`].
    birth: u64,
    /// End of the log after that context.
    end: LogPosition,
    /// Whether the standing credit closed that context.
    credited: bool,
    /// Blocks that these contexts have freed.
    freed: Vec<BlockRun>,
    /// The heads with changes of these contexts.
    heads: Vec<HeadInput>,
    /// Index units reserved for the growth of the index.
    units: u64,
    /// Changes of roots that close the last context.
    roots: RootItems,
    /// The heads that inherit all of their nodes from that context on.
    inheriting: Vec<u32>,
}

impl MergeInput {
    /// This and a later change of roots, between which nothing was committed. The nodes of the merge
    /// are born before its own boundary, because after a crash between its steps the earlier
    /// boundary is merged alone.
    fn joined(mut self, later: Self) -> Self {
        self.roots.extend(later.roots);
        self.inheriting.extend(later.inheriting);
        self.freed.extend(later.freed);
        Self {
            seq: later.seq,
            end: later.end,
            credited: self.credited || later.credited,
            units: self.units + later.units,
            ..self
        }
    }
}

/// A context that was closed with changes of roots.
pub(super) struct ClosedWithRoots<R> {
    /// Its sequence.
    pub seq: u64,
    /// What the change returned.
    pub made: R,
    /// Number of inodes that its merge has to take.
    pub inodes: usize,
}

/// What is left to later merges.
#[derive(Default)]
struct Left {
    /// The input of a merge that was not run, because it belongs to a change of roots, or that found
    /// no space.
    unfinished: Option<MergeInput>,
    /// What the newest merge left because its superblock was not durable.
    rest: Option<Rest>,
}

impl Left {
    /// Ends the newest merge, whose superblock becomes durable before any later write.
    fn settle(&mut self, core: &Core) -> Result<()> {
        let Some(rest) = self.rest.take() else {
            return Ok(());
        };
        let merger = &core.merger;
        merger.rests.store(false, Ordering::Release);
        let units = rest.release(core);
        let kept = units.and_then(|units| merger.copies.refill(&core.space, units));
        kept.inspect_err(|e| core.storage.fail(e.clone()))
    }
}

/// The merges of a volume.
#[derive(Default)]
pub struct Merger {
    /// Held by a running merge.
    left: Mutex<Left>,
    /// Whether a merge has left something because its superblock was not durable.
    rests: AtomicBool,
    /// Whether the last merge found no space.
    starved: AtomicBool,
    backlog: Backlog,
    packing: Packing,
    copies: Copies,
    times: Latency,
}

impl Merger {
    /// What waits for a merge, and what the running one has taken.
    pub(super) fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// Units kept for copies of inherited nodes.
    pub(super) fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Whether the last merge found no space.
    pub(super) fn is_starved(&self) -> bool {
        self.starved.load(Ordering::Acquire)
    }

    /// Number and times of merges.
    pub fn times(&self) -> &Latency {
        &self.times
    }

    /// Number of merges done.
    pub fn merges(&self) -> u64 {
        self.times.get().times
    }

    /// Waits for the merge that is running, if one is.
    pub(super) fn wait_for_running(&self) {
        drop(self.left.lock());
    }

    /// As [`Core::merge`].
    pub(super) fn merge(&self, core: &Core) -> Result<()> {
        if core.read_only {
            return Err(Error::ReadOnly);
        }
        self.run(core, |left| {
            core.signals.merging();
            self.times.time(|| self.merge_now(core, left))
        })
    }

    /// Merges the changes of roots that the index lacks, with what was committed before them. The
    /// trees are there when this returns; the log has the changes, so the last superblock is left to
    /// the next flush.
    ///
    /// # Errors
    /// As [`Core::merge`].
    pub(super) fn merge_roots(&self, core: &Core) -> Result<()> {
        if core.read_only {
            return Err(Error::ReadOnly);
        }
        self.run(core, |left| match left.unfinished {
            Some(_) => self.times.time(|| self.merge_unfinished(core, left)),
            None => Ok(()),
        })
    }

    /// Whether a merge has left something because its superblock was not durable.
    pub fn has_rest(&self) -> bool {
        self.rests.load(Ordering::Acquire)
    }

    /// As [`Core::settle_merge`].
    pub(super) fn settle(&self, core: &Core) -> Result<()> {
        if self.has_rest() {
            self.run(core, |left| left.settle(core))
        } else {
            Ok(())
        }
    }

    /// Runs `f` with the lock of merges. Its failure stops the volume, unless a merge found no space
    /// and its input was kept.
    fn run<R>(&self, core: &Core, f: impl FnOnce(&mut Left) -> Result<R>) -> Result<R> {
        let mut left = self.left.lock();
        core.storage.check()?;
        // The writes of a merge would only wait in memory after the held writes.
        core.storage.retry_held()?;
        let guard = core.storage.guard("a merge was broken off");
        let result = f(&mut left);
        let kept = result.is_err() && left.unfinished.is_some();
        self.starved.store(kept, Ordering::Release);
        if let Err(e) = &result
            && !kept
        {
            core.storage.fail(e.clone());
        }
        guard.done();
        core.journal.ring().wake();
        result
    }

    /// Runs `f` while no merge runs.
    pub(super) fn alone<R>(&self, f: impl FnOnce() -> R) -> R {
        let _running = self.left.lock();
        f()
    }

    /// Closes the open context with the changes of roots that `change` returns with a result, and
    /// leaves what the context boundary separates to the next merge. `change` gets the sequence of
    /// the context and runs while no thread commits. The caller has reserved `paid` log bytes and the
    /// base of the next context; for each root in `copies`, copies of its nodes are reserved by the
    /// class.
    ///
    /// A merge takes one boundary, so an earlier change of roots is merged first. If nothing was
    /// committed since, both boundaries separate the same states, and one merge takes both.
    ///
    /// # Errors
    /// Those of `change` and of the merge of an earlier change; no space for copies; the device's
    /// failure.
    pub(super) fn close_with_roots<R>(
        &self,
        core: &Core,
        (paid, (copies, class)): (i64, (&[u32], Class)),
        change: impl FnOnce(u64) -> Result<(R, RootItems)>,
    ) -> Result<ClosedWithRoots<R>> {
        let mut change = Some(change);
        let closed = self.run(core, |left| {
            if self.is_starved() || copies.iter().any(|id| core.roots.is_only_logged(*id)) {
                self.merge_unfinished(core, left)?;
            }
            loop {
                let closed = self.try_close(core, (paid, (copies, class)), left, &mut change)?;
                if let Some(closed) = closed {
                    return Ok(closed);
                }
                match left.unfinished {
                    Some(_) => self.merge_unfinished(core, left)?,
                    None => left.settle(core)?,
                }
            }
        });
        let closed = closed.flatten();
        if closed.is_err() {
            core.journal.ring().give(paid + CONTEXT_BASE);
        }
        closed
    }

    /// The same with the earlier changes of roots in `left`. Returns none, and does nothing, if these
    /// must be merged first, or an earlier merge must end, which frees space.
    fn try_close<R, F: FnOnce(u64) -> Result<(R, RootItems)>>(
        &self,
        core: &Core,
        (paid, (copies, class)): (i64, (&[u32], Class)),
        left: &mut Left,
        change: &mut Option<F>,
    ) -> Result<Option<Result<ClosedWithRoots<R>>>> {
        let heirs: Result<Vec<Heir>> = copies.iter().map(|id| core.heir(*id)).collect();
        let heirs = heirs?;
        let joins = left.unfinished.is_some();
        let frees = joins || left.rest.is_some();
        let few = copies.len() as u64;
        let no_space = || (!frees).then(|| Err(core.space.refusal(0, few, class)));
        if !copies.is_empty() {
            let kept = core.drops.keep_units(&core.space, class)?
                && self.copies.reserve(&core.space, &heirs, class)?;
            if !kept {
                return Ok(no_space());
            }
        }
        let mut refused = None;
        let mut refuse = |error: Option<Error>| {
            let error = refused.insert(error);
            error.clone().unwrap_or(Error::Stale)
        };
        let taken = self.take_input(core, Some(paid), |seq| {
            if joins && core.heads.are_dirty() {
                return Err(refuse(None));
            }
            match change.take() {
                Some(change) => change(seq).map_err(|error| refuse(Some(error))),
                None => Err(refuse(None)),
            }
        });
        if let Some(refused) = refused {
            self.copies.release(&core.space);
            return Ok(refused.map(Err));
        }
        let (taken, made) = taken?;
        let seq = taken.seq;
        let inodes = taken.heads.iter().map(|head| head.inodes.len()).sum();
        left.unfinished = Some(match left.unfinished.take() {
            Some(earlier) => earlier.joined(taken),
            None => taken,
        });
        Ok(Some(Ok(ClosedWithRoots { seq, made, inodes })))
    }

    /// Merges the input of a merge that was not run or found no space. May leave a rest.
    fn merge_unfinished(&self, core: &Core, left: &mut Left) -> Result<()> {
        match left.unfinished.take() {
            Some(taken) => self.merge_or_keep(core, taken, (left, Ending::Left)),
            None => Ok(()),
        }
    }

    /// Runs `f` under the lock of merges when no input of a merge, no change of roots and no record
    /// before the merged sequence is left to the log, and nodes can be born after the newest
    /// capture; merges for that. A want of space that `f`
    /// returns inside does not stop the volume.
    ///
    /// # Errors
    /// Those of `f` and of the merge.
    pub(super) fn settled(
        &self,
        core: &Core,
        f: impl FnOnce() -> Result<Result<()>>,
    ) -> Result<()> {
        self.run(core, |left| {
            let never_merged = self.merges() == 0 && core.replayed > 0;
            let captured = core.checkpoints.is_newest(&core.superblocks.newest());
            if left.unfinished.is_some() || core.roots.has_pending() || never_merged || captured {
                self.merge_now(core, left)?;
            }
            left.settle(core)?;
            f()
        })
        .flatten()
    }

    /// Runs `f` under the lock of merges when everything committed before is merged, and the newest
    /// superblock is durable.
    ///
    /// # Errors
    /// Those of `f` and of the merge.
    pub(super) fn at_rest<R>(&self, core: &Core, f: impl FnOnce() -> Result<R>) -> Result<R> {
        self.run(core, |left| {
            let committed = core.heads.are_dirty() || !core.journal.cil().hold().is_empty();
            if left.unfinished.is_some() || core.roots.has_pending() || committed {
                self.merge_now(core, left)?;
            }
            left.settle(core)?;
            Ok(f())
        })
        .flatten()
    }

    fn merge_now(&self, core: &Core, left: &mut Left) -> Result<()> {
        let changed_roots = left.unfinished.is_some();
        self.merge_unfinished(core, left)?;
        if changed_roots && core.journal.cil().hold().is_empty() && !core.heads.are_dirty() {
            // That was all.
            left.settle(core)?;
            return self.packing.restore_reserve(core, newest_birth(core));
        }
        let (taken, ()) = self.take_input(core, None, |_| Ok(((), RootItems::new())))?;
        self.merge_or_keep(core, taken, (left, Ending::Settled))?;
        self.packing.restore_reserve(core, newest_birth(core))
    }

    /// Closes the open context with the changes of roots that `change` returns, and takes everything
    /// up to it. With `paid`, the caller has reserved that many log bytes and the base of the next
    /// context.
    fn take_input<R>(
        &self,
        core: &Core,
        paid: Option<i64>,
        change: impl FnOnce(u64) -> Result<(R, RootItems)>,
    ) -> Result<(MergeInput, R)> {
        let point = core.journal.push_for_merge(paid.unwrap_or(0), |seq| {
            let (made, roots) = change(seq)?;
            let heads = core.heads.take_dirty();
            let totals = core.reservations.take_totals();
            self.backlog.take_over(totals.memory, totals.shrinkage);
            let growth = totals.units + core.space.take_committed_growth();
            let units = growth + self.copies.take();
            let behind = heads.iter().map(|head| head.items.root());
            let inheriting = core.begin_changes(&roots, behind);
            // The change has begun, so a failure stops the volume.
            let mut ids = inheriting.iter();
            ids.try_for_each(|id| self.copies.inherits(&core.space, &core.heir(*id)?))
                .inspect_err(|e| core.storage.fail(e.clone()))?;
            let vectors = log_vectors(&roots, seq);
            Ok(((made, heads, units, roots, inheriting), vectors))
        })?;
        let (made, heads, units, roots, inheriting) = point.taken;
        let merged = core.superblocks.newest().merged_seq.get();
        assert!(
            point.seq > merged && point.logged_seq <= point.seq,
            "merge invariant 2: boundaries ascend"
        );
        let threads = core.merge_threads();
        let input = MergeInput {
            seq: point.seq,
            birth: point.logged_seq.max(merged),
            end: point.end,
            credited: paid.is_none(),
            freed: point.freed,
            heads: heads.into_iter().map(|h| h.in_order(threads)).collect(),
            units,
            roots,
            inheriting,
        };
        Ok((input, made))
    }

    /// Merges the input. If a step finds no space, it is merged again, as what is already in the index
    /// has no effect: at once without parts, which need less space, then by a later merge.
    fn merge_or_keep(
        &self,
        core: &Core,
        mut taken: MergeInput,
        (left, ending): (&mut Left, Ending),
    ) -> Result<()> {
        // Parts neither cut out damaged nodes nor leave out what belongs into them.
        let passes_damage = core.cuts_damaged || core.read_only;
        let divides = core.limits.part_keys < u64::MAX && !self.is_starved() && !passes_damage;
        let mut result = self.merge_taken(core, &mut taken, divides, (left, ending));
        if divides && matches!(result, Err(Error::NoSpace)) {
            result = self.merge_taken(core, &mut taken, false, (left, ending));
        }
        if matches!(result, Err(Error::NoSpace)) {
            tracing::error!(
                "a merge found no space for the index; changes wait until there is some"
            );
            assert!(
                left.unfinished.is_none(),
                "merge invariant 1: one input is kept"
            );
            left.unfinished = Some(taken);
        }
        result
    }

    /// Merges the input in steps, and releases its inodes and freed blocks; the latter later if it
    /// leaves a rest.
    fn merge_taken(
        &self,
        core: &Core,
        taken: &mut MergeInput,
        divides: bool,
        (left, ending): (&mut Left, Ending),
    ) -> Result<()> {
        left.settle(core)?;
        // What the merge frees, or the credit that closed its context, may be needed at once.
        let ending = if core.space.is_short() || taken.credited {
            Ending::Settled
        } else {
            ending
        };
        let pending: u64 = taken.freed.iter().map(|r| r.len).sum();
        let mut lost = Vec::new();
        let merged = self.apply_input(core, taken, (divides, ending), &mut lost);
        let retired = match merged {
            Ok(retired) => retired,
            Err(error) => {
                core.values.forget_places();
                // Blocks that earlier steps removed from the index are freed with the rest.
                self.backlog.add_pending_free(&lost);
                taken.freed.extend(lost);
                return Err(error);
            }
        };
        let mut rest = Rest {
            tail: Some((taken.end.lsn, taken.credited)),
            freed: [std::mem::take(&mut taken.freed), lost].concat(),
            retired,
            pending,
        };
        // Threads that wait for space in the log go on first.
        if ending == Ending::Settled {
            rest.move_tail(core)?;
        }
        let heads = std::mem::take(&mut taken.heads);
        release_sealed(core, &self.backlog, heads, taken.seq);
        self.backlog.shrunk();
        match ending {
            Ending::Settled => {
                rest.release(core)?;
            }
            Ending::Left => {
                assert!(
                    !taken.credited && left.rest.is_none(),
                    "merge invariants 1, 4: a rest without credit, when there is none"
                );
                rest.announce(core);
                left.rest = Some(rest);
                self.rests.store(true, Ordering::Release);
            }
        }
        self.keep_copies(core, taken)?;
        core.heads.each(|items| items.table().shrink());
        core.heads.close_unused();
        Ok(())
    }

    /// Puts the units back that the merge of this input has left, as many as copies may need.
    fn keep_copies(&self, core: &Core, taken: &MergeInput) -> Result<()> {
        let changed = taken.roots.keys();
        for id in changed.filter(|id| core.roots.inherited(**id) == NOT_A_HEAD) {
            self.copies.forget(*id);
        }
        for id in &taken.inheriting {
            if core.roots.inherited(*id) != NOT_A_HEAD {
                self.copies.has_inherited(&core.heir(*id)?, 0);
            }
        }
        self.copies.put_back(&core.space, taken.units)
    }

    /// Brings all changes of the input into the index, and adds the data blocks that the index lost
    /// to `lost`.
    fn apply_input(
        &self,
        core: &Core,
        taken: &mut MergeInput,
        (divides, ending): (bool, Ending),
        lost: &mut Vec<BlockRun>,
    ) -> Result<Retired> {
        let (count, promised) = (AtomicU64::new(0), AtomicU64::new(taken.units));
        let mut heads = Vec::with_capacity(taken.heads.len());
        for head in &taken.heads {
            let all = (&*head.items, core.limits.step_keys);
            let mut edits = MergeEdits::new(all, &head.inodes, Some(taken.seq), &count);
            if head.orphaned {
                edits.collect_orphans();
            }
            heads.push(edits);
        }
        let step = Step {
            seq: taken.seq,
            birth: taken.birth,
            end: StepEnd::Tail(taken.end),
            ending,
            roots: &taken.roots,
            promised: &promised,
            divides,
            count: &count,
        };
        let applied = self.merge_steps(core, heads, &step, lost);
        taken.units = promised.into_inner();
        applied
    }

    /// Brings all changes of these heads, whose dirty sets have `memory` bytes, into the index,
    /// before the first commit and without moving the log's tail. With `roots`, these are all
    /// changes up to the context `seq`, which ends with these changes of roots. Returns the data
    /// blocks that the index lost.
    ///
    /// # Errors
    /// The device's failure, damage found in the index, no space for it.
    pub(super) fn merge_replayed(
        &self,
        core: &Core,
        seq: u64,
        (heads, memory): (Vec<HeadInput>, i64),
        roots: Option<&RootItems>,
    ) -> Result<Vec<BlockRun>> {
        self.backlog.take_over(memory, 0);
        let count = AtomicU64::new(0);
        let mut edits = Vec::with_capacity(heads.len());
        for head in &heads {
            let all = (&*head.items, core.limits.step_keys);
            let mut of_head = MergeEdits::new(all, &head.inodes, None, &count);
            of_head.collect_orphans();
            edits.push(of_head);
        }
        let promised = AtomicU64::new(0);
        let none = RootItems::new();
        let step = Step {
            seq,
            birth: seq,
            end: roots.map_or(StepEnd::Nothing, |_| StepEnd::Merged),
            ending: Ending::Settled,
            roots: roots.unwrap_or(&none),
            promised: &promised,
            divides: false,
            count: &count,
        };
        let mut lost = Vec::new();
        self.merge_steps(core, edits, &step, &mut lost)?;
        release_sealed(core, &self.backlog, heads, seq);
        Ok(lost)
    }

    /// Brings all edits of all heads into the index, and adds the data blocks that the index lost to
    /// `lost`. Returns the nodes that the last step has left to be released.
    fn merge_steps(
        &self,
        core: &Core,
        heads: Vec<MergeEdits<'_>>,
        step: &Step<'_>,
        lost: &mut Vec<BlockRun>,
    ) -> Result<Retired> {
        let mut heads = heads.into();
        loop {
            let (more, retired) = merge_step(core, &mut heads, step)?;
            lost.extend(more);
            if heads.is_empty() {
                return Ok(retired);
            }
            self.packing.restore_reserve(core, step.birth)?;
        }
    }

    /// As [`Core::compact`].
    pub(super) fn compact(&self, core: &Core) -> Result<bool> {
        let mut left = self.left.lock();
        core.storage.check()?;
        core.storage.retry_held()?;
        if left.unfinished.is_some() {
            return Ok(false);
        }
        left.settle(core)?;
        let before = core.space.free_blocks();
        let result = self.pack_all(core, &mut left);
        if let Err(e) = &result {
            core.storage.fail(e.clone());
        }
        result.map(|()| core.space.free_blocks() > before)
    }

    /// Packs the whole index. Its nodes are born in the newest merge, which must be after the newest
    /// capture.
    fn pack_all(&self, core: &Core, left: &mut Left) -> Result<()> {
        if core.checkpoints.is_newest(&core.superblocks.newest()) {
            self.merge_now(core, left)?;
        }
        self.packing.pack(core, newest_birth(core), &|| false)
    }
}
