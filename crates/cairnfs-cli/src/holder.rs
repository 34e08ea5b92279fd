//! Finds the process that has a volume open, and its mountpoint, for messages.
//!
//! Reads `/proc` only and sends no request to a mount. A process in another pid namespace and a
//! mount in another mount namespace are not found. From the crate this uses only failures.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cairnfs_fuse::mountinfo;

use crate::failure::{show_bytes, shown};

/// The user of a volume, as far as it is known.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Where the volume and its branches are mounted.
    pub mountpoints: Vec<PathBuf>,
    /// Id and name of the process that has locked the volume.
    process: Option<(u32, String)>,
}

/// Finds the user of a volume that cannot be locked.
pub fn of(volume: &Path) -> Holder {
    Holder {
        mountpoints: mountpoints(volume),
        process: process(volume),
    }
}

/// Where a volume or a branch of it is mounted: one of the places, if there are several.
pub fn mountpoint(volume: &Path) -> Option<PathBuf> {
    mountpoints(volume).pop()
}

fn mountpoints(volume: &Path) -> Vec<PathBuf> {
    let path = volume.canonicalize().ok();
    let mounts = path.and_then(|path| mountinfo::all_of(&path).ok());
    let mounts = mounts.unwrap_or_default().into_iter();
    mounts.map(|mount| mount.mountpoint).collect()
}

/// Id and name of the process that has locked a volume.
pub fn process(volume: &Path) -> Option<(u32, String)> {
    let file = volume.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
    let id = format!("{major:02x}:{minor:02x}:{}", file.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let pid = locks.lines().find_map(|line| locker(line, &id))?;
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((pid, show_bytes(name.trim_ascii_end())))
}

/// The process id in a line `NUMBER: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END` about
/// the file `id`. Waiting requests begin with an arrow; they do not name a holder.
fn locker(line: &str, id: &str) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    let flock = words.next()? == "FLOCK";
    let pid = words.nth(2)?.parse().ok().filter(|pid| *pid != 0)?;
    (flock && words.next()? == id).then_some(pid)
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("is in use: ")?;
        let dirs: Vec<_> = self.mountpoints.iter().map(|dir| shown(dir)).collect();
        let dirs = dirs.join(", ");
        match (dirs.is_empty(), &self.process) {
            (false, Some((pid, name))) => write!(f, "mounted on {dirs} by {name} (pid {pid})"),
            (false, None) => write!(f, "mounted on {dirs}"),
            (true, Some((pid, name))) => write!(f, "{name} (pid {pid}) has it open"),
            (true, None) => write!(f, "a process that cannot be seen from here has it open"),
        }
    }
}

impl Holder {
    /// The command that resolves the conflict.
    pub fn next_step(&self) -> String {
        match self.mountpoints.as_slice() {
            [dir] => format!("unmount it first: cairnfs umount {}", shown(dir)),
            [] => "wait until it is closed, or unmount it where it is mounted".into(),
            _ => "unmount each of these directories first, with cairnfs umount".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_holder_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(of(file.path()), Holder::default());
        let lock = rustix::fs::FlockOperation::LockShared;
        rustix::fs::flock(file.as_file(), lock).unwrap();
        let holder = of(file.path());
        let text = holder.to_string();
        assert!(
            text.contains(&format!("(pid {}) has it open", std::process::id())),
            "{text}"
        );
        assert!(holder.next_step().starts_with("wait"));
    }

    #[test]
    fn lock_lines_of_other_files_are_ignored() {
        let line = "1: FLOCK  ADVISORY  WRITE 77 08:01:5 0 EOF";
        assert_eq!(locker(line, "08:01:5"), Some(77));
        assert_eq!(locker(line, "08:01:55"), None);
        assert_eq!(
            locker("1: -> FLOCK ADVISORY WRITE 77 08:01:5 0 EOF", "08:01:5"),
            None
        );
        assert_eq!(
            locker("1: POSIX ADVISORY WRITE 77 08:01:5 0 EOF", "08:01:5"),
            None
        );
        assert_eq!(
            locker("1: FLOCK ADVISORY WRITE 0 08:01:5 0 EOF", "08:01:5"),
            None
        );
    }
}
