//! Communication between commands and the daemon of a mounted volume, by reads of reserved extended
//! attributes.
//!
//! Every inode of a mount answers names that begin with `user.cairnfs.`; none of them is stored or
//! listed, and none can be set. This needs no ioctl (hence no unsafe code), works on read-only
//! mounts, and requires only permission to read the directory. A question whose effect exceeds what
//! a program with an open file could cause is restricted to root and the daemon's user. Both ends
//! are implemented here.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{fgetxattr, syncfs};

use crate::losses::Loss;
use crate::opening;
use crate::status::Status;

/// Prefix of the daemon's attribute names.
pub const RESERVED: &[u8] = b"user.cairnfs.";

const SYNC: &str = "user.cairnfs.sync";
const VOLUME: &str = "user.cairnfs.volume";
const STATUS: &str = "user.cairnfs.status";
const TRIM: &str = "user.cairnfs.trim";
const WRITABLE: &str = "user.cairnfs.writable";

const YES: &[u8] = b"yes";

/// Maximum size of an attribute's value in bytes (`XATTR_SIZE_MAX` of the kernel).
const VALUE_MAX: usize = 64 << 10;

/// Maximum number of losses in one answer, so that it fits into a value.
const LOSSES_MAX: usize = 1000;

/// A question from a command to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Make everything durable. The answer is sent after that and lists the data lost before.
    Sync,
    /// The path of the volume.
    Volume,
    /// A [`Status`], as JSON.
    Status,
    /// Discard all free space; the answer is the number of bytes.
    Trim,
    /// Whether the daemon opened the volume read-write: `yes` or `no`.
    Writable,
}

impl Question {
    /// Returns the question that a read of this attribute asks; `None` for an unknown name.
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

/// Whether an attribute name is reserved for the daemon.
pub fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(RESERVED)
}

/// Formats the answer to [`Question::Sync`]: one line `ERRNO INODE` for each file that lost data, with
/// the path, escaped, behind that of a file that was replaced. What does not fit is left out.
pub(crate) fn sync_answer(lost: &[Loss]) -> String {
    let mut answer = String::new();
    for loss in lost.iter().take(LOSSES_MAX) {
        let path = loss.replaced.as_ref().map(|path| path.to_string_lossy());
        let path = path.map_or_else(String::new, |path| format!(" {}", path.escape_debug()));
        let line = format!("{} {}{path}\n", loss.errno, loss.ino);
        if answer.len() + line.len() > VALUE_MAX {
            break;
        }
        answer.push_str(&line);
    }
    answer
}

fn parse_sync_answer(answer: &[u8]) -> Vec<Loss> {
    let text = String::from_utf8_lossy(answer);
    let loss = |line: &str| {
        let mut parts = line.splitn(3, ' ');
        Some(Loss {
            errno: parts.next()?.parse().ok()?,
            ino: parts.next()?.parse().ok()?,
            replaced: parts.next().map(PathBuf::from),
        })
    };
    text.lines().filter_map(loss).collect()
}

/// What was refused because a file had been replaced, for a message; `None` if nothing was. The kernel
/// says so at an fsync; at a close only if nothing has written the data back before, as a sync does.
fn refused_as_stale(lost: &[Loss]) -> Option<String> {
    let stale = lost.iter().filter(|loss| loss.errno == libc::ESTALE);
    let paths: Vec<_> = stale.filter_map(|loss| loss.replaced.as_ref()).collect();
    let first = paths.first()?.display();
    let more = others(paths.len());
    Some(format!(
        "programs that had {first}{more} open while a publish or restore replaced it have written to it \
         after that: this was refused, as their next fsync tells them, and is not in the new file"
    ))
}

fn others(files: usize) -> String {
    match files {
        0 | 1 => String::new(),
        2 => " and 1 other file".into(),
        n => format!(" and {} other files", n - 1),
    }
}

fn loss_error(lost: &[Loss]) -> io::Result<Option<String>> {
    let refused = refused_as_stale(lost);
    let is_stale = |loss: &&Loss| loss.errno == libc::ESTALE && loss.replaced.is_some();
    let lost: Vec<&Loss> = lost.iter().filter(|loss| !is_stale(loss)).collect();
    let Some(first) = lost.first() else {
        return Ok(refused);
    };
    let cause = io::Error::from_raw_os_error(first.errno);
    let (more, ino) = (others(lost.len()), first.ino);
    let text = match &first.replaced {
        Some(path) => format!(
            "data written to {}{more}, before a publish or restore replaced it, is lost: {cause}",
            path.display()
        ),
        None => format!(
            "data written to inode {ino}{more} is lost (`find -inum {ino}` shows its name): {cause}"
        ),
    };
    let refused = refused.map_or_else(String::new, |refused| format!("; {refused}"));
    Err(io::Error::new(cause.kind(), text + &refused))
}

/// Makes everything in the volume mounted at (or above) `path` durable.
///
/// First `syncfs` makes the kernel write back its dirty pages, then the daemon waits for what is on its
/// way and makes everything durable. The second round covers what the first one can miss: writes that
/// the kernel held back because the size of their file was just changed.
///
/// The result of syncfs(2) is ignored: it reports any refusal since the last syncfs by any caller,
/// also for files that were deleted. The daemon, which refused the data, knows which data is still
/// missing.
///
/// Returns a message if data was refused because its file had been replaced by a publish or a restore:
/// all that is in the tree is durable nevertheless.
///
/// # Errors
/// `path` cannot be opened, is in no volume (`ENODATA`, `EOPNOTSUPP`), or the volume failed. Also
/// fails if other data that the kernel had accepted was refused, is still missing, and was not
/// reported before.
pub fn sync(path: &Path) -> io::Result<Option<String>> {
    let file = opening::inside(path)?;
    let mut lost = Vec::new();
    for _ in 0..2 {
        let _ = syncfs(&file);
        lost.extend(parse_sync_answer(&ask(&file, SYNC)?));
    }
    loss_error(&lost)
}

/// Returns the path of the volume mounted at (or above) `path`.
pub fn volume(path: &Path) -> io::Result<PathBuf> {
    let answer = ask(&opening::inside(path)?, VOLUME)?;
    Ok(PathBuf::from(OsStr::from_bytes(&answer)))
}

/// Returns the status of the volume mounted at (or above) `path`.
///
/// # Errors
/// As [`sync`]; `InvalidData` if the daemon is of another version.
pub fn status(path: &Path) -> io::Result<Status> {
    let answer = ask(&opening::inside(path)?, STATUS)?;
    Ok(serde_json::from_slice(&answer)?)
}

/// Formats the answer to [`Question::Status`].
pub(crate) fn status_answer(status: &Status) -> Vec<u8> {
    serde_json::to_vec(status).unwrap_or_default()
}

/// Discards all free space of the volume mounted at (or above) `path`; returns the number of bytes.
///
/// # Errors
/// As [`sync`]; `EPERM` for users other than root and the daemon's user; `EROFS`; `EOPNOTSUPP` also
/// if the volume's device or host does not support discard.
pub fn trim(path: &Path) -> io::Result<u64> {
    let answer = ask(&opening::inside(path)?, TRIM)?;
    let text = String::from_utf8_lossy(&answer);
    text.parse().map_err(io::Error::other)
}

/// Whether the daemon of the mount at (or above) `path` opened the volume read-write.
pub fn is_writable(path: &Path) -> io::Result<bool> {
    Ok(ask(&opening::inside(path)?, WRITABLE)? == YES)
}

/// Formats the answer to [`Question::Writable`].
pub(crate) fn writable_answer(read_only: bool) -> Vec<u8> {
    if read_only {
        b"no".to_vec()
    } else {
        YES.to_vec()
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
    fn sync_answer_lists_losses() {
        assert_eq!(parse_sync_answer(sync_answer(&[]).as_bytes()), []);
        let loss = |ino| Loss {
            ino,
            errno: libc::ENOSPC,
            replaced: None,
        };
        let lost = [loss(7), loss(u64::MAX)];
        assert_eq!(parse_sync_answer(sync_answer(&lost).as_bytes()), lost);
        let replaced = Some(PathBuf::from("/".to_owned() + &"long".repeat(1000)));
        let long = |ino| Loss {
            replaced: replaced.clone(),
            ..loss(ino)
        };
        let kinds: [&dyn Fn(u64) -> Loss; 2] = [&loss, &long];
        for each in kinds {
            let many: Vec<_> = (0..100_000).map(|n| each(u64::MAX - n)).collect();
            assert!(sync_answer(&many).len() <= VALUE_MAX);
        }
        assert_eq!(loss_error(&[]).unwrap(), None);
        let error = loss_error(&lost).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let text = error.to_string();
        assert!(
            text.contains("inode 7 and 1 other file ") && text.contains("-inum 7"),
            "{text}"
        );
    }

    /// The number of a replaced file may lead to the one in its place.
    #[test]
    fn replaced_files_are_named_by_their_paths() {
        let loss = |errno, path: &str| Loss {
            ino: 7,
            errno,
            replaced: Some(path.into()),
        };
        let stale = [loss(libc::ESTALE, "/a b/c"), loss(libc::ESTALE, "/d")];
        assert_eq!(parse_sync_answer(sync_answer(&stale).as_bytes()), stale);
        let told = loss_error(&stale).unwrap().unwrap();
        assert!(told.contains("/a b/c and 1 other file open"), "{told}");
        let line = sync_answer(&[loss(libc::ESTALE, "/a\nb")]);
        assert_eq!(line.lines().count(), 1, "{line}");
        let error = loss_error(&[loss(libc::EIO, "/f"), loss(libc::ESTALE, "/d")]);
        let text = error.unwrap_err().to_string();
        assert!(text.contains("written to /f, before"), "{text}");
        assert!(
            text.contains("had /d open") && !text.contains("-inum"),
            "{text}"
        );
    }

    #[test]
    fn directory_outside_volume_does_not_answer() {
        let dir = tempfile::tempdir().unwrap();
        assert!(volume(dir.path()).is_err());
        assert!(sync(dir.path()).is_err());
    }
}
