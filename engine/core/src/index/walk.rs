//! The walk over an old tree, from which a new one is made: it visits only nodes with changes.
//!
//! Where changes are, and what becomes of a leaf, is known to a [`Source`]; the new nodes belong to
//! a [`Target`]. The walk checks that the keys of a node are within the bounds given by its parents,
//! so cells reach the target in ascending order even if the tree on the device is damaged.

use std::sync::Arc;

use crate::index::Index;
use crate::index::bounds::Bounds;
use crate::index::cache::CachedNode;
use crate::index::read::{child, sound};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::key::Key;
use cairnfs_disk::format::node::Node;
use cairnfs_disk::format::pointer::RawPtr;

/// What a walk brings into a tree.
pub(super) trait Source<T> {
    /// A key in the next leaf to visit, if it is before the upper bound.
    fn next(&mut self, bounds: &Bounds) -> Result<Option<Key>>;

    /// Whether there is anything behind what was visited.
    fn goes_on(&self) -> bool;

    /// Visits the leaf at `ptr`: makes it the last node of the path of `out`, and changes it.
    /// Returns the damage if it cannot be read; nothing was done then.
    fn leaf(&mut self, out: &mut T, ptr: &RawPtr, bounds: &Bounds) -> Result<Option<Error>>;

    /// Passes a node at `level` that is damaged, and is not in the path of `out`. Returns whether it
    /// is replaced.
    ///
    /// # Errors
    /// `damage`, if something must be brought into that node, and it is not replaced.
    fn damaged(&mut self, out: &mut T, level: u8, bounds: &Bounds, damage: Error) -> Result<bool>;
}

/// What is made of the nodes that a walk visits.
pub(super) trait Target {
    /// The index.
    fn index(&self) -> &Index;

    /// Whether the next leaf should be rewritten as well, because otherwise a leaf that is far from
    /// full would be made.
    fn wants_more(&self) -> bool;

    /// Whether another tree has the node as well, so that rewriting it frees nothing.
    fn is_inherited(&self, ptr: &RawPtr) -> bool;

    /// Appends `node`, whose keys are within `bounds`, to the path.
    fn enter(&mut self, node: Arc<CachedNode>, bounds: Bounds);

    /// Appends a node in the place of a damaged one at `level`, whose items are given up, and further
    /// ones down to a leaf. Returns how many; none if damaged nodes are left where they are.
    fn enter_cut(&mut self, _level: u8, _bounds: &Bounds, _damage: &Error) -> Result<usize> {
        Ok(0)
    }

    /// Whether an edit is left out that would put something into a damaged node that stays.
    fn leaves_out(&self) -> bool {
        false
    }

    /// Records that the path continues through child `i` of the last node.
    fn pass(&mut self, i: usize);

    /// Whether the last node of the path is being replaced.
    fn is_open(&self) -> bool;

    /// Called before the leaf at the end of the path changes: all nodes on the path will be
    /// replaced.
    fn open(&mut self) -> Result<()>;

    /// Adds the cells `from..end` of the leaf at the end of the path unchanged.
    fn keep(&mut self, leaf: &Node, from: usize, end: usize) -> Result<()>;

    /// Adds an item with a new value.
    fn put(&mut self, key: &Key, value: &[u8], appended: bool) -> Result<()>;

    /// Retires an overflow unit that the new tree does not contain, unless another tree has it.
    fn retire(&self, block: u64, birth: u64);

    /// Removes the last node from the path; returns whether it was replaced.
    fn leave(&mut self) -> Result<bool>;
}

/// A walk.
pub(super) struct Walk<S, T> {
    pub source: S,
    pub out: T,
}

impl<T: Target, S: Source<T>> Walk<S, T> {
    /// Visits what has changes within `bounds` in the subtree at `ptr`; returns whether anything
    /// changed.
    pub fn visit(&mut self, ptr: &RawPtr, level: u8, bounds: &Bounds) -> Result<bool> {
        let damage = match level.checked_sub(1) {
            Some(below) => match sound(self.out.index().load(ptr, level), bounds)? {
                Ok(node) => {
                    self.out.enter(node.clone(), *bounds);
                    self.children(&node, below, bounds)?;
                    None
                }
                Err(damage) => Some(damage),
            },
            None => self.source.leaf(&mut self.out, ptr, bounds)?,
        };
        match damage {
            None => self.out.leave(),
            Some(damage) => self.source.damaged(&mut self.out, level, bounds, damage),
        }
    }

    fn children(&mut self, node: &Node, below: u8, bounds: &Bounds) -> Result<()> {
        let mut i = 0;
        loop {
            let next = self.source.next(bounds)?;
            let edited = next.map_or(node.len(), |key| node.child_for(&key));
            // If space is short, the rest of a leaf that does not fill a node goes into the next
            // leaf.
            let goes_on = below == 0 && self.source.goes_on() && self.out.wants_more();
            let goes_on = goes_on && (1..edited).contains(&i);
            if goes_on && !self.out.is_inherited(&child(node, i)?) {
                self.rewrite(node, i, bounds)?;
                i += 1;
                continue;
            }
            if next.is_none() {
                return Ok(());
            }
            i = edited.max(i);
            self.out.pass(i);
            self.visit(&child(node, i)?, below, &bounds.of_child(node, i))?;
            i += 1;
        }
    }

    /// Rewrites an unchanged leaf, so that its cells follow the cells that wait in the packer. A
    /// damaged one stays as it is.
    fn rewrite(&mut self, parent: &Node, i: usize, bounds: &Bounds) -> Result<()> {
        let bounds = bounds.of_child(parent, i);
        let loaded = self.out.index().load(&child(parent, i)?, 0);
        let Ok(leaf) = sound(loaded, &bounds)? else {
            return Ok(());
        };
        self.out.pass(i);
        self.out.enter(leaf.clone(), bounds);
        self.out.open()?;
        self.out.keep(&leaf, 0, leaf.len())?;
        self.out.leave()?;
        Ok(())
    }
}
