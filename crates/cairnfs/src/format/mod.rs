//! On-disk structures and their checksums; nothing else knows offsets.
//!
//! Floor 1: uses only [`crate::error`]. Everything here is pure: bytes in, checked values out.
//! Every reader treats its bytes as hostile: it returns a [`crate::error::Corruption`] and never
//! panics, loops or allocates by an unchecked length. All integers on disk are little-endian,
//! except encoded keys, which are big-endian so that bytes sort as keys do.

pub mod checksum;
pub mod geometry;
pub mod group;
pub mod item;
pub mod key;
pub mod node;
pub mod overflow;
pub mod record;
pub mod superblock;
pub mod xattr;

/// The unit of space, in bytes.
pub const BLOCK_SIZE: usize = 4096;
/// Base-two logarithm of [`BLOCK_SIZE`].
pub const BLOCK_SHIFT: u32 = 12;
/// Size of an index node in bytes.
pub const NODE_SIZE: usize = 16384;
/// Blocks of an index node; nodes are aligned to it.
pub const NODE_BLOCKS: u64 = 4;
/// Most blocks one extent item covers (1 MiB).
pub const MAX_EXTENT_BLOCKS: u64 = 256;
/// Longest name in bytes.
pub const MAX_NAME: usize = 255;
/// Longest target of a symbolic link in bytes.
pub const MAX_SYMLINK: usize = 4095;
/// Longest contents, in bytes, that a file keeps inline with its inode.
pub const MAX_INLINE: usize = 2048;
/// Largest file in bytes.
pub const MAX_FILE_SIZE: u64 = 1 << 60;
/// Most links of an inode.
pub const MAX_LINKS: u32 = 1 << 31;
/// Largest value of an extended attribute in bytes, as on Linux.
pub const MAX_XATTR_VALUE: usize = 65536;
/// Most bytes of names that an inode's extended attributes may have, each with its NUL, as on Linux.
pub const MAX_XATTR_NAMES: usize = 65536;
/// Longest value of an extended attribute that stands with its name in the index. A longer one stands
/// there once for all that have it: then a reference takes 8 bytes, and the value's own item about
/// 40, so that two users of a shorter one would save nothing.
pub const MAX_OWN_VALUE: usize = 64;
/// Largest value of any item in bytes: two attributes of the largest size with equal hashes.
pub const MAX_VALUE: usize = 2 * (MAX_XATTR_VALUE + MAX_NAME + 8);
/// Sequences, LSNs, generations, inode numbers and indexes of directories stay below: no volume
/// lives long enough to reach it, and adding to one never wraps.
pub const MAX_COUNTER: u64 = 1_000_000_000_000_000_000;
/// Inode number of the root directory.
pub const ROOT_INO: u64 = 1;
/// First inode number given to a user's file; smaller ones are the volume's own.
pub const FIRST_USER_INO: u64 = 16;
