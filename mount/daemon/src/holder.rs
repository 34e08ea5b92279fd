//! Finds the process that has a volume open, and its mountpoint, for messages.
//!
//! Reads `/proc` only and sends no request to a mount. A process in another pid namespace and a
//! mount in another mount namespace are not found. From the crate this uses only failures.
//!
//! The kernel's table of locks changes while it is read, so a lock that is held throughout can be
//! missing in what was read. It is read again some times before a lock counts as missing.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::shell::word_of_path;
use cairnfs_fuse::mountinfo;

use crate::text::{show_bytes, shown};

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
    let mounts = path.and_then(|path| match mountinfo::all_of(&path).ok()? {
        found if found.is_empty() => mountinfo::all_of_file(&path).ok(),
        found => Some(found),
    });
    let mounts = mounts.unwrap_or_default().into_iter();
    mounts.map(|mount| mount.mountpoint).collect()
}

/// Id and name of the process that has locked a volume.
pub fn process(volume: &Path) -> Option<(u32, String)> {
    let file = volume.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
    let id = format!("{major:02x}:{minor:02x}:{}", file.ino());
    let pid = locker_of(&id)?;
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((pid, show_bytes(name.trim_ascii_end())))
}

/// What to do about a daemon that does not answer, which has locked a volume.
pub fn advice(volume: &Path) -> String {
    match process(volume) {
        Some((pid, _)) if is_stopped(pid) => {
            format!("its process {pid} is stopped: `kill -CONT {pid}` lets it continue")
        }
        Some((pid, _)) => {
            format!("see whether its process {pid} is stopped, or waits for what holds the volume")
        }
        None => "see whether its process is stopped, or waits for what holds the volume".into(),
    }
}

/// Whether a process was stopped by a signal, or by a debugger.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program may have any bytes.
    let end = stat.iter().rposition(|byte| *byte == b')');
    let state = end.and_then(|end| stat.get(end + 2));
    matches!(state, Some(b'T' | b't'))
}

/// Times that the table of locks is read before a lock counts as missing.
const PASSES: usize = 32;

/// Bytes asked for in one read of the table. The kernel answers with whole lines that are true at
/// one moment, up to one page of memory of them; no page is larger than this.
const PIECE: usize = 64 << 10;

/// The process that has locked the file `id`.
fn locker_of(id: &str) -> Option<u32> {
    (0..PASSES).find_map(|_| look_up(id).ok()?)
}

/// Reads the table of locks once, for the file `id`. The kernel finds the next piece by the number
/// of lines before it: if one of these locks has ended meanwhile, a line is skipped.
fn look_up(id: &str) -> io::Result<Option<u32>> {
    let mut table = File::open("/proc/locks")?;
    let mut piece = vec![0; PIECE];
    loop {
        let len = table.read(&mut piece)?;
        let text = String::from_utf8_lossy(piece.get(..len).unwrap_or_default());
        let found = text.lines().find_map(|line| locker(line, id));
        if found.is_some() || text.is_empty() {
            return Ok(found);
        }
    }
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
    /// Whether this is a process that has mounted nothing. One that was not found may have been a
    /// daemon, or has ended since.
    pub fn is_no_daemon(&self) -> bool {
        self.mountpoints.is_empty() && self.process.is_some()
    }

    /// The command that resolves the conflict.
    pub fn next_step(&self) -> String {
        match self.mountpoints.as_slice() {
            [dir] => format!("unmount it first: cairnfs umount {}", word_of_path(dir)),
            [] => "wait until it is closed, or unmount it where it is mounted".into(),
            _ => "unmount each of these directories first, with cairnfs umount".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn lock_holder_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(of(file.path()), Holder::default());
        assert!(!of(file.path()).is_no_daemon());
        let lock = rustix::fs::FlockOperation::LockShared;
        rustix::fs::flock(file.as_file(), lock).unwrap();
        let holder = of(file.path());
        let text = holder.to_string();
        assert!(
            text.contains(&format!("(pid {}) has it open", std::process::id())),
            "{text}"
        );
        assert!(holder.is_no_daemon() && holder.next_step().starts_with("wait"));
    }

    /// More locks than one piece of the table has, which come and go.
    #[test]
    fn lock_holder_is_named_while_other_locks_end() {
        const OTHERS: usize = 150;
        let folder = tempfile::tempdir().unwrap();
        let file = |n: usize| File::create(folder.path().join(n.to_string())).unwrap();
        let held = file(OTHERS);
        let lock = rustix::fs::FlockOperation::LockExclusive;
        rustix::fs::flock(&held, lock).unwrap();
        let others: Vec<_> = (0..OTHERS).map(file).collect();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for operation in [lock, rustix::fs::FlockOperation::Unlock] {
                        for other in &others {
                            rustix::fs::flock(other, operation).unwrap();
                        }
                    }
                }
            });
            let path = folder.path().join(OTHERS.to_string());
            let missed = (0..1500).filter(|_| process(&path).is_none()).count();
            done.store(true, Ordering::Relaxed);
            assert_eq!(missed, 0, "times that the holder was not found");
        });
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
