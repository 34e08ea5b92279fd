//! Structures and numbers of the FUSE protocol, as in the kernel's `include/uapi/linux/fuse.h`.
//!
//! Native byte order; every structure is a multiple of eight bytes without implicit padding, so it
//! can be copied from and to bytes. Fields that nothing here reads are kept for the layout. The
//! newest protocol described is 7.45 (Linux 6.18), the oldest accepted 7.33 (Linux 5.13).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol.
pub const MAJOR: u32 = 7;

/// The newest minor version whose messages are known here.
pub const MINOR: u32 = 45;

/// The oldest minor version that is accepted: from it on SETXATTR has its present form.
pub const MINOR_MIN: u32 = 33;

/// The number of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u32);

macro_rules! opcodes {
    ($($name:ident = $number:literal),* $(,)?) => {
        #[expect(missing_docs, reason = "the names are those of the protocol")]
        impl Opcode {
            $(pub const $name: Opcode = Opcode($number);)*
        }
    };
}

opcodes! {
    LOOKUP = 1,
    FORGET = 2,
    GETATTR = 3,
    SETATTR = 4,
    READLINK = 5,
    SYMLINK = 6,
    MKNOD = 8,
    MKDIR = 9,
    UNLINK = 10,
    RMDIR = 11,
    RENAME = 12,
    LINK = 13,
    OPEN = 14,
    READ = 15,
    WRITE = 16,
    STATFS = 17,
    RELEASE = 18,
    FSYNC = 20,
    SETXATTR = 21,
    GETXATTR = 22,
    LISTXATTR = 23,
    REMOVEXATTR = 24,
    FLUSH = 25,
    INIT = 26,
    OPENDIR = 27,
    READDIR = 28,
    RELEASEDIR = 29,
    FSYNCDIR = 30,
    CREATE = 35,
    INTERRUPT = 36,
    DESTROY = 38,
    IOCTL = 39,
    NOTIFY_REPLY = 41,
    BATCH_FORGET = 42,
    FALLOCATE = 43,
    READDIRPLUS = 44,
    RENAME2 = 45,
    LSEEK = 46,
    COPY_FILE_RANGE = 47,
    SYNCFS = 50,
    TMPFILE = 51,
    STATX = 52,
    COPY_FILE_RANGE_64 = 53,
}

impl Opcode {
    /// Whether the kernel expects no reply.
    pub fn is_unanswered(self) -> bool {
        matches!(
            self,
            Opcode::FORGET | Opcode::BATCH_FORGET | Opcode::NOTIFY_REPLY
        )
    }

    /// Whether the reply waits for the device.
    pub fn is_sync(self) -> bool {
        matches!(self, Opcode::FSYNC | Opcode::FSYNCDIR | Opcode::SYNCFS)
    }

    /// Whether a thread may send further requests before the reply: data that the kernel reads ahead or
    /// writes back in its name.
    pub fn may_be_sent_ahead(self) -> bool {
        matches!(self, Opcode::READ | Opcode::WRITE)
    }

    /// Size in bytes of the structure at the beginning of a request's body; what follows is the
    /// payload. An unknown operation has none.
    pub fn fixed_size(self) -> usize {
        match self {
            Opcode::FORGET => size_of::<ForgetIn>(),
            Opcode::GETATTR => size_of::<GetattrIn>(),
            Opcode::SETATTR => size_of::<SetattrIn>(),
            Opcode::MKNOD => size_of::<MknodIn>(),
            Opcode::MKDIR => size_of::<MkdirIn>(),
            Opcode::RENAME => size_of::<RenameIn>(),
            Opcode::LINK => size_of::<LinkIn>(),
            Opcode::READ | Opcode::READDIR | Opcode::READDIRPLUS => size_of::<ReadIn>(),
            Opcode::WRITE => size_of::<WriteIn>(),
            Opcode::FSYNC | Opcode::FSYNCDIR => size_of::<FsyncIn>(),
            Opcode::SETXATTR => size_of::<SetxattrIn>(),
            Opcode::GETXATTR | Opcode::LISTXATTR => size_of::<GetxattrIn>(),
            Opcode::INIT => size_of::<InitIn>(),
            Opcode::CREATE | Opcode::TMPFILE => size_of::<CreateIn>(),
            Opcode::INTERRUPT => size_of::<InterruptIn>(),
            Opcode::IOCTL => size_of::<IoctlIn>(),
            Opcode::BATCH_FORGET => size_of::<BatchForgetIn>(),
            Opcode::FALLOCATE => size_of::<FallocateIn>(),
            Opcode::RENAME2 => size_of::<Rename2In>(),
            Opcode::LSEEK => size_of::<LseekIn>(),
            Opcode::COPY_FILE_RANGE | Opcode::COPY_FILE_RANGE_64 => size_of::<CopyFileRangeIn>(),
            Opcode::SYNCFS => size_of::<SyncfsIn>(),
            Opcode::STATX => size_of::<StatxIn>(),
            _ => 0,
        }
    }
}

macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
            #[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            #[expect(missing_docs, reason = "the fields are those of the protocol")]
            pub struct $name {
                $(pub $field: $kind,)*
            }
        )*
    };
}

structures! {
    /// Precedes every message of the kernel (`fuse_in_header`).
    InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// Precedes every message to the kernel (`fuse_out_header`).
    OutHeader { len: u32, error: i32, unique: u64 }
    /// Attributes of an inode.
    Attr {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    /// Reply to LOOKUP and to what creates an entry.
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
    /// Body of FORGET.
    ForgetIn { nlookup: u64 }
    /// One inode of BATCH_FORGET.
    ForgetOne { nodeid: u64, nlookup: u64 }
    /// Body of BATCH_FORGET; `count` [`ForgetOne`] follow.
    BatchForgetIn { count: u32, dummy: u32 }
    /// Body of GETATTR.
    GetattrIn { getattr_flags: u32, dummy: u32, fh: u64 }
    /// Reply to GETATTR and SETATTR.
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    /// Body of MKNOD.
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 }
    /// Body of MKDIR.
    MkdirIn { mode: u32, umask: u32 }
    /// Body of RENAME.
    RenameIn { newdir: u64 }
    /// Body of RENAME2.
    Rename2In { newdir: u64, flags: u32, padding: u32 }
    /// Body of LINK.
    LinkIn { oldnodeid: u64 }
    /// Body of SETATTR.
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64,
        atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    /// Body of CREATE and TMPFILE.
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// Second part of the reply to TMPFILE.
    OpenOut { fh: u64, open_flags: u32, backing_id: i32 }
    /// Body of READ, READDIR and READDIRPLUS.
    ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// Body of WRITE; `size` bytes of data follow.
    WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    /// Reply to WRITE and COPY_FILE_RANGE.
    WriteOut { size: u32, padding: u32 }
    /// Reply to STATFS.
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    /// Body of FSYNC and FSYNCDIR.
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32 }
    /// Body of SETXATTR; name and value follow.
    SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    /// Body of GETXATTR and LISTXATTR.
    GetxattrIn { size: u32, padding: u32 }
    /// Reply to GETXATTR and LISTXATTR that asked for the size only.
    GetxattrOut { size: u32, padding: u32 }
    /// Body of INIT.
    InitIn {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    /// Reply to INIT.
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    /// Body of INTERRUPT.
    InterruptIn { unique: u64 }
    /// Body of IOCTL; `in_size` bytes follow.
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    /// Reply to IOCTL; the bytes for the program follow.
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    /// Body of FALLOCATE.
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// An entry of READDIR; the name follows, padded to eight bytes.
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32 }
    /// Body of LSEEK.
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 }
    /// Reply to LSEEK.
    LseekOut { offset: u64 }
    /// Body of COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    /// Reply to COPY_FILE_RANGE_64.
    CopyFileRangeOut { bytes_copied: u64 }
    /// Body of SYNCFS.
    SyncfsIn { padding: u64 }
    /// Body of STATX.
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    /// A time in a reply to STATX.
    SxTime { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    /// Attributes in a reply to STATX.
    Statx {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// Reply to STATX.
    StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
    /// Notification that data or attributes of an inode are stale.
    InvalInodeOut { ino: u64, off: i64, len: i64 }
    /// Notification that an entry is stale; the name follows.
    InvalEntryOut { parent: u64, namelen: u32, flags: u32 }
    /// Notification that an entry was removed; the name follows.
    DeleteOut { parent: u64, child: u64, namelen: u32, padding: u32 }
}

/// GETATTR: the request has a file handle.
pub const GETATTR_FH: u32 = 1 << 0;

/// Bits of [`SetattrIn::valid`]: which fields are set.
pub mod fattr {
    #![expect(missing_docs, reason = "the names are those of the protocol")]
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
}

/// WRITE: data from the kernel's cache, not from the calling program.
pub const WRITE_CACHE: u32 = 1 << 0;

/// WRITE: clears set-id bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// FSYNC: data only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;

/// SETXATTR: an access list that clears set-group-id.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// Notification of a stale entry: it expires, and is not dropped while it is in use.
pub const EXPIRE_ONLY: u32 = 1 << 0;

/// Codes of notifications, sent in the place of the error.
pub mod notice {
    #![expect(missing_docs, reason = "the names are those of the protocol")]
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const DELETE: i32 = 6;
}
