//! Compaction: packs partly filled leaves into fewer nodes.
//!
//! Uses a dense [`Output`], which packs a run of leaves into as few as possible. Leaves that are
//! nearly full are not rewritten, unless a rest before them would otherwise make a partly filled
//! leaf. Nodes that another tree has too are left alone: rewriting them would take space. So are
//! damaged ones. Bounded like a merge step: it ends at a leaf once enough nodes were allocated, and
//! returns the key at which the next compaction continues.

use crate::index::bounds::Bounds;
use crate::index::output::Output;
use crate::index::pack::FULL;
use crate::index::read::{child, root_level, sound};
use crate::index::walk::Target;
use crate::index::{Index, NodeSpace, Tree};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::NODE_SIZE;
use cairnfs_disk::format::key::Key;
use cairnfs_disk::format::node::{NODE_HEADER, Node};
use cairnfs_disk::format::pointer::RawPtr;

/// The result of a compaction.
#[derive(Debug, Clone, Copy)]
pub struct Compacted {
    /// The new tree.
    pub tree: Tree,
    /// The key at which to continue; `None` at the end of the tree.
    pub next: Option<Key>,
    /// Number of leaves visited.
    pub leaves: u64,
}

/// Implements [`Index::compact`].
pub(super) fn run(
    index: &Index,
    tree: &Tree,
    (from, full): (Option<Key>, &dyn Fn() -> bool),
    birth: u64,
    space: &dyn NodeSpace,
) -> Result<Compacted> {
    let Some(level) = root_level(tree)? else {
        return Ok(Compacted {
            tree: *tree,
            next: None,
            leaves: 0,
        });
    };
    let mut walk = Walk {
        out: Output::new(index, birth, space).dense(),
        from,
        next: None,
        leaves: 0,
        full,
    };
    let changed = walk.visit(&tree.ptr, level, &Bounds::default())?;
    let (next, leaves) = (walk.next, walk.leaves);
    let tree = if changed {
        walk.out.finish(level)?
    } else {
        *tree
    };
    Ok(Compacted { tree, next, leaves })
}

struct Walk<'a> {
    out: Output<'a>,
    /// Leaves with smaller keys are skipped.
    from: Option<Key>,
    /// The first key of the first leaf that was not visited.
    next: Option<Key>,
    leaves: u64,
    full: &'a dyn Fn() -> bool,
}

impl Walk<'_> {
    fn visit(&mut self, ptr: &RawPtr, level: u8, bounds: &Bounds) -> Result<bool> {
        // The nodes below were born no later.
        if self.out.is_inherited(ptr) {
            return Ok(false);
        }
        // A damaged node stays where it is.
        let Ok(node) = sound(self.out.index().load(ptr, level), bounds)? else {
            return Ok(false);
        };
        self.leaves += u64::from(level == 0);
        self.out.enter(node.clone(), *bounds);
        match level.checked_sub(1) {
            Some(below) => self.children(&node, below, bounds)?,
            None if used(&node) < FULL || self.out.wants_more() => {
                self.out.open()?;
                self.out.keep(&node, 0, node.len())?;
            }
            None => {}
        }
        self.out.leave()
    }

    fn children(&mut self, node: &Node, below: u8, bounds: &Bounds) -> Result<()> {
        let first = self.from.map_or(0, |key| node.child_for(&key));
        for i in first..node.len() {
            if self.next.is_some() {
                return Ok(());
            }
            if below == 0 && (self.full)() {
                self.next = node.key(i);
                return Ok(());
            }
            let inner = bounds.of_child(node, i);
            self.out.pass(i);
            self.visit(&child(node, i)?, below, &inner)?;
            // The other nodes are visited from their first child on.
            self.from = None;
        }
        Ok(())
    }
}

/// Used bytes of a node.
fn used(node: &Node) -> usize {
    let cells = NODE_SIZE.saturating_sub(usize::from(node.header().cells_start.get()));
    NODE_HEADER + 2 * node.len() + cells
}
