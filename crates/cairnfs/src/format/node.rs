//! Index nodes: layout, checks, look-up within a node, and building.
//!
//! A node of 16 KiB: a header, an array of cell offsets in key order, free space (zeros), cells.
//! All keys of a node share a prefix that the header holds once; a cell holds the rest of the
//! encoded key without trailing zero bytes. A cell of a leaf holds an item's value, or the address
//! of a value too large for a node; a cell of an interior node holds a child's address. The key of
//! a child's cell is a lower bound of the keys below it (a smaller key, to be looked up or put,
//! goes to the first child; putting it there lowers the bound).

use std::sync::Arc;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Corruption;
use crate::fault::{InjectedFault, is_injected};
use crate::format::key::{KEY_LEN, Key};
use crate::format::superblock::RawPtr;
use crate::format::{MAX_VALUE, NODE_SIZE, checksum};

/// First bytes of a node.
pub const NODE_MAGIC: u32 = u32::from_le_bytes(*b"CNod");
/// Bytes of a node header.
pub const NODE_HEADER: usize = 64;
/// Longest value kept in a leaf; longer ones lie in blocks of their own.
pub const MAX_CELL_VALUE: usize = 4096;
/// Most levels of a tree.
pub const MAX_HEIGHT: u32 = 12;

const CELL_HEADER: usize = 3;
const OVERFLOW_BIT: u16 = 0x8000;

/// The bytes of a node header.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct NodeHeader {
    /// [`NODE_MAGIC`].
    pub magic: U32,
    /// 0 for a leaf.
    pub level: u8,
    /// Bytes of the shared prefix.
    pub prefix_len: u8,
    /// Number of cells.
    pub count: U16,
    /// First block of this node.
    pub block: U64,
    /// Context sequence of the merge that wrote it.
    pub birth: U64,
    /// First eight bytes of the volume's identity.
    pub volume: U64,
    /// Offset of the lowest cell.
    pub cells_start: U16,
    /// The shared prefix, then zeros.
    pub prefix: [u8; KEY_LEN],
    /// Zero.
    pub reserved: [u8; 13],
}

/// Address of a value too large for a leaf: a chain of units, see [`crate::format::overflow`].
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct RawOverflow {
    /// First block of the first unit.
    pub block: U64,
    /// Context sequence of the merge that wrote it.
    pub birth: U64,
    /// Bytes of the value.
    pub len: U32,
    /// CRC32C of the whole bytes of all units in the order of the chain.
    pub crc: U32,
}

/// A cell as it lies in a node, but for its key, which is whole.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawCell<'a> {
    /// The encoded key.
    pub key: [u8; KEY_LEN],
    /// A value, a [`RawOverflow`] or a [`RawPtr`].
    pub value: &'a [u8],
    /// Whether `value` is a [`RawOverflow`].
    pub overflow: bool,
}

/// What a leaf's cell holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellValue<'a> {
    /// The value itself.
    Inline(&'a [u8]),
    /// Where the value lies.
    Overflow(RawOverflow),
}

/// A node whose layout was checked; cheap to clone.
#[derive(Debug, Clone)]
pub struct Node {
    bytes: Arc<[u8]>,
    header: NodeHeader,
}

/// What a reader knows of a node before it reads it.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// Its address, birth and checksum.
    pub ptr: RawPtr,
    /// Its level.
    pub level: u8,
    /// First eight bytes of the volume's identity.
    pub volume: u64,
}

impl Node {
    /// Checks the bytes of a node against what its parent says, and its layout.
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
            // Cells that overlap would be more than a node can hold.
            room = self
                .cell(i)
                .and_then(|(s, v, _)| room.checked_sub(CELL_HEADER + s.len() + v.len()))
                .ok_or(("cells side by side", format!("cell {i}")))?;
            let key = self
                .raw_key(i)
                .ok_or(("a whole cell", format!("cell {i}")))?;
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

    /// The node of bytes that [`write_node`] just made.
    pub(crate) fn built(bytes: Arc<[u8]>) -> Option<Self> {
        let (header, _) = NodeHeader::read_from_prefix(&bytes).ok()?;
        Some(Self { bytes, header })
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        usize::from(self.header.count.get())
    }

    /// Whether there is no cell; never so for a decoded node.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// 0 for a leaf.
    pub fn level(&self) -> u8 {
        self.header.level
    }

    /// The header.
    pub fn header(&self) -> &NodeHeader {
        &self.header
    }

    /// Suffix and value bytes of a cell, and whether the overflow bit is set.
    fn cell(&self, i: usize) -> Option<(&[u8], &[u8], bool)> {
        // In a full node a cell stands where the next offset would.
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

    /// A whole cell, for copying it to another node.
    pub(crate) fn raw_cell(&self, i: usize) -> Option<RawCell<'_>> {
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

    /// What a leaf's cell holds.
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

    /// The child's address in a cell of an interior node.
    pub fn child(&self, i: usize) -> Option<RawPtr> {
        let (_, value, _) = self.cell(i)?;
        RawPtr::read_from_bytes(value).ok()
    }

    /// The cell with that key, or where it would stand.
    pub fn search(&self, key: &Key) -> Result<usize, usize> {
        self.search_from(0, key)
    }

    /// The same for a key that stands at `from` or behind it, the faster the nearer.
    pub fn search_from(&self, from: usize, key: &Key) -> Result<usize, usize> {
        let wanted = key.encode();
        let prefix = usize::from(self.header.prefix_len);
        let (head, rest) = wanted.split_at(prefix.min(KEY_LEN));
        match head.cmp(self.header.prefix.get(..prefix).unwrap_or_default()) {
            std::cmp::Ordering::Less => return Err(0),
            std::cmp::Ordering::Greater => return Err(self.len()),
            std::cmp::Ordering::Equal => {}
        }
        // Trailing zeros were cut off on both sides, so plain byte order is key order.
        let rest = strip_zeros(rest);
        let (mut low, mut high) = (from, self.len());
        // From the beginning of a node any cell is as likely; from further on, the next.
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

    /// The cell of the child whose range holds `key`.
    pub fn child_for(&self, key: &Key) -> usize {
        match self.search(key) {
            Ok(i) => i,
            Err(i) => i.saturating_sub(1),
        }
    }
}

pub(crate) fn strip_zeros(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1);
    bytes.get(..end).unwrap_or_default()
}

pub(crate) fn common_prefix(a: &[u8; KEY_LEN], b: &[u8; KEY_LEN]) -> usize {
    match (a.split_first_chunk::<16>(), b.split_first_chunk::<16>()) {
        (Some((a, last_a)), Some((b, last_b))) if a == b => 16 + usize::from(last_a == last_b),
        (Some((a, _)), Some((b, _))) => {
            let different = u128::from_be_bytes(*a) ^ u128::from_be_bytes(*b);
            different.leading_zeros() as usize / 8
        }
        _ => 0,
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

/// Collects cells in key order and makes a node of them.
#[derive(Default)]
pub struct NodeBuilder {
    cells: Vec<Pending>,
    values: Vec<u8>,
    prefix: usize,
    /// Bytes of offsets, cell headers, suffixes and values with the prefix as it is.
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

    /// Whether there is no cell yet.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Bytes of the node in use, its header included.
    pub fn used(&self) -> usize {
        NODE_HEADER + self.used
    }

    /// The key of the first cell.
    pub fn first_key(&self) -> Option<Key> {
        Key::decode(&self.cells.first()?.key)
    }

    /// Adds a value; `false`, and nothing done, if the node has no room for it.
    /// Keys must come in ascending order.
    pub fn push(&mut self, key: &Key, value: CellValue<'_>) -> bool {
        match value {
            CellValue::Inline(v) => self.push_raw(key.encode(), v, false),
            CellValue::Overflow(o) => self.push_raw(key.encode(), o.as_bytes(), true),
        }
    }

    /// Adds a child; `false`, and nothing done, if the node has no room for it.
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

    /// Makes the node's bytes and its address; the builder is empty afterwards.
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
        // What was pushed fits.
        let ptr = write_node(&mut bytes, &place, self.prefix, cells).unwrap_or_default();
        *self = Self::default();
        (bytes, ptr)
    }
}

/// Where a node that is made stands.
pub(crate) struct NodePlace {
    pub level: u8,
    pub block: u64,
    pub birth: u64,
    pub volume: u64,
}

/// A cell of a node that is made.
pub(crate) struct NewCell<'a> {
    /// The encoded key, and its length without trailing zeros.
    pub key: &'a [u8; KEY_LEN],
    pub stripped: usize,
    pub value: &'a [u8],
    pub overflow: bool,
}

/// Writes a node of cells in key order, whose keys share the first `prefix` bytes, into zeros; its
/// address. `None` if it has no room for them.
pub(crate) fn write_node<'a>(
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

/// Bytes a cell takes in a node: its offset, its header, the rest of its key, its value.
pub(crate) fn cell_size(stripped: usize, prefix: usize, value: usize) -> usize {
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

    /// Its offsets reach to the first cell, whose bytes are none.
    #[test]
    fn a_full_node_has_no_cell_behind_the_last() {
        let mut builder = NodeBuilder::new();
        for i in 0..495_u64 {
            // Three keys have five bytes less, and the node is full to the last byte.
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

    #[test]
    fn cells_that_overlap_are_refused() {
        let items = (0..2).map(|i| (Key::inode(i), vec![7; 40])).collect();
        let (mut bytes, mut ptr, _) = build(&items);
        // The value of the second, whose cell lies before the first's, takes that in.
        let second = usize::from(u16::from_le_bytes([bytes[66], bytes[67]]));
        bytes[second + 1] += 40;
        ptr.crc = U32::new(checksum::crc(&bytes));
        let error = decode(&bytes, ptr).unwrap_err();
        assert_eq!(error.expected, "cells side by side");
    }

    proptest! {
        #[test]
        fn a_node_returns_what_was_built(
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

        #[test]
        fn changed_bytes_are_an_error_even_with_a_right_checksum(
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
