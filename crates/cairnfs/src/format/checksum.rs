//! The two checksums of the format: CRC32C over contents, XXH3 where 64 bits are wanted.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// CRC32C of `bytes` (data blocks, index nodes, bitmaps, log payloads).
pub fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Continues a CRC32C over more bytes.
pub fn crc_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// XXH3-64 of `bytes` (superblock, record headers and their chain).
pub fn hash64(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The hash under which a name (of an entry or an attribute) is found; `seed` is the volume's.
pub fn name_hash(seed: u64, name: &[u8]) -> u64 {
    xxh3_64_with_seed(name, seed)
}
