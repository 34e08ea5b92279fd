//! Common types for files: attributes, times, flags.
//!
//! Plain values that any floor may use; they use nothing of the crate except the format's
//! constants and the error type.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Corruption, Error};
use crate::format::item::{
    FLAG_APPEND, FLAG_IMMUTABLE, FLAG_NODUMP, INODE_FLAGS, RawTime, S_IFBLK, S_IFCHR, S_IFDIR,
    S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK,
};
use zerocopy::little_endian::{I64, U32};

/// The kind of a file, like [`std::fs::FileType`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// FIFO.
    Fifo,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Socket.
    Socket,
}

impl FileKind {
    /// The kind in the type bits of a mode; `None` if they are invalid.
    pub fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & S_IFMT {
            S_IFREG => FileKind::File,
            S_IFDIR => FileKind::Directory,
            S_IFLNK => FileKind::Symlink,
            S_IFIFO => FileKind::Fifo,
            S_IFCHR => FileKind::CharDevice,
            S_IFBLK => FileKind::BlockDevice,
            S_IFSOCK => FileKind::Socket,
            _ => return None,
        })
    }

    /// Whether it is a regular file.
    pub fn is_file(self) -> bool {
        self == FileKind::File
    }

    /// Whether it is a directory.
    pub fn is_dir(self) -> bool {
        self == FileKind::Directory
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(self) -> bool {
        self == FileKind::Symlink
    }

    /// Whether it is a FIFO.
    pub fn is_fifo(self) -> bool {
        self == FileKind::Fifo
    }

    /// Whether it is a socket.
    pub fn is_socket(self) -> bool {
        self == FileKind::Socket
    }

    /// Whether it is a block device.
    pub fn is_block_device(self) -> bool {
        self == FileKind::BlockDevice
    }

    /// Whether it is a character device.
    pub fn is_char_device(self) -> bool {
        self == FileKind::CharDevice
    }

    /// The type bits of a mode.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::File => S_IFREG,
            FileKind::Directory => S_IFDIR,
            FileKind::Symlink => S_IFLNK,
            FileKind::Fifo => S_IFIFO,
            FileKind::CharDevice => S_IFCHR,
            FileKind::BlockDevice => S_IFBLK,
            FileKind::Socket => S_IFSOCK,
        }
    }
}

/// A point in time, with nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since the epoch, negative before it.
    pub secs: i64,
    /// Nanoseconds after that second, below 10^9.
    pub nanos: u32,
}

impl Time {
    /// The current time.
    pub fn now() -> Self {
        SystemTime::now().into()
    }
}

impl From<SystemTime> for Time {
    fn from(t: SystemTime) -> Self {
        match t.duration_since(UNIX_EPOCH) {
            Ok(d) => Time {
                secs: d.as_secs() as i64,
                nanos: d.subsec_nanos(),
            },
            Err(before) => {
                let d = before.duration();
                match d.subsec_nanos() {
                    0 => Time {
                        secs: -(d.as_secs() as i64),
                        nanos: 0,
                    },
                    n => Time {
                        secs: -(d.as_secs() as i64) - 1,
                        nanos: 1_000_000_000 - n,
                    },
                }
            }
        }
    }
}

impl From<Time> for SystemTime {
    fn from(t: Time) -> Self {
        let nanos = Duration::from_nanos(u64::from(t.nanos));
        let whole = Duration::from_secs(t.secs.unsigned_abs());
        let second = if t.secs >= 0 {
            UNIX_EPOCH.checked_add(whole)
        } else {
            UNIX_EPOCH.checked_sub(whole)
        };
        second
            .and_then(|s| s.checked_add(nanos))
            .unwrap_or(UNIX_EPOCH)
    }
}

impl From<RawTime> for Time {
    fn from(t: RawTime) -> Self {
        Time {
            secs: t.secs.get(),
            nanos: t.nanos.get(),
        }
    }
}

impl From<Time> for RawTime {
    fn from(t: Time) -> Self {
        RawTime {
            secs: I64::new(t.secs),
            nanos: U32::new(t.nanos),
        }
    }
}

/// Inode flags, as set by chattr(1): the set of flags that the file system supports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(u32);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// `i`: contents, attributes, names and, for a directory, entries cannot change until the flag
    /// is cleared.
    pub const IMMUTABLE: Self = Self(FLAG_IMMUTABLE);
    /// `a`: a file can only be appended to, a directory only gains entries; attributes and names
    /// cannot change.
    pub const APPEND: Self = Self(FLAG_APPEND);
    /// `d`: dump(8) skips it. New inodes in a directory inherit it.
    pub const NODUMP: Self = Self(FLAG_NODUMP);

    /// The flags with these `FS_IOC_GETFLAGS` bits; `None` if a bit is not supported.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        match bits & !INODE_FLAGS {
            0 => Some(Self(bits)),
            _ => None,
        }
    }

    /// Their bits, as in `FS_IOC_GETFLAGS`.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These flags without `other`.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The flags that a new inode in a directory with these flags inherits.
    pub const fn inherited(self) -> Self {
        Self(self.0 & FLAG_NODUMP)
    }
}

/// Attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Inode number. Not reused, except after a crash those of inodes that were not durable.
    pub ino: u64,
    /// Kind of the file.
    pub kind: FileKind,
    /// Type bits and permissions, as in `st_mode`.
    pub mode: u32,
    /// Number of links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a special file, as made by `makedev(3)`.
    pub rdev: u64,
    /// Size in bytes; for a directory, the number of its entries.
    pub size: u64,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change of contents, attributes or names.
    pub ctime: Time,
    /// Time of creation.
    pub btime: Time,
    /// Inode flags.
    pub flags: Flags,
}

/// Owner and group of a new file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Creds {
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory's set-group-id bit makes the file inherit the directory's group.
    pub gid: u32,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// A given time.
    At(Time),
}

/// Attributes to set; `None` leaves an attribute unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permissions (the type bits are ignored).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a regular file, in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
    /// Last change of anything; if `None`, the time of the call.
    pub ctime: Option<Time>,
    /// Inode flags, of a file or directory. The flags before the call decide which changes are
    /// allowed. A front end passes them on only if it knows that the caller may set them.
    pub flags: Option<Flags>,
    /// Set-id bits to clear; bits set by `mode` stay.
    pub kill_privileges: KillPrivileges,
}

/// Which set-id bits are cleared by a change of contents, space or owner, as on other Linux file
/// systems. Directories keep theirs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KillPrivileges {
    /// None: the caller has the capability to keep them (`CAP_FSETID`).
    #[default]
    No,
    /// Set-user-id, and set-group-id if the group may execute: the caller is in the file's group.
    ByMember,
    /// Set-user-id, and set-group-id if the group may execute, or if the file's group is not this
    /// one, the caller's only group.
    ByGroup(u32),
}

impl From<bool> for KillPrivileges {
    /// `true` is [`KillPrivileges::ByMember`].
    fn from(kill: bool) -> Self {
        if kill { Self::ByMember } else { Self::No }
    }
}

/// How a rename treats an existing new name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace the existing entry.
    #[default]
    Replace,
    /// Fail if the new name exists.
    NoReplace,
    /// Exchange the two entries.
    Exchange,
    /// Leave a whiteout under the old name: a character device 0/0 without permissions, which hides
    /// the name of a lower layer in an overlay file system (`RENAME_WHITEOUT`). No whiteout is left
    /// if both names already name the same file.
    Whiteout {
        /// Owner and group of the whiteout.
        owner: Creds,
        /// Replace an existing entry of the new name; otherwise fail if there is one.
        replace: bool,
    },
}

/// What `fallocate` does with a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallocate {
    /// Allocate space.
    Allocate {
        /// Keep the size even if the range ends beyond it.
        keep_size: bool,
    },
    /// Punch a hole; the size stays.
    PunchHole,
    /// Make it read as zeros, with space allocated.
    ZeroRange {
        /// Keep the size even if the range ends beyond it.
        keep_size: bool,
    },
}

/// How an extended attribute is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Create it or replace it.
    #[default]
    Set,
    /// Fail if it exists.
    Create,
    /// Fail if it does not exist.
    Replace,
}

/// What to seek in a sparse file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTo {
    /// The next data, like `SEEK_DATA`.
    Data,
    /// The next hole, like `SEEK_HOLE`; the end of a file counts as a hole.
    Hole,
}

/// An entry delivered by a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// Inode number.
    pub ino: u64,
    /// Kind of the file.
    pub kind: FileKind,
    /// The name; "." and ".." come first.
    pub name: &'a [u8],
    /// The position after this entry, at which the listing can continue; below 2^63. It also
    /// encodes the end of the listing, so another listing may have other cookies.
    pub cookie: u64,
}

impl EntryRef<'_> {
    /// Whether it is "." or "..".
    pub fn is_dots(&self) -> bool {
        matches!(self.name, b"." | b"..")
    }
}

/// Space and inodes of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes per block.
    pub block_size: u32,
    /// Blocks usable by files and index.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Blocks that can still be allocated to files.
    pub available: u64,
    /// Inodes that fit into an empty volume. Inodes have no fixed space.
    pub files: u64,
    /// Empty files that fit into the available space.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// Identity and sizes of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// UUID.
    pub uuid: [u8; 16],
    /// Name given by the user.
    pub label: String,
    /// Time of creation.
    pub created: Time,
    /// Size in bytes.
    pub size: u64,
    /// Size of the log in bytes.
    pub log_size: u64,
    /// Generation of the newest superblock.
    pub generation: u64,
    /// The index holds all contexts up to this sequence.
    pub merged_seq: u64,
    /// Bytes of log that a mount would have to replay.
    pub log_used: u64,
    /// Features: compatible, read-only compatible, incompatible.
    pub features: [u64; 3],
    /// What was wrong with the front of the volume; none if it had a superblock.
    pub front: Option<LostFront>,
    /// What is read instead of the newest state, if the top of its trees is lost.
    pub older: Option<OlderState>,
    /// Damage of the record of free space, of a volume that is only read and needs none.
    pub space: Option<String>,
    /// Number of items of the log that belong into damaged nodes of the index, and that a read-only
    /// opening does not show.
    pub left_out: u64,
}

/// The state of the merge before the last one, which is read without the log where the top of the
/// newest trees is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OlderState {
    /// What is damaged of the newest state.
    pub damage: Corruption,
    /// Generation of its superblock; that of the newest is the next one.
    pub generation: u64,
    /// The newest change of a file in it; `None` if it has none that can be read.
    pub changed: Option<Time>,
}

/// The front of a volume as it was found, without any of its superblocks: a copy was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostFront {
    /// The block of the copy that was found.
    pub copy: u64,
    /// What was made over the volume, if that is known.
    pub foreign: Option<&'static str>,
    /// Whether the superblocks at the front were written anew.
    pub mended: bool,
}

impl fmt::Display for LostFront {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let copy = self.copy;
        write!(f, "the superblocks at the front of the volume were lost")?;
        match (self.mended, self.foreign) {
            (true, _) => write!(f, ", and were written anew from the copy in block {copy}"),
            (false, None) => write!(
                f,
                ": the copy in block {copy} is used, and opening the volume for writing writes them anew"
            ),
            (false, Some(what)) => write!(
                f,
                " under {what}: the copy in block {copy} is used; save the files of the volume elsewhere"
            ),
        }?;
        write!(f, "; `cairnfs check` shows what else is damaged")
    }
}

/// A UUID in its usual form.
///
/// ```
/// let id = std::array::from_fn(|i| i as u8);
/// let text = cairnfs_disk::types::uuid_text(&id);
/// assert_eq!(text, "00010203-0405-0607-0809-0a0b0c0d0e0f");
/// ```
pub fn uuid_text(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// The name of a checkpoint of a volume, which no other state of that volume or of a copy of it has. As
/// text, it is what [`Display`](fmt::Display) writes.
///
/// ```
/// # use cairnfs_disk::types as cairnfs;
/// let id: cairnfs::CheckpointId = "17-00000000000000ff".parse().unwrap();
/// assert_eq!(id.to_string(), "17-00000000000000ff");
/// assert!("17".parse::<cairnfs::CheckpointId>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointId {
    /// Number of the commit that the checkpoint ends with.
    #[doc(hidden)]
    pub seq: u64,
    /// A random number: copies of a volume may use the same [`Self::seq`].
    #[doc(hidden)]
    pub number: u64,
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.seq, self.number)
    }
}

impl FromStr for CheckpointId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = Error::Invalid("not the name of a checkpoint, such as 17-00000000000000ff");
        let (seq, number) = text.split_once('-').ok_or_else(|| wrong.clone())?;
        let id = Self {
            seq: seq.parse().map_err(|_| wrong.clone())?,
            number: u64::from_str_radix(number, 16).map_err(|_| wrong.clone())?,
        };
        if id.to_string() == text {
            Ok(id)
        } else {
            Err(wrong)
        }
    }
}

/// How far the work is that dropped snapshots and branches have left.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DropProgress {
    /// How many of them are left.
    pub left: usize,
    /// The part of the first one that is done, from 0 to 1, as far as that is known.
    pub part: f64,
    /// Whether blocks of one that is gone stay in use since the volume was opened: it was damaged, and
    /// so is another one, so that it is not known which blocks it had alone.
    pub kept: bool,
}

/// The log records that an opening without recovery did not apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnappliedLog {
    /// Sets of changes that are applied as a whole or not at all.
    pub records: u64,
    /// The newest change of a file among them.
    pub changed: Option<Time>,
    /// Whether it ends at damage, behind which there may be more.
    pub damaged: bool,
}

/// Something that a damaged part of the index took with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loss {
    /// Everything that the index had of the branch. What only the log had is there.
    Tree,
    /// Entries of a directory, whose names nobody knows.
    Names {
        /// The directory.
        dir: u64,
        /// How many.
        count: u64,
    },
    /// The inode of an entry, with all that it had. The entry is removed.
    Inode {
        /// The directory.
        dir: u64,
        /// The name of the entry.
        name: Vec<u8>,
        /// The inode.
        ino: u64,
    },
    /// A part of a file's contents, which reads as zeros now. The entry is removed, and the file has
    /// another name.
    Contents {
        /// The directory.
        dir: u64,
        /// The name of the entry.
        name: Vec<u8>,
        /// The inode.
        ino: u64,
    },
    /// Extended attributes.
    Attributes {
        /// The inode.
        ino: u64,
        /// How many.
        count: u64,
    },
    /// Owner, permissions, times and attributes of a directory, whose entries are there.
    Directory {
        /// The directory.
        ino: u64,
    },
    /// The name of an inode, which got another one.
    Saved {
        /// The directory of the new name.
        dir: u64,
        /// The new name.
        name: Vec<u8>,
        /// The inode.
        ino: u64,
    },
}

/// What a removal of damage has done.
#[derive(Debug, Clone, Default)]
pub struct RemovedDamage {
    /// The first blocks of the damaged parts that were removed.
    pub nodes: Vec<u64>,
    /// What was lost with them, with the name of the branch.
    pub losses: Vec<(String, Loss)>,
    /// Blocks that are free now.
    pub freed: u64,
    /// Roots that are damaged, and stay so: snapshots, and states without a name that branches have in
    /// common, which never change, and branches without their top node, of which nothing is found.
    pub still_damaged: Vec<(String, Corruption)>,
}

/// A root of a volume: a tree of files and its place in the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootInfo {
    /// Its id, which no other root ever gets.
    pub id: u32,
    /// Its name.
    pub name: Option<String>,
    /// The id of the root that it was forked from, or that was frozen when it was forked.
    pub parent: Option<u32>,
    /// Whether its files can be changed; otherwise it is a snapshot.
    pub writable: bool,
    /// Of a snapshot, the sequence of the last context whose changes it has.
    pub boundary: u64,
    /// Time of creation; zero for the main root of a volume that never had a snapshot.
    pub created: Time,
    /// Whether it has no name and goes as soon as nobody reads it: it was dropped, or everything
    /// that was forked from it but one. What is left to free is its
    /// [`space_of`](crate::Volume::space_of).
    pub being_dropped: bool,
}
