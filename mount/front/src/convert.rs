//! Conversions between the library's types and those of the FUSE protocol: attributes, times,
//! errors.
//!
//! Pure functions and the error type of a request. Nothing here calls the engine or the kernel.

use cairnfs::Error;
use cairnfs_disk::types::{Attr, Fallocate, FileKind, SetTime, Time};
use cairnfs_transport::{Errno, abi, request};

/// Preferred I/O size reported by `stat` (`st_blksize`), in bytes.
const BLOCK_SIZE: u32 = 4096;

/// The result of a request.
pub type Outcome<T> = Result<T, Refusal>;

/// Why a request is refused: an errno value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal(pub i32);

impl From<Error> for Refusal {
    /// Logs device failures and corruption because an errno value carries no details.
    fn from(error: Error) -> Self {
        if Refusal::is_logged(&error) {
            tracing::error!("{error}");
        }
        Refusal(error.errno())
    }
}

impl Refusal {
    /// Whether an error is logged because its errno value carries no details.
    pub fn is_logged(error: &Error) -> bool {
        matches!(error, Error::Io { .. } | Error::Corrupt(_))
    }
}

impl From<Refusal> for Errno {
    fn from(refusal: Refusal) -> Self {
        Errno::new(refusal.0)
    }
}

/// Returns the type bits of a mode (`S_IFMT`).
pub fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
        FileKind::Socket => libc::S_IFSOCK,
    }
}

/// Converts attributes for a reply. The inode number that programs see is the node id: of a file and
/// the one that a publish has put in its place, which have one number, two are seen, as after a
/// rename over it.
///
/// The kernel's 32-bit device number is the low half of the one `makedev(3)` makes.
pub fn file_attr(node: u64, attr: &Attr) -> abi::Attr {
    abi::Attr {
        ino: node,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.secs,
        mtime: attr.mtime.secs,
        ctime: attr.ctime.secs,
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: type_bits(attr.kind) | attr.mode & 0o7777,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev as u32,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

/// As [`file_attr`], with the time of birth. The kernel fills in the device.
pub fn file_statx(node: u64, attr: &Attr) -> abi::Statx {
    let time = |time: Time| abi::SxTime {
        tv_sec: time.secs,
        tv_nsec: time.nanos,
        reserved: 0,
    };
    abi::Statx {
        mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
        blksize: BLOCK_SIZE,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: (type_bits(attr.kind) | attr.mode & 0o7777) as u16,
        ino: node,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        btime: time(attr.btime),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: rustix::fs::major(attr.rdev),
        rdev_minor: rustix::fs::minor(attr.rdev),
        ..abi::Statx::default()
    }
}

/// Attributes of a negative entry (inode number 0), which the kernel caches as "name does not
/// exist".
pub fn absent_attr() -> abi::Attr {
    abi::Attr {
        blksize: BLOCK_SIZE,
        ..abi::Attr::default()
    }
}

/// Converts a time of a request.
pub fn wire_time(time: request::Timestamp) -> Time {
    Time {
        secs: time.secs,
        nanos: time.nanos.min(999_999_999),
    }
}

/// Converts a time to set.
pub fn set_time(time: request::SetTime) -> SetTime {
    match time {
        request::SetTime::Now => SetTime::Now,
        request::SetTime::At(t) => SetTime::At(wire_time(t)),
    }
}

/// Converts the mode of `fallocate(2)`; `None` for an unsupported one.
pub fn fallocate_mode(mode: i32) -> Option<Fallocate> {
    const KEEP_SIZE: i32 = libc::FALLOC_FL_KEEP_SIZE;
    let keep_size = mode & KEEP_SIZE != 0;
    match mode & !KEEP_SIZE {
        0 => Some(Fallocate::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Some(Fallocate::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Some(Fallocate::ZeroRange { keep_size }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairnfs_disk::types::Flags;

    fn attr() -> Attr {
        let t = |secs, nanos| Time { secs, nanos };
        Attr {
            ino: 77,
            kind: FileKind::CharDevice,
            mode: 0o020_4751,
            nlink: 3,
            uid: 1000,
            gid: 100,
            rdev: 0x0010_0342,
            size: 12345,
            blocks: 32,
            atime: t(1, 2),
            mtime: t(-3, 4),
            ctime: t(5, 999_999_999),
            btime: t(7, 8),
            flags: Flags::NONE,
        }
    }

    #[test]
    fn attributes_keep_every_field() {
        let a = file_attr(77, &attr());
        assert_eq!((a.ino, a.size, a.blocks), (77, 12345, 32));
        assert_eq!(a.mode, libc::S_IFCHR | 0o4751);
        assert_eq!((a.nlink, a.uid, a.gid), (3, 1000, 100));
        assert_eq!((a.rdev, a.blksize), (0x0010_0342, BLOCK_SIZE));
        assert_eq!((a.atime, a.atimensec), (1, 2));
        assert_eq!((a.mtime, a.mtimensec), (-3, 4));
        assert_eq!((a.ctime, a.ctimensec), (5, 999_999_999));
    }

    #[test]
    fn statx_has_same_attributes_and_time_of_birth() {
        let (a, x) = (file_attr(77, &attr()), file_statx(77, &attr()));
        assert_eq!((x.ino, x.size, x.blocks), (a.ino, a.size, a.blocks));
        assert_eq!(u32::from(x.mode), a.mode);
        assert_eq!((x.nlink, x.uid, x.gid), (a.nlink, a.uid, a.gid));
        assert_eq!(
            (x.rdev_major, x.rdev_minor, x.blksize),
            (3, 0x142, BLOCK_SIZE)
        );
        let times = [x.atime, x.mtime, x.ctime, x.btime].map(|t| (t.tv_sec, t.tv_nsec));
        assert_eq!(times, [(1, 2), (-3, 4), (5, 999_999_999), (7, 8)]);
    }

    #[test]
    fn absent_attr_has_inode_number_zero() {
        assert_eq!(absent_attr().ino, 0);
    }

    #[test]
    fn times_before_epoch_keep_sent_seconds_and_nanoseconds() {
        let sent = request::Timestamp { secs: -2, nanos: 5 };
        let time = Time { secs: -2, nanos: 5 };
        assert_eq!(wire_time(sent), time);
        assert_eq!(set_time(request::SetTime::At(sent)), SetTime::At(time));
        assert_eq!(set_time(request::SetTime::Now), SetTime::Now);
    }

    #[test]
    fn errors_become_errno() {
        assert_eq!(Refusal::from(Error::NotFound), Refusal(libc::ENOENT));
        assert_eq!(Refusal::from(Error::NoSpace), Refusal(libc::ENOSPC));
        assert_eq!(
            Refusal::from(Error::corrupt(1, "node", 1, 2)),
            Refusal(libc::EIO)
        );
        assert_eq!(Errno::from(Refusal(libc::EXDEV)).number(), libc::EXDEV);
    }

    #[test]
    fn fallocate_modes_map_to_operations() {
        use libc::{
            FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_KEEP_SIZE as KEEP, FALLOC_FL_PUNCH_HOLE as PUNCH,
            FALLOC_FL_ZERO_RANGE as ZERO,
        };
        let allocate = |keep_size| Some(Fallocate::Allocate { keep_size });
        assert_eq!(fallocate_mode(0), allocate(false));
        assert_eq!(fallocate_mode(KEEP), allocate(true));
        assert_eq!(fallocate_mode(PUNCH | KEEP), Some(Fallocate::PunchHole));
        assert_eq!(fallocate_mode(PUNCH), None);
        let zero = |keep_size| Some(Fallocate::ZeroRange { keep_size });
        assert_eq!(fallocate_mode(ZERO), zero(false));
        assert_eq!(fallocate_mode(ZERO | KEEP), zero(true));
        assert_eq!(fallocate_mode(FALLOC_FL_COLLAPSE_RANGE), None);
    }
}
