//! Which files and devices this process has locked, so that an opener that is refused learns whether it
//! was refused by its own process.
//!
//! Only messages depend on it. A child process that was made by fork() inherits the table, and has
//! locked nothing of it.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FileType, Stat};
use rustix::process::Pid;

/// A file by device and inode number; a block device, whatever its path, by its own number alone.
type Key = (u64, u64);

/// Each with the process that has locked it, and a number that tells several of one process apart.
static LOCKED: Mutex<BTreeSet<(Key, i32, u64)>> = Mutex::new(BTreeSet::new());

/// Notes that files are locked, as long as it exists.
#[derive(Debug)]
pub(super) struct Noted(Vec<(Key, i32, u64)>);

impl Noted {
    /// Notes open files, which `process`, this one, has locked.
    pub fn new<'f>(files: impl Iterator<Item = &'f OwnedFd>, process: Pid) -> Self {
        let stats = files.filter_map(|file| rustix::fs::fstat(file).ok());
        let keys: Vec<Key> = stats.map(|stat| key(&stat)).collect();
        let mut locked = LOCKED.lock().unwrap_or_else(PoisonError::into_inner);
        let process = process.as_raw_nonzero().get();
        let add = |key| {
            let of_key = locked.range((key, process, 0)..=(key, process, u64::MAX));
            let last = of_key.last().map_or(0, |(_, _, number)| *number);
            let noted = (key, process, last.saturating_add(1));
            locked.insert(noted);
            noted
        };
        Self(keys.into_iter().map(add).collect())
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        // In a child process that was made while another thread had the lock, it stays locked; there
        // these files are only dropped, and nothing is asked for them.
        if let Ok(mut locked) = LOCKED.try_lock() {
            locked.retain(|noted| !self.0.contains(noted));
        }
    }
}

/// Whether this process has the file or device at a path locked, as far as that is known.
pub(super) fn has_locked(path: &Path) -> bool {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let Ok(stat) = rustix::fs::stat(path) else {
        return false;
    };
    let key = key(&stat);
    let locked = LOCKED.try_lock();
    locked.is_ok_and(|locked| {
        let mut of_key = locked.range((key, process, 0)..=(key, process, u64::MAX));
        of_key.next().is_some()
    })
}

fn key(stat: &Stat) -> Key {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => (u64::MAX, stat.st_rdev),
        _ => (stat.st_dev, stat.st_ino),
    }
}
