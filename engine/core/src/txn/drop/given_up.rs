//! What the trees of files give up, while a walk runs, of what they inherit from its root.
//!
//! A merge frees nothing that its tree inherits. If the parent is the root of the walk, the walk may
//! have passed the place already, so the merge hands over what only the parent has from then on.

use crate::space::BlockRun;
use crate::txn::blocks::BlockSet;
use crate::txn::runs::subtract_runs;
use cairnfs_disk::fault::{InjectedFault, is_injected};
use cairnfs_disk::format::NODE_BLOCKS;
use cairnfs_disk::sync::Mutex;

/// What a step of a merge gives up and gains, of what its trees inherit from the root of a walk.
#[derive(Debug, Default)]
pub(in crate::txn) struct GivenUp {
    /// What was born up to this context belongs to the parent of the walk's root; `None` if no walk
    /// concerns the current tree.
    floor: Option<u64>,
    lost: Vec<BlockRun>,
    gained: Vec<BlockRun>,
}

impl GivenUp {
    /// Nothing, of a tree with this floor, from [`Watch::floor_of`].
    pub fn above(floor: Option<u64>) -> Self {
        Self {
            floor,
            ..Self::default()
        }
    }

    /// Nothing, of the same tree.
    pub fn of_same_tree(&self) -> Self {
        Self::above(self.floor)
    }

    /// Continues with a tree with this floor, from [`Watch::floor_of`].
    pub fn set_floor(&mut self, floor: Option<u64>) {
        self.floor = floor;
    }

    /// Notes a data extent that the index loses, or gains as a part of one that it loses.
    pub fn extent(&mut self, run: BlockRun, birth: u64, gained: bool) {
        if self.floor.is_some_and(|floor| birth > floor) {
            let runs = if gained {
                &mut self.gained
            } else {
                &mut self.lost
            };
            runs.push(run);
        }
    }

    /// Notes a node, or a unit of a large value, that the tree does not have any more.
    pub fn unit(&mut self, block: u64, birth: u64) {
        self.extent(BlockRun::new(block, NODE_BLOCKS), birth, false);
    }

    /// Adds what another tree gives up in the same step.
    pub fn add(&mut self, mut other: Self) {
        self.lost.append(&mut other.lost);
        self.gained.append(&mut other.gained);
    }
}

/// The root that a walk compares, and what its child has given up since the walk began.
pub(super) struct Watched {
    root: u32,
    floor: u64,
    blocks: BlockSet,
}

/// The watched root, if a walk runs. The lock is a leaf.
#[derive(Default)]
pub(in crate::txn) struct Watch(Mutex<Option<Watched>>);

impl Watch {
    /// Watches the trees whose parent is `root`; what was born up to `floor` belongs to the parent
    /// of `root` too. No merge runs.
    pub fn begin(&self, root: u32, floor: u64) {
        *self.0.lock() = Some(Watched {
            root,
            floor,
            blocks: BlockSet::default(),
        });
    }

    /// Ends the watch; returns what was given up.
    pub(super) fn end(&self) -> BlockSet {
        self.0
            .lock()
            .take()
            .map(|watched| watched.blocks)
            .unwrap_or_default()
    }

    /// The floor of what a tree gives up, if its parent in the index is the root of a walk: what was
    /// born later goes to [`Self::take`].
    pub fn floor_of(&self, parent: u32) -> Option<u64> {
        let watched = self.0.lock();
        let watched = watched.as_ref().filter(|watched| watched.root == parent);
        watched.map(|watched| watched.floor)
    }

    /// Takes what a step gave up, once its superblock is durable.
    pub fn take(&self, step: &GivenUp) {
        if step.lost.is_empty() || is_injected(InjectedFault::GivenUpForgotten) {
            return;
        }
        if let Some(watched) = &mut *self.0.lock() {
            let lost = subtract_runs(step.lost.clone(), &step.gained);
            lost.into_iter().for_each(|run| watched.blocks.insert(run));
        }
    }
}
