//! The two checksums of the format: CRC32C for content, XXH3-64 where 64 bits are needed.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// CRC32C of `bytes` (data blocks, index nodes, bitmaps, log payloads).
pub fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Extends the CRC32C of some bytes by the bytes that follow them.
pub fn crc_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// XXH3-64 of `bytes` (superblock, record headers and their chain).
pub fn hash64(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The hash of a name (of a directory entry or an attribute): XXH3-64 with the volume's `seed`.
pub fn name_hash(seed: u64, name: &[u8]) -> u64 {
    xxh3_64_with_seed(name, seed)
}
