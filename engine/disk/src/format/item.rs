//! Values of items: inode attributes, directory entries, extents.
//!
//! Each decoder checks lengths and ranges and returns errors as text; the caller, which knows the
//! block, converts them to a [`crate::error::Corruption`].

use smallvec::SmallVec;
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::geometry::Geometry;
use crate::format::{
    BLOCK_SIZE, MAX_COUNTER, MAX_EXTENT_BLOCKS, MAX_FILE_SIZE, MAX_LINKS, MAX_NAME,
};

/// File type bits of a mode.
pub const S_IFMT: u32 = 0o170_000;
/// FIFO.
pub const S_IFIFO: u32 = 0o010_000;
/// Character device.
pub const S_IFCHR: u32 = 0o020_000;
/// Directory.
pub const S_IFDIR: u32 = 0o040_000;
/// Block device.
pub const S_IFBLK: u32 = 0o060_000;
/// Regular file.
pub const S_IFREG: u32 = 0o100_000;
/// Symbolic link.
pub const S_IFLNK: u32 = 0o120_000;
/// Socket.
pub const S_IFSOCK: u32 = 0o140_000;
/// Set-user-id bit.
pub const S_ISUID: u32 = 0o4000;
/// Set-group-id bit.
pub const S_ISGID: u32 = 0o2000;

/// Inode flag: the inode cannot be changed. Flags have the values of `FS_IOC_GETFLAGS`.
pub const FLAG_IMMUTABLE: u32 = 0x10;
/// Inode flag: a file can only be appended to, and a directory can only gain entries.
pub const FLAG_APPEND: u32 = 0x20;
/// Inode flag: dump(8) skips the inode.
pub const FLAG_NODUMP: u32 = 0x40;
/// All valid inode flags.
pub const INODE_FLAGS: u32 = FLAG_IMMUTABLE | FLAG_APPEND | FLAG_NODUMP;

/// Index of the first entry of a directory; smaller offsets in a listing are "." and "..".
pub const FIRST_DIR_INDEX: u64 = 3;

/// An on-disk time stamp.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RawTime {
    /// Seconds since the epoch.
    pub secs: I64,
    /// Nanoseconds, below 10^9.
    pub nanos: U32,
}

/// The on-disk inode item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RawInode {
    /// File type and permissions.
    pub mode: U32,
    /// User id of the owner.
    pub uid: U32,
    /// Group id.
    pub gid: U32,
    /// Link count. A directory has 2, plus one for each subdirectory.
    pub nlink: U32,
    /// A combination of [`INODE_FLAGS`].
    pub flags: U32,
    /// Number of extended attributes.
    pub xattrs: U32,
    /// Device number of a special file.
    pub rdev: U64,
    /// Size in bytes; for a directory the number of entries.
    pub size: U64,
    /// Number of data blocks (4 KiB) of its extents.
    pub blocks: U64,
    /// Time of the last access.
    pub atime: RawTime,
    /// Time of the last content change.
    pub mtime: RawTime,
    /// Time of the last change of content or attributes.
    pub ctime: RawTime,
    /// Creation time.
    pub btime: RawTime,
    /// For a directory, the index of its next entry; otherwise 0.
    pub next_index: U64,
    /// Inode number of the parent directory: exact for directories, a hint for other files.
    pub parent: U64,
}

/// Decodes and checks the value of an inode item.
pub fn decode_inode(value: &[u8]) -> Result<RawInode, String> {
    let raw = RawInode::read_from_bytes(value)
        .map_err(|_| format!("inode item of {} bytes", value.len()))?;
    let kind = raw.mode.get() & S_IFMT;
    if ![
        S_IFIFO, S_IFCHR, S_IFDIR, S_IFBLK, S_IFREG, S_IFLNK, S_IFSOCK,
    ]
    .contains(&kind)
    {
        return Err(format!("inode of type {kind:o}"));
    }
    for time in [raw.atime, raw.mtime, raw.ctime, raw.btime] {
        if time.nanos.get() >= 1_000_000_000 {
            return Err(format!("{} nanoseconds", time.nanos));
        }
    }
    let unknown = raw.flags.get() & !INODE_FLAGS;
    if unknown != 0 {
        return Err(format!("inode with unknown flags {unknown:#x}"));
    }
    if kind == S_IFDIR && raw.next_index.get() < FIRST_DIR_INDEX {
        return Err(format!("directory with next index {}", raw.next_index));
    }
    check_bounds(&raw)?;
    Ok(raw)
}

/// Checks that the counters of an inode are within their limits, so that additions never overflow.
fn check_bounds(raw: &RawInode) -> Result<(), String> {
    let most_blocks = MAX_FILE_SIZE / BLOCK_SIZE as u64;
    for (what, value, most) in [
        ("bytes or entries", raw.size.get(), MAX_FILE_SIZE),
        ("blocks", raw.blocks.get(), most_blocks),
        ("links", raw.nlink.get().into(), MAX_LINKS.into()),
        ("attributes", raw.xattrs.get().into(), MAX_LINKS.into()),
        ("as next index", raw.next_index.get(), MAX_COUNTER),
    ] {
        if value > most {
            return Err(format!("inode with {value} {what}"));
        }
    }
    Ok(())
}

/// A directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntryRef<'a> {
    /// Inode number of the child.
    pub ino: u64,
    /// File type bits of the child's mode.
    pub kind: u32,
    /// Name of the entry.
    pub name: &'a [u8],
}

/// Size of an encoded directory entry without its name, in bytes.
pub const DIR_ENTRY_HEADER: usize = 9;

/// Encodes a directory entry.
pub fn encode_dir_entry(entry: &DirEntryRef<'_>) -> SmallVec<[u8; 64]> {
    let mut out = SmallVec::new();
    out.extend_from_slice(&entry.ino.to_le_bytes());
    out.push((entry.kind >> 12) as u8);
    out.extend_from_slice(entry.name);
    out
}

/// Decodes and checks a directory entry.
pub fn decode_dir_entry(value: &[u8]) -> Result<DirEntryRef<'_>, String> {
    let short = || format!("directory entry of {} bytes", value.len());
    let (ino, rest) = value.split_first_chunk::<8>().ok_or_else(short)?;
    let (kind, name) = rest.split_first().ok_or_else(short)?;
    check_name(name)?;
    Ok(DirEntryRef {
        ino: u64::from_le_bytes(*ino),
        kind: u32::from(*kind) << 12,
        name,
    })
}

/// Checks that an entry can have this name.
pub fn check_name(name: &[u8]) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(format!("name of {} bytes", name.len()));
    }
    if holds_separator(name) || name == b"." || name == b".." {
        return Err("a name that no entry can have".into());
    }
    Ok(())
}

/// Whether a name contains a slash or a NUL. Checks every byte without an early exit: names are
/// short, and the compiler vectorizes such a loop.
pub fn holds_separator(name: &[u8]) -> bool {
    name.iter()
        .fold(false, |found, b| found | (*b == b'/') | (*b == 0))
}

/// Encodes a name item: the indexes of the entries whose names have the same hash.
pub fn encode_dir_name(indexes: &[u64]) -> Vec<u8> {
    indexes.iter().flat_map(|i| i.to_le_bytes()).collect()
}

/// Decodes a name item: the indexes of the entries whose names have the same hash.
pub fn decode_dir_name(value: &[u8]) -> Result<impl Iterator<Item = u64> + '_, String> {
    if value.is_empty() || !value.len().is_multiple_of(8) {
        return Err(format!("name item of {} bytes", value.len()));
    }
    Ok(value
        .as_chunks::<8>()
        .0
        .iter()
        .map(|c| u64::from_le_bytes(*c)))
}

/// Extent flag: allocated but never written; it reads as zeros and has no checksums.
pub const EXTENT_UNWRITTEN: u32 = 1;

/// The on-disk header of an extent item; the block checksums follow it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RawExtent {
    /// First device block.
    pub block: U64,
    /// Sequence of the context that first committed it.
    pub birth: U64,
    /// Length in blocks, 1 to 256.
    pub len: U32,
    /// 0 or [`EXTENT_UNWRITTEN`].
    pub flags: U32,
}

/// Decodes an extent item: the header, and one CRC32C per block unless it is unwritten.
pub fn decode_extent(value: &[u8]) -> Result<(RawExtent, &[U32]), String> {
    let (raw, rest) = RawExtent::read_from_prefix(value)
        .map_err(|_| format!("extent item of {} bytes", value.len()))?;
    let len = u64::from(raw.len.get());
    if len == 0 || len > MAX_EXTENT_BLOCKS {
        return Err(format!("extent of {len} blocks"));
    }
    let unknown = raw.flags.get() & !EXTENT_UNWRITTEN;
    if unknown != 0 {
        return Err(format!("extent with unknown flags {unknown:#x}"));
    }
    let sums = match raw.flags.get() {
        EXTENT_UNWRITTEN => 0,
        _ => len as usize,
    };
    if rest.len() != sums * 4 {
        return Err(format!(
            "extent of {len} blocks with {} checksum bytes",
            rest.len()
        ));
    }
    let crcs = <[U32]>::ref_from_bytes(rest).map_err(|_| "extent checksums".to_string())?;
    Ok((raw, crcs))
}

/// Decodes the extent item at file block `at`, and checks that it is within the limits of a file
/// and in the data area of the volume.
pub fn decode_extent_at<'a>(
    at: u64,
    value: &'a [u8],
    geometry: &Geometry,
) -> Result<(RawExtent, &'a [U32]), String> {
    let (raw, crcs) = decode_extent(value)?;
    let len = u64::from(raw.len.get());
    if at.saturating_add(len) > MAX_FILE_SIZE / BLOCK_SIZE as u64 {
        return Err(format!("extent at file block {at}"));
    }
    if !geometry.in_data(raw.block.get(), len) {
        return Err(format!("extent of {len} blocks at block {}", raw.block));
    }
    Ok((raw, crcs))
}

/// Orphan type: remove the inode with all its items.
pub const ORPHAN_REMOVE: u8 = 1;
/// Orphan type: free the blocks beyond the size of the file.
pub const ORPHAN_TRUNCATE: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> RawInode {
        RawInode {
            mode: U32::new(S_IFREG),
            ..RawInode::default()
        }
    }

    #[test]
    fn inodes_with_counters_out_of_range_are_refused() {
        assert!(decode_inode(sound().as_bytes()).is_ok());
        let changes: [fn(&mut RawInode); 5] = [
            |i| i.size = U64::new(MAX_FILE_SIZE + 1),
            |i| i.blocks = U64::new(u64::MAX / 8),
            |i| i.nlink = U32::new(u32::MAX),
            |i| i.xattrs = U32::new(u32::MAX),
            |i| i.next_index = U64::new(u64::MAX),
        ];
        for change in changes {
            let mut raw = sound();
            change(&mut raw);
            assert!(decode_inode(raw.as_bytes()).is_err(), "{raw:?}");
        }
    }

    #[test]
    fn extents_with_unknown_flags_are_refused() {
        for (flags, decodes) in [(0, false), (EXTENT_UNWRITTEN, true), (2, false), (3, false)] {
            let raw = RawExtent {
                len: U32::new(1),
                flags: U32::new(flags),
                ..RawExtent::default()
            };
            let decoded = decode_extent(raw.as_bytes());
            assert_eq!(decoded.is_ok(), decodes, "{decoded:?}");
        }
        let raw = RawExtent {
            len: U32::new(1),
            flags: U32::new(2),
            ..RawExtent::default()
        };
        let with_checksum = [raw.as_bytes(), &[0; 4]].concat();
        let found = decode_extent(&with_checksum).unwrap_err();
        assert_eq!(found, "extent with unknown flags 0x2");
    }

    #[test]
    fn inodes_with_unknown_flags_are_refused() {
        let decoded = |flags: u32| {
            let mut raw = sound();
            raw.flags = U32::new(flags);
            decode_inode(raw.as_bytes()).is_ok()
        };
        assert!(decoded(0) && decoded(INODE_FLAGS) && decoded(FLAG_NODUMP));
        for bit in (0..32).map(|n| 1 << n).filter(|bit| bit & INODE_FLAGS == 0) {
            assert!(!decoded(bit) && !decoded(INODE_FLAGS | bit), "{bit:#x}");
        }
    }

    #[test]
    fn extents_outside_file_or_volume_are_refused() {
        let geometry = Geometry::for_size(16 << 20, None).unwrap();
        let extent = |at: u64, block: u64| {
            let raw = RawExtent {
                block: U64::new(block),
                len: U32::new(2),
                flags: U32::new(EXTENT_UNWRITTEN),
                ..RawExtent::default()
            };
            decode_extent_at(at, raw.as_bytes(), &geometry).is_ok()
        };
        let last = geometry.total_blocks - 2;
        assert!(extent(0, geometry.data_start()) && extent((1 << 48) - 2, last));
        assert!(!extent(0, last + 1) && !extent(0, 3) && !extent(0, u64::MAX));
        assert!(!extent((1 << 48) - 1, last) && !extent(u64::MAX, last));
    }
}
