//! A file system that stores nothing: the baseline for the cost of a FUSE mount itself.
//!
//! It is served like a volume, and gives the same `ENOSYS` and cache lifetimes as
//! [`cairnfs_fuse::adapter`], so the kernel sends it the same messages, and a difference in speed
//! is caused by the engine. Its only state is the next inode number.

use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use cairnfs_fuse::adapter::TTL;
use cairnfs_fuse::convert::absent_attr;
use cairnfs_fuse::options::WriteMode;
use cairnfs_fuse::{Served, negotiate};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::FileType as ModeType;

/// Inode numbers are never reused while it is mounted.
const GENERATION: Generation = Generation(0);

/// Bit set in the inode numbers of directories; the root's number, 1, has it.
const DIRECTORY: u64 = 1;

/// Block size in bytes, as reported by a volume.
const BLOCK_SIZE: u32 = 4096;

/// Mode reported for inodes, whose own modes are not stored: all permissions, so that no access is
/// refused.
const ANYONE: u32 = 0o777;

/// The empty file system.
pub struct Server {
    /// The next inode number without its lowest bit ([`DIRECTORY`]).
    next: AtomicU64,
    zeros: Vec<u8>,
    write: WriteMode,
}

impl Served for Server {}

impl Server {
    /// Creates the file system; `write` selects when the kernel sends written data.
    pub fn new(write: WriteMode) -> Self {
        Self {
            next: AtomicU64::new(2),
            zeros: vec![0; negotiate::MAX_REQUEST as usize],
            write,
        }
    }

    /// Attributes of a new inode with an unused number.
    fn fresh(&self, req: &Request, kind: u64, mode: u32, umask: u32) -> FileAttr {
        let ino = self.next.fetch_add(2, Ordering::Relaxed) | kind;
        FileAttr {
            uid: req.uid(),
            gid: req.gid(),
            ..attr(ino, mode & !umask)
        }
    }
}

fn attr(ino: u64, mode: u32) -> FileAttr {
    let (kind, nlink) = match ino & DIRECTORY {
        0 => (FileType::RegularFile, 1),
        _ => (FileType::Directory, 2),
    };
    FileAttr {
        ino: INodeNo(ino),
        kind,
        perm: (mode & 0o7777) as u16,
        nlink,
        ..absent_attr()
    }
}

/// The entries of every directory, "." and ".."; both have the directory's own number because its
/// parent is not stored.
fn dots(ino: INodeNo, offset: u64) -> impl Iterator<Item = (INodeNo, u64, &'static OsStr)> {
    let names = [".", ".."].into_iter().zip(1..);
    names
        .skip(usize::try_from(offset).unwrap_or(usize::MAX))
        .map(move |(name, cookie)| (ino, cookie, OsStr::new(name)))
}

impl Filesystem for Server {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        negotiate::ask(config, self.write)
    }

    fn lookup(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::ENOENT);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &attr(ino.0, ANYONE));
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = FileAttr {
            size: size.unwrap_or(0),
            uid: uid.unwrap_or(0),
            gid: gid.unwrap_or(0),
            ..attr(ino.0, mode.unwrap_or(ANYONE))
        };
        reply.attr(&TTL, &set);
    }

    fn mknod(
        &self,
        req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        mode: u32,
        umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        match ModeType::from_raw_mode(mode) {
            ModeType::RegularFile => {
                reply.entry(&TTL, &self.fresh(req, 0, mode, umask), GENERATION)
            }
            _ => reply.error(Errno::EOPNOTSUPP),
        }
    }

    fn mkdir(
        &self,
        req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let new = self.fresh(req, DIRECTORY, mode, umask);
        reply.entry(&TTL, &new, GENERATION);
    }

    fn unlink(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.ok();
    }

    fn rmdir(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.ok();
    }

    fn rename(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _newparent: INodeNo,
        _newname: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn create(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        reply.data(self.zeros.get(..size as usize).unwrap_or(&self.zeros));
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.written(data.len() as u32);
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        for (ino, cookie, name) in dots(ino, offset) {
            if reply.add(ino, cookie, FileType::Directory, name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        for (ino, cookie, name) in dots(ino, offset) {
            if reply.add(ino, cookie, name, &TTL, &attr(ino.0, ANYONE), GENERATION) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let blocks = u64::from(u32::MAX);
        reply.statfs(blocks, blocks, blocks, 0, 0, BLOCK_SIZE, 255, BLOCK_SIZE);
    }

    fn setxattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn getxattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _size: u32,
        reply: ReplyXattr,
    ) {
        reply.error(Errno::ENODATA);
    }

    fn listxattr(&self, _req: &Request, _ino: INodeNo, size: u32, reply: ReplyXattr) {
        match size {
            0 => reply.size(0),
            _ => reply.data(&[]),
        }
    }

    fn removexattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.ok();
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_number_encodes_file_type() {
        assert_eq!(attr(1, ANYONE).kind, FileType::Directory);
        assert_eq!(attr(2, ANYONE).kind, FileType::RegularFile);
        assert_eq!(attr(3, 0o100_640).perm, 0o640);
    }

    #[test]
    fn listing_continues_at_offset() {
        let names = |offset| dots(INodeNo(1), offset).map(|d| d.2).collect::<Vec<_>>();
        assert_eq!(names(0), [".", ".."]);
        assert_eq!(names(1), [".."]);
        assert!(names(2).is_empty() && names(u64::MAX).is_empty());
    }
}
