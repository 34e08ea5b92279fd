//! One step of a merge: new index nodes, the free space that follows from them, a superblock.
//!
//! What a step frees becomes usable only once its superblock is durable: nodes are released at its
//! end, data blocks are left to the caller.

use std::cell::Cell;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::error::{Error, Result};
use crate::fault::{self, InjectedFault, is_injected};
use crate::format::NODE_BLOCKS;
use crate::format::item::RawRoot;
use crate::format::key::{Key, Kind, MAIN_ROOT};
use crate::format::superblock::Superblock;
use crate::index::{Edits, Tree};
use crate::journal::position::LogPosition;
use crate::space::BlockRun;
use crate::txn::Core;
use crate::txn::merge::edits::{ImageChange, MergeEdits};
use crate::txn::merge::step_space::StepSpace;
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
    /// The log's tail after the last step; `None` if the tail does not move.
    pub tail: Option<LogPosition>,
    /// Units left of those reserved for the growth of the index.
    pub promised: &'a Cell<u64>,
    /// Index nodes that the current step has allocated so far.
    pub count: &'a Cell<u64>,
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
    finish_step(core, space, main, birth, &image, |superblock| {
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
    core: &Core,
    space: StepSpace<'_>,
    main: Tree,
    birth: u64,
    image: &ImageChange,
    change: impl FnOnce(&mut Superblock),
) -> Result<()> {
    let mut volume = volume_tree(&core.superblocks.newest());
    if main != core.items.tree() {
        let root = RawRoot {
            ptr: main.ptr,
            height: U32::new(main.height),
            birth: U64::new(birth),
        };
        volume = core
            .index
            .apply(&volume, &mut RootEdit(Some(root)), birth, &space)?;
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
    done.release_retired(core)
}

fn gain(core: &Core, added: &[BlockRun]) -> Result<()> {
    added.iter().try_for_each(|run| core.space.image_add(*run))
}
