//! On-disk structures and their checksums. No other module uses byte offsets of the format.
//!
//! Uses only [`crate::error`]. All functions are pure: bytes in, checked values out. Every
//! decoder treats its input as hostile: it returns an error ([`crate::error::Corruption`] where it
//! knows the block) and never panics, loops forever, or allocates by an unchecked length. All
//! integers on disk are little-endian, except encoded keys, which are big-endian so that byte order
//! is key order.

pub mod checksum;
pub mod foreign;
pub mod frames;
pub mod geometry;
pub mod group;
pub mod item;
pub mod key;
pub mod lineage;
pub mod mark;
pub mod node;
pub mod numbers;
pub mod overflow;
pub mod pointer;
pub mod received;
pub mod record;
pub mod root;
pub mod search;
pub mod stream;
pub mod superblock;
pub mod xattr;

/// Size of a block, the unit of space, in bytes.
pub const BLOCK_SIZE: usize = 4096;
/// Size of an index node in bytes.
pub const NODE_SIZE: usize = 16384;
/// Blocks per index node, and the alignment of nodes in blocks.
pub const NODE_BLOCKS: u64 = 4;
/// Maximum number of blocks of an extent item (1 MiB).
pub const MAX_EXTENT_BLOCKS: u64 = 256;
/// Maximum length of a name in bytes.
pub const MAX_NAME: usize = 255;
/// Maximum length of a symbolic link's target in bytes.
pub const MAX_SYMLINK: usize = 4095;
/// Maximum size of inline file content in bytes.
pub const MAX_INLINE: usize = 2048;
/// Maximum size of a file in bytes.
pub const MAX_FILE_SIZE: u64 = 1 << 60;
/// Maximum number of links of an inode.
pub const MAX_LINKS: u32 = 1 << 31;
/// Maximum size of an extended attribute's value in bytes, as on Linux.
pub const MAX_XATTR_VALUE: usize = 65536;
/// Maximum total length of the names of an inode's extended attributes in bytes, each with its NUL,
/// as on Linux.
pub const MAX_XATTR_NAMES: usize = 65536;
/// Maximum size in bytes of an extended attribute's value that is stored with its name in the
/// index. A longer value is stored once for all attributes that have it: a reference takes 8 bytes
/// and the value's own item about 40, so sharing a shorter value between two attributes would save
/// nothing.
pub const MAX_OWN_VALUE: usize = 64;
/// Maximum size of an item's value in bytes: two attributes of the maximum size with equal hashes.
pub const MAX_VALUE: usize = 2 * (MAX_XATTR_VALUE + MAX_NAME + 8);
/// Exclusive upper bound of sequences, LSNs, generations, inode numbers and directory indexes. No
/// volume lives long enough to reach it, and additions to valid values never overflow.
pub const MAX_COUNTER: u64 = 1_000_000_000_000_000_000;
/// Inode number of the root directory.
pub const ROOT_INO: u64 = 1;
/// First inode number for user files; smaller numbers are reserved for the volume.
pub const FIRST_USER_INO: u64 = 16;
