//! The group table: for each allocation group which copy of its bitmap holds, and its checksum.
//!
//! The superblock names the copy of the table and its checksum; the table those of the bitmaps.
//! A set bit is a block in use; bits behind the end of the volume are set.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An entry of the group table.
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
pub struct GroupEntry {
    /// CRC32C of the bitmap block.
    pub crc: U32,
    /// Free blocks of the group (0 to 32768).
    pub free: U16,
    /// Which copy of the bitmap is current (0 or 1).
    pub copy: u8,
    /// Zero.
    pub reserved: u8,
}
