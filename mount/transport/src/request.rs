//! Decodes the kernel's messages.
//!
//! Pure functions over borrowed bytes; no bytes cause a panic. A message is decoded from two parts,
//! because the transports deliver it so: the structure of its operation (`op`), and everything
//! behind that (`payload`). Bytes behind the known part of `op` are ignored, as newer kernels may
//! add fields and one transport delivers an area of fixed size.

use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::abi::{self, InHeader, Opcode, fattr};
use crate::init::Offer;
pub use crate::malformed::Malformed;

/// The header of a request: its number, its operation, the inode and the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of the request, by which its reply is matched.
    pub unique: u64,
    /// The operation.
    pub opcode: Opcode,
    /// The inode; for operations on an entry, its directory.
    pub ino: u64,
    /// User id of the caller for file systems.
    pub uid: u32,
    /// Group id of the caller for file systems.
    pub gid: u32,
    /// Thread id of the caller; 0 if it is invisible from here, or if the kernel itself asks.
    pub pid: u32,
}

impl From<&InHeader> for Header {
    fn from(header: &InHeader) -> Self {
        Self {
            unique: header.unique,
            opcode: Opcode(header.opcode),
            ino: header.nodeid,
            uid: header.uid,
            gid: header.gid,
            pid: header.pid,
        }
    }
}

/// A time as the protocol has it; nanoseconds count forward, also before 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub secs: i64,
    /// Nanoseconds.
    pub nanos: u32,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time at which the request is executed.
    Now,
    /// This time.
    At(Timestamp),
}

/// What SETATTR changes; `None` leaves a field as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of stat(2)")]
pub struct Setattr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    pub ctime: Option<Timestamp>,
}

/// A new entry; `rdev` is 0 unless it is a device file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of mknod(2)")]
pub struct NewNode<'a> {
    pub name: &'a [u8],
    pub mode: u32,
    pub umask: u32,
    pub rdev: u32,
}

/// A rename out of the directory of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rename<'a> {
    /// The name in the directory of the header.
    pub name: &'a [u8],
    /// The directory of the new name.
    pub new_dir: u64,
    /// The new name.
    pub new_name: &'a [u8],
    /// The flags of renameat2(2).
    pub flags: u32,
}

/// A write; the data borrow the transport's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write<'a> {
    /// First byte in the file.
    pub offset: u64,
    /// The data.
    pub data: &'a [u8],
    /// Whether they come from the kernel's cache; the header's caller is meaningless then.
    pub cached: bool,
    /// Whether set-id bits are cleared.
    pub kill_suidgid: bool,
}

/// An extended attribute to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setxattr<'a> {
    /// Name of the attribute.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// The flags of setxattr(2).
    pub flags: u32,
    /// Whether this access list clears set-group-id.
    pub kill_sgid: bool,
}

/// An allocation or a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of fallocate(2)")]
pub struct Fallocate {
    pub offset: u64,
    pub length: u64,
    pub mode: i32,
}

/// A copy between two files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyFileRange {
    /// First byte in the file of the header.
    pub offset: u64,
    /// Inode of the file that is written.
    pub to: u64,
    /// First byte in it.
    pub to_offset: u64,
    /// Bytes.
    pub length: u64,
    /// Whether the reply has 64 bits.
    pub wide: bool,
}

/// An ioctl; `data` are the bytes that the program passes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of ioctl(2)")]
pub struct Ioctl<'a> {
    pub cmd: u32,
    pub data: &'a [u8],
    pub out_size: u32,
}

/// What STATX asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statx {
    /// Whether it is asked through an open file.
    pub by_handle: bool,
    /// The mask of statx(2).
    pub mask: u32,
}

/// The inodes of a BATCH_FORGET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgets<'a>(&'a [u8]);

impl Forgets<'_> {
    /// Inode numbers, each with the number of references that are returned.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let all = self.0.chunks_exact(size_of::<abi::ForgetOne>());
        all.filter_map(|bytes| abi::ForgetOne::read_from_bytes(bytes).ok())
            .map(|one| (one.nodeid, one.nlookup))
    }
}

/// A decoded message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the protocol")]
pub enum Operation<'a> {
    Lookup { name: &'a [u8] },
    Forget { lookups: u64 },
    BatchForget(Forgets<'a>),
    Getattr { by_handle: bool },
    Statx(Statx),
    Setattr(Setattr),
    Readlink,
    Symlink { name: &'a [u8], target: &'a [u8] },
    Mknod(NewNode<'a>),
    Mkdir(NewNode<'a>),
    Tmpfile(NewNode<'a>),
    Unlink { name: &'a [u8] },
    Rmdir { name: &'a [u8] },
    Rename(Rename<'a>),
    Link { ino: u64, name: &'a [u8] },
    Read { offset: u64, size: u32 },
    Write(Write<'a>),
    Statfs,
    Release,
    Fsync { data_only: bool },
    Fsyncdir { data_only: bool },
    Syncfs,
    Setxattr(Setxattr<'a>),
    Getxattr { name: &'a [u8], size: u32 },
    Listxattr { size: u32 },
    Removexattr { name: &'a [u8] },
    Readdir { offset: u64, size: u32 },
    Readdirplus { offset: u64, size: u32 },
    Fallocate(Fallocate),
    Lseek { offset: u64, whence: u32 },
    CopyFileRange(CopyFileRange),
    Ioctl(Ioctl<'a>),
    Init(Offer),
    Destroy,
    Interrupt { unique: u64 },
    Unsupported(Opcode),
}

/// Reads names and data from a payload.
struct Payload<'a>(&'a [u8]);

impl<'a> Payload<'a> {
    /// A name up to its NUL byte; names of the kernel are never empty.
    fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let name = self.text()?;
        if name.is_empty() {
            Err(Malformed("empty name"))
        } else {
            Ok(name)
        }
    }

    /// Bytes up to a NUL byte.
    fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.0.iter().position(|byte| *byte == 0);
        let at = end.ok_or(Malformed("name without NUL"))?;
        let (text, rest) = self.0.split_at_checked(at).ok_or(Malformed("name"))?;
        self.0 = rest.get(1..).unwrap_or_default();
        Ok(text)
    }

    /// So many bytes.
    fn bytes(&mut self, len: u32) -> Result<&'a [u8], Malformed> {
        let split = usize::try_from(len).ok();
        let split = split.and_then(|len| self.0.split_at_checked(len));
        let (bytes, rest) = split.ok_or(Malformed("data shorter than announced"))?;
        self.0 = rest;
        Ok(bytes)
    }
}

fn fixed<T: FromBytes + Immutable + KnownLayout>(op: &[u8]) -> Result<T, Malformed> {
    let read = T::read_from_prefix(op);
    read.map(|(value, _)| value)
        .map_err(|_| Malformed("truncated"))
}

impl<'a> Operation<'a> {
    /// Decodes one message.
    ///
    /// # Errors
    /// The message does not have the form of its operation.
    pub fn decode(opcode: Opcode, op: &'a [u8], payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut rest = Payload(payload);
        Ok(match opcode {
            Opcode::LOOKUP => Operation::Lookup { name: rest.name()? },
            Opcode::UNLINK => Operation::Unlink { name: rest.name()? },
            Opcode::RMDIR => Operation::Rmdir { name: rest.name()? },
            Opcode::REMOVEXATTR => Operation::Removexattr { name: rest.name()? },
            Opcode::READLINK => Operation::Readlink,
            Opcode::STATFS => Operation::Statfs,
            Opcode::DESTROY => Operation::Destroy,
            Opcode::SYNCFS => Operation::Syncfs,
            Opcode::RELEASE => Operation::Release,
            Opcode::FORGET => {
                let body: abi::ForgetIn = fixed(op)?;
                Operation::Forget {
                    lookups: body.nlookup,
                }
            }
            Opcode::BATCH_FORGET => {
                let body: abi::BatchForgetIn = fixed(op)?;
                let one = size_of::<abi::ForgetOne>() as u32;
                let len = body.count.checked_mul(one);
                Operation::BatchForget(Forgets(rest.bytes(len.ok_or(Malformed("count"))?)?))
            }
            Opcode::GETATTR => {
                let body: abi::GetattrIn = fixed(op)?;
                Operation::Getattr {
                    by_handle: body.getattr_flags & abi::GETATTR_FH != 0,
                }
            }
            Opcode::STATX => {
                let body: abi::StatxIn = fixed(op)?;
                Operation::Statx(Statx {
                    by_handle: body.getattr_flags & abi::GETATTR_FH != 0,
                    mask: body.sx_mask,
                })
            }
            Opcode::SETATTR => Operation::Setattr(Setattr::from(fixed::<abi::SetattrIn>(op)?)),
            Opcode::SYMLINK => Operation::Symlink {
                name: rest.name()?,
                target: rest.text()?,
            },
            Opcode::MKNOD => {
                let abi::MknodIn {
                    mode, rdev, umask, ..
                } = fixed(op)?;
                Operation::Mknod(NewNode {
                    name: rest.name()?,
                    mode,
                    umask,
                    rdev,
                })
            }
            Opcode::MKDIR => {
                let abi::MkdirIn { mode, umask } = fixed(op)?;
                Operation::Mkdir(NewNode {
                    name: rest.name()?,
                    mode,
                    umask,
                    rdev: 0,
                })
            }
            Opcode::TMPFILE => {
                let abi::CreateIn { mode, umask, .. } = fixed(op)?;
                Operation::Tmpfile(NewNode {
                    name: rest.text()?,
                    mode,
                    umask,
                    rdev: 0,
                })
            }
            Opcode::RENAME | Opcode::RENAME2 => Operation::Rename(rename(opcode, op, &mut rest)?),
            Opcode::LINK => {
                let body: abi::LinkIn = fixed(op)?;
                Operation::Link {
                    ino: body.oldnodeid,
                    name: rest.name()?,
                }
            }
            Opcode::READ | Opcode::READDIR | Opcode::READDIRPLUS => {
                let abi::ReadIn { offset, size, .. } = fixed(op)?;
                match opcode {
                    Opcode::READ => Operation::Read { offset, size },
                    Opcode::READDIR => Operation::Readdir { offset, size },
                    _ => Operation::Readdirplus { offset, size },
                }
            }
            Opcode::WRITE => {
                let body: abi::WriteIn = fixed(op)?;
                Operation::Write(Write {
                    offset: body.offset,
                    data: rest.bytes(body.size)?,
                    cached: body.write_flags & abi::WRITE_CACHE != 0,
                    kill_suidgid: body.write_flags & abi::WRITE_KILL_SUIDGID != 0,
                })
            }
            Opcode::FSYNC | Opcode::FSYNCDIR => {
                let body: abi::FsyncIn = fixed(op)?;
                let data_only = body.fsync_flags & abi::FSYNC_FDATASYNC != 0;
                match opcode {
                    Opcode::FSYNC => Operation::Fsync { data_only },
                    _ => Operation::Fsyncdir { data_only },
                }
            }
            Opcode::SETXATTR => {
                let body: abi::SetxattrIn = fixed(op)?;
                Operation::Setxattr(Setxattr {
                    name: rest.name()?,
                    value: rest.bytes(body.size)?,
                    flags: body.flags,
                    kill_sgid: body.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0,
                })
            }
            Opcode::GETXATTR => {
                let abi::GetxattrIn { size, .. } = fixed(op)?;
                Operation::Getxattr {
                    name: rest.name()?,
                    size,
                }
            }
            Opcode::LISTXATTR => {
                let abi::GetxattrIn { size, .. } = fixed(op)?;
                Operation::Listxattr { size }
            }
            Opcode::FALLOCATE => {
                let abi::FallocateIn {
                    offset,
                    length,
                    mode,
                    ..
                } = fixed(op)?;
                let mode = mode.cast_signed();
                Operation::Fallocate(Fallocate {
                    offset,
                    length,
                    mode,
                })
            }
            Opcode::LSEEK => {
                let abi::LseekIn { offset, whence, .. } = fixed(op)?;
                Operation::Lseek { offset, whence }
            }
            Opcode::COPY_FILE_RANGE | Opcode::COPY_FILE_RANGE_64 => {
                let body: abi::CopyFileRangeIn = fixed(op)?;
                Operation::CopyFileRange(CopyFileRange {
                    offset: body.off_in,
                    to: body.nodeid_out,
                    to_offset: body.off_out,
                    length: body.len,
                    wide: opcode == Opcode::COPY_FILE_RANGE_64,
                })
            }
            Opcode::IOCTL => {
                let body: abi::IoctlIn = fixed(op)?;
                let data = rest.bytes(body.in_size)?;
                Operation::Ioctl(Ioctl {
                    cmd: body.cmd,
                    data,
                    out_size: body.out_size,
                })
            }
            Opcode::INIT => Operation::Init(Offer::decode(op)?),
            Opcode::INTERRUPT => {
                let abi::InterruptIn { unique } = fixed(op)?;
                Operation::Interrupt { unique }
            }
            other => Operation::Unsupported(other),
        })
    }
}

fn rename<'a>(opcode: Opcode, op: &[u8], rest: &mut Payload<'a>) -> Result<Rename<'a>, Malformed> {
    let (new_dir, flags) = match opcode {
        Opcode::RENAME => (fixed::<abi::RenameIn>(op)?.newdir, 0),
        _ => {
            let body: abi::Rename2In = fixed(op)?;
            (body.newdir, body.flags)
        }
    };
    Ok(Rename {
        name: rest.name()?,
        new_dir,
        new_name: rest.name()?,
        flags,
    })
}

impl From<abi::SetattrIn> for Setattr {
    fn from(body: abi::SetattrIn) -> Self {
        let has = |bit: u32| body.valid & bit != 0;
        let time = |now: u32, bit: u32, secs: i64, nanos: u32| match (has(now), has(bit)) {
            (true, _) => Some(SetTime::Now),
            (false, true) => Some(SetTime::At(Timestamp { secs, nanos })),
            (false, false) => None,
        };
        Self {
            mode: has(fattr::MODE).then_some(body.mode),
            uid: has(fattr::UID).then_some(body.uid),
            gid: has(fattr::GID).then_some(body.gid),
            size: has(fattr::SIZE).then_some(body.size),
            atime: time(fattr::ATIME_NOW, fattr::ATIME, body.atime, body.atimensec),
            mtime: time(fattr::MTIME_NOW, fattr::MTIME, body.mtime, body.mtimensec),
            ctime: has(fattr::CTIME).then_some(Timestamp {
                secs: body.ctime,
                nanos: body.ctimensec,
            }),
        }
    }
}
