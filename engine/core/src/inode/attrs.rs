//! Attributes of an inode in memory, and their conversion to and from the inode item.

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault};
use cairnfs_disk::format::item::{
    FIRST_DIR_INDEX, RawInode, S_IFDIR, S_IFMT, S_IFREG, decode_inode,
};
use cairnfs_disk::format::{BLOCK_SIZE, MAX_INLINE};
use cairnfs_disk::types::{Attr, FileKind, Flags, Time};

/// Unit of `st_blocks`, in bytes.
const UNIT: u64 = 512;

/// Attributes of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attrs {
    /// Type and permissions.
    pub mode: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Number of links.
    pub nlink: u32,
    /// Inode flags.
    pub flags: Flags,
    /// Number of extended attributes.
    pub xattrs: u32,
    /// Device number.
    pub rdev: u64,
    /// Size in bytes as programs see it; for a directory the number of entries.
    pub size: u64,
    /// The committed size; smaller than `size` while data waits to be written.
    pub disk_size: u64,
    /// Number of data blocks of its extents.
    pub blocks: u64,
    /// Time of the last access.
    pub atime: Time,
    /// Time of the last change of the contents.
    pub mtime: Time,
    /// Time of the last change of contents or attributes.
    pub ctime: Time,
    /// Time of creation.
    pub btime: Time,
    /// For a directory: index of the next entry.
    pub next_index: u64,
    /// Inode number of the parent directory.
    pub parent: u64,
}

impl Attrs {
    /// Attributes of a new inode, created at `now`, with one link (a directory with two).
    pub fn new(mode: u32, (uid, gid): (u32, u32), rdev: u64, parent: u64, now: Time) -> Self {
        let dir = mode & S_IFMT == S_IFDIR;
        Self {
            mode,
            uid,
            gid,
            nlink: if dir { 2 } else { 1 },
            flags: Flags::NONE,
            xattrs: 0,
            rdev,
            size: 0,
            disk_size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            next_index: if dir { FIRST_DIR_INDEX } else { 0 },
            parent,
        }
    }

    /// Decodes the value of the inode item of `ino`.
    ///
    /// # Errors
    /// A malformed inode item.
    pub fn decode(ino: u64, value: &[u8]) -> Result<Self> {
        let raw = decode_inode(value)
            .map_err(|found| Error::corrupt(0, "inode item", format!("inode {ino}"), found))?;
        Ok(Self {
            mode: raw.mode.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            nlink: raw.nlink.get(),
            flags: Flags::from_bits(raw.flags.get()).unwrap_or_default(),
            xattrs: raw.xattrs.get(),
            rdev: raw.rdev.get(),
            size: raw.size.get(),
            disk_size: raw.size.get(),
            blocks: raw.blocks.get(),
            atime: raw.atime.into(),
            mtime: raw.mtime.into(),
            ctime: raw.ctime.into(),
            btime: raw.btime.into(),
            next_index: raw.next_index.get(),
            parent: raw.parent.get(),
        })
    }

    /// Encodes the inode item.
    pub fn encode(&self) -> [u8; size_of::<RawInode>()] {
        let ahead = InjectedFault::SizeBeforeData;
        let size = fault::or(ahead, || self.disk_size, || self.size);
        let raw = RawInode {
            mode: U32::new(self.mode),
            uid: U32::new(self.uid),
            gid: U32::new(self.gid),
            nlink: U32::new(self.nlink),
            flags: U32::new(self.flags.bits()),
            xattrs: U32::new(self.xattrs),
            rdev: U64::new(self.rdev),
            size: U64::new(size),
            blocks: U64::new(self.blocks),
            atime: self.atime.into(),
            mtime: self.mtime.into(),
            ctime: self.ctime.into(),
            btime: self.btime.into(),
            next_index: U64::new(self.next_index),
            parent: U64::new(self.parent),
        };
        let mut out = [0; size_of::<RawInode>()];
        out.copy_from_slice(raw.as_bytes());
        out
    }

    /// The type of the file.
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::File)
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & S_IFMT == S_IFREG
    }

    /// Sets both sizes.
    pub fn set_size(&mut self, size: u64) {
        self.size = size;
        self.disk_size = size;
    }

    /// Space that a file takes, in units of 512 bytes. Contents that are stored inline count as if
    /// they were on a device with such units, because programs take a file for sparse if it has
    /// fewer units than its size needs.
    fn units(&self, pending: u64) -> u64 {
        let inline = self.blocks == 0 && self.size <= MAX_INLINE as u64;
        if inline && self.is_file() {
            self.size.div_ceil(UNIT)
        } else {
            (self.blocks + pending) * (BLOCK_SIZE as u64 / UNIT)
        }
    }

    /// The attributes as callers see them. `pending` counts blocks of data that has no blocks on
    /// the device yet.
    pub fn public(&self, ino: u64, pending: u64) -> Attr {
        Attr {
            ino,
            kind: self.kind(),
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            blocks: self.units(pending),
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            flags: self.flags,
        }
    }
}
