//! The pointer to an index node, as stored in superblocks, root items and interior nodes.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Pointer to an index node, as stored in parent nodes, root items and the superblock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RawPtr {
    /// First block of the node; 0 for none.
    pub block: U64,
    /// Context sequence of the merge that wrote it.
    pub birth: U64,
    /// CRC32C of the node's bytes.
    pub crc: U32,
}
