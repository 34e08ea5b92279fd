//! Conversions between the library's types and those of the FUSE protocol: attributes, times,
//! errors.
//!
//! Pure functions and the error type of a request. Nothing here calls the engine or the kernel.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cairnfs::Error;
use cairnfs::types::{Attr, Fallocate, FileKind, SetTime, Time};
use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};

/// Preferred I/O size reported by `stat` (`st_blksize`), in bytes.
const BLOCK_SIZE: u32 = 4096;

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

impl From<Refusal> for fuser::Errno {
    fn from(refusal: Refusal) -> Self {
        fuser::Errno::from_i32(refusal.0)
    }
}

/// Converts a file kind.
pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Socket => FileType::Socket,
    }
}

/// Converts attributes for a reply.
///
/// The kernel's 32-bit device number is the low half of the one `makedev(3)` makes.
pub fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.into(),
        mtime: attr.mtime.into(),
        ctime: attr.ctime.into(),
        crtime: attr.btime.into(),
        kind: file_type(attr.kind),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev as u32,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

/// Attributes of a negative entry (inode number 0), which the kernel caches as "name does not
/// exist".
pub fn absent_attr() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

/// Converts a time that fuser 0.18 decoded from a request.
///
/// For times before the epoch fuser subtracts the nanoseconds, but the protocol adds them: it
/// decodes -2 s and 5 ns as the epoch less 2.000000005 s. Seconds and nanoseconds are not mixed by
/// that, so the correct time can be recovered.
pub fn wire_time(time: SystemTime) -> Time {
    match time.duration_since(UNIX_EPOCH) {
        Ok(_) => time.into(),
        Err(before) => {
            let d: Duration = before.duration();
            Time {
                secs: (d.as_secs() as i64).wrapping_neg(),
                nanos: d.subsec_nanos(),
            }
        }
    }
}

/// Converts a time to set.
pub fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(t) => SetTime::At(wire_time(t)),
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
    use cairnfs::types::Flags;

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
        let a = file_attr(&attr());
        assert_eq!(a.ino, INodeNo(77));
        assert_eq!(a.kind, FileType::CharDevice);
        assert_eq!(a.perm, 0o4751);
        assert_eq!((a.nlink, a.uid, a.gid), (3, 1000, 100));
        assert_eq!((a.size, a.blocks, a.rdev), (12345, 32, 0x0010_0342));
        assert_eq!(a.atime, UNIX_EPOCH + Duration::new(1, 2));
        assert_eq!(
            a.mtime,
            UNIX_EPOCH - Duration::from_secs(3) + Duration::from_nanos(4)
        );
        assert_eq!(a.ctime, UNIX_EPOCH + Duration::new(5, 999_999_999));
        assert_eq!(a.crtime, UNIX_EPOCH + Duration::new(7, 8));
    }

    #[test]
    fn absent_attr_has_inode_number_zero() {
        assert_eq!(absent_attr().ino, INodeNo(0));
    }

    #[test]
    fn times_before_epoch_keep_sent_seconds_and_nanoseconds() {
        // The value that fuser decodes from the protocol's (-2, 5).
        let decoded = UNIX_EPOCH - Duration::new(2, 5);
        assert_eq!(wire_time(decoded), Time { secs: -2, nanos: 5 });
        let after = UNIX_EPOCH + Duration::new(2, 5);
        assert_eq!(wire_time(after), Time { secs: 2, nanos: 5 });
        assert_eq!(set_time(TimeOrNow::Now), SetTime::Now);
    }

    #[test]
    fn errors_become_errno() {
        assert_eq!(Refusal::from(Error::NotFound), Refusal(libc::ENOENT));
        assert_eq!(Refusal::from(Error::NoSpace), Refusal(libc::ENOSPC));
        assert_eq!(
            Refusal::from(Error::corrupt(1, "node", 1, 2)),
            Refusal(libc::EIO)
        );
        assert_eq!(
            fuser::Errno::from(Refusal(libc::EXDEV)),
            fuser::Errno::EXDEV
        );
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
