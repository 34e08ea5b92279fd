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

use std::cell::Cell;
use std::sync::Arc;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::fault::{self, InjectedFault, is_injected};
use crate::format::item::RawRoot;
use crate::format::key::{Key, Kind, MAIN_ROOT};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK_SIZE, NODE_BLOCKS};
use crate::index::{Edits, Tree};
use crate::inode::Inode;
use crate::journal::position::LogPosition;
use crate::journal::vector::LogVector;
use crate::prefetch::prefetch;
use crate::space::BlockRun;
use crate::sync::atomic::Ordering;
use crate::txn::edits::{ImageChange, MergeEdits, TOGETHER};
use crate::txn::step_space::StepSpace;
use crate::txn::{Core, Trees};

/// Waiters for memory are woken each time this many inodes were released.
const WAKE_EVERY: usize = 1 << 14;

/// The input of a merge.
pub(super) struct MergeInput {
    /// Sequence of the last context.
    pub seq: u64,
    /// Birth of the nodes that the merge writes, see [`Step::birth`].
    pub birth: u64,
    /// End of the log after that context.
    pub end: LogPosition,
    /// Blocks that these contexts have freed.
    pub freed: Vec<BlockRun>,
    /// Inodes with changes of these contexts, in order of their numbers.
    pub inodes: Vec<(u64, Arc<Inode>)>,
    /// Whether some of them may have changed orphan items.
    pub orphaned: bool,
    /// Index units reserved for the growth of the index.
    pub units: u64,
}

/// Parameters that all steps of a merge share.
struct Step<'a> {
    /// Sequence of the last context that the merge takes.
    seq: u64,
    /// Birth of the nodes that the steps write: a sequence that the log or the superblock has before
    /// the first step ends. The log has no record of an empty context, so after a crash between
    /// steps a node born in it would be younger than everything.
    birth: u64,
    /// The log's tail after the last step; `None` if the tail does not move.
    tail: Option<LogPosition>,
    /// Units left of those reserved for the growth of the index.
    promised: &'a Cell<u64>,
    /// Index nodes that the current step has allocated so far.
    count: &'a Cell<u64>,
}

impl Step<'_> {
    /// Records in `superblock` that the log up to the last sequence is merged.
    fn moves_tail(&self, superblock: &mut Superblock) {
        if let Some(tail) = self.tail {
            superblock.merged_seq = U64::new(self.seq);
            superblock.tail_lsn = U64::new(tail.lsn);
            superblock.tail_chain = U64::new(tail.chain);
        }
    }
}

/// The only edit of the volume's root: the position of the main tree.
struct RootEdit(Option<RawRoot>);

impl Edits for RootEdit {
    fn peek(&mut self) -> Result<Option<Key>> {
        Ok(self
            .0
            .map(|_| Key::new(u64::from(MAIN_ROOT), Kind::Root, 0)))
    }

    fn take(
        &mut self,
        _key: &Key,
        old: Option<&[u8]>,
    ) -> Result<Option<std::borrow::Cow<'_, [u8]>>> {
        let mut root = self.0.take().unwrap_or_default();
        if let Some(old) = old {
            let old = crate::format::item::decode_root(old)
                .map_err(|found| Error::corrupt(0, "root item", "the main root", found))?;
            root.birth = old.birth;
        }
        Ok(Some(root.as_bytes().to_vec().into()))
    }
}

impl Core {
    /// Merges everything committed so far. Merges run one at a time; a second caller waits and then
    /// runs its own.
    ///
    /// # Errors
    /// The device's failure, or damage found in the index: both stop the volume.
    /// [`Error::HostFull`] while writes are held, before anything was done.
    pub fn merge(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        let mut unfinished = self.merging.lock();
        self.signals.merging();
        self.storage.check()?;
        // The writes of a merge would only wait in memory behind the held writes.
        self.storage.retry_held()?;
        let guard = self.storage.guard("a merge was broken off");
        let result = self.merge_times.time(|| self.merge_now(&mut unfinished));
        self.starved.store(unfinished.is_some(), Ordering::Release);
        if let Err(e) = &result
            && unfinished.is_none()
        {
            self.storage.fail(e.clone());
        }
        guard.done();
        self.journal.ring().wake();
        result
    }

    fn merge_now(&self, unfinished: &mut Option<MergeInput>) -> Result<()> {
        if let Some(taken) = unfinished.take() {
            self.merge_or_keep(taken, unfinished)?;
        }
        let point = self.journal.push_for_merge(|| {
            let dirty = self.dirty.take();
            let memory =
                self.dirty_bytes.swap(0, Ordering::AcqRel) + self.reservation_caches.take_memory();
            self.sealed_bytes.store(memory, Ordering::Release);
            let orphaned = self.orphaned.swap(false, Ordering::Relaxed);
            let shrinkage = self.reservation_caches.take_shrinkage();
            self.shrinking.fetch_add(shrinkage, Ordering::AcqRel);
            let units = self.reservation_caches.take_growth() + self.space.take_committed_growth();
            (dirty, orphaned, units)
        })?;
        let (inodes, orphaned, units) = point.taken;
        let taken = MergeInput {
            seq: point.seq,
            birth: point.logged_seq.max(self.superblock().merged_seq.get()),
            end: point.end,
            freed: point.freed,
            inodes: in_order(inodes),
            orphaned,
            units,
        };
        self.merge_or_keep(taken, unfinished)?;
        self.restore_reserve()
    }

    /// Merges the input. If a step finds no space, the whole input stays for a later merge, which
    /// applies it again: changes that are already in the index have no effect.
    fn merge_or_keep(
        &self,
        mut taken: MergeInput,
        unfinished: &mut Option<MergeInput>,
    ) -> Result<()> {
        let result = self.merge_taken(&mut taken);
        if matches!(result, Err(Error::NoSpace)) {
            tracing::error!(
                "a merge found no space for the index; changes wait until there is some"
            );
            *unfinished = Some(taken);
        }
        result
    }

    /// Brings all changes of these inodes into the index, before the first commit and without
    /// moving the log's tail. Returns the data blocks that the index lost.
    pub(super) fn merge_replayed(
        &self,
        seq: u64,
        inodes: Vec<(u64, Arc<Inode>)>,
    ) -> Result<Vec<BlockRun>> {
        let inodes = in_order(inodes);
        let count = Cell::new(0);
        let mut edits = MergeEdits::new(self, &inodes, None, &count);
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
        self.merge_steps(&mut edits, &step, &mut lost)?;
        drop(edits);
        self.release_sealed(inodes, seq);
        self.sealed_bytes.store(0, Ordering::Release);
        Ok(lost)
    }

    /// Merges the input in steps, and releases its inodes and freed blocks.
    fn merge_taken(&self, taken: &mut MergeInput) -> Result<()> {
        let count = Cell::new(0);
        let promised = Cell::new(taken.units);
        let pending: u64 = taken.freed.iter().map(|r| r.len).sum();
        let mut lost = Vec::new();
        let merged = {
            let mut edits = MergeEdits::new(self, &taken.inodes, Some(taken.seq), &count);
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
            self.merge_steps(&mut edits, &step, &mut lost)
        };
        taken.units = promised.get();
        if merged.is_err() {
            self.values.forget_places();
            // Blocks that earlier steps removed from the index are freed with the rest.
            let blocks: u64 = lost.iter().map(|r| r.len).sum();
            self.pending_free.fetch_add(blocks as i64, Ordering::AcqRel);
            taken.freed.extend(lost);
            return merged;
        }
        self.journal.merged(taken.end.lsn);
        self.release_sealed(std::mem::take(&mut taken.inodes), taken.seq);
        self.sealed_bytes.store(0, Ordering::Release);
        let freed = [std::mem::take(&mut taken.freed), lost].concat();
        self.space.release(&mut join_runs(freed), self.discard)?;
        self.space.unreserve(0, taken.units);
        self.shrinking.store(0, Ordering::Release);
        self.pending_free
            .fetch_sub(pending as i64, Ordering::AcqRel);
        self.table.shrink();
        Ok(())
    }

    /// Brings all edits into the index, and adds the data blocks that the index lost to `lost`.
    fn merge_steps(
        &self,
        edits: &mut MergeEdits<'_>,
        step: &Step<'_>,
        lost: &mut Vec<BlockRun>,
    ) -> Result<()> {
        loop {
            lost.extend(self.merge_step(edits, step)?);
            if edits.is_done()? {
                return Ok(());
            }
            self.restore_reserve()?;
        }
    }

    /// Releases sealed sets, which the index has, and regularly wakes the threads that wait for
    /// memory.
    fn release_sealed(&self, inodes: Vec<(u64, Arc<Inode>)>, seq: u64) {
        let together = inodes.len();
        let sealed = self.sealed_bytes.load(Ordering::Acquire);
        let mut woken_at = together;
        let mut inodes = inodes.into_iter();
        let mut vectors = Vec::new();
        let mut clean = Vec::with_capacity(TOGETHER);
        while !inodes.as_slice().is_empty() {
            let next = inodes.as_slice().iter().take(TOGETHER);
            next.for_each(|(_, inode)| inode.prefetch());
            for (_, inode) in inodes.by_ref().take(TOGETHER) {
                if inode.release_sealed(seq, &mut vectors) {
                    clean.push(inode);
                }
            }
            drop_together(&mut vectors);
            let cleaned = |inode| self.table.cleaned(inode, together);
            clean.drain(..).for_each(cleaned);
            let left = inodes.as_slice().len();
            if woken_at - left >= WAKE_EVERY && left > 0 {
                woken_at = left;
                let per_inode = sealed / together as i64;
                self.sealed_bytes
                    .store((per_inode * left as i64).max(1), Ordering::Release);
                self.journal.ring().wake();
            }
        }
    }

    /// Runs one step: applies a part of the edits and writes a superblock. Returns the data blocks
    /// that the index lost.
    fn merge_step(&self, edits: &mut MergeEdits<'_>, step: &Step<'_>) -> Result<Vec<BlockRun>> {
        let birth = step.birth;
        step.count.set(0);
        let space = StepSpace::new(self, step.count, step.promised);
        fault::inject(InjectedFault::TailBeforeIndex, || {
            self.flip(|superblock| step.moves_tail(superblock))
        })?;
        let old = **self.trees.load();
        edits.begin_step(old.main, space.limit() / 2);
        let main = self.index.apply(&old.main, edits, birth, &space)?;
        let mut old_names = edits.take_old_names();
        let mut shared = edits.take_shared();
        space.hold(old_names.cost() + shared.cost());
        let main = self.index.apply(&main, &mut old_names, birth, &space)?;
        let main = self.index.apply(&main, &mut shared, birth, &space)?;
        let last = edits.is_done()?;
        let image = std::mem::take(&mut edits.image);
        self.finish_step(space, main, birth, &image, |superblock| {
            if last || is_injected(InjectedFault::TailMovedEachStep) {
                step.moves_tail(superblock);
            }
        })?;
        // Blocks that one key lost and another gained are still in use.
        Ok(subtract_runs(image.removed, &image.added))
    }

    /// Makes a new main tree the valid one: updates the free space accordingly and writes a
    /// superblock changed by `change`.
    pub(super) fn finish_step(
        &self,
        space: StepSpace<'_>,
        main: Tree,
        birth: u64,
        image: &ImageChange,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<()> {
        let old = **self.trees.load();
        let mut volume = old.volume;
        if main != old.main {
            let root = RawRoot {
                ptr: main.ptr,
                height: U32::new(main.height),
                birth: U64::new(birth),
            };
            volume = self
                .index
                .apply(&old.volume, &mut RootEdit(Some(root)), birth, &space)?;
        }
        let unit = |block: u64| BlockRun::new(block, NODE_BLOCKS);
        let done = space.into_done();
        let (allocated, retired) = (&done.allocated, &done.retired);
        fault::inject(InjectedFault::GainsBeforeLosses, || self.gain(&image.added))?;
        for run in &image.removed {
            self.space.image_remove(*run)?;
        }
        // A node allocated and retired within the step was never in the image.
        for block in retired.difference(allocated) {
            self.space.image_remove(unit(*block))?;
        }
        fault::unless(InjectedFault::GainsBeforeLosses, || self.gain(&image.added))?;
        for block in allocated.difference(retired) {
            self.space.image_add(unit(*block))?;
        }
        let trees = Trees { volume, main };
        self.trees.store(Arc::new(trees));
        self.flip(|superblock| {
            superblock.root = trees.volume.ptr;
            superblock.root_height = U32::new(trees.volume.height);
            change(superblock);
        })?;
        done.release_retired(self)
    }

    fn gain(&self, added: &[BlockRun]) -> Result<()> {
        added.iter().try_for_each(|run| self.space.image_add(*run))
    }

    /// Writes the free space and a superblock changed by `change`; both are durable before any
    /// later write.
    pub(super) fn flip(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let table = self.space.write_image()?;
        fault::unless(InjectedFault::SuperblockBeforeIndex, || {
            self.journal.order()
        })?;
        let mut current = self.superblock.lock();
        let mut next = *current;
        change(&mut next);
        next.generation = U64::new(current.generation.get() + 1);
        next.required_lsn = U64::new(self.journal.durable_lsn().max(next.tail_lsn.get()));
        if !is_injected(InjectedFault::NextInodeForgotten) {
            next.next_ino = U64::new(self.next_ino.load(Ordering::Acquire));
        }
        next.table_copy = U32::new(u32::from(table.copy));
        next.table_crc = U32::new(table.crc);
        next.free_blocks = U64::new(table.free_blocks);
        self.storage
            .write(next.slot_block() * BLOCK_SIZE as u64, &next.encode())?;
        fault::unless(InjectedFault::SuperblockUnflushed, || {
            self.storage.order_through(self.storage.stamp())
        })?;
        *current = next;
        drop(current);
        self.journal.set_generation(next.generation.get());
        self.space.commit_image();
        Ok(())
    }
}

/// Sorts inodes by their numbers and removes duplicates: an inode whose changes all died and that
/// was changed again is listed twice.
fn in_order(mut inodes: Vec<(u64, Arc<Inode>)>) -> Vec<(u64, Arc<Inode>)> {
    inodes.sort_unstable_by_key(|(ino, _)| *ino);
    inodes.dedup_by_key(|(ino, _)| *ino);
    inodes
}

/// Drops vectors, with prefetching, because many have left the processor's cache.
fn drop_together(vectors: &mut Vec<Arc<LogVector>>) {
    while !vectors.is_empty() {
        let rest = vectors.len().saturating_sub(2 * TOGETHER);
        let last = vectors.get(rest..).unwrap_or_default();
        last.iter().for_each(|vector| prefetch(&**vector));
        vectors.truncate(rest);
    }
    // Otherwise the list of a large directory would be kept until all inodes are released.
    vectors.shrink_to(TOGETHER * TOGETHER);
}

/// Sorts runs and joins those that touch or overlap.
pub(super) fn join_runs(mut runs: Vec<BlockRun>) -> Vec<BlockRun> {
    runs.sort_unstable_by_key(|r| r.start);
    let mut joined: Vec<BlockRun> = Vec::with_capacity(runs.len());
    for run in runs {
        match joined.last_mut() {
            Some(last) if run.start <= last.start + last.len => {
                last.len = last.len.max(run.start + run.len - last.start);
            }
            _ => joined.push(run),
        }
    }
    joined
}

/// The blocks of `runs` that are in none of `except`.
pub fn subtract_runs(runs: Vec<BlockRun>, except: &[BlockRun]) -> Vec<BlockRun> {
    let except = join_runs(except.to_vec());
    let mut left = Vec::new();
    for run in join_runs(runs) {
        let end = run.start + run.len;
        let mut start = run.start;
        let first = except.partition_point(|e| e.start + e.len <= start);
        for e in except.iter().skip(first) {
            if e.start >= end {
                break;
            }
            if e.start > start {
                left.push(BlockRun {
                    start,
                    len: e.start - start,
                });
            }
            start = start.max(e.start + e.len);
        }
        if start < end {
            left.push(BlockRun {
                start,
                len: end - start,
            });
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, len: u64) -> BlockRun {
        BlockRun { start, len }
    }

    #[test]
    fn runs_are_joined_and_subtracted() {
        assert_eq!(
            join_runs(vec![run(8, 2), run(1, 3), run(4, 1), run(9, 5)]),
            vec![run(1, 4), run(8, 6)]
        );
        assert_eq!(
            subtract_runs(vec![run(0, 10), run(20, 4)], &[run(2, 3), run(8, 14)]),
            vec![run(0, 2), run(5, 3), run(22, 2)]
        );
        assert_eq!(subtract_runs(vec![run(4, 4)], &[run(4, 4)]), vec![]);
    }
}
