//! Index nodes: layout, checks, look-up within a node, and building.
//!
//! A node of 16 KiB consists of a header, an array of cell offsets in key order, free space (zeros)
//! and cells. The header contains the common prefix of all keys; a cell contains the rest of the
//! encoded key without trailing zero bytes. A cell of a leaf contains an item's value, or the
//! address of a value too large for a node; a cell of an interior node contains the pointer to a
//! child. The key of a child's cell is a lower bound of the keys below it. A smaller key is looked
//! up in, or inserted into, the first child; the insertion lowers the bound.

use std::sync::Arc;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Corruption;
use crate::fault::{InjectedFault, is_injected};
use crate::format::key::{KEY_LEN, Key, common_prefix, strip_zeros};
use crate::format::pointer::RawPtr;
use crate::format::{MAX_VALUE, NODE_SIZE, checksum};

/// Magic number: the first bytes of a node.
pub const NODE_MAGIC: u32 = u32::from_le_bytes(*b"CNod");
/// Size of a node header in bytes.
pub const NODE_HEADER: usize = 64;
/// Maximum size in bytes of a value stored in a leaf; longer values are stored in overflow units.
pub const MAX_CELL_VALUE: usize = 4096;
/// Maximum height of a tree.
pub const MAX_HEIGHT: u32 = 12;

/// Size of a cell header in bytes: the length of the key suffix (1) and of the value (2).
const CELL_HEADER: usize = 3;
/// Flag in the value length of a cell: the value is a [`RawOverflow`].
const OVERFLOW_BIT: u16 = 0x8000;

/// The on-disk node header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct NodeHeader {
    /// [`NODE_MAGIC`].
    pub magic: U32,
    /// 0 for a leaf.
    pub level: u8,
    /// Length of the common prefix in bytes.
    pub prefix_len: u8,
    /// Number of cells.
    pub count: U16,
    /// First block of this node.
    pub block: U64,
    /// Context sequence of the merge that wrote it.
    pub birth: U64,
    /// First eight bytes of the volume's UUID.
    pub volume: U64,
    /// Byte offset of the first cell in the node.
    pub cells_start: U16,
    /// The common prefix of all keys, padded with zeros.
    pub prefix: [u8; KEY_LEN],
    /// Zero.
    pub reserved: [u8; 13],
}

/// Address of a value too large for a leaf: a chain of overflow units, see
/// [`crate::format::overflow`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RawOverflow {
    /// First block of the first unit.
    pub block: U64,
    /// Context sequence of the merge that wrote it.
    pub birth: U64,
    /// Length of the value in bytes.
    pub len: U32,
    /// CRC32C of all bytes of all units, in the order of the chain.
    pub crc: U32,
}

/// A cell of a node, with its complete key.
#[derive(Debug, Clone, Copy)]
pub struct RawCell<'a> {
    /// The encoded key.
    pub key: [u8; KEY_LEN],
    /// A value, a [`RawOverflow`] or a [`RawPtr`].
    pub value: &'a [u8],
    /// Whether `value` is a [`RawOverflow`].
    pub overflow: bool,
}

/// The content of a leaf's cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellValue<'a> {
    /// The value itself.
    Inline(&'a [u8]),
    /// The address of the value.
    Overflow(RawOverflow),
}

/// A node with a checked layout; cheap to clone.
#[derive(Debug, Clone)]
pub struct Node {
    bytes: Arc<[u8]>,
    header: NodeHeader,
}

/// The identity of a node as expected by its reader.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// The pointer in its parent: block, birth and checksum.
    pub ptr: RawPtr,
    /// Its level; 0 for a leaf.
    pub level: u8,
    /// First eight bytes of the volume's UUID.
    pub volume: u64,
}

impl Node {
    /// Checks the bytes of a node against its parent's pointer, checks the layout, and decodes it.
    ///
    /// # Errors
    /// The node differs from `expected`, or its layout is invalid.
    pub fn decode(bytes: Arc<[u8]>, expected: &Expected) -> Result<Self, Corruption> {
        let block = expected.ptr.block.get();
        let bad = |what, want: String, found: String| Corruption::new(block, what, want, found);
        if bytes.len() != NODE_SIZE {
            return Err(bad(
                "index node",
                format!("{NODE_SIZE} bytes"),
                format!("{}", bytes.len()),
            ));
        }
        let crc = checksum::crc(&bytes);
        if crc != expected.ptr.crc.get() && !is_injected(InjectedFault::NodeUnchecked) {
            return Err(bad(
                "index node checksum",
                format!("{:08x}", expected.ptr.crc.get()),
                format!("{crc:08x}"),
            ));
        }
        let (header, _) = NodeHeader::read_from_prefix(&bytes)
            .map_err(|_| bad("index node", "a header".into(), "none".into()))?;
        let identity = (
            header.magic.get(),
            header.level,
            header.block.get(),
            header.birth.get(),
            header.volume.get(),
        );
        let wanted = (
            NODE_MAGIC,
            expected.level,
            block,
            expected.ptr.birth.get(),
            expected.volume,
        );
        if identity != wanted {
            return Err(bad(
                "index node identity",
                format!("{wanted:x?}"),
                format!("{identity:x?}"),
            ));
        }
        let node = Self { bytes, header };
        node.check_layout()
            .map_err(|(want, found)| bad("index node layout", want.to_string(), found))?;
        Ok(node)
    }

    fn check_layout(&self) -> Result<(), (&'static str, String)> {
        let count = self.len();
        let prefix = usize::from(self.header.prefix_len);
        let start = usize::from(self.header.cells_start.get());
        if prefix > KEY_LEN {
            return Err(("a prefix of at most 17 bytes", prefix.to_string()));
        }
        if count == 0 {
            return Err(("at least one cell", "none".into()));
        }
        if NODE_HEADER + count * 2 > start || start > NODE_SIZE {
            return Err((
                "cells behind the offsets",
                format!("{count} cells at {start}"),
            ));
        }
        let mut before: Option<[u8; KEY_LEN]> = None;
        let mut room = NODE_SIZE - start;
        for i in 0..count {
            // The total size of the cells is bounded by the space behind `cells_start`: overlapping
            // cells must not expand to more data than a node can contain.
            room = self
                .cell(i)
                .and_then(|(s, v, _)| room.checked_sub(CELL_HEADER + s.len() + v.len()))
                .ok_or_else(|| ("cells side by side", format!("cell {i}")))?;
            let key = self
                .raw_key(i)
                .ok_or_else(|| ("a whole cell", format!("cell {i}")))?;
            if self.cell(i).is_some_and(|(s, ..)| s.last() == Some(&0)) {
                return Err(("keys without trailing zeros", format!("cell {i}")));
            }
            if Key::decode(&key).is_none() {
                return Err(("a key of a known kind", format!("{key:02x?} in cell {i}")));
            }
            if before.is_some_and(|b| b >= key) {
                return Err(("ascending keys", format!("{key:02x?} in cell {i}")));
            }
            before = Some(key);
            let sound = if self.header.level == 0 {
                self.value(i).is_some_and(|v| match v {
                    CellValue::Inline(v) => v.len() <= MAX_CELL_VALUE,
                    CellValue::Overflow(o) => {
                        let len = o.len.get() as usize;
                        len > MAX_CELL_VALUE && len <= MAX_VALUE
                    }
                })
            } else {
                self.child(i).is_some()
            };
            if !sound {
                return Err(("a sound cell value", format!("cell {i}")));
            }
        }
        Ok(())
    }

    /// The node of bytes written by [`write_node`], without the checks.
    pub fn built(bytes: Arc<[u8]>) -> Option<Self> {
        let (header, _) = NodeHeader::read_from_prefix(&bytes).ok()?;
        Some(Self { bytes, header })
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        usize::from(self.header.count.get())
    }

    /// Whether there are no cells; false for any decoded node.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The level; 0 for a leaf.
    pub fn level(&self) -> u8 {
        self.header.level
    }

    /// The decoded header.
    pub fn header(&self) -> &NodeHeader {
        &self.header
    }

    /// Suffix and value bytes of a cell, and whether the overflow bit is set.
    fn cell(&self, i: usize) -> Option<(&[u8], &[u8], bool)> {
        // In a full node, the first cell is where the next offset would be.
        if i >= self.len() {
            return None;
        }
        let slot = NODE_HEADER + i * 2;
        let at = u16::from_le_bytes(*self.bytes.get(slot..slot + 2)?.first_chunk()?);
        let at = usize::from(at);
        if at < usize::from(self.header.cells_start.get()) {
            return None;
        }
        let (head, rest) = self.bytes.get(at..)?.split_first_chunk::<CELL_HEADER>()?;
        let [klen, v0, v1] = *head;
        let vlen = u16::from_le_bytes([v0, v1]);
        let (suffix, rest) = rest.split_at_checked(usize::from(klen))?;
        let value = rest.get(..usize::from(vlen & !OVERFLOW_BIT))?;
        Some((suffix, value, vlen & OVERFLOW_BIT != 0))
    }

    fn raw_key(&self, i: usize) -> Option<[u8; KEY_LEN]> {
        let (suffix, _, _) = self.cell(i)?;
        let prefix = usize::from(self.header.prefix_len);
        let mut key = [0; KEY_LEN];
        key.get_mut(..prefix)?
            .copy_from_slice(self.header.prefix.get(..prefix)?);
        key.get_mut(prefix..prefix + suffix.len())?
            .copy_from_slice(suffix);
        Some(key)
    }

    /// A cell with its complete key, for copying it to another node.
    pub fn raw_cell(&self, i: usize) -> Option<RawCell<'_>> {
        let key = self.raw_key(i)?;
        let (_, value, overflow) = self.cell(i)?;
        Some(RawCell {
            key,
            value,
            overflow,
        })
    }

    /// The key of a cell; for a child, the lower bound of the keys below it.
    pub fn key(&self, i: usize) -> Option<Key> {
        Key::decode(&self.raw_key(i)?)
    }

    /// The content of a leaf's cell.
    pub fn value(&self, i: usize) -> Option<CellValue<'_>> {
        let (_, value, overflow) = self.cell(i)?;
        if overflow {
            RawOverflow::read_from_bytes(value)
                .ok()
                .map(CellValue::Overflow)
        } else {
            Some(CellValue::Inline(value))
        }
    }

    /// The child pointer in a cell of an interior node.
    pub fn child(&self, i: usize) -> Option<RawPtr> {
        let (_, value, _) = self.cell(i)?;
        RawPtr::read_from_bytes(value).ok()
    }

    /// The index of the cell with this key, or the index at which it would be inserted.
    pub fn search(&self, key: &Key) -> Result<usize, usize> {
        self.search_from(0, key)
    }

    /// As [`Self::search`], for a key at or behind index `from`. An exponential (galloping) search:
    /// faster the nearer the key is.
    pub fn search_from(&self, from: usize, key: &Key) -> Result<usize, usize> {
        let wanted = key.encode();
        let prefix = usize::from(self.header.prefix_len);
        let (head, rest) = wanted.split_at(prefix.min(KEY_LEN));
        match head.cmp(self.header.prefix.get(..prefix).unwrap_or_default()) {
            std::cmp::Ordering::Less => return Err(0),
            std::cmp::Ordering::Greater => return Err(self.len()),
            std::cmp::Ordering::Equal => {}
        }
        // Trailing zeros are stripped on both sides, so plain byte order equals key order.
        let rest = strip_zeros(rest);
        let (mut low, mut high) = (from, self.len());
        // From the beginning of a node all cells are equally likely: binary search. From a later
        // cell, the next ones are most likely: galloping search.
        let mut step = if from == 0 { high } else { 1 };
        while low < high {
            let middle = (low + step / 2).min(low + (high - low) / 2);
            let suffix = self.cell(middle).map_or(&[][..], |(s, _, _)| s);
            match suffix.cmp(rest) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Ok(middle),
            }
            step = step.saturating_mul(4);
        }
        Err(low)
    }

    /// The index of the child whose range contains `key`.
    pub fn child_for(&self, key: &Key) -> usize {
        match self.search(key) {
            Ok(i) => i,
            Err(i) => i.saturating_sub(1),
        }
    }
}

const _: () = assert!(
    KEY_LEN == 17,
    "a key is 16 bytes and one more to `common_prefix`"
);

struct Pending {
    key: [u8; KEY_LEN],
    stripped: usize,
    value: std::ops::Range<usize>,
    overflow: bool,
}

/// Collects cells in key order and builds a node from them.
#[derive(Default)]
pub struct NodeBuilder {
    cells: Vec<Pending>,
    values: Vec<u8>,
    prefix: usize,
    /// Bytes of offsets, cell headers, suffixes and values with the current prefix.
    used: usize,
}

impl NodeBuilder {
    /// An empty builder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether there are no cells.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Used bytes of the node, including its header.
    pub fn used(&self) -> usize {
        NODE_HEADER + self.used
    }

    /// The key of the first cell.
    pub fn first_key(&self) -> Option<Key> {
        Key::decode(&self.cells.first()?.key)
    }

    /// Adds a value; returns `false` and changes nothing if the node has no space for it. Keys must
    /// be added in ascending order.
    pub fn push(&mut self, key: &Key, value: CellValue<'_>) -> bool {
        match value {
            CellValue::Inline(v) => self.push_raw(key.encode(), v, false),
            CellValue::Overflow(o) => self.push_raw(key.encode(), o.as_bytes(), true),
        }
    }

    /// Adds a child; returns `false` and changes nothing if the node has no space for it.
    pub fn push_child(&mut self, key: &Key, child: &RawPtr) -> bool {
        self.push_raw(key.encode(), child.as_bytes(), false)
    }

    fn push_raw(&mut self, encoded: [u8; KEY_LEN], value: &[u8], overflow: bool) -> bool {
        debug_assert!(self.cells.last().is_none_or(|l| l.key < encoded));
        let stripped = strip_zeros(&encoded).len();
        let prefix = self.cells.first().map_or(KEY_LEN, |f| {
            common_prefix(&f.key, &encoded).min(self.prefix)
        });
        let mut used = if prefix == self.prefix {
            self.used
        } else {
            self.cells
                .iter()
                .map(|c| cell_size(c.stripped, prefix, c.value.len()))
                .sum()
        };
        used += cell_size(stripped, prefix, value.len());
        if NODE_HEADER + used > NODE_SIZE {
            return false;
        }
        let start = self.values.len();
        self.values.extend_from_slice(value);
        self.cells.push(Pending {
            key: encoded,
            stripped,
            value: start..self.values.len(),
            overflow,
        });
        self.prefix = prefix;
        self.used = used;
        true
    }

    /// Returns the node's bytes and its pointer, and empties the builder.
    pub fn finish(&mut self, level: u8, block: u64, birth: u64, volume: u64) -> (Vec<u8>, RawPtr) {
        let mut bytes = vec![0; NODE_SIZE];
        let cells = self.cells.iter().map(|cell| NewCell {
            key: &cell.key,
            stripped: cell.stripped,
            value: self.values.get(cell.value.clone()).unwrap_or_default(),
            overflow: cell.overflow,
        });
        let place = NodePlace {
            level,
            block,
            birth,
            volume,
        };
        // The pushed cells fit, so this never fails.
        let ptr = write_node(&mut bytes, &place, self.prefix, cells).unwrap_or_default();
        *self = Self::default();
        (bytes, ptr)
    }
}

/// The identity of a node to be built.
pub struct NodePlace {
    /// 0 for a leaf.
    pub level: u8,
    /// The node's first block.
    pub block: u64,
    /// The transaction that writes it.
    pub birth: u64,
    /// The volume's number in node headers.
    pub volume: u64,
}

/// A cell of a node to be built.
pub struct NewCell<'a> {
    /// The encoded key.
    pub key: &'a [u8; KEY_LEN],
    /// The length of the key without trailing zeros, in bytes.
    pub stripped: usize,
    /// The value, or a reference to the chain that holds it.
    pub value: &'a [u8],
    /// Whether the value is in a chain of overflow blocks.
    pub overflow: bool,
}

/// Writes a node into `bytes`, which must be zeros, and returns its pointer. The cells are in key
/// order, and their keys share the first `prefix` bytes. `None` if the cells do not fit.
pub fn write_node<'a>(
    bytes: &mut [u8],
    place: &NodePlace,
    prefix: usize,
    cells: impl Iterator<Item = NewCell<'a>>,
) -> Option<RawPtr> {
    let mut header = NodeHeader {
        magic: U32::new(NODE_MAGIC),
        level: place.level,
        prefix_len: prefix as u8,
        block: U64::new(place.block),
        birth: U64::new(place.birth),
        volume: U64::new(place.volume),
        ..NodeHeader::default()
    };
    let (mut slot, mut end, mut count) = (NODE_HEADER, bytes.len(), 0);
    for cell in cells {
        if count == 0 {
            let shared = cell.key.get(..prefix)?;
            header.prefix.get_mut(..prefix)?.copy_from_slice(shared);
        }
        let suffix = cell.key.get(prefix..cell.stripped).unwrap_or_default();
        let start = end.checked_sub(CELL_HEADER + suffix.len() + cell.value.len())?;
        let flag = if cell.overflow { OVERFLOW_BIT } else { 0 };
        let [v0, v1] = (cell.value.len() as u16 | flag).to_le_bytes();
        let (head, rest) = bytes.get_mut(start..end)?.split_first_chunk_mut()?;
        *head = [suffix.len() as u8, v0, v1];
        let (to_suffix, to_value) = rest.split_at_mut_checked(suffix.len())?;
        to_suffix.copy_from_slice(suffix);
        to_value.copy_from_slice(cell.value);
        let offset = bytes
            .get_mut(slot..slot + 2)
            .filter(|_| slot + 2 <= start)?;
        offset.copy_from_slice(&(start as u16).to_le_bytes());
        (slot, end, count) = (slot + 2, start, count + 1);
    }
    header.count = U16::new(count);
    header.cells_start = U16::new(end as u16);
    let to_header = bytes.get_mut(..NODE_HEADER)?;
    to_header.copy_from_slice(header.as_bytes());
    Some(RawPtr {
        block: U64::new(place.block),
        birth: U64::new(place.birth),
        crc: U32::new(checksum::crc(bytes)),
    })
}

/// Size of a cell in a node, in bytes: offset, header, key suffix and value.
pub const fn cell_size(stripped: usize, prefix: usize, value: usize) -> usize {
    2 + CELL_HEADER + stripped.saturating_sub(prefix) + value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::key::Kind;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn build(items: &BTreeMap<Key, Vec<u8>>) -> (Vec<u8>, RawPtr, usize) {
        let mut builder = NodeBuilder::new();
        let mut taken = 0;
        for (key, value) in items {
            if !builder.push(key, CellValue::Inline(value)) {
                break;
            }
            taken += 1;
        }
        let (bytes, ptr) = builder.finish(0, 64, 3, 9);
        (bytes, ptr, taken)
    }

    fn decode(bytes: &[u8], ptr: RawPtr) -> Result<Node, Corruption> {
        Node::decode(
            bytes.into(),
            &Expected {
                ptr,
                level: 0,
                volume: 9,
            },
        )
    }

    /// The offsets of a full node end where its first cell begins, so an index beyond the last cell
    /// must not be decoded from the bytes of that cell.
    #[test]
    fn full_node_has_no_cell_beyond_the_last() {
        let mut builder = NodeBuilder::new();
        for i in 0..495_u64 {
            // Three keys are five bytes shorter, so that the node is full to the last byte.
            let tail = if i % 165 == 0 {
                0x1100_0000_0000
            } else {
                0x1111_1111_1111
            };
            let spread = (i + 1) << 48 | tail;
            let child = RawPtr::default();
            assert!(builder.push_child(&Key::new(80, Kind::DirName, spread), &child));
        }
        assert_eq!(builder.used(), NODE_SIZE);
        let (bytes, _) = builder.finish(1, 64, 3, 9);
        let node = Node::built(bytes.into()).unwrap();
        assert_eq!(node.len(), 495);
        assert!(node.key(494).is_some() && node.child(494).is_some());
        for i in [495, 496, 5000] {
            assert!(node.raw_cell(i).is_none() && node.key(i).is_none() && node.child(i).is_none());
        }
    }

    /// Contract: hostile
    #[test]
    fn overlapping_cells_are_refused() {
        let items = (0..2).map(|i| (Key::inode(i), vec![7; 40])).collect();
        let (mut bytes, mut ptr, _) = build(&items);
        // The second cell is stored before the first; its value is extended to overlap the first.
        let second = usize::from(u16::from_le_bytes([bytes[66], bytes[67]]));
        bytes[second + 1] += 40;
        ptr.crc = U32::new(checksum::crc(&bytes));
        let error = decode(&bytes, ptr).unwrap_err();
        assert_eq!(error.expected, "cells side by side");
    }

    proptest! {
        #[test]
        fn built_node_round_trips(
            items in proptest::collection::btree_map(
                (0u64..40, 1u8..=9, prop_oneof![Just(0u64), any::<u64>(), 0u64..1000])
                    .prop_map(|(o, k, f)| Key::new(o << 8, Kind::from_u8(k).unwrap(), f)),
                proptest::collection::vec(any::<u8>(), 0..300),
                1..100,
            )
        ) {
            let (bytes, ptr, taken) = build(&items);
            let node = decode(&bytes, ptr).unwrap();
            prop_assert_eq!(node.len(), taken);
            for (i, (key, value)) in items.iter().enumerate() {
                if i < taken {
                    prop_assert_eq!(node.key(i), Some(*key));
                    prop_assert_eq!(node.value(i), Some(CellValue::Inline(value)));
                    prop_assert_eq!(node.search(key), Ok(i));
                    if key.offset > 0 {
                        let before = Key::new(key.object, key.kind, key.offset - 1);
                        if !items.contains_key(&before) {
                            prop_assert_eq!(node.search(&before), Err(i));
                        }
                    }
                } else {
                    prop_assert_eq!(node.search(key), Err(taken));
                }
            }
        }

        /// Contract: hostile
        #[test]
        fn corrupt_node_with_valid_checksum_never_panics(
            flips in proptest::collection::vec((0usize..NODE_SIZE, any::<u8>()), 1..8)
        ) {
            let items = (0..50).map(|i| (Key::inode(i * 3), vec![i as u8; 40])).collect();
            let (mut bytes, mut ptr, _) = build(&items);
            for (at, value) in flips {
                bytes[at] = value;
            }
            ptr.crc = U32::new(checksum::crc(&bytes));
            if let Ok(node) = decode(&bytes, ptr) {
                for i in 0..node.len() {
                    prop_assert!(node.key(i).is_some() && node.value(i).is_some());
                }
            }
        }
    }
}
