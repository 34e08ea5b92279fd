//! The layout of the fixed areas of a volume, computed from its size and the size of its log.
//!
//! ```text
//! block 0            superblock slot 0        block 8   superblock slot 1
//! block 12           durable mark
//! 16 ..              the log
//! table_start ..     group table, copy 0 then copy 1
//! bitmap_start ..    group bitmaps, copy 0 of every group, then copy 1 of every group
//! data_start ..      data and index blocks, to the end
//! ```

use crate::error::{Error, Result};
use crate::format::{BLOCK_SIZE, NODE_BLOCKS};

/// First block of the log. Before it are the two superblock slots, the durable mark, and unused blocks
/// between them.
pub const LOG_START: u64 = 16;
/// The block of each superblock slot.
pub const SUPERBLOCK_SLOTS: [u64; 2] = [0, 8];
/// The block of the durable mark.
pub const MARK_BLOCK: u64 = 12;
/// Blocks of an allocation group (128 MiB): the number of bits of a bitmap block.
pub const GROUP_BLOCKS: u64 = (BLOCK_SIZE * 8) as u64;
/// Size of a group table entry in bytes.
pub const GROUP_ENTRY_SIZE: u64 = 8;
/// Minimum size of a volume in bytes.
pub const MIN_VOLUME_SIZE: u64 = 16 << 20;
/// Maximum size of a volume in bytes (16 TiB). It bounds the memory that a hostile superblock can
/// make the mount allocate.
pub const MAX_VOLUME_SIZE: u64 = 16 << 40;
/// Minimum size of the log in blocks.
pub const MIN_LOG_BLOCKS: u64 = 1024;
/// Maximum size of the log in blocks.
pub const MAX_LOG_BLOCKS: u64 = 1 << 18;
/// Maximum default size of the log in blocks.
pub const DEFAULT_LOG_LIMIT: u64 = 1 << 16;

/// Blocks at the end of a volume that have no copy of the superblock (1 MiB).
pub const END_BLOCKS: u64 = 256;
/// Blocks behind the fixed areas that have none: the first nodes are there.
const BEHIND_FIXED: u64 = 64;

/// The areas of a volume, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Size of the volume.
    pub total_blocks: u64,
    /// Blocks of the log, which begins at [`LOG_START`].
    pub log_blocks: u64,
}

impl Geometry {
    /// The layout of a volume of `bytes` bytes, with a log of `log_bytes` bytes, by default 1/32 of
    /// the volume (4 MiB to 256 MiB).
    ///
    /// # Errors
    /// [`Error::Invalid`] if a size is out of range, or the log leaves no space for files.
    pub fn for_size(bytes: u64, log_bytes: Option<u64>) -> Result<Self> {
        if bytes < MIN_VOLUME_SIZE {
            return Err(Error::Invalid("a volume needs at least 16 MiB"));
        }
        if bytes > MAX_VOLUME_SIZE {
            return Err(Error::Invalid("a volume has at most 16 TiB"));
        }
        let total_blocks = bytes / BLOCK_SIZE as u64;
        let log_blocks = match log_bytes {
            Some(b) => b / BLOCK_SIZE as u64,
            None => (total_blocks / 32).clamp(MIN_LOG_BLOCKS, DEFAULT_LOG_LIMIT),
        };
        let geometry = Self {
            total_blocks,
            log_blocks,
        };
        geometry.validate().map_err(Error::Invalid)?;
        Ok(geometry)
    }

    /// Checks the sizes; the error is a message for the user.
    ///
    /// # Errors
    /// A size is out of range, or the log leaves no space for files.
    pub fn validate(&self) -> std::result::Result<(), &'static str> {
        let most = MAX_VOLUME_SIZE / BLOCK_SIZE as u64;
        if self.total_blocks < MIN_VOLUME_SIZE / BLOCK_SIZE as u64 || self.total_blocks > most {
            return Err("a volume has 16 MiB to 16 TiB");
        }
        if self.log_blocks < MIN_LOG_BLOCKS || self.log_blocks > MAX_LOG_BLOCKS {
            return Err("a log has 4 MiB to 1 GiB");
        }
        if self.data_start() + GROUP_BLOCKS / 64 > self.total_blocks {
            return Err("the log leaves no room for files");
        }
        Ok(())
    }

    /// Number of allocation groups; the last one may be smaller.
    pub fn groups(&self) -> u64 {
        self.total_blocks.div_ceil(GROUP_BLOCKS)
    }

    /// Blocks of one copy of the group table.
    pub fn table_blocks(&self) -> u64 {
        (self.groups() * GROUP_ENTRY_SIZE).div_ceil(BLOCK_SIZE as u64)
    }

    /// First block of a copy (0 or 1) of the group table.
    pub fn table_start(&self, copy: u8) -> u64 {
        LOG_START + self.log_blocks + u64::from(copy & 1) * self.table_blocks()
    }

    /// The block of a copy (0 or 1) of a group's bitmap.
    pub fn bitmap_block(&self, group: u64, copy: u8) -> u64 {
        self.bitmap_start() + u64::from(copy & 1) * self.groups() + group
    }

    /// First block of the bitmap area.
    pub fn bitmap_start(&self) -> u64 {
        LOG_START + self.log_blocks + 2 * self.table_blocks()
    }

    /// First block behind the fixed areas.
    pub fn data_start(&self) -> u64 {
        self.bitmap_start() + 2 * self.groups()
    }

    /// Number of blocks behind the fixed areas.
    pub fn data_blocks(&self) -> u64 {
        self.total_blocks - self.data_start()
    }

    /// Where the two units with copies of the superblock belong: near the end of the volume, but not
    /// where partition tables and arrays of disks have their own copies, and in the middle, or behind
    /// it where the fixed areas are longer.
    pub fn copy_goals(&self) -> [u64; 2] {
        let aligned = |block: u64| block - block % NODE_BLOCKS;
        let end = aligned(self.total_blocks - END_BLOCKS - NODE_BLOCKS);
        let middle = self.total_blocks / 2;
        let middle = if middle > self.data_start() + BEHIND_FIXED {
            middle
        } else {
            self.data_start() + BEHIND_FIXED
        };
        [end, aligned(middle)]
    }

    /// Whether `len` blocks from `block` are in the data area.
    pub fn in_data(&self, block: u64, len: u64) -> bool {
        block >= self.data_start()
            && block
                .checked_add(len)
                .is_some_and(|end| end <= self.total_blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_follow_each_other() {
        let g = Geometry::for_size(1 << 30, None).unwrap();
        assert_eq!(g.total_blocks, 262_144);
        assert_eq!(g.log_blocks, 8192);
        assert_eq!(g.groups(), 8);
        assert_eq!(g.table_start(0), LOG_START + 8192);
        assert_eq!(g.table_start(1), g.table_start(0) + 1);
        assert_eq!(g.bitmap_block(0, 0), g.table_start(1) + 1);
        assert_eq!(g.bitmap_block(0, 1), g.bitmap_block(7, 0) + 1);
        assert_eq!(g.data_start(), g.bitmap_block(7, 1) + 1);
    }

    #[test]
    fn copies_of_the_superblock_are_apart_in_the_data_area() {
        for (size, log) in [
            (MIN_VOLUME_SIZE, None),
            (MIN_VOLUME_SIZE, Some(13 << 20)),
            (1 << 30, None),
            (100 << 30, None),
            ((1 << 30) + 12_288, Some(900 << 20)),
        ] {
            let g = Geometry::for_size(size, log).unwrap();
            let [end, middle] = g.copy_goals();
            assert!(middle + 64 <= end, "{g:?}");
            for unit in [end, middle] {
                assert!(unit.is_multiple_of(NODE_BLOCKS) && g.in_data(unit, NODE_BLOCKS));
            }
        }
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        assert!(Geometry::for_size(1 << 20, None).is_err());
        assert!(Geometry::for_size(u64::MAX, None).is_err());
        assert!(Geometry::for_size(16 << 20, Some(16 << 20)).is_err());
        assert!(Geometry::for_size(16 << 20, None).is_ok());
    }
}
