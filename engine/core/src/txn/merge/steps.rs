//! One step of a merge: new index nodes, the free space that follows from them, a superblock.
//!
//! A step changes the trees of as many heads as it has room for, one after the other, and its
//! superblock has all of them.
//!
//! What a step frees becomes usable only once its superblock is durable: nodes are released at its
//! end, data blocks are left to the caller, and so are the nodes of a last step that does not wait
//! for its superblock.

use std::collections::{HashSet, VecDeque};

use zerocopy::little_endian::{U32, U64};

use crate::index::{Edits, NodeCounts, Tree};
use crate::journal::position::LogPosition;
use crate::space::BlockRun;
use crate::txn::Core;
use crate::txn::drop::GivenUp;
use crate::txn::merge::edits::{ImageChange, MergeEdits};
use crate::txn::merge::parts;
use crate::txn::merge::rest::Ending;
use crate::txn::merge::step_space::{Retired, StepSpace, StepUnits, unit};
use crate::txn::roots::{RootChanges, RootItems, root_key, tree_of};
use crate::txn::runs::{join_touching, subtract_runs};
use crate::txn::superblocks::volume_tree;
use cairnfs_disk::error::Result;
use cairnfs_disk::fault::{self, InjectedFault, is_injected};
use cairnfs_disk::format::key::{Key, VOLUME_ROOT};
use cairnfs_disk::format::root::{RawRoot, Root};
use cairnfs_disk::format::superblock::Superblock;
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};

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
    /// Whether the last step waits for its superblock.
    pub ending: Ending,
    /// Changes of roots, which the last step applies to the state that it leaves.
    pub roots: &'a RootItems,
    /// Units left of those reserved for the growth of the index.
    pub promised: &'a AtomicU64,
    /// Whether heads may be divided into parts.
    pub divides: bool,
    /// Index nodes that the current step has allocated so far.
    pub count: &'a AtomicU64,
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

/// Changes of the items of roots as edits of the volume tree.
struct RootEdits<'a>(std::collections::btree_map::Iter<'a, u32, Option<Root>>);

impl Edits for RootEdits<'_> {
    fn peek(&mut self) -> Result<Option<Key>> {
        Ok(self.0.clone().next().map(|(id, _)| root_key(*id)))
    }

    fn take(&mut self, _: &Key, _: Option<&[u8]>) -> Result<Option<std::borrow::Cow<'_, [u8]>>> {
        let change = self.0.next().and_then(|(_, root)| root.as_ref());
        Ok(change.map(|root| root.encode().into()))
    }
}

/// A tree of files as a step leaves it.
pub(super) struct NewTree {
    /// Id of the root.
    pub root: u32,
    /// The tree.
    pub tree: Tree,
    /// How its nodes differ from those before.
    pub nodes: NodeCounts,
}

/// The items of the roots that a step changes: those of `trees`, and of `changes`, of which new
/// roots have the trees of their origins.
fn root_items(core: &Core, trees: &[NewTree], changes: &RootItems) -> RootItems {
    let mut items = changes.clone();
    for new in trees {
        let known = core.roots.merged(new.root).unwrap_or_default();
        if tree_of(&known.tree) != new.tree {
            items.entry(new.root).or_insert(known);
        }
    }
    for (id, root) in &mut items {
        let birth = root.tree.birth;
        let (tree, nodes) = tree_after(core, trees, changes, *id);
        let (ptr, height) = (tree.ptr, U32::new(tree.height));
        root.tree = RawRoot { ptr, height, birth };
        root.nodes = nodes;
    }
    items
}

/// The tree of a root after a step, and the number of its nodes; 0 if they were never counted.
fn tree_after(core: &Core, trees: &[NewTree], changes: &RootItems, id: u32) -> (Tree, u64) {
    let mut id = id;
    // A new root has the tree of its origin, which may be new, too.
    for _ in 0..=changes.len() {
        if let Some(known) = core.roots.merged(id) {
            let before = (tree_of(&known.tree), known.nodes);
            let new = trees.iter().find(|new| new.root == id);
            return new.map_or(before, |new| match before {
                (tree, 0) if tree.height > 0 => (new.tree, 0),
                (_, nodes) => (new.tree, nodes.saturating_add_signed(new.nodes.more())),
            });
        }
        match changes.get(&id) {
            Some(root) if root.origin != id => id = root.origin,
            _ => break,
        }
    }
    (Tree::default(), 0)
}

/// Runs one step: applies a part of the edits of the first heads, removes the heads that are done,
/// and writes a superblock. Returns the data blocks that the index lost, and the nodes that are left
/// to be released.
pub(super) fn merge_step(
    core: &Core,
    heads: &mut VecDeque<MergeEdits<'_>>,
    step: &Step<'_>,
) -> Result<(Vec<BlockRun>, Retired)> {
    let birth = step.birth;
    step.count.store(0, Ordering::Relaxed);
    let space = StepSpace::new(core, step.count, step.promised);
    fault::inject(InjectedFault::TailBeforeIndex, || {
        core.superblocks
            .flip(|superblock| step.moves_tail(superblock))
    })?;
    let mut trees = Vec::new();
    let mut image = ImageChange::default();
    while let Some(edits) = heads.front_mut() {
        trees.push(apply_head(core, edits, &space, step)?);
        image.add(std::mem::take(&mut edits.image));
        if !edits.is_done()? {
            break;
        }
        heads.pop_front();
        if step.count.load(Ordering::Relaxed) >= space.limit() / 2 {
            break;
        }
    }
    let last = heads.is_empty();
    let none = RootItems::new();
    let (roots, ending) = if last {
        (step.roots, step.ending)
    } else {
        (&none, Ending::Settled)
    };
    let change = |superblock: &mut Superblock| {
        if last || is_injected(InjectedFault::TailMovedEachStep) {
            step.moves_tail(superblock);
        }
    };
    let changes = (trees, roots);
    let done = finish_step(core, space, changes, birth, &image, (change, ending))?;
    let retired = match ending {
        Ending::Left => done.into_retired(),
        Ending::Settled => {
            done.release_retired(core)?;
            Retired::default()
        }
    };
    // Blocks that one key lost and another gained are still in use.
    Ok((subtract_runs(image.removed, &image.added), retired))
}

/// Applies as many edits of a head as the step has room for.
fn apply_head(
    core: &Core,
    edits: &mut MergeEdits<'_>,
    space: &StepSpace<'_>,
    step: &Step<'_>,
) -> Result<NewTree> {
    let (items, birth) = (edits.items(), step.birth);
    let parent = core.roots.merged_parent(items.root());
    space.enter(items.root(), (items.merged_inherited(), parent));
    let old = items.tree();
    let given_up = GivenUp::above(core.drops.watch().floor_of(parent));
    edits.begin_step(old, space.limit() / 2, given_up);
    let in_parts = if step.divides {
        parts::apply(core, edits, (&old, birth), space)?
    } else {
        None
    };
    let tree = match in_parts {
        Some(tree) => tree,
        None => core.index.apply(&old, edits, birth, space)?,
    };
    let mut old_names = edits.take_old_names();
    let mut shared = edits.take_shared()?;
    space.hold(old_names.cost() + shared.cost());
    let tree = core.index.apply(&tree, &mut old_names, birth, space)?;
    let tree = core.index.apply(&tree, &mut shared, birth, space)?;
    Ok(NewTree {
        root: items.root(),
        tree,
        nodes: space.nodes(),
    })
}

/// Makes new trees the valid ones, with changes of `roots`: updates the free space accordingly and
/// writes a superblock changed by `change`. Returns the units of the step, whose retired nodes may be
/// released when the superblock is durable.
pub(super) fn finish_step<'a>(
    core: &Core,
    space: StepSpace<'a>,
    (trees, roots): (Vec<NewTree>, &RootItems),
    birth: u64,
    image: &ImageChange,
    (change, ending): (impl FnOnce(&mut Superblock), Ending),
) -> Result<StepUnits<'a>> {
    let items = root_items(core, &trees, roots);
    let written = items.iter().map(|(id, root)| (*id, Some(root.clone())));
    let given_up = space.take_given_up();
    let step = VolumeStep {
        roots: &written.collect(),
        birth,
        lose: || {
            fault::inject(InjectedFault::GainsBeforeLosses, || {
                gain(core, image.added.clone())
            })?;
            lose(core, image.removed.clone())
        },
        gain: || {
            fault::unless(InjectedFault::GainsBeforeLosses, || {
                gain(core, image.added.clone())
            })?;
            set_trees(core, &trees);
            Ok(())
        },
    };
    let done = write_roots(core, space, step, (change, ending))?;
    core.roots.set_merged(items, roots);
    core.drops.watch().take(&image.given_up);
    core.drops.watch().take(&given_up);
    // Roots that were opened meanwhile.
    set_trees(core, &trees);
    for new in &trees {
        core.merger.copies().replaced(new.root, &new.nodes);
    }
    if !roots.is_empty() {
        core.heads.each(|items| {
            items.set_merged_inherited(core.roots.merged_inherited(items.root()));
        });
    }
    Ok(done)
}

/// The end of a step: changes of root items, and what changes the free-space image besides nodes.
pub(in crate::txn) struct VolumeStep<'a, L, G> {
    /// The changes of the volume tree.
    pub roots: &'a RootChanges,
    /// Birth of its new nodes.
    pub birth: u64,
    /// Removes blocks from the image.
    pub lose: L,
    /// Adds blocks to the image.
    pub gain: G,
}

/// Changes the items of roots and the free space, and writes a superblock changed by `change`.
/// Returns the units of the step.
///
/// # Errors
/// [`Error::NoSpace`](cairnfs_disk::Error::NoSpace) before anything was changed; damage, the device's
/// failure.
pub(in crate::txn) fn write_roots<'a>(
    core: &Core,
    space: StepSpace<'a>,
    step: VolumeStep<'_, impl FnOnce() -> Result<()>, impl FnOnce() -> Result<()>>,
    (change, ending): (impl FnOnce(&mut Superblock), Ending),
) -> Result<StepUnits<'a>> {
    let mut volume = volume_tree(&core.superblocks.newest());
    space.enter(VOLUME_ROOT, (0, VOLUME_ROOT));
    if !step.roots.is_empty() {
        let mut edits = RootEdits(step.roots.iter());
        volume = core.index.apply(&volume, &mut edits, step.birth, &space)?;
    }
    let done = space.into_done();
    let (allocated, retired) = (&done.allocated, &done.retired);
    // A node allocated and retired within the step was never in the image.
    let units = |of: &HashSet<u64>, except| of.difference(except).map(unit).collect::<Vec<_>>();
    (step.lose)()?;
    lose(core, units(retired, allocated))?;
    (step.gain)()?;
    gain(core, units(allocated, retired))?;
    core.superblocks.write_next(|superblock| {
        superblock.root = volume.ptr;
        superblock.root_height = U32::new(volume.height);
        change(superblock);
    })?;
    if ending == Ending::Settled {
        core.superblocks.settle()?;
    }
    Ok(done)
}

/// Removes blocks from the free-space image, in as few runs as possible, because each takes the lock
/// of its group.
fn lose(core: &Core, removed: Vec<BlockRun>) -> Result<()> {
    let mut runs = join_touching(removed).into_iter();
    runs.try_for_each(|run| core.space.image_remove(run))
}

/// Lets lookups in open roots read the new trees.
fn set_trees(core: &Core, trees: &[NewTree]) {
    for new in trees {
        for id in core.roots.readers_of(new.root) {
            if let Some(items) = core.heads.get(id)
                && items.tree() != new.tree
            {
                items.set_tree(new.tree);
            }
        }
    }
}

/// Adds blocks to the free-space image, as [`lose`] removes them.
fn gain(core: &Core, added: Vec<BlockRun>) -> Result<()> {
    let mut runs = join_touching(added).into_iter();
    runs.try_for_each(|run| {
        if core.cuts_damaged {
            core.space.image_keep(run)
        } else {
            core.space.image_add(run)
        }
    })
}
