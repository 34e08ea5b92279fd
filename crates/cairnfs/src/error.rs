//! The error type of the library, and its conversions from and to [`std::io::Error`].
//!
//! Every floor returns it; front ends map it to an errno with [`Error::errno`]. Every module may
//! use it; it uses nothing of the crate itself. A conversion and back is lossless: errno, kind,
//! path and source of the error stay the same.

use std::fmt;
use std::io;
use std::mem::discriminant;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

/// All errors of the library.
///
/// Match on [`kind`](Error::kind), as with `std::fs`, or on [`cause`](Error::cause), which is more
/// exact. `?` converts it to [`std::io::Error`] and back:
///
/// ```
/// use std::io::{self, ErrorKind};
/// use cairnfs::{Error, Volume};
///
/// fn publish(volume: &Volume, host: &std::path::Path) -> io::Result<()> {
///     let text = std::fs::read(host)?;
///     volume.write("draft", text)?;
///     volume.rename("draft", "published")?;
///     Ok(())
/// }
///
/// # fn main() -> cairnfs::Result<()> {
/// let volume = Volume::in_memory(64 << 20)?;
/// # let dir = tempfile::tempdir()?;
/// # let host = dir.path().join("text");
/// # std::fs::write(&host, "text")?;
/// publish(&volume, &host)?;
/// volume.remove_file("published")?;
/// volume.create_dir("published")?;
///
/// let failure = publish(&volume, &host).unwrap_err();
/// assert_eq!(failure.kind(), ErrorKind::IsADirectory);
/// assert_eq!(failure.to_string(), "published: is a directory");
/// assert!(matches!(Error::from(failure).cause(), Error::IsDirectory));
/// # Ok(())
/// # }
/// ```
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
    /// The root, `.` and `..` can be neither renamed nor removed.
    #[error("resource busy: {0}")]
    Busy(&'static str),
    /// The contents of a file read as text are not UTF-8.
    #[error("file contents are not valid UTF-8")]
    NotUtf8,
    /// Another process has the volume open.
    #[error("volume {0} is in use by another process: unmount it or close it there first")]
    InUse(String),
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
        /// What the user can do.
        next: &'static str,
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
        /// Bytes that could not be written.
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
            Error::NotFound | Error::NoSnapshot(_) => libc::ENOENT,
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
            Error::InUse(_) | Error::Attached { .. } | Error::Busy(_) => libc::EBUSY,
            Error::NotUtf8 => libc::EILSEQ,
            Error::Incompatible(_) => libc::EOPNOTSUPP,
            Error::Open { source, .. } | Error::Temporary { source, .. } | Error::Other(source) => {
                errno_of(source)
            }
            Error::At { source, .. } => source.errno(),
            Error::CutOff { .. }
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
            Error::NotUtf8 | Error::NotAVolume(_) | Error::CutOff { .. } | Error::Corrupt(_) => {
                io::ErrorKind::InvalidData
            }
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
    pub(crate) fn of_device(self, op: &'static str, offset: u64, len: usize) -> Self {
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

    /// Adds a path of the volume; an existing path is kept.
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
mod tests {
    use super::*;
    use std::error::Error as _;

    /// The index of a variant in [`every_variant`]; a new variant without an arm does not compile.
    fn place(error: &Error) -> usize {
        match error {
            Error::NotFound => 0,
            Error::Exists => 1,
            Error::NotDirectory => 2,
            Error::IsDirectory => 3,
            Error::NotEmpty => 4,
            Error::NameTooLong => 5,
            Error::Invalid(_) => 6,
            Error::NoSpace => 7,
            Error::FileTooLarge => 8,
            Error::TooManyLinks => 9,
            Error::NoAttribute => 10,
            Error::AttributeTooLarge => 11,
            Error::SymlinkLoop => 12,
            Error::NoSuchOffset => 13,
            Error::Unsupported(_) => 14,
            Error::NotPermitted(_) => 15,
            Error::NotOpenFor(_) => 16,
            Error::UnexpectedEnd => 17,
            Error::ReadOnly => 18,
            Error::Busy(_) => 19,
            Error::NotUtf8 => 20,
            Error::InUse(_) => 21,
            Error::NotAVolume(_) => 22,
            Error::Incompatible(_) => 23,
            Error::CutOff { .. } => 24,
            Error::Corrupt(_) => 25,
            Error::Io { .. } => 26,
            Error::HostFull { .. } => 27,
            Error::Temporary { .. } => 28,
            Error::Open { .. } => 29,
            Error::Stopped(_) => 30,
            Error::Other(_) => 31,
            Error::At { .. } => 32,
            Error::Attached { .. } => 33,
            Error::NoSnapshot(_) => 34,
        }
    }

    fn denied() -> Arc<io::Error> {
        Arc::new(io::Error::from_raw_os_error(libc::EACCES))
    }

    fn failed() -> Error {
        Error::Io {
            op: "write",
            offset: 4096,
            len: 8192,
            source: Arc::new(io::Error::other("unplugged")),
        }
    }

    fn every_variant() -> [Error; 35] {
        [
            Error::NotFound,
            Error::Exists,
            Error::NotDirectory,
            Error::IsDirectory,
            Error::NotEmpty,
            Error::NameTooLong,
            Error::Invalid("why"),
            Error::NoSpace,
            Error::FileTooLarge,
            Error::TooManyLinks,
            Error::NoAttribute,
            Error::AttributeTooLarge,
            Error::SymlinkLoop,
            Error::NoSuchOffset,
            Error::Unsupported("why"),
            Error::NotPermitted("why"),
            Error::NotOpenFor("reading"),
            Error::UnexpectedEnd,
            Error::ReadOnly,
            Error::Busy("why"),
            Error::NotUtf8,
            Error::InUse("disk.img".into()),
            Error::NotAVolume("why".into()),
            Error::Incompatible("why".into()),
            Error::CutOff {
                size: 2,
                left: 1,
                next: "what next",
            },
            Error::corrupt(7, "index node", 1, 2),
            failed(),
            Error::HostFull {
                path: "disk.img".into(),
                missing: 4096,
            },
            Error::Temporary {
                dir: "/tmp".into(),
                source: denied(),
            },
            Error::Open {
                path: "disk.img".into(),
                source: denied(),
            },
            Error::Stopped(Arc::new(failed())),
            Error::Other(Arc::new(io::Error::other("from another crate"))),
            Error::NotFound.at(Path::new("a/b")),
            Error::Attached {
                path: "disk.img".into(),
                device: "/dev/loop3".into(),
            },
            Error::NoSnapshot("monday".into()),
        ]
    }

    fn sources(error: &Error) -> Vec<String> {
        let mut source = error.source();
        let next = || {
            let this = source?;
            source = this.source();
            Some(this.to_string())
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn every_variant_survives_io_error_round_trip() {
        for (i, error) in every_variant().into_iter().enumerate() {
            assert_eq!(place(&error), i);
            let std = io::Error::from(error.clone());
            assert_eq!(std.kind(), error.kind(), "{error:?}");
            let back = Error::from(std);
            assert_eq!(place(&back), i, "{error:?} became {back:?}");
            assert_eq!(back.to_string(), error.to_string());
            assert_eq!(back.errno(), error.errno());
            assert_eq!(back.kind(), error.kind());
            assert_eq!(sources(&back), sources(&error));
        }
    }

    #[test]
    fn every_variant_keeps_path_in_io_error() {
        for error in every_variant() {
            let at = error.clone().at(Path::new("a/b"));
            let std = io::Error::from(at.clone());
            assert_eq!(std.kind(), error.kind(), "{error:?}");
            assert_eq!(std.to_string(), at.to_string());
            let back = Error::from(std);
            assert_eq!(back.to_string(), at.to_string());
            assert_eq!(place(back.cause()), place(error.cause()));
        }
    }

    /// An `io::Error` has either an errno or an inner error.
    #[test]
    fn plain_variants_become_raw_os_errors() {
        for error in every_variant() {
            let plain = PLAIN.iter().any(|p| place(p) == place(&error));
            let (errno, std) = (error.errno(), io::Error::from(error));
            assert_eq!(std.raw_os_error(), plain.then_some(errno), "{std:?}");
            assert_eq!(std.get_ref().is_some(), !plain, "{std:?}");
        }
    }

    /// Includes the kinds that `std::fs` can return, so a match on the kind works for both.
    #[test]
    fn error_kind_matches_kind_of_errno() {
        let of_its_own = |e: &Error| {
            use io::ErrorKind::{InvalidData, UnexpectedEof};
            [InvalidData, UnexpectedEof].contains(&e.kind())
        };
        let all = every_variant();
        let of_errno = |e: &&Error| !of_its_own(e) && place(e) != 31;
        for error in all.iter().filter(of_errno) {
            let std = io::Error::from_raw_os_error(error.errno());
            assert_eq!(error.kind(), std.kind(), "{error:?}");
        }
        assert_eq!(all.iter().filter(|e| of_its_own(e)).count(), 5);
    }

    #[test]
    fn io_errors_survive_round_trip() {
        for errno in 1..134 {
            let error = Error::from(io::Error::from_raw_os_error(errno));
            assert_eq!(error.errno(), errno);
            let kind = io::Error::from_raw_os_error(errno).kind();
            assert_eq!(error.kind(), kind);
            assert_eq!(io::Error::from(error).raw_os_error(), Some(errno));
        }
        // A clone is still referenced, so the original cannot be moved out.
        let clone = Error::from(io::Error::from_raw_os_error(libc::EACCES));
        assert_eq!(
            io::Error::from(clone.clone()).raw_os_error(),
            Some(libc::EACCES)
        );
        let text = "from another crate";
        let error = Error::from(io::Error::new(io::ErrorKind::TimedOut, text));
        assert_eq!(
            (error.errno(), error.to_string()),
            (libc::ETIMEDOUT, text.into())
        );
        let shared = io::Error::from(error.clone());
        assert_eq!(
            (shared.kind(), shared.to_string()),
            (error.kind(), text.into())
        );
        let std = io::Error::from(Error::from(io::Error::from(io::ErrorKind::NotFound)));
        assert_eq!(std.kind(), io::ErrorKind::NotFound);
        assert_eq!(Error::from(std).errno(), libc::ENOENT);
    }
}
