//! Building a new tree: from cells to nodes on the device, level by level.
//!
//! Uses the packers, the writer, the cache and the caller's space. The output tracks the path from
//! the old root to the node being edited. The nodes on the path are unchanged until a value below
//! them changes: then [`Output::open`] hands the children before the path over to the packers. From
//! then on this rule keeps the cells of each level in order: before a level gets a kept child, or
//! its node ends, the level below is drained.

use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, Result};
use crate::format::key::Key;
use crate::format::node::{MAX_HEIGHT, Node, NodePlace, RawCell, RawOverflow};
use crate::format::overflow::{UNIT_DATA, UNIT_SIZE, encode_unit, units_for};
use crate::format::pointer::RawPtr;
use crate::format::{MAX_VALUE, NODE_SIZE, checksum};
use crate::index::bounds::Bounds;
use crate::index::cache::CachedNode;
use crate::index::pack::{Origin, PackedCells, Packer};
use crate::index::read::{child, no_cell};
use crate::index::writer::Writer;
use crate::index::{Index, NodeCounts, NodeSpace, Tree};

/// A node of the old tree on the path to the current edit.
struct Frame {
    node: Arc<CachedNode>,
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
    pub index: &'a Index,
    space: &'a dyn NodeSpace,
    birth: u64,
    writer: Writer,
    packers: [Level; MAX_HEIGHT as usize + 1],
    path: Vec<Frame>,
    nodes: NodeCounts,
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
            index,
            space,
            birth,
            writer: Writer::new(index.device.clone(), space.writes_apart()),
            packers: Default::default(),
            path: Vec::new(),
            nodes: NodeCounts::default(),
        }
    }

    /// Makes as few leaves as possible.
    pub fn dense(mut self) -> Self {
        if let Some(leaves) = self.packers.first_mut() {
            leaves.packer.make_dense();
        }
        self
    }

    /// Whether the next leaf should be rewritten as well, because otherwise a leaf that is far from
    /// full would be made.
    pub fn wants_more(&self) -> bool {
        let leaves = self.packers.first();
        leaves.is_some_and(|leaves| leaves.packer.has_loose_rest()) && self.space.has_room()
    }

    fn level(&mut self, level: u8) -> Result<&mut Level> {
        self.packers
            .get_mut(usize::from(level))
            .ok_or(Error::Invalid("an index of more levels than there can be"))
    }

    /// Appends `node`, whose keys are within `bounds`, to the path.
    pub fn enter(&mut self, node: Arc<CachedNode>, bounds: Bounds) {
        self.path.push(Frame {
            node,
            bounds,
            at: 0,
            handed: 0,
            open: false,
            remains: false,
        });
    }

    /// Records that the path continues through child `i` of the last node.
    pub fn pass(&mut self, i: usize) {
        if let Some(frame) = self.path.last_mut() {
            frame.at = i;
        }
    }

    /// Whether the last node of the path is being replaced.
    pub fn is_open(&self) -> bool {
        self.path.last().is_some_and(|f| f.open)
    }

    /// Called before the leaf at the end of the path changes: all nodes on the path will be
    /// replaced.
    pub fn open(&mut self) -> Result<()> {
        for depth in 0..self.path.len() {
            let Some(frame) = self.path.get_mut(depth) else {
                break;
            };
            let (first, at, leaf) = (!frame.open, frame.at, frame.node.level() == 0);
            frame.open = true;
            if first {
                let (block, birth) = (frame.node.header().block, frame.node.header().birth);
                self.retire_node(block.get(), birth.get());
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

    /// Removes the last node from the path; returns whether it was replaced.
    pub fn leave(&mut self) -> Result<bool> {
        let depth = self.path.len().saturating_sub(1);
        let Some(frame) = self.path.last() else {
            return Ok(false);
        };
        let (open, level, len) = (frame.open, frame.node.level(), frame.node.len());
        let birth = frame.node.header().birth.get();
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
            self.nodes.copied += u64::from(self.space.is_inherited(birth));
        }
        if remains {
            self.remain();
        }
        Ok(open)
    }

    /// Records that something of the last node of the path is in the new tree.
    fn remain(&mut self) {
        if let Some(frame) = self.path.last_mut() {
            frame.remains = true;
        }
    }

    /// Hands the unedited children of an open frame, up to `end`, over to the packer of its level.
    fn hand_over(&mut self, depth: usize, end: usize) -> Result<()> {
        let Some(frame) = self.path.get(depth) else {
            return Ok(());
        };
        let (node, bounds, mut from) = (frame.node.clone(), frame.bounds, frame.handed);
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

    /// Adds the cells `from..end` of the leaf at the end of the path unchanged.
    pub fn keep(&mut self, leaf: &Node, from: usize, end: usize) -> Result<()> {
        if from < end {
            self.remain();
        }
        self.push_all(leaf, from, end)
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
            let run = self.neighbour(&child(parent, i)?, level, &bounds.of_child(parent, i))?;
            let packer = &mut self.level(level)?.packer;
            if packer
                .small()
                .is_none_or(|rest| rest.size_with(&run) > NODE_SIZE)
            {
                return Ok(i);
            }
            packer.join_right(&run);
            let joined = child(parent, i)?;
            self.retire_node(joined.block.get(), joined.birth.get());
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
        let run = self.neighbour(&ptr, below, &Bounds { least, end })?;
        let packer = &mut self.level(below)?.packer;
        if packer
            .small()
            .is_some_and(|rest| run.size_with(rest) <= NODE_SIZE)
        {
            packer.join_left(run);
            self.level(level)?.packer.pop();
            self.retire_node(ptr.block.get(), ptr.birth.get());
            self.cut(below)?;
        }
        Ok(())
    }

    /// The cells of a node of the old tree, after checking them against `bounds`.
    fn neighbour(&self, ptr: &RawPtr, level: u8, bounds: &Bounds) -> Result<PackedCells> {
        let node = self.index.load(ptr, level)?;
        bounds.check(&node)?;
        let mut run = PackedCells::default();
        for i in 0..node.len() {
            let cell = node.raw_cell(i).ok_or_else(|| no_cell(&node, i))?;
            run.push(&cell, Origin::Kept);
        }
        Ok(run)
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
        if u32::from(level) >= MAX_HEIGHT {
            return Err(Error::Invalid("an index of more levels than there can be"));
        }
        let block = self.space.alloc()?;
        let appended = matches!(run.last(), Some((_, Origin::Appended)));
        let place = NodePlace {
            level,
            block,
            birth: self.birth,
            volume: self.index.volume,
        };
        let (Some(key), Some((bytes, ptr))) = (run.first_key(), run.build(&place)) else {
            return Err(Error::Invalid("cells that do not fit into a node"));
        };
        self.writer.write(block, &bytes)?;
        self.nodes.made += 1;
        if let Some(node) = Node::built(bytes) {
            self.index.cache.insert(CachedNode::new(&ptr, node));
        }
        self.level(level)?.made += 1;
        let cell = RawCell {
            key: key.encode(),
            value: ptr.as_bytes(),
            overflow: false,
        };
        let origin = if appended {
            Origin::Appended
        } else {
            Origin::Changed
        };
        self.push(level + 1, &cell, origin)
    }

    /// Adds an item with a new value.
    pub fn put(&mut self, key: &Key, value: &[u8], appended: bool) -> Result<()> {
        self.remain();
        let address;
        let mut cell = RawCell {
            key: key.encode(),
            value,
            overflow: false,
        };
        if value.len() > crate::format::node::MAX_CELL_VALUE {
            address = self.put_large(value)?;
            cell.value = address.as_bytes();
            cell.overflow = true;
        }
        let origin = if appended {
            Origin::Appended
        } else {
            Origin::Changed
        };
        self.push(0, &cell, origin)
    }

    fn put_large(&mut self, value: &[u8]) -> Result<RawOverflow> {
        if value.len() > MAX_VALUE {
            return Err(Error::Invalid("a value too large for an item"));
        }
        let blocks = (0..units_for(value.len()))
            .map(|_| self.space.alloc())
            .collect::<Result<Vec<u64>>>()?;
        let next = blocks.iter().skip(1).copied().chain([0]);
        let mut crc = 0;
        for ((block, next), data) in blocks.iter().zip(next).zip(value.chunks(UNIT_DATA)) {
            let mut unit = [0; UNIT_SIZE];
            encode_unit(&mut unit, next, data);
            crc = checksum::crc_append(crc, &unit);
            self.writer.write(*block, &unit)?;
        }
        Ok(RawOverflow {
            block: blocks.first().copied().unwrap_or_default().into(),
            birth: self.birth.into(),
            len: (value.len() as u32).into(),
            crc: crc.into(),
        })
    }

    /// Retires the overflow unit or node at `block`, which the new tree does not contain, unless
    /// another tree has it.
    pub fn retire(&self, block: u64, birth: u64) {
        match self.space.is_inherited(birth) {
            true => self.space.give_up(block, birth),
            false => self.space.retire(block),
        }
        self.index.cache.cool(block);
    }

    fn retire_node(&mut self, block: u64, birth: u64) {
        self.nodes.replaced += 1;
        self.nodes.inherited += u64::from(self.space.is_inherited(birth));
        self.retire(block, birth);
    }

    /// Whether another tree has the node as well, so that rewriting it frees nothing.
    pub fn is_inherited(&self, ptr: &RawPtr) -> bool {
        self.space.is_inherited(ptr.birth.get())
    }

    /// Writes all remaining cells and returns the new tree. Call it after [`Self::leave`] for the
    /// old root, which is at `level`.
    pub fn finish(mut self, mut level: u8) -> Result<Tree> {
        let (mut ptr, mut top) = loop {
            self.cut(level)?;
            let at = self.level(level)?;
            if at.packer.is_empty() && at.made == 0 {
                self.writer.flush()?;
                self.space.note_nodes(&self.nodes);
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
        self.writer.flush()?;
        // A root with a single child is replaced by the child.
        while top > 0 {
            let node = self.index.load(&ptr, top)?;
            if node.len() > 1 {
                break;
            }
            self.retire_node(ptr.block.get(), ptr.birth.get());
            ptr = child(&node, 0)?;
            top -= 1;
        }
        self.space.note_nodes(&self.nodes);
        Ok(Tree {
            ptr,
            height: u32::from(top) + 1,
        })
    }
}
