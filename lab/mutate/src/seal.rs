//! Recomputes checksums after a change, from the changed structure up to the superblock.

use cairnfs_disk::format::NODE_BLOCKS;
use cairnfs_disk::format::checksum::{crc, crc_append, hash64};
use cairnfs_disk::format::record::{HEADER_SIZE, MAX_PAYLOAD, RecordHeader};
use cairnfs_disk::format::superblock::Superblock;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::image::Image;
use crate::layout::{LargeAt, Layout, Link, RecordAt};

/// Offset of the CRC in the pointer to a node, and in that to a large value.
const POINTER_CRC: usize = 16;
const LARGE_CRC: usize = 20;

/// Updates the checksum of a superblock's block.
pub fn superblock_bytes(image: &mut Image, slot: u64) {
    let block = image.read(slot, 1);
    image.patch(slot, 8, &hash64(&block[16..]).to_le_bytes());
}

/// Changes the newest superblock, and its copies.
pub fn superblock(image: &mut Image, layout: &Layout, change: impl FnOnce(&mut Superblock)) {
    let slot = layout.superblock.slot_block();
    let (mut raw, _) = Superblock::read_from_prefix(&image.read(slot, 1)).unwrap();
    change(&mut raw);
    image.patch(slot, 0, raw.as_bytes());
    superblock_bytes(image, slot);
    for place in layout.superblock.copy_blocks(layout.superblock.slot()) {
        image.write(place, &raw.encode_copy(place));
    }
}

/// Updates the checksums above a changed node, in all trees that have it.
pub fn node(image: &mut Image, layout: &Layout, block: u64) {
    let sum = crc(&image.read(block, NODE_BLOCKS));
    for link in &layout.nodes[&block] {
        match *link {
            Link::Superblock => superblock(image, layout, |s| s.root.crc = U32::new(sum)),
            Link::Node { node: above, at } => {
                image.patch(above, at + POINTER_CRC, &sum.to_le_bytes());
                node(image, layout, above);
            }
        }
    }
}

/// Updates the checksums above a changed large value, in all leaves that refer to it.
pub fn large(image: &mut Image, layout: &Layout, value: &LargeAt) {
    let units = value.units.iter();
    let sum = units.fold(0, |sum, unit| {
        crc_append(sum, &image.read(*unit, NODE_BLOCKS))
    });
    let same = layout.large.iter().filter(|l| l.units == value.units);
    for cell in same.map(|large| large.cell) {
        image.patch(cell.node, cell.at + LARGE_CRC, &sum.to_le_bytes());
        node(image, layout, cell.node);
    }
}

/// Updates the checksums above the current copy of the group table.
pub fn table(image: &mut Image, layout: &Layout) {
    let copy = layout.superblock.table_copy.get() as u8;
    let start = layout.geometry.table_start(copy);
    let sum = crc(&image.read(start, layout.geometry.table_blocks()));
    superblock(image, layout, |s| s.table_crc = U32::new(sum));
}

/// Updates the checksum of a changed record, and those of all records after it. `payload` selects
/// whether the payload's checksum is updated too.
pub fn log(image: &mut Image, layout: &Layout, from: usize, payload: bool) {
    let mut chain: Option<U64> = None;
    for (i, record) in layout.records.iter().enumerate().skip(from) {
        let mut bytes = layout.record(image, record);
        let (mut header, _) = RecordHeader::read_from_prefix(&bytes).unwrap();
        if let Some(chain) = chain {
            header.chain = chain;
        }
        if i == from && payload {
            header.payload_crc = U32::new(payload_crc(&header, &bytes));
        }
        let magic = header.magic;
        header.seal();
        header.magic = magic;
        header.checksum = U64::new(hash64(&header.as_bytes()[8..]));
        chain = Some(header.checksum);
        bytes[..HEADER_SIZE].copy_from_slice(header.as_bytes());
        layout.write_record(image, record.lsn, &bytes);
    }
}

fn payload_crc(header: &RecordHeader, bytes: &[u8]) -> u32 {
    let len = (header.payload_len.get() as usize).min(MAX_PAYLOAD);
    let mut payload = bytes[HEADER_SIZE..].to_vec();
    payload.resize(len, 0);
    crc(&payload)
}

/// The range of the payload in the bytes of a record.
pub fn payload_range(record: &RecordAt) -> std::ops::Range<usize> {
    HEADER_SIZE..HEADER_SIZE + record.header.payload_len.get() as usize
}
