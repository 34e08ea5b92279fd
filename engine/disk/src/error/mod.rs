//! The error type of the library, and its conversions from and to [`std::io::Error`].
//!
//! Every floor returns it; front ends map it to an errno with [`Error::errno`]. Every module may
//! use it; it uses nothing of the crate itself. A conversion and back is lossless: errno, kind,
//! path and source of the error stay the same.

mod conflicts;

pub use conflicts::{Conflict, ConflictKind, Side};

use std::fmt;
use std::io;
use std::mem::discriminant;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::conflicts::First;

/// The result of every fallible call of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Damage in the bytes of a volume, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corruption {
    /// The device block (4 KiB units) that holds the bytes.
    pub block: u64,
    /// The structure that was read, for example `"index node"`.
    pub what: &'static str,
    /// The expected contents.
    pub expected: String,
    /// The contents found.
    pub found: String,
}

impl Corruption {
    /// A corruption of `what` in `block`; `expected` and `found` are for messages.
    pub fn new(
        block: u64,
        what: &'static str,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        Self {
            block,
            what,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at block {}: expected {}, found {}",
            self.what, self.block, self.expected, self.found
        )
    }
}

/// A volume that cannot be opened because it is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InUse {
    /// The volume's path.
    pub path: String,
    /// Whether this process has it open, as far as that is known; else another one has.
    pub by_this_process: bool,
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        if self.by_this_process {
            write!(
                f,
                "{path} is open in this process already: use it there, or close it there first"
            )
        } else {
            write!(
                f,
                "{path} is in use by another process: unmount it or close it there first"
            )
        }
    }
}

/// All errors of the library.
///
/// Match on [`kind`](Error::kind), as with `std::fs`, or on [`cause`](Error::cause), which is more
/// exact. `?` converts it to [`std::io::Error`] and back; the documentation of the crate has an example.
///
/// An error that corresponds to an errno alone, such as [`Error::NoSpace`] from a `write` of a
/// [`File`](crate::File), becomes an error with that [`std::io::Error::raw_os_error`]. Any other is
/// stored inside the [`std::io::Error`], with its path; `Error::from(e).errno()` returns the errno
/// of both.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No entry with that name, or no inode with that number.
    #[error("no such file or directory")]
    NotFound,
    /// The name exists already.
    #[error("file exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// A directory was given where none is allowed.
    #[error("is a directory")]
    IsDirectory,
    /// Only an empty directory can be removed or replaced.
    #[error("directory not empty")]
    NotEmpty,
    /// A name is longer than 255 bytes, or a symlink target longer than 4095.
    #[error("name too long")]
    NameTooLong,
    /// The argument, or the combination of arguments, is invalid.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The volume is full; or a converted [`std::io::Error`] says so of another file system.
    #[error("no space left")]
    NoSpace,
    /// The volume is full, and has snapshots or branches, which keep what was deleted elsewhere.
    #[error("no space left; `cairnfs log` shows what snapshots hold, `cairnfs drop` frees it")]
    HeldByRoots,
    /// The volume is full, and nothing is left of the stream that was being received.
    #[error(
        "no space left at inode {ino} of the stream (`find -inum {ino}` in the snapshot that was sent \
         shows its path), and nothing of the stream was kept; remove files, or drop snapshots \
         (`cairnfs log` shows what they hold), or take a larger volume, then receive it again"
    )]
    NoSpaceForStream {
        /// The inode's number on the volume that sent it.
        ino: u64,
    },
    /// The file would become larger than 2^60 bytes.
    #[error("file too large")]
    FileTooLarge,
    /// The inode has 2^31 links already.
    #[error("too many links")]
    TooManyLinks,
    /// The extended attribute does not exist.
    #[error("no such attribute")]
    NoAttribute,
    /// The value of an extended attribute is too large.
    #[error("attribute too large")]
    AttributeTooLarge,
    /// A path with more symbolic links than allowed.
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    /// An offset beyond the end, for example `SEEK_DATA` after the last byte.
    #[error("no such offset")]
    NoSuchOffset,
    /// The operation is not supported, for example by the kind of file or the device.
    #[error("operation not supported: {0}")]
    Unsupported(&'static str),
    /// The operation is refused for every caller.
    #[error("operation not permitted: {0}")]
    NotPermitted(&'static str),
    /// The file was opened without the access that the call needs.
    #[error("file is not open for {0}")]
    NotOpenFor(&'static str),
    /// The file ended before the requested bytes.
    #[error("unexpected end of file")]
    UnexpectedEnd,
    /// The volume is open read-only; or a converted [`std::io::Error`] says so of another file
    /// system.
    #[error("read-only file system")]
    ReadOnly,
    /// The branch cannot be changed any more: its name went to another one, or it was dropped.
    #[error("the branch was replaced or dropped: open it again by its name")]
    Stale,
    /// The volume ran out of space while a checkpoint was shipped, which held what was given up
    /// meanwhile. It is not complete.
    #[error("the checkpoint gave way because the volume ran out of space: make another one")]
    GaveWay,
    /// The root, `.` and `..` can be neither renamed nor removed.
    #[error("resource busy: {0}")]
    Busy(&'static str),
    /// Both a branch and its base have changed the same since they parted, and nothing was published:
    /// all conflicts, sorted by path. Choose a side for each with
    /// [`PublishOptions`](crate::PublishOptions).
    #[error("nothing was published because of conflicts: {}", First(.0))]
    Conflicts(Vec<Conflict>),
    /// A branch was changed during each attempt to replace it.
    #[error("{0} is being written to without pause: stop the writers, then try again")]
    Unsettled(String),
    /// The calling thread must not wait, and the operation would have to; nothing was changed that
    /// repeating it would not change.
    #[error("the operation would wait")]
    WouldWait,
    /// The contents of a file read as text are not UTF-8.
    #[error("file contents are not valid UTF-8")]
    NotUtf8,
    /// Another process has the volume open, or this one has it open already.
    #[error("volume {0}")]
    InUse(InUse),
    /// A loop device that is attached to the file is mounted or otherwise in use.
    #[error(
        "{path} is attached to {device}, which is in use: unmount it, and detach it with `losetup -d \
         {device}` first"
    )]
    Attached {
        /// The volume's path.
        path: String,
        /// The loop device.
        device: String,
    },
    /// The file or device does not hold a CairnFS volume.
    #[error("{0}")]
    NotAVolume(String),
    /// The volume has no snapshot of that name.
    #[error("the volume has no snapshot named {0:?}")]
    NoSnapshot(String),
    /// A reference leads to no root of the volume.
    #[error("{reference:?}: {why}")]
    NoRoot {
        /// The reference as the caller gave it.
        reference: String,
        /// Why there is no such root, and which there are.
        why: String,
    },
    /// The volume needs features that this version does not have.
    #[error("volume needs a newer version of CairnFS: {0}")]
    Incompatible(String),
    /// The file or device is shorter than the volume in it.
    #[error(
        "the volume has {size} bytes, but its file or device has {left}: it was cut off, and the bytes \
         from {left} to {size} are beyond the end; {next}"
    )]
    CutOff {
        /// Bytes of the volume.
        size: u64,
        /// Bytes of the file or device.
        left: u64,
        /// What the user can do.
        next: &'static str,
    },
    /// The front of the volume, with its superblocks, is lost or holds something else.
    #[error("{found}; {next}")]
    FrontLost {
        /// What was found instead.
        found: String,
        /// What the user can do.
        next: String,
    },
    /// What was read is not a complete stream of a sent tree, or not one that may be received.
    #[error("this is not a stream that can be received: {0}; send the tree again")]
    Stream(String),
    /// The snapshot that a stream builds on is not on this volume.
    #[error(
        "the stream builds on snapshot number {root} of the volume {volume}, {why}: receive that one \
         first, or send the whole snapshot without a base"
    )]
    NoBase {
        /// UUID of the volume that sent the stream.
        volume: String,
        /// Id of the root that it builds on.
        root: u32,
        /// Whether there is another one of that number, in words.
        why: &'static str,
    },
    /// Bytes of the volume differ from the bytes that were written.
    #[error("volume is damaged: {0}; run `cairnfs check` on it")]
    Corrupt(Box<Corruption>),
    /// The device failed.
    #[error("{op} of {len} bytes at offset {offset} failed: {source}")]
    Io {
        /// The device operation.
        op: &'static str,
        /// Byte offset on the device.
        offset: u64,
        /// Length in bytes.
        len: usize,
        /// The cause.
        source: Arc<io::Error>,
    },
    /// The host, or the storage below the device, has no space left. Nothing is lost: accepted
    /// changes stay in memory until there is space.
    #[error(
        "the file system that holds {path} is full: {missing} bytes more are needed; free space \
         there, then try again"
    )]
    HostFull {
        /// The volume's path.
        path: String,
        /// Bytes that must become free there for the change, with what is kept free for merges; of
        /// held writes, their bytes.
        missing: u64,
    },
    /// The temporary file failed that holds the recovered metadata of a volume opened read-only.
    /// The volume itself is unchanged.
    #[error(
        "the log needs more memory than the budget, and the temporary file for its recovery in {dir} \
         failed: {source}; set TMPDIR to a directory with free space, or open the volume for writing \
         once"
    )]
    Temporary {
        /// The directory of the temporary file.
        dir: String,
        /// The cause.
        source: Arc<io::Error>,
    },
    /// Opening or preparing the file or device failed.
    #[error("{path}: {source}")]
    Open {
        /// The volume's path.
        path: String,
        /// The cause.
        source: Arc<io::Error>,
    },
    /// An earlier failure stopped all changes, until the volume is opened again.
    #[error("the volume has stopped, and accepts no more changes: {0}")]
    Stopped(#[source] Arc<Error>),
    /// An error of `std::io` that is not from the volume, in code that uses both.
    #[error(transparent)]
    Other(Arc<io::Error>),
    /// Any other error, with a path in the volume. [`Error::cause`] removes the path.
    #[error("{}: {source}", path.display())]
    At {
        /// The path as the caller gave it.
        path: PathBuf,
        /// The error at that path.
        source: Box<Error>,
    },
}

impl Error {
    /// The closest Linux errno value.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotFound
            | Error::NoSnapshot(_)
            | Error::NoRoot { .. }
            | Error::NoBase { .. } => libc::ENOENT,
            Error::Exists => libc::EEXIST,
            Error::NotDirectory => libc::ENOTDIR,
            Error::IsDirectory => libc::EISDIR,
            Error::NotEmpty => libc::ENOTEMPTY,
            Error::NameTooLong => libc::ENAMETOOLONG,
            Error::Invalid(_) | Error::NotAVolume(_) => libc::EINVAL,
            Error::NoSpace
            | Error::HeldByRoots
            | Error::NoSpaceForStream { .. }
            | Error::HostFull { .. } => libc::ENOSPC,
            Error::FileTooLarge => libc::EFBIG,
            Error::TooManyLinks => libc::EMLINK,
            Error::NoAttribute => libc::ENODATA,
            Error::AttributeTooLarge => libc::E2BIG,
            Error::SymlinkLoop => libc::ELOOP,
            Error::NoSuchOffset => libc::ENXIO,
            Error::Unsupported(_) => libc::EOPNOTSUPP,
            Error::NotPermitted(_) => libc::EPERM,
            Error::NotOpenFor(_) => libc::EBADF,
            Error::ReadOnly => libc::EROFS,
            Error::Stale | Error::GaveWay => libc::ESTALE,
            Error::InUse(_) | Error::Attached { .. } | Error::Busy(_) | Error::Unsettled(_) => {
                libc::EBUSY
            }
            Error::Conflicts(_) => libc::ECANCELED,
            Error::WouldWait => libc::EAGAIN,
            Error::NotUtf8 => libc::EILSEQ,
            Error::Incompatible(_) => libc::EOPNOTSUPP,
            Error::Stream(_) => libc::EBADMSG,
            Error::Open { source, .. } | Error::Temporary { source, .. } | Error::Other(source) => {
                errno_of(source)
            }
            Error::At { source, .. } => source.errno(),
            Error::CutOff { .. }
            | Error::FrontLost { .. }
            | Error::Corrupt(_)
            | Error::Io { .. }
            | Error::Stopped(_)
            | Error::UnexpectedEnd => libc::EIO,
        }
    }

    /// The kind that `std::io` uses for such an error, as with `std::fs`. Damage is
    /// [`io::ErrorKind::InvalidData`].
    pub fn kind(&self) -> io::ErrorKind {
        match self.cause() {
            Error::UnexpectedEnd => io::ErrorKind::UnexpectedEof,
            Error::NotUtf8
            | Error::NotAVolume(_)
            | Error::CutOff { .. }
            | Error::FrontLost { .. }
            | Error::Stream(_)
            | Error::Corrupt(_) => io::ErrorKind::InvalidData,
            Error::Open { source, .. } | Error::Temporary { source, .. } | Error::Other(source) => {
                source.kind()
            }
            other => io::Error::from_raw_os_error(other.errno()).kind(),
        }
    }

    /// The error itself, without its path.
    pub fn cause(&self) -> &Error {
        let mut error = self;
        while let Error::At { source, .. } = error {
            error = source;
        }
        error
    }

    /// Whether it corresponds to an errno alone.
    fn is_plain(&self) -> bool {
        PLAIN.iter().any(|p| discriminant(p) == discriminant(self))
    }

    /// Converts it to a device failure. A user's [`Device`](crate::device::Device) may return
    /// converted `std::io` errors; its ENOENT must not be taken for a missing file in the volume.
    pub fn of_device(self, op: &'static str, offset: u64, len: usize) -> Self {
        if !self.is_plain() && !matches!(self, Error::Other(_)) {
            return self;
        }
        Error::Io {
            op,
            offset,
            len,
            source: Arc::new(self.into()),
        }
    }

    /// What to do about a failure that stopped a volume, for messages.
    pub fn next_step(&self) -> &'static str {
        match self.cause() {
            Error::Io { source, .. } if source.kind() == io::ErrorKind::UnexpectedEof => {
                "unmount it; `cairnfs info` then tells whether what is left can be read, and how"
            }
            Error::Io { source, .. } if source.kind() == io::ErrorKind::FileTooLarge => {
                "unmount it, and mount it again with a higher limit of file size (ulimit -f)"
            }
            Error::Io { .. } => {
                "see the kernel's messages (dmesg) for what holds the volume; when that works again, \
                 unmount the volume, run `cairnfs check` on it, and mount it again"
            }
            Error::Corrupt(_) => "unmount it, and save what can be read with `cairnfs export`",
            _ => "unmount it, run `cairnfs check` on it, and mount it again",
        }
    }

    /// Adds a path of the volume; an existing path is kept.
    pub fn at(self, path: &Path) -> Self {
        match self {
            Error::At { .. } => self,
            source => Error::At {
                path: path.to_path_buf(),
                source: Box::new(source),
            },
        }
    }

    /// Shorthand for a boxed [`Error::Corrupt`].
    pub fn corrupt(
        block: u64,
        what: &'static str,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        Error::Corrupt(Box::new(Corruption::new(block, what, expected, found)))
    }
}

impl From<Corruption> for Error {
    fn from(c: Corruption) -> Self {
        Error::Corrupt(Box::new(c))
    }
}

/// The errors that correspond to an errno alone, with the same meaning in any file system.
/// [`Error::NoSuchOffset`] and [`Error::AttributeTooLarge`] are not among them: elsewhere ENXIO and
/// E2BIG concern devices and argument lists.
const PLAIN: [Error; 12] = [
    Error::NotFound,
    Error::Exists,
    Error::NotDirectory,
    Error::IsDirectory,
    Error::NotEmpty,
    Error::NameTooLong,
    Error::NoSpace,
    Error::FileTooLarge,
    Error::TooManyLinks,
    Error::NoAttribute,
    Error::SymlinkLoop,
    Error::ReadOnly,
];

/// The errno of an error that may have only a kind.
fn errno_of(error: &io::Error) -> i32 {
    /// The preferred errno for kinds that have several.
    const USUAL: [i32; 20] = [
        libc::ENOENT,
        libc::EACCES,
        libc::EEXIST,
        libc::ENOTDIR,
        libc::EISDIR,
        libc::ENOTEMPTY,
        libc::EINVAL,
        libc::ENOSPC,
        libc::EROFS,
        libc::EBUSY,
        libc::EFBIG,
        libc::ELOOP,
        libc::EXDEV,
        libc::ESTALE,
        libc::EOPNOTSUPP,
        libc::ENOMEM,
        libc::EINTR,
        libc::EAGAIN,
        libc::EPIPE,
        libc::ETIMEDOUT,
    ];
    let kind = error.kind();
    let usual = || {
        USUAL
            .into_iter()
            .find(|errno| io::Error::from_raw_os_error(*errno).kind() == kind)
    };
    error.raw_os_error().or_else(usual).unwrap_or(libc::EIO)
}

impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        match e {
            Error::Other(source) => match Arc::try_unwrap(source) {
                Ok(source) => source,
                Err(shared) => match shared.raw_os_error() {
                    Some(errno) => io::Error::from_raw_os_error(errno),
                    None => io::Error::new(shared.kind(), Error::Other(shared)),
                },
            },
            e if e.is_plain() => io::Error::from_raw_os_error(e.errno()),
            e => io::Error::new(e.kind(), e),
        }
    }
}

impl From<io::Error> for Error {
    /// An error that was converted from an [`Error`] becomes the same [`Error`] again.
    fn from(e: io::Error) -> Self {
        let plain = e
            .raw_os_error()
            .and_then(|errno| PLAIN.into_iter().find(|p| p.errno() == errno));
        match plain {
            Some(plain) => plain,
            None => match e.downcast::<Error>() {
                Ok(ours) => ours,
                Err(other) => Error::Other(Arc::new(other)),
            },
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
