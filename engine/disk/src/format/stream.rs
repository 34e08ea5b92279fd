//! The stream of a sent tree: its records, which are in frames ([`crate::format::frames`]).
//!
//! Pure, as all of `format`. docs/stream-format.md has the layout. What a record means for the tree is
//! not known here.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::checksum::hash64;
use crate::format::item::{
    FIRST_DIR_INDEX, RawInode, RawTime, S_IFBLK, S_IFCHR, S_IFDIR, S_IFMT, check_name, decode_inode,
};
use crate::format::{MAX_COUNTER, MAX_FILE_SIZE, MAX_NAME, MAX_SYMLINK, MAX_XATTR_VALUE, ROOT_INO};

/// First bytes of a stream.
pub const STREAM_MAGIC: [u8; 8] = *b"CairnSnd";
/// The version of a stream without [`Record::Origin`].
pub const STREAM_VERSION: u32 = 1;
/// The version of a stream that may have some.
pub const STREAM_VERSION_ORIGINS: u32 = 2;
/// Most origins of a stream, and most ranges of numbers of a received snapshot.
pub const MAX_ORIGINS: usize = 1024;
/// Most bytes of file data in a frame.
pub const MAX_DATA: usize = 65536;
/// Most bytes of a frame's payload: an attribute of the longest name and value.
pub const MAX_PAYLOAD: usize = 9 + MAX_NAME + MAX_XATTR_VALUE;

/// What a stream is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RawBegin {
    /// UUID of the volume that sent it.
    pub uuid: [u8; 16],
    /// Root id of the tree that the stream changes; 0 for none: the stream has the whole tree.
    pub base_root: U32,
    /// Root id of the tree that was sent.
    pub root: U32,
    /// [`mark`] of the base; 0 without a base.
    pub base_mark: U64,
    /// [`mark`] of the tree that was sent.
    pub mark: U64,
}

/// What tells a frozen root from one of the same number in a copy of its volume, which has the same
/// UUID and goes on by itself: a hash of the sequence up to which it has all changes, and of the
/// time at which it was made.
pub fn mark(boundary: u64, created: RawTime) -> u64 {
    hash64(&[&boundary.to_le_bytes()[..], created.as_bytes()].concat())
}

/// Which files some numbers of the sender are: those that another volume has made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RawOrigin {
    /// UUID of the volume that made the files.
    pub uuid: [u8; 16],
    /// The first number on that volume.
    pub first: U64,
    /// The number that the sender has for it.
    pub sent: U64,
    /// How many numbers follow each other.
    pub len: U64,
}

/// Attributes of an inode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RawStreamInode {
    /// Inode number in the sent tree.
    pub ino: U64,
    /// File type and permissions.
    pub mode: U32,
    /// User id of the owner.
    pub uid: U32,
    /// Group id.
    pub gid: U32,
    /// Inode flags.
    pub flags: U32,
    /// Device number of a special file, else 0.
    pub rdev: U64,
    /// Size of a file or symbolic link in bytes, else 0.
    pub size: U64,
    /// Time of the last access.
    pub atime: RawTime,
    /// Time of the last change of the contents.
    pub mtime: RawTime,
    /// Time of the last change of anything.
    pub ctime: RawTime,
    /// Time of creation.
    pub btime: RawTime,
}

impl RawOrigin {
    /// Checks that its numbers are ones that volumes can have.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check(&self) -> Result<(), String> {
        let (first, sent, len) = (self.first.get(), self.sent.get(), self.len.get());
        let fits = |from: u64| from.checked_add(len).is_some_and(|end| end <= MAX_COUNTER);
        if len > 0 && fits(first) && fits(sent) {
            Ok(())
        } else {
            Err(format!("{len} inodes from {sent}, made as {first}"))
        }
    }
}

impl RawStreamInode {
    /// The attributes of an inode item.
    pub fn of(ino: u64, raw: &RawInode) -> Self {
        let dir = raw.mode.get() & S_IFMT == S_IFDIR;
        Self {
            ino: U64::new(ino),
            mode: raw.mode,
            uid: raw.uid,
            gid: raw.gid,
            flags: raw.flags,
            rdev: raw.rdev,
            size: if dir { U64::new(0) } else { raw.size },
            atime: raw.atime,
            mtime: raw.mtime,
            ctime: raw.ctime,
            btime: raw.btime,
        }
    }

    fn check(&self) -> Result<(), String> {
        check_ino(self.ino.get())?;
        let kind = self.mode.get() & S_IFMT;
        decode_inode(
            RawInode {
                mode: self.mode,
                flags: self.flags,
                size: self.size,
                atime: self.atime,
                mtime: self.mtime,
                ctime: self.ctime,
                btime: self.btime,
                next_index: U64::new(if kind == S_IFDIR { FIRST_DIR_INDEX } else { 0 }),
                ..RawInode::default()
            }
            .as_bytes(),
        )?;
        if self.mode.get() & !(S_IFMT | 0o7777) != 0 {
            return Err(format!("mode {:o}", self.mode));
        }
        if kind == S_IFDIR && self.size.get() != 0 {
            return Err(format!("directory of {} bytes", self.size));
        }
        if self.rdev.get() != 0 && kind != S_IFCHR && kind != S_IFBLK {
            return Err(format!("device {} of a file that is none", self.rdev));
        }
        Ok(())
    }
}

/// The last record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RawEnd {
    /// Number of frames before this one.
    pub frames: U64,
    /// XXH3-64 of all bytes before this frame.
    pub hash: U64,
}

/// A record: the meaning of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    /// The first record.
    Begin(RawBegin),
    /// Numbers of files that come from another volume.
    Origin(RawOrigin),
    /// An inode that the base does not have; without a name yet, its contents are zeros.
    Create(RawStreamInode),
    /// New attributes of an inode of the base; its contents are cut or extended with zeros.
    Change(RawStreamInode),
    /// Sets an extended attribute, or removes it.
    Xattr {
        /// The inode.
        ino: u64,
        /// Name with its namespace.
        name: &'a [u8],
        /// The value; `None` to remove the attribute.
        value: Option<&'a [u8]>,
    },
    /// Bytes of a file, or the target of a symbolic link.
    Data {
        /// The inode.
        ino: u64,
        /// Offset of the first byte.
        offset: u64,
        /// The bytes, 1 to [`MAX_DATA`].
        bytes: &'a [u8],
    },
    /// A range of a file that reads as zeros.
    Zero {
        /// The inode.
        ino: u64,
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes, at least 1.
        len: u64,
    },
    /// Removes a name.
    Unlink {
        /// The directory.
        dir: u64,
        /// The inode that has the name.
        ino: u64,
        /// The name.
        name: &'a [u8],
    },
    /// Gives an inode a name.
    Link {
        /// The directory.
        dir: u64,
        /// The inode.
        ino: u64,
        /// The name.
        name: &'a [u8],
    },
    /// Removes an inode that has no name any more.
    Remove {
        /// The inode.
        ino: u64,
    },
    /// The last record.
    End(RawEnd),
}

const BEGIN: u8 = 1;
const CREATE: u8 = 2;
const CHANGE: u8 = 3;
const SET_XATTR: u8 = 4;
const REMOVE_XATTR: u8 = 5;
const DATA: u8 = 6;
const ZERO: u8 = 7;
const UNLINK: u8 = 8;
const LINK: u8 = 9;
const REMOVE: u8 = 10;
const END: u8 = 11;
const ORIGIN: u8 = 12;

impl<'a> Record<'a> {
    pub(super) fn kind(&self) -> u8 {
        match self {
            Record::Begin(_) => BEGIN,
            Record::Origin(_) => ORIGIN,
            Record::Create(_) => CREATE,
            Record::Change(_) => CHANGE,
            Record::Xattr { value: Some(_), .. } => SET_XATTR,
            Record::Xattr { value: None, .. } => REMOVE_XATTR,
            Record::Data { .. } => DATA,
            Record::Zero { .. } => ZERO,
            Record::Unlink { .. } => UNLINK,
            Record::Link { .. } => LINK,
            Record::Remove { .. } => REMOVE,
            Record::End(_) => END,
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Record::Begin(raw) => out.extend_from_slice(raw.as_bytes()),
            Record::Origin(raw) => out.extend_from_slice(raw.as_bytes()),
            Record::Create(raw) | Record::Change(raw) => out.extend_from_slice(raw.as_bytes()),
            Record::End(raw) => out.extend_from_slice(raw.as_bytes()),
            Record::Remove { ino } => numbers(out, &[*ino]),
            Record::Zero { ino, offset, len } => numbers(out, &[*ino, *offset, *len]),
            Record::Data { ino, offset, bytes } => {
                numbers(out, &[*ino, *offset]);
                out.extend_from_slice(bytes);
            }
            Record::Unlink { dir, ino, name } | Record::Link { dir, ino, name } => {
                numbers(out, &[*dir, *ino]);
                out.extend_from_slice(name);
            }
            Record::Xattr { ino, name, value } => {
                numbers(out, &[*ino]);
                out.push(name.len() as u8);
                out.extend_from_slice(name);
                out.extend_from_slice(value.unwrap_or_default());
            }
        }
    }

    /// Decodes and checks the payload of a frame: lengths, ranges, names.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Result<Self, String> {
        let short = || format!("record of kind {kind} with {} bytes", payload.len());
        let record = match kind {
            BEGIN => Record::Begin(FromBytes::read_from_bytes(payload).map_err(|_| short())?),
            ORIGIN => Record::Origin(FromBytes::read_from_bytes(payload).map_err(|_| short())?),
            CREATE | CHANGE => {
                let raw = RawStreamInode::read_from_bytes(payload).map_err(|_| short())?;
                raw.check()?;
                match kind {
                    CREATE => Record::Create(raw),
                    _ => Record::Change(raw),
                }
            }
            SET_XATTR | REMOVE_XATTR => {
                decode_xattr(kind == SET_XATTR, payload).ok_or_else(short)?
            }
            DATA | UNLINK | LINK => {
                let ([first, second], rest) = split_numbers(payload).ok_or_else(short)?;
                let (dir, ino, name) = (first, second, rest);
                match kind {
                    DATA => Record::Data {
                        ino: first,
                        offset: second,
                        bytes: rest,
                    },
                    UNLINK => Record::Unlink { dir, ino, name },
                    _ => Record::Link { dir, ino, name },
                }
            }
            ZERO => {
                let ([ino, offset, len], rest) = split_numbers(payload).ok_or_else(short)?;
                empty(rest).ok_or_else(short)?;
                Record::Zero { ino, offset, len }
            }
            REMOVE => {
                let ([ino], rest) = split_numbers(payload).ok_or_else(short)?;
                empty(rest).ok_or_else(short)?;
                Record::Remove { ino }
            }
            END => Record::End(FromBytes::read_from_bytes(payload).map_err(|_| short())?),
            _ => return Err(format!("record of unknown kind {kind}")),
        };
        record.check()?;
        Ok(record)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Record::Begin(_) | Record::End(_) => Ok(()),
            Record::Origin(raw) => raw.check(),
            Record::Create(raw) | Record::Change(raw) => raw.check(),
            Record::Remove { ino } => check_ino(*ino),
            Record::Unlink { dir, ino, name } | Record::Link { dir, ino, name } => {
                check_ino(*dir)?;
                check_ino(*ino)?;
                check_name(name)
            }
            Record::Xattr { ino, name, value } => {
                check_ino(*ino)?;
                let len = value.map_or(0, <[u8]>::len);
                if !name.is_empty() && !name.contains(&0) && len <= MAX_XATTR_VALUE {
                    Ok(())
                } else {
                    Err(format!("attribute of {} + {len} bytes", name.len()))
                }
            }
            Record::Data { ino, offset, bytes } => {
                check_ino(*ino)?;
                match bytes.len() {
                    1..=MAX_DATA => check_range(*offset, bytes.len() as u64),
                    len => Err(format!("data of {len} bytes")),
                }
            }
            Record::Zero { ino, offset, len } => {
                check_ino(*ino)?;
                match *len {
                    0 => Err("empty range of zeros".into()),
                    len => check_range(*offset, len),
                }
            }
        }
    }
}

/// Whether bytes can be the target of a symbolic link.
pub fn is_target(bytes: &[u8]) -> bool {
    (1..=MAX_SYMLINK).contains(&bytes.len()) && !bytes.contains(&0)
}

fn numbers(out: &mut Vec<u8>, list: &[u64]) {
    list.iter()
        .for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
}

fn split_numbers<const N: usize>(payload: &[u8]) -> Option<([u64; N], &[u8])> {
    let mut rest = payload;
    let mut list = [0; N];
    for number in &mut list {
        let (bytes, behind) = rest.split_first_chunk::<8>()?;
        *number = u64::from_le_bytes(*bytes);
        rest = behind;
    }
    Some((list, rest))
}

fn empty(rest: &[u8]) -> Option<()> {
    rest.is_empty().then_some(())
}

fn decode_xattr(set: bool, payload: &[u8]) -> Option<Record<'_>> {
    let ([ino], rest) = split_numbers(payload)?;
    let (len, rest) = rest.split_first()?;
    let (name, value) = rest.split_at_checked(usize::from(*len))?;
    if !set {
        empty(value)?;
    }
    let value = set.then_some(value);
    Some(Record::Xattr { ino, name, value })
}

fn check_ino(ino: u64) -> Result<(), String> {
    let user = crate::format::FIRST_USER_INO..MAX_COUNTER;
    if ino == ROOT_INO || user.contains(&ino) {
        Ok(())
    } else {
        Err(format!("inode {ino}"))
    }
}

fn check_range(offset: u64, len: u64) -> Result<(), String> {
    if offset
        .checked_add(len)
        .is_some_and(|end| end <= MAX_FILE_SIZE)
    {
        Ok(())
    } else {
        Err(format!("{len} bytes at offset {offset}"))
    }
}
