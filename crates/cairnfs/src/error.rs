//! The one error type of the library.
//!
//! Every floor returns it; the fronts map it to an errno with [`Error::errno`].
//! It may be used from everywhere and uses nothing of the crate itself.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of every fallible call of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was found wrong in the bytes of a volume, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corruption {
    /// The device block (4 KiB units) that holds the bytes.
    pub block: u64,
    /// The structure that was being read, for example `"index node"`.
    pub what: &'static str,
    /// What a sound volume would hold there.
    pub expected: String,
    /// What is there instead.
    pub found: String,
}

impl Corruption {
    /// A corruption of `what` in `block`; `expected` and `found` are rendered for people.
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

/// Everything that can go wrong.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No entry of that name, or no inode of that number.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("file exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// A directory was given where none can be.
    #[error("is a directory")]
    IsDirectory,
    /// Only an empty directory can be removed or replaced.
    #[error("directory not empty")]
    NotEmpty,
    /// A name is longer than 255 bytes, or a symlink target longer than 4095.
    #[error("name too long")]
    NameTooLong,
    /// The arguments make no sense together.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The volume is full.
    #[error("no space left on volume")]
    NoSpace,
    /// The file would become larger than 2^60 bytes.
    #[error("file too large")]
    FileTooLarge,
    /// The inode has 2^31 links already.
    #[error("too many links")]
    TooManyLinks,
    /// The extended attribute does not exist.
    #[error("no such attribute")]
    NoAttribute,
    /// The buffer given for an attribute, or the attribute, has the wrong size.
    #[error("attribute too large")]
    AttributeTooLarge,
    /// More symbolic links in a row than a path may have.
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    /// An offset beyond the end, for example `SEEK_DATA` behind the last byte.
    #[error("no such offset")]
    NoSuchOffset,
    /// The kind of file does not support the operation.
    #[error("operation not supported: {0}")]
    Unsupported(&'static str),
    /// The operation is refused whoever asks.
    #[error("operation not permitted: {0}")]
    NotPermitted(&'static str),
    /// The file was opened without the access that the call needs.
    #[error("file is not open for {0}")]
    NotOpenFor(&'static str),
    /// The file ended before the bytes that were asked for.
    #[error("unexpected end of file")]
    UnexpectedEnd,
    /// The volume is open read-only.
    #[error("volume is open read-only")]
    ReadOnly,
    /// Someone else has the volume open.
    #[error("volume {0} is in use by another process: unmount it or close it there first")]
    InUse(String),
    /// The file or device holds no CairnFS volume.
    #[error("{0}")]
    NotAVolume(String),
    /// The volume needs features that this version does not have.
    #[error("volume needs a newer version of CairnFS: {0}")]
    Incompatible(String),
    /// The file or device is shorter than the volume in it.
    #[error(
        "the volume has {size} bytes, but its file or device has {left}: it was cut off; {next}"
    )]
    CutOff {
        /// Bytes of the volume.
        size: u64,
        /// Bytes of the file or device.
        left: u64,
        /// What can be done.
        next: &'static str,
    },
    /// Bytes of the volume are not what was written.
    #[error("volume is damaged: {0}; run `cairnfs check` on it")]
    Corrupt(Box<Corruption>),
    /// The device failed.
    #[error("{op} of {len} bytes at offset {offset} failed: {source}")]
    Io {
        /// What was asked of the device.
        op: &'static str,
        /// Byte offset on the device.
        offset: u64,
        /// Bytes.
        len: usize,
        /// The cause.
        source: Arc<io::Error>,
    },
    /// The file system that holds the volume's file, or what lies below its device, has no space
    /// left. Nothing is lost: changes that were accepted wait in memory until there is space.
    #[error(
        "the file system that holds {path} is full: {missing} bytes more are needed; free space \
         there, then try again"
    )]
    HostFull {
        /// The volume's path.
        path: String,
        /// Bytes that could not be written.
        missing: u64,
    },
    /// The temporary file failed in which a volume opened read-only keeps what the recovery of a long
    /// log writes. The volume itself is as it was.
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
    /// An earlier failure stopped all changes; the volume is read-only until it is opened again.
    #[error("the volume has stopped, and accepts no more changes: {0}")]
    Stopped(Arc<Error>),
    /// Any of the above, met at a path within the volume. [`Error::cause`] takes the path away.
    #[error("{}: {source}", path.display())]
    At {
        /// The path as the caller gave it.
        path: PathBuf,
        /// What happened there.
        source: Box<Error>,
    },
}

impl Error {
    /// The errno value (of Linux) that tells a program the same.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotFound => libc::ENOENT,
            Error::Exists => libc::EEXIST,
            Error::NotDirectory => libc::ENOTDIR,
            Error::IsDirectory => libc::EISDIR,
            Error::NotEmpty => libc::ENOTEMPTY,
            Error::NameTooLong => libc::ENAMETOOLONG,
            Error::Invalid(_) | Error::NotAVolume(_) => libc::EINVAL,
            Error::NoSpace | Error::HostFull { .. } => libc::ENOSPC,
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
            Error::InUse(_) => libc::EBUSY,
            Error::Incompatible(_) => libc::EOPNOTSUPP,
            Error::Open { source, .. } | Error::Temporary { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            Error::At { source, .. } => source.errno(),
            Error::CutOff { .. }
            | Error::Corrupt(_)
            | Error::Io { .. }
            | Error::Stopped(_)
            | Error::UnexpectedEnd => libc::EIO,
        }
    }

    /// The kind that `std::io` gives such an error, to match on as with `std::fs`.
    pub fn kind(&self) -> io::ErrorKind {
        match self.cause() {
            Error::UnexpectedEnd => io::ErrorKind::UnexpectedEof,
            other => io::Error::from_raw_os_error(other.errno()).kind(),
        }
    }

    /// The error itself, without the path at which it was met.
    pub fn cause(&self) -> &Error {
        let mut error = self;
        while let Error::At { source, .. } = error {
            error = source;
        }
        error
    }

    /// What to do about a failure that stopped a volume, for messages.
    pub fn next_step(&self) -> &'static str {
        match self.cause() {
            Error::Io { source, .. } if source.kind() == io::ErrorKind::UnexpectedEof => {
                "unmount it, and save what is left"
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

    /// Says at which path of the volume this was met; a path that is told already stays.
    pub(crate) fn at(self, path: &Path) -> Self {
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

impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        io::Error::new(e.kind(), e)
    }
}
