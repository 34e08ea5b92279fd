//! A file system that stores nothing: the baseline for the cost of a FUSE mount itself.
//!
//! It is served like a volume, and gives the same `ENOSYS` and cache lifetimes as
//! [`cairnfs_fuse::adapter`], so the kernel sends it the same messages, and a difference in speed
//! is caused by the engine. Its only state is the next inode number.

use std::sync::atomic::{AtomicU64, Ordering};

use cairnfs_fuse::adapter::{TTL, attr_reply, entry_reply};
use cairnfs_fuse::convert::absent_attr;
use cairnfs_fuse::options::WriteMode;
use cairnfs_fuse::{Served, negotiate};
use cairnfs_transport::abi::{Attr, StatfsOut};
use cairnfs_transport::reply::{
    ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyStatfs, ReplyWrite, ReplyXattr,
};
use cairnfs_transport::request::{Ioctl, NewNode, Rename, Setattr, Setxattr, Write};
use cairnfs_transport::{Errno, Header, Offer, Server as Serves, Wanted};
use rustix::fs::FileType;

/// Inode numbers are never reused while it is mounted.
const GENERATION: u64 = 0;

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
    fn fresh(&self, from: &Header, kind: u64, new: &NewNode<'_>) -> Attr {
        let ino = self.next.fetch_add(2, Ordering::Relaxed) | kind;
        Attr {
            uid: from.uid,
            gid: from.gid,
            ..attr(ino, new.mode & !new.umask)
        }
    }
}

fn attr(ino: u64, mode: u32) -> Attr {
    let (kind, nlink) = match ino & DIRECTORY {
        0 => (FileType::RegularFile, 1),
        _ => (FileType::Directory, 2),
    };
    Attr {
        ino,
        mode: kind.as_raw_mode() | mode & 0o7777,
        nlink,
        ..absent_attr()
    }
}

/// The entries of every directory, "." and ".."; both have the directory's own number because its
/// parent is not stored.
fn dots(offset: u64) -> impl Iterator<Item = (u64, &'static [u8])> {
    let names = [&b"."[..], b".."];
    (1..)
        .zip(names)
        .skip(usize::try_from(offset).unwrap_or(usize::MAX))
}

impl Serves for Server {
    fn negotiate(&self, offer: &Offer) -> Result<Wanted, String> {
        negotiate::ask(offer, self.write)
    }

    fn lookup(&self, _from: &Header, _name: &[u8], reply: ReplyEntry) {
        reply.error(Errno::ENOENT);
    }

    fn getattr(&self, from: &Header, _by_handle: bool, reply: ReplyAttr) {
        reply.attr(&attr_reply(attr(from.ino, ANYONE), TTL));
    }

    fn setattr(&self, from: &Header, set: &Setattr, reply: ReplyAttr) {
        let set = Attr {
            size: set.size.unwrap_or(0),
            uid: set.uid.unwrap_or(0),
            gid: set.gid.unwrap_or(0),
            ..attr(from.ino, set.mode.unwrap_or(ANYONE))
        };
        reply.attr(&attr_reply(set, TTL));
    }

    fn mknod(&self, from: &Header, new: &NewNode<'_>, reply: ReplyEntry) {
        match FileType::from_raw_mode(new.mode) {
            FileType::RegularFile => {
                reply.entry(&entry_reply(self.fresh(from, 0, new), GENERATION));
            }
            _ => reply.error(Errno::EOPNOTSUPP),
        }
    }

    fn mkdir(&self, from: &Header, new: &NewNode<'_>, reply: ReplyEntry) {
        let new = self.fresh(from, DIRECTORY, new);
        reply.entry(&entry_reply(new, GENERATION));
    }

    fn unlink(&self, _from: &Header, _name: &[u8], reply: ReplyEmpty) {
        reply.ok();
    }

    fn rmdir(&self, _from: &Header, _name: &[u8], reply: ReplyEmpty) {
        reply.ok();
    }

    fn rename(&self, _from: &Header, _rename: &Rename<'_>, reply: ReplyEmpty) {
        reply.ok();
    }

    fn read(&self, _from: &Header, _offset: u64, size: u32, reply: ReplyData) {
        reply.data(self.zeros.get(..size as usize).unwrap_or(&self.zeros));
    }

    fn write(&self, _from: &Header, write: &Write<'_>, reply: ReplyWrite) {
        reply.written(write.data.len() as u32);
    }

    fn fsync(&self, _from: &Header, _data_only: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsyncdir(&self, _from: &Header, _data_only: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(&self, from: &Header, offset: u64, mut reply: ReplyDirectory) {
        let mode = FileType::Directory.as_raw_mode();
        for (cookie, name) in dots(offset) {
            if !reply.add(from.ino, cookie, mode, name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(&self, from: &Header, offset: u64, mut reply: ReplyDirectoryPlus) {
        let entry = entry_reply(attr(from.ino, ANYONE), GENERATION);
        for (cookie, name) in dots(offset) {
            if !reply.add(cookie, name, &entry) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _from: &Header, reply: ReplyStatfs) {
        let blocks = u64::from(u32::MAX);
        reply.statfs(&StatfsOut {
            blocks,
            bfree: blocks,
            bavail: blocks,
            bsize: BLOCK_SIZE,
            namelen: 255,
            frsize: BLOCK_SIZE,
            ..StatfsOut::default()
        });
    }

    fn setxattr(&self, _from: &Header, _set: &Setxattr<'_>, reply: ReplyEmpty) {
        reply.ok();
    }

    fn getxattr(&self, _from: &Header, _name: &[u8], reply: ReplyXattr) {
        reply.error(Errno::ENODATA);
    }

    fn listxattr(&self, _from: &Header, reply: ReplyXattr) {
        reply.value(&[]);
    }

    fn removexattr(&self, _from: &Header, _name: &[u8], reply: ReplyEmpty) {
        reply.ok();
    }

    fn ioctl(&self, _from: &Header, _ioctl: &Ioctl<'_>, reply: ReplyIoctl) {
        reply.error(Errno::ENOTTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_number_encodes_file_type() {
        let kind = |ino| FileType::from_raw_mode(attr(ino, ANYONE).mode);
        assert_eq!(kind(1), FileType::Directory);
        assert_eq!(kind(2), FileType::RegularFile);
        assert_eq!(attr(3, 0o100_640).mode & 0o7777, 0o640);
    }

    #[test]
    fn listing_continues_at_offset() {
        let names = |offset| dots(offset).map(|d| d.1).collect::<Vec<_>>();
        assert_eq!(names(0), [&b"."[..], b".."]);
        assert_eq!(names(1), [b".."]);
        assert!(names(2).is_empty() && names(u64::MAX).is_empty());
    }
}
