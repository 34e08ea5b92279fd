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
mod edits;
mod old_names;
mod release;
mod shared;
mod step_space;
mod steps;

use std::cell::Cell;

use self::backlog::Backlog;
use self::compact::Packing;
use self::edits::MergeEdits;
use self::release::release_sealed;
use self::steps::{Step, merge_step};
use crate::error::{Error, Result};
use crate::journal::position::LogPosition;
use crate::metrics::Latency;
use crate::space::BlockRun;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::txn::Core;
use crate::txn::items::DirtyInodes;
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
    times: Latency,
}

impl Merger {
    /// What waits for a merge, and what the running one has taken.
    pub(super) fn backlog(&self) -> &Backlog {
        &self.backlog
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
        let mut unfinished = self.unfinished.lock();
        core.signals.merging();
        core.storage.check()?;
        // The writes of a merge would only wait in memory after the held writes.
        core.storage.retry_held()?;
        let guard = core.storage.guard("a merge was broken off");
        let result = self.times.time(|| self.merge_now(core, &mut unfinished));
        self.starved.store(unfinished.is_some(), Ordering::Release);
        if let Err(e) = &result
            && unfinished.is_none()
        {
            core.storage.fail(e.clone());
        }
        guard.done();
        core.journal.ring().wake();
        result
    }

    fn merge_now(&self, core: &Core, unfinished: &mut Option<MergeInput>) -> Result<()> {
        if let Some(taken) = unfinished.take() {
            self.merge_or_keep(core, taken, unfinished)?;
        }
        let taken = self.take_input(core)?;
        self.merge_or_keep(core, taken, unfinished)?;
        self.packing.restore_reserve(core)
    }

    /// Closes the open context, and takes everything up to it.
    fn take_input(&self, core: &Core) -> Result<MergeInput> {
        let point = core.journal.push_for_merge(|| {
            let dirty = core.items.dirty();
            let (inodes, orphaned) = (dirty.take(), dirty.take_orphaned());
            let totals = core.reservations.take_totals();
            self.backlog.take_over(totals.memory, totals.shrinkage);
            let units = totals.units + core.space.take_committed_growth();
            (inodes, orphaned, units)
        })?;
        let (inodes, orphaned, units) = point.taken;
        let merged = core.superblocks.newest().merged_seq.get();
        Ok(MergeInput {
            seq: point.seq,
            birth: point.logged_seq.max(merged),
            end: point.end,
            freed: point.freed,
            inodes: in_order(inodes),
            orphaned,
            units,
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
        core.space.unreserve(0, taken.units);
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
        let all = (&core.items, core.limits.step_keys);
        let mut edits = MergeEdits::new(all, &taken.inodes, Some(taken.seq), &count);
        if taken.orphaned {
            edits.collect_orphans();
        }
        let step = Step {
            seq: taken.seq,
            birth: taken.birth,
            tail: Some(taken.end),
            promised: &promised,
            count: &count,
        };
        let applied = self.merge_steps(core, &mut edits, &step, lost);
        taken.units = promised.get();
        applied
    }

    /// Brings all changes of these inodes, whose dirty sets have `memory` bytes, into the index,
    /// before the first commit and without moving the log's tail. Returns the data blocks that the
    /// index lost.
    ///
    /// # Errors
    /// The device's failure, damage found in the index, no space for it.
    pub(super) fn merge_replayed(
        &self,
        core: &Core,
        seq: u64,
        (inodes, memory): (DirtyInodes, i64),
    ) -> Result<Vec<BlockRun>> {
        self.backlog.take_over(memory, 0);
        let inodes = in_order(inodes);
        let count = Cell::new(0);
        let all = (&core.items, core.limits.step_keys);
        let mut edits = MergeEdits::new(all, &inodes, None, &count);
        edits.collect_orphans();
        let promised = Cell::new(0);
        let step = Step {
            seq,
            birth: seq,
            tail: None,
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
