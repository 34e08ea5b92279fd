//! Damage to structures at fixed places: superblocks, the group table, the bitmap.

use cairnfs_disk::format::checksum::crc;
use cairnfs_disk::format::geometry::SUPERBLOCK_SLOTS;
use cairnfs_disk::format::superblock::Superblock;
use zerocopy::little_endian::U64;

use super::{How, Mutator};
use crate::seal;

/// Offset and width in bytes of the fields of a superblock, without its checksum.
const SUPERBLOCK_FIELDS: [(usize, usize); 34] = [
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
    (252, 8),
    (260, 8),
    (268, 8),
    (276, 8),
    (284, 4),
    (288, 8),
    (296, 8),
    (304, 8),
];

impl Mutator<'_> {
    pub(super) fn superblock(&mut self, sealed: bool) -> How {
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

    pub(super) fn table(&mut self, sealed: bool) -> How {
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

    /// Flips bits of the only group's bitmap. If `sealed`, checksums are valid and the counts
    /// usually correct.
    pub(super) fn bitmap(&mut self, sealed: bool) -> How {
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
                self.image.patch(table, 4, &(free as u16).to_le_bytes());
            }
            let total = (!self.random.once_in(4)).then(|| U64::new(free.into()));
            seal::table(&mut self.image, layout);
            let set = |s: &mut Superblock| s.free_blocks = total.unwrap_or(s.free_blocks);
            seal::superblock(&mut self.image, layout, set);
        }
        Some(how)
    }
}
