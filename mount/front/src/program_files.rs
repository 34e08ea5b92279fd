//! The files and directories that programs have open by a channel, and the door by which the kernel gets
//! files and removed directories. It gets another directory by its path: the kernel has one name of it, which
//! the door would move.
//!
//! Such a file has a use in the engine from when it was made or opened until its program has closed it, and none
//! of the kernel's. The *door* is a directory that is in no tree and in no listing: its name is random, and known
//! to the programs of the mount's user only. A program that wants a descriptor of the kernel for a file
//! creates the file's number in it. The kernel then gets the inode for a new one, so it checks no
//! permission of the file, as a descriptor has been checked when it was opened; and neither the file's
//! names nor the directories above it matter.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cairnfs::fs::FileSystem;
use cairnfs_disk::types::{Attr, FileKind, Flags, Time};
use parking_lot::Mutex;

use crate::fault::{InjectedFault, is_injected};

/// The node id of the door. No inode has it, and no node apart.
pub(crate) const DOOR: u64 = u64::MAX - 1;

/// Files that one program has open by its channel, and all; further ones are the kernel's.
const MOST: usize = 1024;
const MOST_OF_ALL: usize = 1 << 16;

/// An open file.
#[derive(Clone)]
pub(crate) struct ProgramFile {
    pub fs: Arc<FileSystem>,
    pub ino: u64,
    /// The channel of its program.
    pub channel: u64,
    /// Where the next read or write begins.
    pub offset: u64,
    pub readable: bool,
    pub writable: bool,
    pub append: bool,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Whether a descriptor of the kernel takes its place.
    pub left: bool,
    /// The epoch of the lease that the program has got on it.
    pub lease: Option<u64>,
}

impl ProgramFile {
    /// An inode whose use was taken, as a program has opened it with these flags of open(2).
    pub fn opened(fs: Arc<FileSystem>, ino: u64, channel: u64, flags: i32) -> Self {
        let access = flags & libc::O_ACCMODE;
        Self {
            fs,
            ino,
            channel,
            offset: 0,
            readable: [libc::O_RDONLY, libc::O_RDWR].contains(&access),
            writable: [libc::O_WRONLY, libc::O_RDWR].contains(&access),
            append: flags & libc::O_APPEND != 0,
            is_dir: flags & libc::O_DIRECTORY != 0,
            left: false,
            lease: None,
        }
    }
}

#[derive(Default)]
struct Files {
    by_number: HashMap<u64, ProgramFile>,
    /// The numbers of those with a lease, by inode. Each was made by its program, so none other with it has one.
    leased: HashMap<u64, u64>,
}

impl Files {
    fn remove(&mut self, number: u64) -> Option<ProgramFile> {
        let file = self.by_number.remove(&number)?;
        if file.lease.is_some() {
            self.leased.remove(&file.ino);
        }
        Some(file)
    }
}

/// The files that programs have open.
#[derive(Default)]
pub(crate) struct ProgramFiles {
    files: Mutex<Files>,
    /// How many have a lease.
    leased: AtomicUsize,
    last: AtomicU64,
    door: String,
}

impl ProgramFiles {
    /// None yet, with a door of this name.
    pub fn with_door(door: String) -> Self {
        Self {
            door,
            ..Self::default()
        }
    }

    /// The name of the door; empty if there is none.
    pub fn door(&self) -> &str {
        &self.door
    }

    /// Whether a name in the root is that of the door.
    pub fn is_door(&self, name: &[u8]) -> bool {
        !self.door.is_empty() && name == self.door.as_bytes()
    }

    /// Whether a program may open another one.
    pub fn has_room(&self, channel: u64) -> bool {
        let files = &self.files.lock().by_number;
        let its = || files.values().filter(|f| f.channel == channel).count();
        files.len() < MOST || files.len() < MOST_OF_ALL && its() < MOST
    }

    /// Adds a file whose use was taken; returns its number.
    pub fn add(&self, file: ProgramFile) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut files = self.files.lock();
        if file.lease.is_some() {
            files.leased.insert(file.ino, number);
        }
        files.by_number.insert(number, file);
        self.leased.store(files.leased.len(), Ordering::SeqCst);
        number
    }

    /// An open file of a program, unless it has left it.
    pub fn get(&self, channel: u64, number: u64) -> Option<ProgramFile> {
        let files = self.files.lock();
        let file = files.by_number.get(&number)?;
        let is_its = file.channel == channel || is_injected(InjectedFault::FilesOfAll);
        (is_its && !file.left).then(|| file.clone())
    }

    /// Moves the offset of a file.
    pub fn seek(&self, number: u64, offset: u64) {
        if let Some(file) = self.files.lock().by_number.get_mut(&number) {
            file.offset = offset;
        }
    }

    /// A program leaves a file to the kernel; returns its offset.
    pub fn leave(&self, channel: u64, number: u64) -> Option<u64> {
        let mut files = self.files.lock();
        let file = files.by_number.get_mut(&number);
        let file = file.filter(|f| f.channel == channel)?;
        file.left = true;
        Some(file.offset)
    }

    /// Whether a program has got a lease on any file.
    pub fn has_leases(&self) -> bool {
        self.leased.load(Ordering::SeqCst) > 0
    }

    /// The channel and the epoch of a lease on the file that has this inode in a tree.
    pub fn lease_on(&self, fs: &Arc<FileSystem>, ino: u64) -> Option<(u64, u64)> {
        let files = self.files.lock();
        let file = files.by_number.get(files.leased.get(&ino)?)?;
        let is_its = Arc::ptr_eq(&file.fs, fs) && file.ino == ino;
        Some((file.channel, file.lease.filter(|_| is_its)?))
    }

    /// The file that a name in the door means.
    pub fn behind(&self, name: &[u8]) -> Option<ProgramFile> {
        let number = std::str::from_utf8(name).ok()?.parse().ok()?;
        let files = &self.files.lock().by_number;
        files.get(&number).filter(|file| file.left).cloned()
    }

    /// Removes a file, whose use the caller gives back.
    pub fn close(&self, channel: u64, number: u64) -> Option<ProgramFile> {
        let mut files = self.files.lock();
        files
            .by_number
            .get(&number)
            .filter(|f| f.channel == channel)?;
        let closed = files.remove(number);
        self.leased.store(files.leased.len(), Ordering::SeqCst);
        closed
    }

    /// Removes all files, or those of one program; the caller gives their uses back.
    pub fn take(&self, channel: Option<u64>) -> Vec<ProgramFile> {
        let mut files = self.files.lock();
        let is_its = |f: &ProgramFile| channel.is_none_or(|channel| f.channel == channel);
        let all = files.by_number.iter();
        let numbers: Vec<u64> = all.filter(|(_, f)| is_its(f)).map(|(n, _)| *n).collect();
        let taken = numbers
            .into_iter()
            .filter_map(|n| files.remove(n))
            .collect();
        self.leased.store(files.leased.len(), Ordering::SeqCst);
        taken
    }
}

/// The attributes of the door.
pub(crate) fn door_attr() -> Attr {
    let time = Time::default();
    Attr {
        ino: DOOR,
        kind: FileKind::Directory,
        mode: libc::S_IFDIR | 0o700,
        nlink: 2,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        flags: Flags::NONE,
    }
}
