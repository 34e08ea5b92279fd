//! Making the nodes of a new tree and giving up those of the old one, one at a time.
//!
//! Uses the packers' runs, the writer, the cache and the caller's space. Where a node belongs is
//! decided by the outputs.

use zerocopy::IntoBytes;

use crate::index::bounds::Bounds;
use crate::index::cache::CachedNode;
use crate::index::pack::{Origin, PackedCells};
use crate::index::read::{no_cell, sound};
use crate::index::writer::Writer;
use crate::index::{Index, NodeCounts, NodeSpace};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::key::Key;
use cairnfs_disk::format::node::{
    MAX_CELL_VALUE, MAX_HEIGHT, Node, NodePlace, RawCell, RawOverflow,
};
use cairnfs_disk::format::overflow::{UNIT_DATA, UNIT_SIZE, encode_unit, units_for};
use cairnfs_disk::format::pointer::RawPtr;
use cairnfs_disk::format::{MAX_VALUE, checksum};

/// A node that was made.
#[derive(Debug)]
pub(super) struct Made {
    /// Its first key.
    pub key: Key,
    pub ptr: RawPtr,
    /// Whether its last cell was appended, so that more are likely to follow.
    pub appended: bool,
}

/// Makes nodes, and retires others.
pub(super) struct Nodes<'a> {
    pub index: &'a Index,
    pub space: &'a dyn NodeSpace,
    birth: u64,
    writer: Writer,
    pub counts: NodeCounts,
}

impl<'a> Nodes<'a> {
    pub fn new(index: &'a Index, birth: u64, space: &'a dyn NodeSpace) -> Self {
        Self {
            index,
            space,
            birth,
            writer: Writer::new(index.device.clone(), space.writes_apart()),
            counts: NodeCounts::default(),
        }
    }

    /// Builds and writes a node.
    pub fn make(&mut self, level: u8, run: &PackedCells) -> Result<Made> {
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
        self.counts.made += 1;
        if let Some(node) = Node::built(bytes) {
            self.index.cache.insert(CachedNode::new(&ptr, node));
        }
        Ok(Made { key, ptr, appended })
    }

    /// The cell of an item: with its value, or with `address`, at which a large one is written.
    pub fn cell<'v>(
        &mut self,
        key: &Key,
        value: &'v [u8],
        address: &'v mut RawOverflow,
    ) -> Result<RawCell<'v>> {
        let overflow = value.len() > MAX_CELL_VALUE;
        if overflow {
            *address = self.put_large(value)?;
        }
        Ok(RawCell {
            key: key.encode(),
            value: if overflow { address.as_bytes() } else { value },
            overflow,
        })
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

    /// The cells of a node of the old tree, after checking them against `bounds`; `None` if it is
    /// damaged.
    pub fn neighbour(
        &self,
        ptr: &RawPtr,
        level: u8,
        bounds: &Bounds,
    ) -> Result<Option<PackedCells>> {
        let Ok(node) = sound(self.index.load(ptr, level), bounds)? else {
            return Ok(None);
        };
        let mut run = PackedCells::default();
        for i in 0..node.len() {
            let cell = node.raw_cell(i).ok_or_else(|| no_cell(&node, i))?;
            run.push(&cell, Origin::Kept);
        }
        Ok(Some(run))
    }

    /// Retires the overflow unit or node at `block`, which the new tree does not contain, unless
    /// another tree has it.
    pub fn retire(&self, block: u64, birth: u64) {
        if self.space.is_inherited(birth) {
            self.space.give_up(block, birth)
        } else {
            self.space.retire(block)
        }
        self.index.cache.cool(block);
    }

    /// Retires a node, and counts it.
    pub fn retire_node(&mut self, block: u64, birth: u64) {
        self.counts.replaced += 1;
        self.counts.inherited += u64::from(self.space.is_inherited(birth));
        self.retire(block, birth);
    }

    /// Writes what the writer still holds.
    pub fn flush(&mut self) -> Result<()> {
        self.writer.flush()
    }
}
