//! The leaves of a part of a new tree, without the nodes above them.
//!
//! Uses the packer of leaves and the maker of nodes. What becomes of the old leaves is a list in key
//! order, from which the nodes above are made later. The cells are packed as in a whole tree: a run
//! of changed leaves of one parent is packed together, and a small rest is joined with the unchanged
//! leaf behind the run or, at the end of the parent, before it. No leaf outside the range of the
//! part is joined.

use std::sync::Arc;

use crate::index::bounds::Bounds;
use crate::index::cache::CachedNode;
use crate::index::nodes::{Made, Nodes};
use crate::index::pack::{Origin, PackedCells, Packer};
use crate::index::read::{child, no_cell};
use crate::index::walk::Target;
use crate::index::{Index, NodeSpace};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::NODE_SIZE;
use cairnfs_disk::format::key::Key;
use cairnfs_disk::format::node::{Node, RawCell, RawOverflow};
use cairnfs_disk::format::pointer::RawPtr;

/// What becomes of an old leaf. Leaves that are made of several old ones are listed with the last of
/// them.
pub(super) struct Replaced {
    /// First key of the old leaf.
    pub key: Key,
    /// Whether the new tree has anything of it, other than as a part of its neighbour.
    pub remains: bool,
    /// The leaves that were made.
    pub made: Vec<Made>,
}

/// Changed leaves of one parent that follow each other.
struct Run {
    /// Place of the first one in the list.
    first: usize,
    /// The child of the parent after the last one.
    next: usize,
    /// The unchanged child before the first one, if there is one.
    before: Option<usize>,
}

/// The parent of the leaves that the walk visits.
struct Parent {
    node: Arc<CachedNode>,
    bounds: Bounds,
    /// The child on the path.
    at: usize,
    run: Option<Run>,
}

/// The leaves under construction.
pub(super) struct Leaves<'a> {
    nodes: Nodes<'a>,
    /// The range of the part.
    range: Bounds,
    packer: Packer,
    parent: Option<Parent>,
    /// The leaf at the end of the path, and whether it is being replaced.
    leaf: Option<(Arc<CachedNode>, bool)>,
    replaced: Vec<Replaced>,
}

impl<'a> Leaves<'a> {
    /// No leaves.
    pub fn new(index: &'a Index, birth: u64, space: &'a dyn NodeSpace, range: Bounds) -> Self {
        Self {
            nodes: Nodes::new(index, birth, space),
            range,
            packer: Packer::default(),
            parent: None,
            leaf: None,
            replaced: Vec::new(),
        }
    }

    /// Writes all remaining cells, and returns what becomes of the old leaves.
    pub fn finish(mut self) -> Result<Vec<Replaced>> {
        self.cut()?;
        self.drain()?;
        self.nodes.flush()?;
        Ok(self.replaced)
    }

    fn replace(&mut self, key: Key) {
        self.replaced.push(Replaced {
            key,
            remains: false,
            made: Vec::new(),
        });
    }

    fn remain(&mut self) {
        if let Some(replaced) = self.replaced.last_mut() {
            replaced.remains = true;
        }
    }

    fn push(&mut self, cell: &RawCell<'_>, origin: Origin) -> Result<()> {
        self.packer.push(cell, origin);
        while let Some(run) = self.packer.overfull() {
            self.make(&run)?;
        }
        Ok(())
    }

    fn cut(&mut self) -> Result<()> {
        let runs = self.packer.cut();
        runs.into_iter().try_for_each(|run| self.make(&run))
    }

    fn drain(&mut self) -> Result<()> {
        let runs = self.packer.drain();
        runs.into_iter().try_for_each(|run| self.make(&run))
    }

    fn make(&mut self, run: &PackedCells) -> Result<()> {
        let made = self.nodes.make(0, run)?;
        if self.replaced.is_empty() {
            // The old tree is empty.
            self.replace(made.key);
        }
        if let Some(replaced) = self.replaced.last_mut() {
            replaced.made.push(made);
        }
        Ok(())
    }

    /// The next changed leaf, or the end of the parent, is child `end`: if there are unchanged ones
    /// before it, the run ends.
    fn pass_unchanged(&mut self, end: usize) -> Result<()> {
        let Some(parent) = &mut self.parent else {
            return Ok(());
        };
        let Some(next) = parent.run.as_ref().map(|run| run.next) else {
            return Ok(());
        };
        if next < end {
            let (node, bounds) = (parent.node.clone(), parent.bounds);
            let next = self.join_right((&node, &bounds), next, end)?;
            self.drain()?;
            if let Some(parent) = &mut self.parent {
                parent.run = Some(Run {
                    first: self.replaced.len(),
                    next: end,
                    before: end.checked_sub(1).filter(|before| *before >= next),
                });
            }
        }
        Ok(())
    }

    /// Joins the small rest with the children of `parent` from `from` on, while the result fits into
    /// a node. Returns the first child that was not joined.
    fn join_right(
        &mut self,
        (parent, bounds): (&Node, &Bounds),
        from: usize,
        end: usize,
    ) -> Result<usize> {
        for i in from..end {
            let of_child = bounds.of_child(parent, i);
            if self.packer.small().is_none() || !self.range.has_all_of(&of_child) {
                return Ok(i);
            }
            let Some(run) = self.nodes.neighbour(&child(parent, i)?, 0, &of_child)? else {
                return Ok(i);
            };
            let fits = |rest: &PackedCells| rest.size_with(&run) <= NODE_SIZE;
            let (true, Some(key)) = (self.packer.small().is_some_and(fits), run.first_key()) else {
                return Ok(i);
            };
            self.packer.join_right(&run);
            self.replace(key);
            self.cut()?;
        }
        Ok(end)
    }

    /// Joins the small rest with the unchanged child before the run, if the run is nothing else.
    fn join_left(&mut self) -> Result<()> {
        let Some(Parent {
            node, bounds, run, ..
        }) = &self.parent
        else {
            return Ok(());
        };
        let Some(Run {
            first,
            before: Some(before),
            ..
        }) = run
        else {
            return Ok(());
        };
        let (first, of_child) = (*first, bounds.of_child(node, *before));
        let made = self.replaced.iter().skip(first).any(|r| !r.made.is_empty());
        let lone = self.packer.small().is_some() && !self.packer.has_ready() && !made;
        if !lone || !self.range.has_all_of(&of_child) {
            return Ok(());
        }
        let Some(run) = self.nodes.neighbour(&child(node, *before)?, 0, &of_child)? else {
            return Ok(());
        };
        let fits = |rest: &PackedCells| run.size_with(rest) <= NODE_SIZE;
        if let (true, Some(key)) = (self.packer.small().is_some_and(fits), run.first_key()) {
            self.packer.join_left(run);
            let joined = Replaced {
                key,
                remains: false,
                made: Vec::new(),
            };
            self.replaced.insert(first, joined);
            self.cut()?;
        }
        Ok(())
    }
}

impl Target for Leaves<'_> {
    fn index(&self) -> &Index {
        self.nodes.index
    }

    fn wants_more(&self) -> bool {
        false
    }

    fn is_inherited(&self, ptr: &RawPtr) -> bool {
        self.nodes.space.is_inherited(ptr.birth.get())
    }

    fn enter(&mut self, node: Arc<CachedNode>, bounds: Bounds) {
        match node.level() {
            0 => self.leaf = Some((node, false)),
            1 => {
                self.parent = Some(Parent {
                    node,
                    bounds,
                    at: 0,
                    run: None,
                });
            }
            _ => {}
        }
    }

    fn pass(&mut self, i: usize) {
        if let Some(parent) = &mut self.parent {
            parent.at = i;
        }
    }

    fn is_open(&self) -> bool {
        self.leaf.as_ref().is_some_and(|(_, open)| *open)
    }

    fn open(&mut self) -> Result<()> {
        let Some((leaf, open)) = &mut self.leaf else {
            return Ok(());
        };
        if std::mem::replace(open, true) {
            return Ok(());
        }
        let key = leaf.key(0).ok_or_else(|| no_cell(leaf, 0))?;
        if let Some(at) = self.parent.as_ref().map(|parent| parent.at) {
            self.pass_unchanged(at)?;
            let first = self.replaced.len();
            if let Some(parent) = &mut self.parent {
                let run = parent.run.get_or_insert(Run {
                    first,
                    next: at,
                    before: at.checked_sub(1),
                });
                run.next = at + 1;
            }
        }
        self.replace(key);
        Ok(())
    }

    fn keep(&mut self, leaf: &Node, from: usize, end: usize) -> Result<()> {
        if from < end {
            self.remain();
        }
        for i in from..end {
            let cell = leaf.raw_cell(i).ok_or_else(|| no_cell(leaf, i))?;
            self.push(&cell, Origin::Kept)?;
        }
        Ok(())
    }

    fn put(&mut self, key: &Key, value: &[u8], appended: bool) -> Result<()> {
        self.remain();
        let mut address = RawOverflow::default();
        let cell = self.nodes.cell(key, value, &mut address)?;
        self.push(&cell, Origin::of_new(appended))
    }

    fn retire(&self, block: u64, birth: u64) {
        self.nodes.retire(block, birth);
    }

    fn leave(&mut self) -> Result<bool> {
        if let Some((_, open)) = self.leaf.take() {
            if open {
                self.cut()?;
            }
        } else if let Some(len) = self.parent.as_ref().map(|parent| parent.node.len()) {
            self.pass_unchanged(len)?;
            self.join_left()?;
            self.drain()?;
            self.parent = None;
        }
        Ok(!self.replaced.is_empty())
    }
}
