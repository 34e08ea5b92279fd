//! The group table: for each allocation group the active copy of its bitmap, and the checksum.
//!
//! The superblock records the active copy of the table and its checksum; the table records those of
//! the bitmaps. A set bit is a block in use; bits behind the end of the volume are set.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An entry of the group table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct GroupEntry {
    /// CRC32C of the bitmap block.
    pub crc: U32,
    /// Free blocks of the group (0 to 32768).
    pub free: U16,
    /// The active copy of the bitmap (0 or 1).
    pub copy: u8,
    /// Zero.
    pub reserved: u8,
}
