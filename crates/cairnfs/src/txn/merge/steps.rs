//! One step of a merge: new index nodes, the free space that follows from them, a superblock.
//!
//! What a step frees becomes usable only once its superblock is durable: nodes are released at its
//! end, data blocks are left to the caller.

use std::cell::Cell;

use zerocopy::little_endian::{U32, U64};

use crate::error::Result;
use crate::fault::{self, InjectedFault, is_injected};
use crate::format::NODE_BLOCKS;
use crate::format::key::{Key, MAIN_ROOT};
use crate::format::root::{RawRoot, Root};
use crate::format::superblock::Superblock;
use crate::index::{Edits, Tree};
use crate::journal::position::LogPosition;
use crate::space::BlockRun;
use crate::txn::Core;
use crate::txn::merge::edits::{ImageChange, MergeEdits};
use crate::txn::merge::step_space::StepSpace;
use crate::txn::roots::{RootItems, root_key};
use crate::txn::runs::subtract_runs;
use crate::txn::superblocks::volume_tree;

/// Parameters that all steps of a merge share.
pub(super) struct Step<'a> {
    /// Sequence of the last context that the merge takes.
    pub seq: u64,
    /// Birth of the nodes that the steps write: a sequence that the log or the superblock has before
    /// the first step ends. The log has no record of an empty context, so after a crash between
    /// steps a node born in it would be younger than everything.
    pub birth: u64,
    /// What the last step records.
    pub end: StepEnd,
    /// Changes of roots, which the last step applies to the state that it leaves.
    pub roots: &'a RootItems,
    /// Units left of those reserved for the growth of the index.
    pub promised: &'a Cell<u64>,
    /// Index nodes that the current step has allocated so far.
    pub count: &'a Cell<u64>,
}

/// What the superblock of a merge's last step records.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StepEnd {
    /// Nothing: more of the same contexts is merged later.
    Nothing,
    /// That the contexts up to the last one are merged. The log's tail does not move.
    Merged,
    /// The same, and the log's tail.
    Tail(LogPosition),
}

impl Step<'_> {
    /// Records in `superblock` that the log up to the last sequence is merged.
    fn moves_tail(&self, superblock: &mut Superblock) {
        if self.end != StepEnd::Nothing {
            superblock.merged_seq = U64::new(self.seq);
        }
        if let StepEnd::Tail(tail) = self.end {
            superblock.tail_lsn = U64::new(tail.lsn);
            superblock.tail_chain = U64::new(tail.chain);
        }
    }
}

/// The items of roots that a step changes in the volume tree.
struct RootEdits<'a>(std::collections::btree_map::Iter<'a, u32, Root>);

impl Edits for RootEdits<'_> {
    fn peek(&mut self) -> Result<Option<Key>> {
        Ok(self.0.clone().next().map(|(id, _)| root_key(*id)))
    }

    fn take(&mut self, _: &Key, _: Option<&[u8]>) -> Result<Option<std::borrow::Cow<'_, [u8]>>> {
        Ok(self.0.next().map(|(_, root)| root.encode().into()))
    }
}

/// The items of the roots that a step leaves with the tree `main`, which has `more` nodes than
/// before, and with `changes`, of which new roots have this tree too.
fn root_items(core: &Core, main: Tree, more: i64, changes: &RootItems) -> RootItems {
    let mut items = changes.clone();
    let known = core.roots.merged(MAIN_ROOT).unwrap_or_default();
    // Not counted before the first fork.
    let nodes = match known.nodes {
        0 => 0,
        nodes => nodes.saturating_add_signed(more),
    };
    if main != core.items.tree() || !changes.is_empty() {
        items.entry(MAIN_ROOT).or_insert(known);
    }
    for (id, root) in &mut items {
        let birth = root.tree.birth;
        (root.tree, root.nodes) = match core.roots.merged(*id) {
            // A frozen root keeps its tree.
            Some(known) if *id != MAIN_ROOT => (known.tree, known.nodes),
            _ => {
                let (ptr, height) = (main.ptr, U32::new(main.height));
                (RawRoot { ptr, height, birth }, nodes)
            }
        };
    }
    items
}

/// Runs one step: applies a part of the edits and writes a superblock. Returns the data blocks
/// that the index lost.
pub(super) fn merge_step(
    core: &Core,
    edits: &mut MergeEdits<'_>,
    step: &Step<'_>,
) -> Result<Vec<BlockRun>> {
    let birth = step.birth;
    step.count.set(0);
    let space = StepSpace::new(core, step.count, step.promised);
    fault::inject(InjectedFault::TailBeforeIndex, || {
        core.superblocks
            .flip(|superblock| step.moves_tail(superblock))
    })?;
    let old = core.items.tree();
    edits.begin_step(old, space.limit() / 2);
    let main = core.index.apply(&old, edits, birth, &space)?;
    let mut old_names = edits.take_old_names();
    let mut shared = edits.take_shared();
    space.hold(old_names.cost() + shared.cost());
    let main = core.index.apply(&main, &mut old_names, birth, &space)?;
    let main = core.index.apply(&main, &mut shared, birth, &space)?;
    let last = edits.is_done()?;
    let image = std::mem::take(&mut edits.image);
    let none = RootItems::new();
    let roots = if last { step.roots } else { &none };
    finish_step(core, space, (main, roots), birth, &image, |superblock| {
        if last || is_injected(InjectedFault::TailMovedEachStep) {
            step.moves_tail(superblock);
        }
    })?;
    // Blocks that one key lost and another gained are still in use.
    Ok(subtract_runs(image.removed, &image.added))
}

/// Makes a new main tree the valid one, with changes of `roots`: updates the free space accordingly
/// and writes a superblock changed by `change`.
pub(super) fn finish_step(
    core: &Core,
    space: StepSpace<'_>,
    (main, roots): (Tree, &RootItems),
    birth: u64,
    image: &ImageChange,
    change: impl FnOnce(&mut Superblock),
) -> Result<()> {
    let mut volume = volume_tree(&core.superblocks.newest());
    space.enter_volume_tree();
    let (more, copied) = space.nodes();
    let items = root_items(core, main, more, roots);
    if !items.is_empty() {
        let mut edits = RootEdits(items.iter());
        volume = core.index.apply(&volume, &mut edits, birth, &space)?;
    }
    let unit = |block: u64| BlockRun::new(block, NODE_BLOCKS);
    let done = space.into_done();
    let (allocated, retired) = (&done.allocated, &done.retired);
    fault::inject(InjectedFault::GainsBeforeLosses, || {
        gain(core, &image.added)
    })?;
    for run in &image.removed {
        core.space.image_remove(*run)?;
    }
    // A node allocated and retired within the step was never in the image.
    for block in retired.difference(allocated) {
        core.space.image_remove(unit(*block))?;
    }
    fault::unless(InjectedFault::GainsBeforeLosses, || {
        gain(core, &image.added)
    })?;
    for block in allocated.difference(retired) {
        core.space.image_add(unit(*block))?;
    }
    core.items.set_tree(main);
    core.superblocks.flip(|superblock| {
        superblock.root = volume.ptr;
        superblock.root_height = U32::new(volume.height);
        change(superblock);
    })?;
    core.roots.set_merged(items, roots);
    core.merger.copies().copied(copied);
    let inherited = core.roots.merged_inherited(MAIN_ROOT);
    core.items.set_merged_inherited(inherited);
    done.release_retired(core)
}

fn gain(core: &Core, added: &[BlockRun]) -> Result<()> {
    added.iter().try_for_each(|run| core.space.image_add(*run))
}
