//! How commands reach the daemon of a mounted volume: by reading reserved extended attributes.
//!
//! Every inode of a mount answers names that begin with `user.cairnfs.`; none of them is stored or
//! listed, and none can be set. This needs no ioctl (hence no unsafe code), works on read-only
//! mounts, and asks no more than permission to read the directory; what does more than a program
//! with a file open there could do is left to root and to the daemon's user. Both ends live here.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{fgetxattr, syncfs};

use crate::losses::Loss;
use crate::opening;
use crate::status::Status;

/// Names that begin so are the daemon's.
pub const RESERVED: &[u8] = b"user.cairnfs.";

const SYNC: &str = "user.cairnfs.sync";
const VOLUME: &str = "user.cairnfs.volume";
const STATUS: &str = "user.cairnfs.status";
const TRIM: &str = "user.cairnfs.trim";
const WRITABLE: &str = "user.cairnfs.writable";

const YES: &[u8] = b"yes";

/// An attribute's value can be no longer than this.
const VALUE_MAX: usize = 64 << 10;

/// Most losses in one answer, so that it fits into a value.
const LOSSES_MAX: usize = 1000;

/// What a command asks of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Make everything durable; the answer comes when it is, and names what was lost before.
    Sync,
    /// The path of the volume.
    Volume,
    /// A [`Status`], as JSON.
    Status,
    /// Discard all free space; the answer is the number of bytes.
    Trim,
    /// Whether the daemon opened the volume for changes: `yes` or `no`.
    Writable,
}

impl Question {
    /// The question that reading this attribute asks; `None` for a name that means nothing.
    pub fn parse(name: &[u8]) -> Option<Self> {
        [
            (SYNC, Question::Sync),
            (VOLUME, Question::Volume),
            (STATUS, Question::Status),
            (TRIM, Question::Trim),
            (WRITABLE, Question::Writable),
        ]
        .into_iter()
        .find_map(|(known, question)| (known.as_bytes() == name).then_some(question))
    }

    /// Whether only root and the daemon's user may ask it.
    pub fn is_privileged(self) -> bool {
        self == Question::Trim
    }
}

/// Whether an attribute is the daemon's own, not the user's.
pub fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(RESERVED)
}

/// The answer to [`Question::Sync`]: a line for each file of which data was lost, `ERRNO INODE`.
pub(crate) fn sync_answer(lost: &[Loss]) -> String {
    let lines = lost.iter().map(|l| format!("{} {}\n", l.errno, l.ino));
    lines.take(LOSSES_MAX).collect()
}

fn parse_sync_answer(answer: &[u8]) -> Vec<Loss> {
    let text = String::from_utf8_lossy(answer);
    let loss = |line: &str| {
        let (errno, ino) = line.split_once(' ')?;
        Some(Loss {
            ino: ino.parse().ok()?,
            errno: errno.parse().ok()?,
        })
    };
    text.lines().filter_map(loss).collect()
}

fn loss_error(lost: &[Loss]) -> io::Result<()> {
    let Some(first) = lost.first() else {
        return Ok(());
    };
    let cause = io::Error::from_raw_os_error(first.errno);
    let more = match lost.len() {
        1 => String::new(),
        n => format!(" and {} other files", n - 1),
    };
    let ino = first.ino;
    Err(io::Error::new(
        cause.kind(),
        format!(
            "data written to inode {ino}{more} is lost (`find -inum {ino}` shows its name): {cause}"
        ),
    ))
}

/// Makes everything in the volume mounted at (or above) `path` durable.
///
/// First the kernel sends what it still holds for files being written, then the daemon writes
/// everything; the second round covers requests that were under way between the two.
///
/// What syncfs(2) says counts for nothing: it reports any refusal since the last time somebody
/// asked, also of files that are gone. The daemon, which refused, knows what is missing still.
///
/// # Errors
/// `path` cannot be opened, lies in no volume (`ENODATA`, `EOPNOTSUPP`), or the volume failed. Data
/// that the kernel had accepted was refused, is missing still, and this was not reported before.
pub fn sync(path: &Path) -> io::Result<()> {
    let file = opening::inside(path)?;
    let mut lost = Vec::new();
    for _ in 0..2 {
        let _ = syncfs(&file);
        lost.extend(parse_sync_answer(&ask(&file, SYNC)?));
    }
    loss_error(&lost)
}

/// The path of the volume mounted at (or above) `path`.
///
/// # Errors
/// As [`sync`].
pub fn volume(path: &Path) -> io::Result<PathBuf> {
    let answer = ask(&opening::inside(path)?, VOLUME)?;
    Ok(PathBuf::from(OsStr::from_bytes(&answer)))
}

/// The status of the volume mounted at (or above) `path`.
///
/// # Errors
/// As [`sync`]; `InvalidData` if the daemon is of another version.
pub fn status(path: &Path) -> io::Result<Status> {
    let answer = ask(&opening::inside(path)?, STATUS)?;
    Ok(serde_json::from_slice(&answer)?)
}

/// The answer to [`Question::Status`].
pub(crate) fn status_answer(status: &Status) -> Vec<u8> {
    serde_json::to_vec(status).unwrap_or_default()
}

/// Has all free space of the volume mounted at (or above) `path` discarded; gives the bytes.
///
/// # Errors
/// As [`sync`]; `EPERM` for users who neither are root nor run the daemon; `EROFS`; `EOPNOTSUPP`
/// also if what holds the volume does not discard.
pub fn trim(path: &Path) -> io::Result<u64> {
    let answer = ask(&File::open(path)?, TRIM)?;
    let text = String::from_utf8_lossy(&answer);
    text.parse().map_err(io::Error::other)
}

/// Whether the daemon of the mount at (or above) `path` opened the volume for changes.
///
/// # Errors
/// As [`sync`].
pub fn is_writable(path: &Path) -> io::Result<bool> {
    Ok(ask(&opening::inside(path)?, WRITABLE)? == YES)
}

/// The answer to [`Question::Writable`].
pub(crate) fn writable_answer(read_only: bool) -> Vec<u8> {
    match read_only {
        true => b"no".to_vec(),
        false => YES.to_vec(),
    }
}

fn ask(file: &File, name: &str) -> io::Result<Vec<u8>> {
    let mut value = vec![0; VALUE_MAX];
    let len = fgetxattr(file, name, value.as_mut_slice())?;
    value.truncate(len);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_reserved_names() {
        for (name, question) in [
            (SYNC, Question::Sync),
            (VOLUME, Question::Volume),
            (STATUS, Question::Status),
            (TRIM, Question::Trim),
            (WRITABLE, Question::Writable),
        ] {
            assert!(is_reserved(name.as_bytes()));
            assert_eq!(Question::parse(name.as_bytes()), Some(question));
        }
        assert!(is_reserved(b"user.cairnfs.other"));
        assert_eq!(Question::parse(b"user.cairnfs.other"), None);
        assert!(!is_reserved(b"user.cairn"));
    }

    #[test]
    fn losses_come_through_an_answer() {
        assert_eq!(parse_sync_answer(sync_answer(&[]).as_bytes()), []);
        let loss = |ino| Loss {
            ino,
            errno: libc::ENOSPC,
        };
        let lost = [loss(7), loss(u64::MAX)];
        assert_eq!(parse_sync_answer(sync_answer(&lost).as_bytes()), lost);
        let many: Vec<_> = (0..100_000).map(|n| loss(u64::MAX - n)).collect();
        assert!(sync_answer(&many).len() <= VALUE_MAX);
        loss_error(&[]).unwrap();
        let error = loss_error(&lost).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let text = error.to_string();
        assert!(
            text.contains("inode 7 and 1 other files") && text.contains("-inum 7"),
            "{text}"
        );
    }

    #[test]
    fn a_directory_outside_any_volume_answers_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert!(volume(dir.path()).is_err());
        assert!(sync(dir.path()).is_err());
    }
}
