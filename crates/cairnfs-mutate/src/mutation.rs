//! Damage that follows from a seed: plain rot, and changes of single structures with the
//! checksums above them broken or right.

use cairnfs::format::geometry::SUPERBLOCK_SLOTS;
use cairnfs::format::group::GroupEntry;
use cairnfs::format::key::Kind;
use cairnfs::format::node::NODE_HEADER;
use cairnfs::format::record::{ENTRY_HEADER_SIZE, HEADER_SIZE};
use cairnfs::format::superblock::Superblock;
use cairnfs::format::{BLOCK_SIZE, NODE_BLOCKS, NODE_SIZE, checksum::crc};
use zerocopy::little_endian::{U16, U32, U64};

use crate::base::Base;
use crate::image::Image;
use crate::random::Random;
use crate::seal;

/// What is damaged. Those called `Sealed` have right checksums, as a mistake or someone who means
/// harm would make them; all others are rot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Some bits anywhere.
    Flip,
    /// A block of zeros, ones or random bytes.
    Fill,
    /// A block in the place of another.
    Swap,
    /// A block as it was before it was last written.
    Stale,
    /// A device that was cut off.
    Truncate,
    /// Fields of a superblock.
    Superblock,
    /// Fields of a superblock.
    SuperblockSealed,
    /// Fields of a log record's header.
    LogHeader,
    /// Fields of a log record's header.
    LogHeaderSealed,
    /// A bit of a log record's payload.
    LogPayload,
    /// Keys, lengths and values of log entries.
    LogEntrySealed,
    /// A log that ends earlier.
    LogCut,
    /// Header, offsets or any bits of an index node.
    Node,
    /// Header, offsets or any bits of an index node.
    NodeSealed,
    /// Lengths, key or address in a cell.
    CellSealed,
    /// Fields of a value in a leaf.
    ItemSealed,
    /// A unit of a large value, or its address.
    Large,
    /// A unit of a large value, or its address.
    LargeSealed,
    /// Fields of the group table.
    Table,
    /// Fields of the group table.
    TableSealed,
    /// Bits of a bitmap.
    Bitmap,
    /// Bits of a bitmap.
    BitmapSealed,
    /// A block of a file's contents.
    Data,
}

/// All classes.
pub const CLASSES: [Class; 23] = [
    Class::Flip,
    Class::Fill,
    Class::Swap,
    Class::Stale,
    Class::Truncate,
    Class::Superblock,
    Class::SuperblockSealed,
    Class::LogHeader,
    Class::LogHeaderSealed,
    Class::LogPayload,
    Class::LogEntrySealed,
    Class::LogCut,
    Class::Node,
    Class::NodeSealed,
    Class::CellSealed,
    Class::ItemSealed,
    Class::Large,
    Class::LargeSealed,
    Class::Table,
    Class::TableSealed,
    Class::Bitmap,
    Class::BitmapSealed,
    Class::Data,
];

impl Class {
    /// Whether checksums are right, so that another sound volume may come out.
    pub fn is_sealed(self) -> bool {
        matches!(
            self,
            Class::SuperblockSealed
                | Class::LogHeaderSealed
                | Class::LogEntrySealed
                | Class::NodeSealed
                | Class::CellSealed
                | Class::ItemSealed
                | Class::LargeSealed
                | Class::TableSealed
                | Class::BitmapSealed
        )
    }
}

/// A damaged volume.
pub struct Mutation {
    /// What was damaged.
    pub class: Class,
    /// How, for people.
    pub how: String,
    /// The result.
    pub image: Image,
}

/// Width and offset of the superblock's fields, its checksum not among them.
const SUPERBLOCK_FIELDS: [(usize, usize); 26] = [
    (0, 8),
    (16, 8),
    (24, 8),
    (32, 8),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 8),
    (128, 8),
    (136, 4),
    (140, 4),
    (144, 8),
    (152, 8),
    (160, 8),
    (168, 8),
    (176, 8),
    (184, 8),
    (192, 8),
    (200, 8),
    (208, 4),
    (212, 4),
    (216, 4),
    (220, 4),
    (224, 8),
    (232, 8),
    (244, 8),
];

/// The same for a record's header.
const RECORD_FIELDS: [(usize, usize); 14] = [
    (8, 4),
    (12, 4),
    (16, 8),
    (32, 8),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 8),
    (72, 8),
    (80, 4),
    (84, 4),
    (88, 4),
    (92, 4),
    (96, 8),
];

/// The same for a node's header.
const NODE_FIELDS: [(usize, usize); 11] = [
    (0, 4),
    (4, 1),
    (5, 1),
    (6, 2),
    (8, 8),
    (16, 8),
    (24, 8),
    (32, 2),
    (34, 8),
    (42, 8),
    (51, 8),
];

/// Damages a base as `seed` tells.
pub fn mutate(base: &Base, class: Class, seed: u64) -> Mutation {
    let mut at = Mutator {
        base,
        image: base.image.clone(),
        random: Random::new(seed),
    };
    let how = match class {
        Class::Flip => at.flip(),
        Class::Fill => at.fill(),
        Class::Swap => at.swap(),
        Class::Stale => at.stale(),
        Class::Truncate => at.truncate(),
        Class::Superblock => at.superblock(false),
        Class::SuperblockSealed => at.superblock(true),
        Class::LogHeader => at.log_header(false),
        Class::LogHeaderSealed => at.log_header(true),
        Class::LogPayload => at.log_payload(),
        Class::LogEntrySealed => at.log_entry(),
        Class::LogCut => at.log_cut(),
        Class::Node => at.node(false),
        Class::NodeSealed => at.node(true),
        Class::CellSealed => at.cell(),
        Class::ItemSealed => at.item(),
        Class::Large => at.large(false),
        Class::LargeSealed => at.large(true),
        Class::Table => at.table(false),
        Class::TableSealed => at.table(true),
        Class::Bitmap => at.bitmap(false),
        Class::BitmapSealed => at.bitmap(true),
        Class::Data => at.data(),
    };
    Mutation {
        class,
        how: how.unwrap_or_else(|| "nothing there to damage".into()),
        image: at.image,
    }
}

struct Mutator<'a> {
    base: &'a Base,
    image: Image,
    random: Random,
}

/// What was done; nothing if the base has no such structure.
type How = Option<String>;

impl Mutator<'_> {
    /// Flips some bits of a range of bytes that begins at `block`.
    fn flip_bits(&mut self, block: u64, range: std::ops::Range<usize>) -> String {
        let mut how = format!("block {block}: flipped");
        for _ in 0..1 + self.random.below(3) {
            let at = range.start + self.random.below(range.len());
            let bit = self.random.below(8);
            let old = self.byte(block, at);
            self.image.patch(block, at, &[old ^ (1 << bit)]);
            how += &format!(" {at}.{bit}");
        }
        how
    }

    fn byte(&self, block: u64, at: usize) -> u8 {
        self.image.read(block + (at / BLOCK_SIZE) as u64, 1)[at % BLOCK_SIZE]
    }

    /// Replaces a number by one that readers may stumble over.
    fn change_number(&mut self, block: u64, at: usize, width: usize) -> String {
        let mut old = [0; 8];
        for (i, byte) in old[..width].iter_mut().enumerate() {
            *byte = self.byte(block, at + i);
        }
        let old = u64::from_le_bytes(old);
        let new = self.likely_number(old, width);
        self.image.patch(block, at, &new.to_le_bytes()[..width]);
        format!("block {block}: {width} bytes at {at} from {old:#x} to {new:#x}")
    }

    /// An awkward number, or one that means something in this volume.
    fn likely_number(&mut self, old: u64, width: usize) -> u64 {
        let layout = &self.base.layout;
        let g = layout.geometry;
        match self.random.below(6) {
            0 if width == 8 => *self.random.pick(&[
                g.data_start(),
                g.data_start() - 1,
                g.total_blocks,
                g.total_blocks - 1,
                g.total_blocks - NODE_BLOCKS,
                1,
                2,
                16,
                (1 << 60) + 1,
                1 << 48,
                layout.superblock.root.block.get(),
                layout.superblock.merged_seq.get() + 1,
                layout.superblock.next_ino.get(),
            ]),
            1 if width == 8 => {
                let nodes: Vec<_> = layout.nodes.keys().copied().collect();
                *self.random.pick(&nodes)
            }
            2 if width == 8 => self.random.pick(&layout.items).key.object,
            _ => self.random.awkward(old, width),
        }
    }

    fn some_block(&mut self) -> u64 {
        *self.random.pick(&self.base.used)
    }

    fn flip(&mut self) -> How {
        let block = self.some_block();
        Some(self.flip_bits(block, 0..BLOCK_SIZE))
    }

    fn fill(&mut self) -> How {
        let (block, value) = (self.some_block(), self.random.below(4));
        let mut bytes = vec![0; BLOCK_SIZE];
        match value {
            0 => {}
            1 => bytes.fill(0xff),
            _ => self.random.fill(&mut bytes),
        }
        self.image.write(block, &bytes);
        Some(format!("block {block} filled, kind {value}"))
    }

    fn swap(&mut self) -> How {
        let (a, b) = (self.some_block(), self.some_block());
        let (x, y) = (self.image.read(a, 1), self.image.read(b, 1));
        self.image.write(a, &y);
        if self.random.once_in(2) {
            self.image.write(b, &x);
        }
        Some(format!("block {b} in place of {a}"))
    }

    fn stale(&mut self) -> How {
        let (block, bytes) = match self.base.older.len() {
            0 => return None,
            n => &self.base.older[self.random.below(n)],
        };
        self.image.write(*block, bytes);
        Some(format!("block {block} as it was before"))
    }

    fn truncate(&mut self) -> How {
        let all = self.image.blocks();
        let blocks = match self.random.below(4) {
            0 => self.random.next() % 20,
            1 => all - 1 - self.random.next() % 20,
            _ => self.random.next() % all,
        };
        self.image.truncate(blocks);
        Some(format!("cut off behind {blocks} blocks"))
    }

    fn superblock(&mut self, sealed: bool) -> How {
        let slot = match self.random.below(4) {
            0 => *self.random.pick(&SUPERBLOCK_SLOTS),
            _ => self.base.layout.superblock.slot_block(),
        };
        let mut how = String::new();
        for _ in 0..1 + self.random.below(2) {
            let (at, width) = *self.random.pick(&SUPERBLOCK_FIELDS);
            how += &self.change_number(slot, at, width);
        }
        if sealed {
            seal::superblock_bytes(&mut self.image, slot);
        }
        Some(how)
    }

    fn some_record(&mut self) -> Option<usize> {
        match self.base.layout.records.len() {
            0 => None,
            n => Some(self.random.below(n)),
        }
    }

    fn log_header(&mut self, sealed: bool) -> How {
        let i = self.some_record()?;
        let block = self.base.layout.log_block(self.base.layout.records[i].lsn);
        let mut how = format!("record {i}, ");
        for _ in 0..1 + self.random.below(2) {
            let (at, width) = *self.random.pick(&RECORD_FIELDS);
            how += &self.change_number(block, at, width);
        }
        if sealed {
            let payload = self.random.once_in(2);
            seal::log(&mut self.image, &self.base.layout, i, payload);
        }
        Some(how)
    }

    fn log_payload(&mut self) -> How {
        let i = self.some_record()?;
        let record = self.base.layout.records[i];
        let range = seal::payload_range(&record);
        if range.is_empty() {
            return None;
        }
        let mut bytes = self.base.layout.record(&self.image, &record);
        let at = range.start + self.random.below(range.len());
        bytes[at] ^= 1 << self.random.below(8);
        self.base
            .layout
            .write_record(&mut self.image, record.lsn, &bytes);
        Some(format!("record {i}, byte {at}"))
    }

    /// Changes entries of a record: a header's field, or bytes of the value.
    fn log_entry(&mut self) -> How {
        let i = self.some_record()?;
        let record = self.base.layout.records[i];
        let mut bytes = self.base.layout.record(&self.image, &record);
        let mut entries = Vec::new();
        let range = seal::payload_range(&record);
        let mut at = range.start;
        while at + ENTRY_HEADER_SIZE <= range.end {
            let len = u32::from_le_bytes(*bytes[at..].first_chunk().unwrap()) >> 8;
            entries.push((at, len as usize));
            at += ENTRY_HEADER_SIZE + len as usize;
        }
        if entries.is_empty() {
            return None;
        }
        let mut how = format!("record {i}");
        for _ in 0..1 + self.random.below(3) {
            let (entry, len) = *self.random.pick(&entries);
            let fields = [(0, 1), (1, 3), (4, 4), (8, 8), (16, 8)];
            let (offset, width) = match self.random.below(3) {
                0 => *self.random.pick(&fields),
                _ if len == 0 => continue,
                1 => (ENTRY_HEADER_SIZE + self.random.below(len), 1),
                _ if len < 8 => continue,
                _ => (
                    ENTRY_HEADER_SIZE + self.random.below(len / 8) * 8,
                    *self.random.pick(&[1, 4, 8]),
                ),
            };
            let at = entry + offset;
            let mut old = [0; 8];
            old[..width].copy_from_slice(&bytes[at..at + width]);
            let new = self.likely_number(u64::from_le_bytes(old), width);
            bytes[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
            how += &format!(", entry at {entry}: {width} bytes at {offset} to {new:#x}");
        }
        self.base
            .layout
            .write_record(&mut self.image, record.lsn, &bytes);
        seal::log(&mut self.image, &self.base.layout, i, true);
        Some(how)
    }

    /// The log from a record on was never written.
    fn log_cut(&mut self) -> How {
        let i = self.some_record()?;
        let records = &self.base.layout.records;
        for record in &records[i..] {
            let zeros = vec![0; record.header.blocks() as usize * BLOCK_SIZE];
            self.base
                .layout
                .write_record(&mut self.image, record.lsn, &zeros);
        }
        Some(format!("the log ends before record {i}"))
    }

    fn some_node(&mut self) -> u64 {
        let nodes: Vec<u64> = self.base.layout.nodes.keys().copied().collect();
        *self.random.pick(&nodes)
    }

    /// Bytes of a node: of its header, its offsets, or anywhere.
    fn node(&mut self, sealed: bool) -> How {
        let node = self.some_node();
        let how = match self.random.below(3) {
            0 => {
                let (at, width) = *self.random.pick(&NODE_FIELDS);
                self.change_number(node, at, width)
            }
            1 => {
                let count = u16::from_le_bytes([self.byte(node, 6), self.byte(node, 7)]);
                let at = NODE_HEADER + 2 * self.random.below(usize::from(count));
                self.change_number(node, at, 2)
            }
            _ => self.flip_bits(node, 0..NODE_SIZE),
        };
        if sealed {
            seal::node(&mut self.image, &self.base.layout, node);
        }
        Some(how)
    }

    /// Header and key of a cell, or an address in an interior node.
    fn cell(&mut self) -> How {
        let node = self.some_node();
        let count = u16::from_le_bytes([self.byte(node, 6), self.byte(node, 7)]);
        let slot = NODE_HEADER + 2 * self.random.below(usize::from(count));
        let cell = u16::from_le_bytes([self.byte(node, slot), self.byte(node, slot + 1)]);
        let cell = usize::from(cell);
        let key_len = usize::from(self.byte(node, cell));
        let how = match self.random.below(4) {
            0 => self.change_number(node, cell, 1),
            1 => self.change_number(node, cell + 1, 2),
            2 if key_len > 0 => {
                let at = cell + 3 + self.random.below(key_len);
                self.change_number(node, at, 1)
            }
            _ => {
                let fields = [(0, 8), (8, 8), (16, 4)];
                let (at, width) = *self.random.pick(&fields);
                let at = (cell + 3 + key_len + at).min(NODE_SIZE - width);
                self.change_number(node, at, width)
            }
        };
        seal::node(&mut self.image, &self.base.layout, node);
        Some(how)
    }

    /// Bytes of an item's value: each kind as often, its fields on their boundaries.
    fn item(&mut self) -> How {
        let layout = &self.base.layout;
        let kinds = [
            Kind::Inode,
            Kind::Inode,
            Kind::Inline,
            Kind::DirIndex,
            Kind::DirName,
            Kind::Xattr,
            Kind::Extent,
            Kind::Extent,
            Kind::Orphan,
            Kind::Root,
        ];
        let kind = *self.random.pick(&kinds);
        let items: Vec<_> = layout.items.iter().filter(|i| i.key.kind == kind).collect();
        if items.is_empty() {
            return None;
        }
        let item = **self.random.pick(&items);
        let mut how = format!("{:?}: ", item.key);
        for _ in 0..1 + self.random.below(2) {
            let width = *self.random.pick(&[1, 4, 8]);
            let places = (item.len / width).max(1);
            let at = match self.random.below(2) {
                0 if item.len >= 8 => self.random.below(item.len.min(112) / 4) * 4,
                _ => self.random.below(places) * width,
            };
            let width = width.min(item.len.saturating_sub(at)).max(1);
            how += &self.change_number(item.node, item.at + at, width);
        }
        seal::node(&mut self.image, layout, item.node);
        Some(how)
    }

    /// A unit of a large value, or its address.
    fn large(&mut self, sealed: bool) -> How {
        let layout = &self.base.layout;
        if layout.large.is_empty() {
            return None;
        }
        let value = self.random.pick(&layout.large).clone();
        let unit = *self.random.pick(&value.units);
        let how = match self.random.below(4) {
            0 => self.change_number(unit, 0, 8),
            1 => self.flip_bits(unit, 0..NODE_SIZE),
            2 => self.change_number(unit, 8 + self.random.clone().below(5), 4),
            _ => {
                let (at, width) = *self.random.pick(&[(0, 8), (8, 8), (16, 4)]);
                self.change_number(value.cell.node, value.cell.at + at, width)
            }
        };
        if sealed {
            seal::large(&mut self.image, layout, &value);
        }
        Some(how)
    }

    fn table(&mut self, sealed: bool) -> How {
        let layout = &self.base.layout;
        let start = layout
            .geometry
            .table_start(layout.superblock.table_copy.get() as u8);
        let (at, width) = *self.random.pick(&[(0, 4), (4, 2), (6, 1), (7, 1), (8, 8)]);
        let how = self.change_number(start, at, width);
        if sealed {
            seal::table(&mut self.image, layout);
        }
        Some(how)
    }

    /// Bits of the only group's bitmap; with checksums, and mostly counts, right if `sealed`.
    fn bitmap(&mut self, sealed: bool) -> How {
        let layout = &self.base.layout;
        let table = layout
            .geometry
            .table_start(layout.superblock.table_copy.get() as u8);
        let copy = self.byte(table, 6);
        let block = layout.geometry.bitmap_block(0, copy);
        let bytes = layout.geometry.total_blocks as usize / 8;
        let how = self.flip_bits(block, 0..bytes + 8);
        if sealed {
            let map = self.image.read(block, 1);
            let free: u32 = map.iter().map(|b| b.count_zeros()).sum();
            self.image.patch(table, 0, &crc(&map).to_le_bytes());
            if !self.random.once_in(4) {
                let free = U16::new(free as u16);
                self.image.patch(table, 4, &free.get().to_le_bytes());
            }
            let total = (!self.random.once_in(4)).then(|| U64::new(free.into()));
            seal::table(&mut self.image, layout);
            let set = |s: &mut Superblock| s.free_blocks = total.unwrap_or(s.free_blocks);
            seal::superblock(&mut self.image, layout, set);
        }
        Some(how)
    }

    fn data(&mut self) -> How {
        let data = &self.base.layout.data;
        if data.is_empty() {
            return None;
        }
        let (first, len) = *self.random.pick(data);
        let block = first + self.random.next() % len;
        match self.random.below(3) {
            0 => {
                self.image.write(block, &[0xff; BLOCK_SIZE]);
                Some(format!("data block {block} all ones"))
            }
            1 => {
                self.image.write(block, &[0; BLOCK_SIZE]);
                Some(format!("data block {block} all zero"))
            }
            _ => Some(self.flip_bits(block, 0..BLOCK_SIZE)),
        }
    }
}

const _: () = assert!(HEADER_SIZE == 128 && size_of::<GroupEntry>() == 8);
const _: () = assert!(size_of::<U32>() == 4);
