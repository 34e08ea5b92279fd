//! SKELETON for other crates to compile against. Signatures are final, bodies are not.
#![allow(missing_docs, unused_variables, clippy::todo)]
use crate::device::Device;
use crate::error::Result;
use crate::types::*;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How to open a volume.
#[derive(Debug, Clone)]
pub struct Options {
    pub read_only: bool,
    /// Bytes that caches and unwritten changes may take (default 256 MiB).
    pub cache_budget: usize,
    /// What nobody fsyncs becomes durable within this time (default 5 s); `None`: only on request.
    pub durability_interval: Option<Duration>,
    /// Tell the device of freed space (default true).
    pub discard: bool,
}
impl Default for Options {
    fn default() -> Self {
        todo!()
    }
}

/// How to make a volume.
#[derive(Debug, Clone, Default)]
pub struct MakeOptions {
    /// Bytes; for an image file that does not exist yet this is needed (the command's default is chosen by the command). None: the size of the device/file.
    pub size: Option<u64>,
    pub label: String,
    /// Bytes of log.
    pub log_size: Option<u64>,
    /// Overwrite whatever is there.
    pub force: bool,
    /// Owner of the root directory (uid, gid), and its mode.
    pub root_owner: (u32, u32),
}

/// Makes a volume on a file or block device. `progress(done, total)` bytes written.
pub fn make(
    path: &Path,
    options: &MakeOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<VolumeInfo> {
    todo!()
}

/// What the superblock tells, without opening the volume (works while it is mounted).
pub fn inspect(path: &Path) -> Result<VolumeInfo> {
    todo!()
}

/// The file system of an open volume, by inode: what a FUSE daemon needs. `Send + Sync`.
/// Every call that returns an `Attr` of a *named* inode (lookup, mknod, mkdir, symlink, link, tmpfile, readdir_plus)
/// takes one use of that inode, to be given back by `forget`. An inode with no links is removed when its last use is given back.
pub struct FileSystem {}

#[allow(clippy::too_many_arguments)]
impl FileSystem {
    pub fn open(path: &Path, options: &Options) -> Result<Arc<FileSystem>> {
        todo!()
    }
    pub fn open_device(device: Arc<dyn Device>, options: &Options) -> Result<Arc<FileSystem>> {
        todo!()
    }
    /// Writes everything, merges, marks the volume clean. Later calls fail. Also done (without error report) on drop.
    pub fn close(&self) -> Result<()> {
        todo!()
    }
    pub fn info(&self) -> VolumeInfo {
        todo!()
    }
    pub fn statfs(&self) -> StatFs {
        todo!()
    }
    pub fn is_read_only(&self) -> bool {
        todo!()
    }
    /// The failure that stopped all changes, if one did.
    pub fn failure(&self) -> Option<crate::Error> {
        todo!()
    }

    pub fn lookup(&self, dir: u64, name: &[u8]) -> Result<Attr> {
        todo!()
    }
    pub fn forget(&self, ino: u64, uses: u64) {
        todo!()
    }
    pub fn getattr(&self, ino: u64) -> Result<Attr> {
        todo!()
    }
    pub fn setattr(&self, ino: u64, set: &SetAttr) -> Result<Attr> {
        todo!()
    }
    pub fn readlink(&self, ino: u64) -> Result<Vec<u8>> {
        todo!()
    }
    /// mode holds type bits and permissions; regular files, FIFOs, sockets, devices.
    pub fn mknod(&self, dir: u64, name: &[u8], mode: u32, rdev: u64, creds: Creds) -> Result<Attr> {
        todo!()
    }
    pub fn mkdir(&self, dir: u64, name: &[u8], mode: u32, creds: Creds) -> Result<Attr> {
        todo!()
    }
    pub fn symlink(&self, dir: u64, name: &[u8], target: &[u8], creds: Creds) -> Result<Attr> {
        todo!()
    }
    pub fn link(&self, ino: u64, dir: u64, name: &[u8]) -> Result<Attr> {
        todo!()
    }
    pub fn tmpfile(&self, dir: u64, mode: u32, creds: Creds) -> Result<Attr> {
        todo!()
    }
    pub fn unlink(&self, dir: u64, name: &[u8]) -> Result<()> {
        todo!()
    }
    pub fn rmdir(&self, dir: u64, name: &[u8]) -> Result<()> {
        todo!()
    }
    pub fn rename(
        &self,
        dir: u64,
        name: &[u8],
        to_dir: u64,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        todo!()
    }
    /// Entries behind `cookie` (0 from the start; "." has 1, ".." 2) until `each` returns false.
    pub fn readdir(
        &self,
        dir: u64,
        cookie: u64,
        each: &mut dyn FnMut(EntryRef<'_>) -> bool,
    ) -> Result<()> {
        todo!()
    }
    /// The same with attributes; takes a use of each inode for which `each` returned true, except "." and "..".
    /// When `each` returns false that entry counts as not delivered.
    pub fn readdir_plus(
        &self,
        dir: u64,
        cookie: u64,
        each: &mut dyn FnMut(EntryRef<'_>, &Attr) -> bool,
    ) -> Result<()> {
        todo!()
    }
    pub fn read(&self, ino: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        todo!()
    }
    /// kill_privileges: clear setuid/setgid as a write by an ordinary user does.
    pub fn write(
        &self,
        ino: u64,
        offset: u64,
        data: &[u8],
        kill_privileges: bool,
    ) -> Result<usize> {
        todo!()
    }
    pub fn fallocate(&self, ino: u64, offset: u64, len: u64, what: Fallocate) -> Result<()> {
        todo!()
    }
    pub fn seek(&self, ino: u64, offset: u64, to: SeekTo) -> Result<u64> {
        todo!()
    }
    pub fn copy_range(
        &self,
        from: u64,
        from_offset: u64,
        to: u64,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        todo!()
    }
    /// File or directory. data_only = fdatasync.
    pub fn fsync(&self, ino: u64, data_only: bool) -> Result<()> {
        todo!()
    }
    pub fn sync(&self) -> Result<()> {
        todo!()
    }
    pub fn getxattr(&self, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        todo!()
    }
    pub fn setxattr(&self, ino: u64, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        todo!()
    }
    /// Names, each followed by NUL.
    pub fn listxattr(&self, ino: u64) -> Result<Vec<u8>> {
        todo!()
    }
    pub fn removexattr(&self, ino: u64, name: &[u8]) -> Result<()> {
        todo!()
    }
    /// Counters for people and benchmarks (name, value), e.g. ("log_bytes", n).
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        todo!()
    }
}
