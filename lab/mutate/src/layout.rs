//! The places of the structures in a sound image.
//!
//! Uses only the codecs of the format, and panics if they do not accept the image.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairnfs_disk::format::geometry::{Geometry, LOG_START, SUPERBLOCK_SLOTS};
use cairnfs_disk::format::item::decode_extent;
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::format::node::{CellValue, Expected, NODE_HEADER, Node};
use cairnfs_disk::format::overflow::units_for;
use cairnfs_disk::format::pointer::RawPtr;
use cairnfs_disk::format::record::RecordHeader;
use cairnfs_disk::format::root::RawRoot;
use cairnfs_disk::format::superblock::Superblock;
use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS};
use zerocopy::FromBytes;

use crate::image::Image;

/// The place of the pointer to a node or to a large value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// In the newest superblock.
    Superblock,
    /// In a node.
    Node {
        /// First block of the node.
        node: u64,
        /// Offset in bytes in the node.
        at: usize,
    },
}

/// A value in a leaf.
#[derive(Debug, Clone, Copy)]
pub struct ItemAt {
    /// First block of the leaf.
    pub node: u64,
    /// Offset of the value in bytes in the leaf.
    pub at: usize,
    /// Length of the value in bytes.
    pub len: usize,
    /// Key of the item.
    pub key: Key,
}

/// A large value.
#[derive(Debug, Clone)]
pub struct LargeAt {
    /// The cell that holds its pointer.
    pub cell: ItemAt,
    /// First block of each unit.
    pub units: Vec<u64>,
}

/// A record of the log.
#[derive(Debug, Clone, Copy)]
pub struct RecordAt {
    /// LSN of its first block.
    pub lsn: u64,
    /// Its header.
    pub header: RecordHeader,
}

/// The places of the structures of a volume.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The newest superblock.
    pub superblock: Superblock,
    /// The areas of the volume.
    pub geometry: Geometry,
    /// Index nodes by block, with the places of all pointers to each: roots share nodes.
    pub nodes: BTreeMap<u64, Vec<Link>>,
    /// Values in leaves, including the pointers to large values.
    pub items: Vec<ItemAt>,
    /// Large values.
    pub large: Vec<LargeAt>,
    /// Written extents in the index and in the log: first block and length in blocks.
    pub data: Vec<(u64, u64)>,
    /// The log records from the tail on.
    pub records: Vec<RecordAt>,
}

impl Layout {
    /// Finds the structures of a sound image.
    pub fn of(image: &Image) -> Self {
        let slots = SUPERBLOCK_SLOTS.map(|b| Superblock::decode(b, &image.read(b, 1)));
        let newest = slots.into_iter().flatten().max_by_key(|s| s.generation);
        let superblock = newest.unwrap();
        let mut layout = Self {
            superblock,
            geometry: superblock.geometry(),
            nodes: BTreeMap::new(),
            items: Vec::new(),
            large: Vec::new(),
            data: Vec::new(),
            records: Vec::new(),
        };
        let height = superblock.root_height.get();
        layout.tree(image, &superblock.root, height, Link::Superblock);
        layout.log(image);
        layout
    }

    /// The device block of an LSN.
    pub fn log_block(&self, lsn: u64) -> u64 {
        LOG_START + lsn % self.geometry.log_blocks
    }

    fn tree(&mut self, image: &Image, ptr: &RawPtr, height: u32, link: Link) {
        if height > 0 {
            self.node(image, ptr, height as u8 - 1, link);
        }
    }

    fn node(&mut self, image: &Image, ptr: &RawPtr, level: u8, link: Link) {
        let block = ptr.block.get();
        let links = self.nodes.entry(block).or_default();
        links.push(link);
        if links.len() > 1 {
            return;
        }
        let bytes: Arc<[u8]> = image.read(block, NODE_BLOCKS).into();
        let id = self.superblock.uuid.first_chunk().unwrap();
        let expected = Expected {
            ptr: *ptr,
            level,
            volume: u64::from_le_bytes(*id),
        };
        let node = Node::decode(bytes.clone(), &expected).unwrap();
        for i in 0..node.len() {
            let slot = NODE_HEADER + i * 2;
            let cell = usize::from(u16::from_le_bytes([bytes[slot], bytes[slot + 1]]));
            let at = cell + 3 + usize::from(bytes[cell]);
            if level > 0 {
                let link = Link::Node { node: block, at };
                self.node(image, &node.child(i).unwrap(), level - 1, link);
                continue;
            }
            let len = usize::from(u16::from_le_bytes([
                bytes[cell + 1],
                bytes[cell + 2] & 0x7f,
            ]));
            let key = node.key(i).unwrap();
            let item = ItemAt {
                node: block,
                at,
                len,
                key,
            };
            self.items.push(item);
            self.value(image, item, node.value(i).unwrap());
        }
    }

    fn value(&mut self, image: &Image, item: ItemAt, value: CellValue<'_>) {
        match value {
            CellValue::Inline(bytes) if item.key.kind == Kind::Root => {
                let (root, _) = RawRoot::read_from_prefix(bytes).unwrap();
                let link = Link::Node {
                    node: item.node,
                    at: item.at,
                };
                self.tree(image, &root.ptr, root.height.get(), link);
            }
            CellValue::Inline(bytes) if item.key.kind == Kind::Extent => self.extent(bytes),
            CellValue::Inline(_) => {}
            CellValue::Overflow(address) => {
                let mut units = Vec::new();
                let mut next = address.block.get();
                for _ in 0..units_for(address.len.get() as usize) {
                    units.push(next);
                    let unit = image.read(next, 1);
                    next = u64::from_le_bytes(*unit.first_chunk().unwrap());
                }
                self.large.push(LargeAt { cell: item, units });
            }
        }
    }

    fn extent(&mut self, value: &[u8]) {
        if let Ok((raw, crcs)) = decode_extent(value)
            && !crcs.is_empty()
        {
            self.data.push((raw.block.get(), raw.len.get().into()));
        }
    }

    fn log(&mut self, image: &Image) {
        let mut lsn = self.superblock.tail_lsn.get();
        let mut chain = self.superblock.tail_chain;
        while let Some(header) = RecordHeader::decode(&image.read(self.log_block(lsn), 1))
            && header.lsn.get() == lsn
            && header.chain == chain
        {
            self.records.push(RecordAt { lsn, header });
            lsn += header.blocks();
            chain = header.checksum;
        }
    }

    /// The bytes of a record, including header and padding.
    pub fn record(&self, image: &Image, record: &RecordAt) -> Vec<u8> {
        let lsns = record.lsn..record.lsn + record.header.blocks();
        lsns.flat_map(|lsn| image.read(self.log_block(lsn), 1))
            .collect()
    }

    /// Writes the bytes of a record at an LSN.
    pub fn write_record(&self, image: &mut Image, lsn: u64, bytes: &[u8]) {
        for (lsn, block) in (lsn..).zip(bytes.chunks(BLOCK_SIZE)) {
            image.write(self.log_block(lsn), block);
        }
    }

    /// The blocks that are not all zeros.
    pub fn used(&self, image: &Image) -> Vec<u64> {
        (0..image.blocks())
            .filter(|b| image.holds_something(*b))
            .collect()
    }
}
