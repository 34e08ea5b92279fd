//! The merge: brings the logged changes into the index, writes a superblock, moves the log's tail.
//!
//! A merge takes exactly the contexts up to its boundary and no later change, and no committer
//! waits for it. It runs in steps if it must rewrite more of the index than it may allocate at
//! once. Each step ends with a superblock, but only the last one moves the tail and records the
//! boundary as merged. After a crash between steps, the same log is replayed over the results of
//! the steps.
//!
//! Reuse: nodes and blocks that a step has freed become usable only once its superblock is durable;
//! data blocks, to which the log may still refer, only after the last step.
//!
//! [`Merger`] owns the lock of merges, the input of a merge that found no space ([`MergeInput`]),
//! what waits for a merge ([`backlog`]) and the state of packing ([`compact`]). A merge connects
//! all parts of a volume, so its functions get the [`Core`] and use the interfaces of its parts. A
//! merge feeds [`edits`] to the index in [`steps`], whose nodes come from [`step_space`];
//! [`old_names`] and [`shared`] derive what the log does not have; [`release`] gives memory back.

mod backlog;
#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "tests/boundary.rs"]
mod boundary;
mod compact;
mod copies;
mod edits;
mod old_names;
mod release;
mod shared;
mod step_space;
mod steps;

use std::cell::Cell;

use self::backlog::Backlog;
use self::compact::Packing;
use self::copies::Copies;
use self::edits::MergeEdits;
use self::release::release_sealed;
use self::steps::{Step, StepEnd, merge_step};
use crate::error::{Error, Result};
use crate::journal::position::LogPosition;
use crate::metrics::Latency;
use crate::space::{BlockRun, Class};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::txn::Core;
use crate::txn::items::DirtyInodes;
use crate::txn::roots::{Fork, RootItems, log_vectors};
use crate::txn::runs::join_runs;

/// The input of a merge.
struct MergeInput {
    /// Sequence of the last context.
    seq: u64,
    /// Birth of the nodes that the merge writes, see [`Step::birth`].
    birth: u64,
    /// End of the log after that context.
    end: LogPosition,
    /// Blocks that these contexts have freed.
    freed: Vec<BlockRun>,
    /// Inodes with changes of these contexts, in order of their numbers.
    inodes: DirtyInodes,
    /// Whether some of them may have changed orphan items.
    orphaned: bool,
    /// Index units reserved for the growth of the index.
    units: u64,
    /// Changes of roots that close the last context.
    roots: RootItems,
}

/// The merges of a volume.
#[derive(Default)]
pub struct Merger {
    /// Held by a running merge; the input of a merge that found no space, left for the next one.
    unfinished: Mutex<Option<MergeInput>>,
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
        drop(self.unfinished.lock());
    }

    /// As [`Core::merge`].
    pub(super) fn merge(&self, core: &Core) -> Result<()> {
        if core.read_only {
            return Err(Error::ReadOnly);
        }
        self.run(core, |unfinished| {
            core.signals.merging();
            self.times.time(|| self.merge_now(core, unfinished))
        })
    }

    /// Runs `f` with the lock of merges. Its failure stops the volume, unless a merge found no space
    /// and its input was kept.
    fn run<R>(
        &self,
        core: &Core,
        f: impl FnOnce(&mut Option<MergeInput>) -> Result<R>,
    ) -> Result<R> {
        let mut unfinished = self.unfinished.lock();
        core.storage.check()?;
        // The writes of a merge would only wait in memory after the held writes.
        core.storage.retry_held()?;
        let guard = core.storage.guard("a merge was broken off");
        let result = f(&mut unfinished);
        let kept = result.is_err() && unfinished.is_some();
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
        let _running = self.unfinished.lock();
        f()
    }

    /// Closes the open context with the changes of a fork, which `make` returns and for which
    /// `paid` log bytes were reserved, and leaves what the context boundary separates to the next
    /// merge. Returns the sequence of the context.
    ///
    /// # Errors
    /// Those of `make` and of the merge of an earlier fork; the device's failure.
    pub(super) fn fork(
        &self,
        core: &Core,
        paid: i64,
        make: impl FnOnce() -> Result<Fork>,
    ) -> Result<u64> {
        let forked = self.run(core, |unfinished| {
            // A merge takes one boundary, so an earlier one is merged first.
            if let Some(taken) = unfinished.take() {
                self.merge_or_keep(core, taken, unfinished)?;
            }
            let nodes = core.main_nodes()?;
            let fork = match make() {
                Ok(fork) => fork,
                Err(refused) => return Ok(Err(refused)),
            };
            if !self.copies.reserve(&core.space, nodes)? {
                let refusal = core.space.refusal(0, nodes, Class::Ordinary);
                return Ok(Err(refusal));
            }
            let taken = self.take_input(core, paid, Some(&fork))?;
            let seq = taken.seq;
            *unfinished = Some(taken);
            Ok(Ok(seq))
        });
        let forked = forked.flatten();
        if forked.is_err() {
            core.journal.ring().give(paid);
        }
        forked
    }

    fn merge_now(&self, core: &Core, unfinished: &mut Option<MergeInput>) -> Result<()> {
        if let Some(taken) = unfinished.take() {
            self.merge_or_keep(core, taken, unfinished)?;
        }
        let taken = self.take_input(core, 0, None)?;
        self.merge_or_keep(core, taken, unfinished)?;
        self.packing.restore_reserve(core)
    }

    /// Closes the open context, with the changes of a fork if there is one, and takes everything up
    /// to it.
    fn take_input(&self, core: &Core, paid: i64, fork: Option<&Fork>) -> Result<MergeInput> {
        let point = core.journal.push_for_merge(paid, |seq| {
            let dirty = core.items.dirty();
            let (inodes, orphaned) = (dirty.take(), dirty.take_orphaned());
            let totals = core.reservations.take_totals();
            self.backlog.take_over(totals.memory, totals.shrinkage);
            let units = totals.units + core.space.take_committed_growth();
            let roots = fork.map_or_else(RootItems::new, |fork| core.begin_fork(fork, seq));
            let vectors = log_vectors(&roots, seq);
            ((inodes, orphaned, units, roots), vectors)
        })?;
        let (inodes, orphaned, units, roots) = point.taken;
        let merged = core.superblocks.newest().merged_seq.get();
        Ok(MergeInput {
            seq: point.seq,
            birth: point.logged_seq.max(merged),
            end: point.end,
            freed: point.freed,
            inodes: in_order(inodes),
            orphaned,
            units,
            roots,
        })
    }

    /// Merges the input. If a step finds no space, the whole input stays for a later merge, which
    /// applies it again: changes that are already in the index have no effect.
    fn merge_or_keep(
        &self,
        core: &Core,
        mut taken: MergeInput,
        unfinished: &mut Option<MergeInput>,
    ) -> Result<()> {
        let result = self.merge_taken(core, &mut taken);
        if matches!(result, Err(Error::NoSpace)) {
            tracing::error!(
                "a merge found no space for the index; changes wait until there is some"
            );
            *unfinished = Some(taken);
        }
        result
    }

    /// Merges the input in steps, and releases its inodes and freed blocks.
    fn merge_taken(&self, core: &Core, taken: &mut MergeInput) -> Result<()> {
        taken.units += self.copies.take();
        let pending: u64 = taken.freed.iter().map(|r| r.len).sum();
        let mut lost = Vec::new();
        let merged = self.apply_input(core, taken, &mut lost);
        if merged.is_err() {
            core.values.forget_places();
            // Blocks that earlier steps removed from the index are freed with the rest.
            self.backlog.add_pending_free(&lost);
            taken.freed.extend(lost);
            return merged;
        }
        core.journal.merged(taken.end.lsn);
        let inodes = std::mem::take(&mut taken.inodes);
        release_sealed(core, &self.backlog, inodes, taken.seq);
        let freed = [std::mem::take(&mut taken.freed), lost].concat();
        core.space.release(&mut join_runs(freed), core.discard)?;
        let forked = !taken.roots.is_empty();
        let inherited = forked.then(|| core.main_nodes()).transpose()?;
        self.copies.put_back(&core.space, taken.units, inherited)?;
        self.backlog.done(pending);
        core.items.table().shrink();
        Ok(())
    }

    /// Brings all changes of the input into the index, and adds the data blocks that the index lost
    /// to `lost`.
    fn apply_input(
        &self,
        core: &Core,
        taken: &mut MergeInput,
        lost: &mut Vec<BlockRun>,
    ) -> Result<()> {
        let (count, promised) = (Cell::new(0), Cell::new(taken.units));
        let all = (&*core.items, core.limits.step_keys);
        let mut edits = MergeEdits::new(all, &taken.inodes, Some(taken.seq), &count);
        if taken.orphaned {
            edits.collect_orphans();
        }
        let step = Step {
            seq: taken.seq,
            birth: taken.birth,
            end: StepEnd::Tail(taken.end),
            roots: &taken.roots,
            promised: &promised,
            count: &count,
        };
        let applied = self.merge_steps(core, &mut edits, &step, lost);
        taken.units = promised.get();
        applied
    }

    /// Brings all changes of these inodes, whose dirty sets have `memory` bytes, into the index,
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
        (inodes, memory): (DirtyInodes, i64),
        roots: Option<&RootItems>,
    ) -> Result<Vec<BlockRun>> {
        self.backlog.take_over(memory, 0);
        let inodes = in_order(inodes);
        let count = Cell::new(0);
        let all = (&*core.items, core.limits.step_keys);
        let mut edits = MergeEdits::new(all, &inodes, None, &count);
        edits.collect_orphans();
        let promised = Cell::new(0);
        let none = RootItems::new();
        let step = Step {
            seq,
            birth: seq,
            end: roots.map_or(StepEnd::Nothing, |_| StepEnd::Merged),
            roots: roots.unwrap_or(&none),
            promised: &promised,
            count: &count,
        };
        let mut lost = Vec::new();
        self.merge_steps(core, &mut edits, &step, &mut lost)?;
        drop(edits);
        release_sealed(core, &self.backlog, inodes, seq);
        Ok(lost)
    }

    /// Brings all edits into the index, and adds the data blocks that the index lost to `lost`.
    fn merge_steps(
        &self,
        core: &Core,
        edits: &mut MergeEdits<'_>,
        step: &Step<'_>,
        lost: &mut Vec<BlockRun>,
    ) -> Result<()> {
        loop {
            lost.extend(merge_step(core, edits, step)?);
            if edits.is_done()? {
                return Ok(());
            }
            self.packing.restore_reserve(core)?;
        }
    }

    /// As [`Core::compact`].
    pub(super) fn compact(&self, core: &Core) -> Result<bool> {
        let unfinished = self.unfinished.lock();
        core.storage.check()?;
        core.storage.retry_held()?;
        if unfinished.is_some() {
            return Ok(false);
        }
        let before = core.space.free_blocks();
        let result = self.packing.pack(core, &|| false);
        if let Err(e) = &result {
            core.storage.fail(e.clone());
        }
        result.map(|()| core.space.free_blocks() > before)
    }
}

/// Sorts inodes by their numbers and removes duplicates: an inode whose changes all died and that
/// was changed again is listed twice.
fn in_order(mut inodes: DirtyInodes) -> DirtyInodes {
    inodes.sort_unstable_by_key(|(ino, _)| *ino);
    inodes.dedup_by_key(|(ino, _)| *ino);
    inodes
}
