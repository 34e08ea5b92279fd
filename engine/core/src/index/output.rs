//! Building a new tree: from cells to nodes on the device, level by level.
//!
//! Uses the packers and the maker of nodes. The output tracks the path from the old root to the node
//! being edited. The nodes on the path are unchanged until a value below them changes: then
//! [`Output::open`] hands the children before the path over to the packers. From then on this rule
//! keeps the cells of each level in order: before a level gets a kept child, or its node ends, the
//! level below is drained.

use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

use crate::index::bounds::Bounds;
use crate::index::cache::CachedNode;
use crate::index::nodes::{Made, Nodes};
use crate::index::pack::{Origin, PackedCells, Packer};
use crate::index::read::{child, no_cell, sound};
use crate::index::walk::Target;
use crate::index::{Index, NodeSpace, Tree};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::NODE_SIZE;
use cairnfs_disk::format::key::Key;
use cairnfs_disk::format::node::{MAX_HEIGHT, Node, RawCell, RawOverflow};
use cairnfs_disk::format::pointer::RawPtr;

/// A node of the old tree on the path to the current edit.
#[derive(Default)]
struct Frame {
    block: u64,
    birth: u64,
    level: u8,
    /// The node, unless it is a leaf that a part has replaced.
    node: Option<Arc<CachedNode>>,
    /// The range of its keys.
    bounds: Bounds,
    /// The child on the path.
    at: usize,
    /// Children before this one were handed over to the packer, or replaced by edited ones.
    handed: usize,
    /// Whether something below changes, so that the node is replaced.
    open: bool,
    /// Whether the new tree has anything of what is below the node.
    remains: bool,
}

/// The new tree under construction.
pub(super) struct Output<'a> {
    nodes: Nodes<'a>,
    packers: [Level; MAX_HEIGHT as usize + 1],
    path: Vec<Frame>,
}

#[derive(Default)]
struct Level {
    packer: Packer,
    /// Number of nodes built from this level's cells.
    made: u64,
}

impl<'a> Output<'a> {
    /// An empty output.
    pub fn new(index: &'a Index, birth: u64, space: &'a dyn NodeSpace) -> Self {
        Self {
            nodes: Nodes::new(index, birth, space),
            packers: Default::default(),
            path: Vec::new(),
        }
    }

    /// Makes as few leaves as possible.
    pub fn dense(mut self) -> Self {
        if let Some(leaves) = self.packers.first_mut() {
            leaves.packer.make_dense();
        }
        self
    }

    fn level(&mut self, level: u8) -> Result<&mut Level> {
        self.packers
            .get_mut(usize::from(level))
            .ok_or(Error::Invalid("an index of more levels than there can be"))
    }

    /// Records that something of the last node of the path is in the new tree.
    pub fn remain(&mut self) {
        if let Some(frame) = self.path.last_mut() {
            frame.remains = true;
        }
    }

    /// Hands the unedited children of an open frame, up to `end`, over to the packer of its level.
    fn hand_over(&mut self, depth: usize, end: usize) -> Result<()> {
        let Some(frame) = self.path.get(depth) else {
            return Ok(());
        };
        let (Some(node), bounds, mut from) = (frame.node.clone(), frame.bounds, frame.handed)
        else {
            return Ok(());
        };
        if from >= end {
            return Ok(());
        }
        let level = node.level();
        if let Some(below) = level.checked_sub(1) {
            from = self.join_right(below, (&node, &bounds), from, end)?;
            self.drain(below)?;
        }
        if let Some(frame) = self.path.get_mut(depth) {
            frame.remains = true;
        }
        self.push_all(&node, from, end)
    }

    /// Adds the cells `from..end` of a node of the old tree.
    fn push_all(&mut self, node: &Node, from: usize, end: usize) -> Result<()> {
        for i in from..end {
            let cell = node.raw_cell(i).ok_or_else(|| no_cell(node, i))?;
            self.push(node.level(), &cell, Origin::Kept)?;
        }
        Ok(())
    }

    /// Joins the small rest at `level` with the children of `parent` from `from` on, while the
    /// result fits into a node. Returns the first child that was not joined.
    fn join_right(
        &mut self,
        level: u8,
        (parent, bounds): (&Node, &Bounds),
        from: usize,
        end: usize,
    ) -> Result<usize> {
        for i in from..end {
            if self.level(level)?.packer.small().is_none() {
                return Ok(i);
            }
            let of_child = bounds.of_child(parent, i);
            let Some(run) = self.nodes.neighbour(&child(parent, i)?, level, &of_child)? else {
                return Ok(i);
            };
            let packer = &mut self.level(level)?.packer;
            if packer
                .small()
                .is_none_or(|rest| rest.size_with(&run) > NODE_SIZE)
            {
                return Ok(i);
            }
            packer.join_right(&run);
            let joined = child(parent, i)?;
            self.nodes
                .retire_node(joined.block.get(), joined.birth.get());
            self.cut(level)?;
        }
        Ok(end)
    }

    /// Joins the small rest at level `below` with the kept child before it at `level`, if that
    /// child was added since the last cut and the result fits into a node.
    fn join_left(&mut self, level: u8, below: u8) -> Result<()> {
        let packer = &self.level(below)?.packer;
        let end = match packer.small() {
            Some(rest) if !packer.has_ready() => rest.first_key(),
            _ => return Ok(()),
        };
        let (least, ptr) = match self.level(level)?.packer.newest() {
            Some((key, value, Origin::Kept)) => {
                (key, RawPtr::read_from_bytes(value).unwrap_or_default())
            }
            _ => return Ok(()),
        };
        let bounds = Bounds {
            least,
            from: least,
            end,
        };
        let Some(run) = self.nodes.neighbour(&ptr, below, &bounds)? else {
            return Ok(());
        };
        let packer = &mut self.level(below)?.packer;
        if packer
            .small()
            .is_some_and(|rest| run.size_with(rest) <= NODE_SIZE)
        {
            packer.join_left(run);
            self.level(level)?.packer.pop();
            self.nodes.retire_node(ptr.block.get(), ptr.birth.get());
            self.cut(below)?;
        }
        Ok(())
    }

    fn push(&mut self, level: u8, cell: &RawCell<'_>, origin: Origin) -> Result<()> {
        self.level(level)?.packer.push(cell, origin);
        while let Some(run) = self.level(level)?.packer.overfull() {
            self.make(level, &run)?;
        }
        Ok(())
    }

    fn cut(&mut self, level: u8) -> Result<()> {
        let runs = self.level(level)?.packer.cut();
        runs.into_iter().try_for_each(|run| self.make(level, &run))
    }

    fn drain(&mut self, level: u8) -> Result<()> {
        let runs = self.level(level)?.packer.drain();
        runs.into_iter().try_for_each(|run| self.make(level, &run))
    }

    /// Builds and writes a node, and adds its pointer to the level above.
    fn make(&mut self, level: u8, run: &PackedCells) -> Result<()> {
        let made = self.nodes.make(level, run)?;
        self.add(level, &made)
    }

    /// Adds the pointer of a node at `level` to the level above.
    fn add(&mut self, level: u8, made: &Made) -> Result<()> {
        self.level(level)?.made += 1;
        let cell = RawCell {
            key: made.key.encode(),
            value: made.ptr.as_bytes(),
            overflow: false,
        };
        self.push(level + 1, &cell, Origin::of_new(made.appended))
    }

    /// Appends the leaf at `ptr`, which a part has replaced, to the path.
    pub fn enter_leaf(&mut self, ptr: &RawPtr) {
        self.path.push(Frame {
            block: ptr.block.get(),
            birth: ptr.birth.get(),
            ..Frame::default()
        });
    }

    /// Adds leaves that were made elsewhere, in order.
    pub fn adopt(&mut self, leaves: &[Made]) -> Result<()> {
        self.nodes.counts.made += leaves.len() as u64;
        leaves.iter().try_for_each(|leaf| self.add(0, leaf))
    }

    /// Writes all remaining cells and returns the new tree. Call it after [`Self::leave`] for the
    /// old root, which is at `level`.
    pub fn finish(mut self, mut level: u8) -> Result<Tree> {
        let (mut ptr, mut top) = loop {
            self.cut(level)?;
            let at = self.level(level)?;
            if at.packer.is_empty() && at.made == 0 {
                self.nodes.flush()?;
                self.nodes.space.note_nodes(&self.nodes.counts);
                return Ok(Tree::default());
            }
            if let (Some(below), 0, 1) = (level.checked_sub(1), at.made, at.packer.len())
                && let Some((value, _)) = at.packer.last()
            {
                break (RawPtr::read_from_bytes(value).unwrap_or_default(), below);
            }
            self.drain(level)?;
            level += 1;
        };
        self.nodes.flush()?;
        // A root with a single child is replaced by the child. A damaged child stays the root.
        while top > 0 {
            let loaded = self.nodes.index.load(&ptr, top);
            let Ok(node) = sound(loaded, &Bounds::default())? else {
                break;
            };
            if node.len() > 1 {
                break;
            }
            self.nodes.retire_node(ptr.block.get(), ptr.birth.get());
            ptr = child(&node, 0)?;
            top -= 1;
        }
        self.nodes.space.note_nodes(&self.nodes.counts);
        Ok(Tree {
            ptr,
            height: u32::from(top) + 1,
        })
    }
}

impl Target for Output<'_> {
    fn index(&self) -> &Index {
        self.nodes.index
    }

    fn wants_more(&self) -> bool {
        let leaves = self.packers.first();
        leaves.is_some_and(|leaves| leaves.packer.has_loose_rest()) && self.nodes.space.has_room()
    }

    fn is_inherited(&self, ptr: &RawPtr) -> bool {
        self.nodes.space.is_inherited(ptr.birth.get())
    }

    fn enter(&mut self, node: Arc<CachedNode>, bounds: Bounds) {
        let header = node.header();
        self.path.push(Frame {
            block: header.block.get(),
            birth: header.birth.get(),
            level: node.level(),
            node: Some(node),
            bounds,
            ..Frame::default()
        });
    }

    fn enter_cut(&mut self, level: u8, bounds: &Bounds, damage: &Error) -> Result<usize> {
        if !self.nodes.space.cuts_damaged() {
            return Ok(0);
        }
        self.open()?;
        self.nodes.counts.replaced += 1;
        let first = bounds.from.unwrap_or(Key::first_of(0));
        if let Error::Corrupt(damage) = damage {
            let keys = (first, bounds.end);
            self.nodes.space.note_cut(damage.block, keys);
        }
        for level in (0..=level).rev() {
            self.path.push(Frame {
                birth: u64::MAX,
                level,
                open: true,
                ..Frame::default()
            });
        }
        Ok(usize::from(level) + 1)
    }

    fn leaves_out(&self) -> bool {
        self.nodes.space.leaves_out()
    }

    fn pass(&mut self, i: usize) {
        if let Some(frame) = self.path.last_mut() {
            frame.at = i;
        }
    }

    fn is_open(&self) -> bool {
        self.path.last().is_some_and(|f| f.open)
    }

    fn open(&mut self) -> Result<()> {
        for depth in 0..self.path.len() {
            let Some(frame) = self.path.get_mut(depth) else {
                break;
            };
            let (at, leaf) = (frame.at, frame.level == 0);
            if !std::mem::replace(&mut frame.open, true) {
                self.nodes.retire_node(frame.block, frame.birth);
            }
            if !leaf {
                self.hand_over(depth, at)?;
                if let Some(frame) = self.path.get_mut(depth) {
                    frame.handed = at + 1;
                }
            }
        }
        Ok(())
    }

    fn leave(&mut self) -> Result<bool> {
        let depth = self.path.len().saturating_sub(1);
        let Some(frame) = self.path.last() else {
            return Ok(false);
        };
        let (open, level, birth) = (frame.open, frame.level, frame.birth);
        let len = frame.node.as_ref().map_or(0, |node| node.len());
        if open {
            if let Some(below) = level.checked_sub(1) {
                self.hand_over(depth, len)?;
                self.join_left(level, below)?;
                self.drain(below)?;
            }
            self.cut(level)?;
        }
        let remains = self
            .path
            .pop()
            .is_none_or(|frame| frame.remains || !frame.open);
        if open && remains {
            self.nodes.counts.copied += u64::from(self.nodes.space.is_inherited(birth));
        }
        if remains {
            self.remain();
        }
        Ok(open)
    }

    fn keep(&mut self, leaf: &Node, from: usize, end: usize) -> Result<()> {
        if from < end {
            self.remain();
        }
        self.push_all(leaf, from, end)
    }

    fn put(&mut self, key: &Key, value: &[u8], appended: bool) -> Result<()> {
        self.remain();
        let mut address = RawOverflow::default();
        let cell = self.nodes.cell(key, value, &mut address)?;
        self.push(0, &cell, Origin::of_new(appended))
    }

    fn retire(&self, block: u64, birth: u64) {
        self.nodes.retire(block, birth);
    }
}
