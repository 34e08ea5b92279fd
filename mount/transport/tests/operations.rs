//! Requests and replies of every operation, byte for byte.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::fmt::Debug;
use std::sync::mpsc::{Receiver, Sender, channel};

use cairnfs_transport::abi::{Attr, AttrOut, EntryOut, StatfsOut, Statx as Attributes, StatxOut};
use cairnfs_transport::reply::{
    ReplyAttr, ReplyCopied, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpenEntry, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr,
};
use cairnfs_transport::request::{
    CopyFileRange, Fallocate, Ioctl, NewNode, Rename, Setattr, Setxattr, Statx, Write,
};
use cairnfs_transport::{Features, Header, Notification, Offer, Server, Wanted};

use crate::fake::{Bytes, CALLER, Running, reply};

/// Tells what it is asked, and answers something fixed.
struct Recorder {
    told: Sender<String>,
}

impl Recorder {
    fn new() -> (Self, Receiver<String>) {
        let (told, heard) = channel();
        (Self { told }, heard)
    }

    fn tell(&self, from: &Header, what: impl Debug) {
        assert_eq!((from.uid, from.gid, from.pid), CALLER);
        self.told.send(format!("{} {what:?}", from.ino)).unwrap();
    }
}

/// Attributes in which each field has another value.
fn attr() -> Attr {
    Attr {
        ino: 11,
        size: 12,
        blocks: 13,
        atime: -14,
        mtime: 15,
        ctime: 16,
        atimensec: 17,
        mtimensec: 18,
        ctimensec: 19,
        mode: 0o100_640,
        nlink: 21,
        uid: 22,
        gid: 23,
        rdev: 24,
        blksize: 25,
        flags: 26,
    }
}

fn attr_bytes(bytes: Bytes) -> Bytes {
    let times = bytes.u64(11).u64(12).u64(13).u64((-14_i64).cast_unsigned());
    let rest = times.u64(15).u64(16).u32(17).u32(18).u32(19);
    rest.u32(0o100_640)
        .u32(21)
        .u32(22)
        .u32(23)
        .u32(24)
        .u32(25)
        .u32(26)
}

fn entry() -> EntryOut {
    EntryOut {
        nodeid: 11,
        generation: 31,
        entry_valid: 32,
        attr_valid: 33,
        entry_valid_nsec: 34,
        attr_valid_nsec: 35,
        attr: attr(),
    }
}

fn entry_bytes() -> Bytes {
    attr_bytes(Bytes::new().u64(11).u64(31).u64(32).u64(33).u32(34).u32(35))
}

fn attr_reply() -> AttrOut {
    AttrOut {
        attr_valid: 41,
        attr_valid_nsec: 42,
        dummy: 0,
        attr: attr(),
    }
}

fn attr_reply_bytes() -> Bytes {
    attr_bytes(Bytes::new().u64(41).u32(42).u32(0))
}

impl Server for Recorder {
    fn negotiate(&self, _offer: &Offer) -> Result<Wanted, String> {
        Ok(Wanted {
            features: Features::POSIX_ACL,
            max_request: 128 << 10,
            max_background: 16,
            time_granularity: 1,
        })
    }

    fn unsupported(&self, from: &Header) {
        self.tell(from, from.opcode);
    }

    fn lookup(&self, from: &Header, name: &[u8], reply: ReplyEntry) {
        self.tell(from, name);
        reply.entry(&entry());
    }

    fn forget(&self, ino: u64, lookups: u64) {
        self.told.send(format!("forget {ino} {lookups}")).unwrap();
    }

    fn getattr(&self, from: &Header, by_handle: bool, reply: ReplyAttr) {
        self.tell(from, by_handle);
        reply.attr(&attr_reply());
    }

    fn statx(&self, from: &Header, asked: &Statx, reply: ReplyStatx) {
        self.tell(from, asked);
        reply.statx(&StatxOut {
            attr_valid: 1,
            attr_valid_nsec: 2,
            stat: Attributes {
                mask: 3,
                mode: 4,
                ino: 5,
                dev_minor: 6,
                ..Attributes::default()
            },
            ..StatxOut::default()
        });
    }

    fn setattr(&self, from: &Header, set: &Setattr, reply: ReplyAttr) {
        self.tell(from, set);
        reply.attr(&attr_reply());
    }

    fn readlink(&self, from: &Header, reply: ReplyData) {
        self.tell(from, ());
        reply.data(b"target");
    }

    fn symlink(&self, from: &Header, name: &[u8], target: &[u8], reply: ReplyEntry) {
        self.tell(from, (name, target));
        reply.entry(&entry());
    }

    fn mknod(&self, from: &Header, new: &NewNode<'_>, reply: ReplyEntry) {
        self.tell(from, new);
        reply.entry(&entry());
    }

    fn mkdir(&self, from: &Header, new: &NewNode<'_>, reply: ReplyEntry) {
        self.tell(from, new);
        reply.entry(&entry());
    }

    fn tmpfile(&self, from: &Header, new: &NewNode<'_>, reply: ReplyOpenEntry) {
        self.tell(from, (new.mode, new.umask));
        reply.entry(&entry());
    }

    fn unlink(&self, from: &Header, name: &[u8], reply: ReplyEmpty) {
        self.tell(from, name);
        reply.ok();
    }

    fn rmdir(&self, from: &Header, name: &[u8], reply: ReplyEmpty) {
        self.tell(from, name);
        reply.ok();
    }

    fn rename(&self, from: &Header, rename: &Rename<'_>, reply: ReplyEmpty) {
        self.tell(from, rename);
        reply.ok();
    }

    fn link(&self, from: &Header, ino: u64, name: &[u8], reply: ReplyEntry) {
        self.tell(from, (ino, name));
        reply.entry(&entry());
    }

    fn read(&self, from: &Header, offset: u64, size: u32, reply: ReplyData) {
        self.tell(from, (offset, size));
        reply.fill(size as usize, |room| {
            room[..3].copy_from_slice(b"abc");
            Ok(3)
        });
    }

    fn write(&self, from: &Header, write: &Write<'_>, reply: ReplyWrite) {
        self.tell(from, write);
        reply.written(7);
    }

    fn statfs(&self, from: &Header, reply: ReplyStatfs) {
        self.tell(from, ());
        reply.statfs(&StatfsOut {
            blocks: 1,
            bfree: 2,
            bavail: 3,
            files: 4,
            ffree: 5,
            bsize: 6,
            namelen: 7,
            frsize: 8,
            ..StatfsOut::default()
        });
    }

    fn fsync(&self, from: &Header, data_only: bool, reply: ReplyEmpty) {
        self.tell(from, data_only);
        reply.ok();
    }

    fn fsyncdir(&self, from: &Header, data_only: bool, reply: ReplyEmpty) {
        self.tell(from, data_only);
        reply.ok();
    }

    fn syncfs(&self, from: &Header, reply: ReplyEmpty) {
        self.tell(from, ());
        reply.ok();
    }

    fn setxattr(&self, from: &Header, set: &Setxattr<'_>, reply: ReplyEmpty) {
        self.tell(from, set);
        reply.ok();
    }

    fn getxattr(&self, from: &Header, name: &[u8], reply: ReplyXattr) {
        self.tell(from, name);
        reply.value(b"value");
    }

    fn listxattr(&self, from: &Header, reply: ReplyXattr) {
        self.tell(from, ());
        reply.value(b"a\0b\0");
    }

    fn removexattr(&self, from: &Header, name: &[u8], reply: ReplyEmpty) {
        self.tell(from, name);
        reply.ok();
    }

    fn readdir(&self, from: &Header, offset: u64, mut reply: ReplyDirectory) {
        self.tell(from, offset);
        assert!(reply.add(5, 1, 0o100_000, b"abc"));
        assert!(reply.add(6, 2, 0o040_000, b"12345678"));
        assert!(!reply.add(7, 3, 0o040_000, b"x"), "no room");
        reply.ok();
    }

    fn readdirplus(&self, from: &Header, offset: u64, mut reply: ReplyDirectoryPlus) {
        self.tell(from, offset);
        assert!(reply.add(1, b"abc", &entry()));
        assert!(!reply.add(2, b"x", &entry()), "no room");
        reply.ok();
    }

    fn fallocate(&self, from: &Header, range: &Fallocate, reply: ReplyEmpty) {
        self.tell(from, range);
        reply.ok();
    }

    fn lseek(&self, from: &Header, offset: u64, whence: u32, reply: ReplyLseek) {
        self.tell(from, (offset, whence));
        reply.offset(77);
    }

    fn copy_file_range(&self, from: &Header, copy: &CopyFileRange, reply: ReplyCopied) {
        self.tell(from, copy);
        reply.copied(78);
    }

    fn ioctl(&self, from: &Header, ioctl: &Ioctl<'_>, reply: ReplyIoctl) {
        self.tell(from, ioctl);
        reply.data(b"out");
    }
}

/// An operation: its number, the body of a request, what the server is told, the body of the reply.
type Exchange = (u32, Bytes, String, Bytes);

fn told(what: impl Debug) -> String {
    format!("9 {what:?}")
}

fn entries() -> Vec<Exchange> {
    let b = Bytes::new;
    let new = |rdev| NewNode {
        name: b"n",
        mode: 0o644,
        umask: 0o22,
        rdev,
    };
    let rename = |flags| Rename {
        name: b"old",
        new_dir: 8,
        new_name: b"new",
        flags,
    };
    let mknod = b().u32(0o644).u32(5).u32(0o22).u32(0).name(b"n");
    let mkdir = b().u32(0o644).u32(0o22).name(b"n");
    let tmpfile = b().u32(0).u32(0o644).u32(0o22).u32(0).name(b"/");
    let opened = entry_bytes().u64(0).u32(0).u32(0);
    let rename2 = b().u64(8).u32(2).u32(0).name(b"old").name(b"new");
    vec![
        (1, b().name(b"abc"), told(b"abc"), entry_bytes()),
        (
            6,
            b().name(b"n").name(b"to"),
            told((b"n", b"to")),
            entry_bytes(),
        ),
        (8, mknod, told(new(5)), entry_bytes()),
        (9, mkdir, told(new(0)), entry_bytes()),
        (51, tmpfile, told((0o644, 0o22)), opened),
        (10, b().name(b"u"), told(b"u"), b()),
        (11, b().name(b"r"), told(b"r"), b()),
        (
            12,
            b().u64(8).name(b"old").name(b"new"),
            told(rename(0)),
            b(),
        ),
        (45, rename2, told(rename(2)), b()),
        (13, b().u64(4).name(b"l"), told((4, b"l")), entry_bytes()),
        (5, b(), told(()), b().raw(b"target")),
    ]
}

fn setattr(valid: u32) -> Bytes {
    let ids = Bytes::new().u32(valid).u32(0).u64(0).u64(3).u64(0);
    let times = ids.u64((-2_i64).cast_unsigned()).u64(5).u64(6);
    let rest = times.u32(7).u32(8).u32(9);
    rest.u32(0o600).u32(0).u32(10).u32(11).u32(0)
}

fn attributes() -> Vec<Exchange> {
    let b = Bytes::new;
    let all = "Setattr { mode: Some(384), uid: Some(10), gid: Some(11), size: Some(3), atime: \
               Some(At(Timestamp { secs: -2, nanos: 7 })), mtime: Some(At(Timestamp { secs: 5, \
               nanos: 8 })), ctime: Some(Timestamp { secs: 6, nanos: 9 }) }";
    let now = "Setattr { mode: None, uid: None, gid: None, size: None, atime: Some(Now), mtime: \
               Some(Now), ctime: None }";
    let statx = b().u32(1).u32(0).u64(0).u32(0).u32(0xfff);
    let asked = Statx {
        by_handle: true,
        mask: 0xfff,
    };
    let head = b().u64(1).u32(2).zeros(20);
    let stat = head.u32(3).zeros(24).u16(4).u16(0).u64(5).zeros(100).u32(6);
    let xattr = |size| b().u32(size).u32(0);
    let set = Setxattr {
        name: b"user.a",
        value: b"val",
        flags: 1,
        kill_sgid: true,
    };
    let setxattr = b().u32(3).u32(1).u32(1).u32(0);
    vec![
        (3, b().u32(1).u32(0).u64(0), told(true), attr_reply_bytes()),
        (3, b().u32(0).u32(0).u64(0), told(false), attr_reply_bytes()),
        (52, statx, told(asked), stat.zeros(112)),
        (
            4,
            setattr(0b100_0011_1111),
            format!("9 {all}"),
            attr_reply_bytes(),
        ),
        (
            4,
            setattr(0b1_1011_0000),
            format!("9 {now}"),
            attr_reply_bytes(),
        ),
        (21, setxattr.name(b"user.a").raw(b"val"), told(set), b()),
        (
            22,
            xattr(5).name(b"user.a"),
            told(b"user.a"),
            b().raw(b"value"),
        ),
        (
            22,
            xattr(0).name(b"user.a"),
            told(b"user.a"),
            b().u32(5).u32(0),
        ),
        (23, xattr(64), told(()), b().raw(b"a\0b\0")),
        (23, xattr(0), told(()), b().u32(4).u32(0)),
        (24, b().name(b"user.a"), told(b"user.a"), b()),
    ]
}

fn contents() -> Vec<Exchange> {
    let b = Bytes::new;
    let io = |size, flags| {
        b().u64(0)
            .u64(4096)
            .u32(size)
            .u32(flags)
            .u64(0)
            .u32(0)
            .u32(0)
    };
    let write = |cached, kill_suidgid| Write {
        offset: 4096,
        data: b"data",
        cached,
        kill_suidgid,
    };
    let written = || b().u32(7).u32(0);
    let dirent = |ino, cookie, len, kind| b().u64(ino).u64(cookie).u32(len).u32(kind);
    let first = dirent(5, 1, 3, 8).raw(b"abc").zeros(5);
    let second = dirent(6, 2, 8, 4).raw(b"12345678");
    let plus = entry_bytes().raw(&dirent(11, 1, 3, 8).raw(b"abc").zeros(5).0);
    let copy = |wide| CopyFileRange {
        offset: 1,
        to: 2,
        to_offset: 3,
        length: 4,
        wide,
    };
    let ranges = || b().u64(0).u64(1).u64(2).u64(0).u64(3).u64(4).u64(0);
    let range = Fallocate {
        offset: 1,
        length: 2,
        mode: 3,
    };
    let ioctl = b().u64(0).u32(0).u32(0x1234).u64(0).u32(2).u32(9);
    let asked = Ioctl {
        cmd: 0x1234,
        data: b"in",
        out_size: 9,
    };
    let space = b().u64(1).u64(2).u64(3).u64(4).u64(5);
    vec![
        (15, io(100, 0), told((4096, 100)), b().raw(b"abc")),
        (
            16,
            io(4, 1).raw(b"data"),
            told(write(true, false)),
            written(),
        ),
        (
            16,
            io(4, 4).raw(b"data"),
            told(write(false, true)),
            written(),
        ),
        (28, io(70, 0), told(4096), first.raw(&second.0)),
        (44, io(200, 0), told(4096), plus),
        (17, b(), told(()), space.u32(6).u32(7).u32(8).zeros(28)),
        (20, b().u64(0).u32(1).u32(0), told(true), b()),
        (30, b().u64(0).u32(0).u32(0), told(false), b()),
        (50, b().u64(0), told(()), b()),
        (43, b().u64(0).u64(1).u64(2).u32(3).u32(0), told(range), b()),
        (
            46,
            b().u64(0).u64(1).u32(4).u32(0),
            told((1, 4)),
            b().u64(77),
        ),
        (47, ranges(), told(copy(false)), b().u32(78).u32(0)),
        (53, ranges(), told(copy(true)), b().u64(78)),
        (39, ioctl.raw(b"in"), told(asked), b().zeros(16).raw(b"out")),
    ]
}

#[test]
fn each_operation_has_exact_bytes() {
    let (server, heard) = Recorder::new();
    let running = Running::start(server, 1);
    let all = [entries(), attributes(), contents()].concat();
    for (unique, (opcode, body, told, answer)) in (10..).step_by(2).zip(all) {
        let got = running.kernel.ask(opcode, unique, 9, &body);
        assert_eq!(heard.recv().unwrap(), told, "operation {opcode}");
        assert_eq!(got, reply(unique, 0, &answer), "operation {opcode}");
    }
    running.end().unwrap();
}

#[test]
fn forgets_have_no_reply() {
    let (server, heard) = Recorder::new();
    let running = Running::start(server, 1);
    let kernel = &running.kernel;
    kernel.send(&crate::fake::request(2, 10, 5, &Bytes::new().u64(3)));
    let both = Bytes::new().u32(2).u32(0).u64(6).u64(1).u64(7).u64(2);
    kernel.send(&crate::fake::request(42, 12, 0, &both));
    let next = kernel.ask(17, 14, 9, &Bytes::new());
    assert_eq!(
        next.len(),
        16 + 80,
        "the first reply is to the third message"
    );
    let heard: Vec<_> = heard.try_iter().collect();
    assert_eq!(heard, ["forget 5 3", "forget 6 1", "forget 7 2", "9 ()"]);
    running.end().unwrap();
}

#[test]
fn value_that_does_not_fit_is_refused() {
    let (server, _heard) = Recorder::new();
    let running = Running::start(server, 1);
    let body = Bytes::new().u32(4).u32(0).name(b"user.a");
    let got = running.kernel.ask(22, 10, 9, &body);
    assert_eq!(got, reply(10, -libc::ERANGE, &Bytes::new()));
    running.end().unwrap();
}

#[test]
fn unknown_operations_are_refused_with_enosys() {
    let (server, heard) = Recorder::new();
    let running = Running::start(server, 1);
    for opcode in [0, 7, 14, 25, 27, 31, 35, 40, 54, 4096, u32::MAX] {
        let got = running.kernel.ask(opcode, 10, 9, &Bytes::new().zeros(24));
        assert_eq!(got, reply(10, -libc::ENOSYS, &Bytes::new()), "{opcode}");
        assert_eq!(heard.recv().unwrap(), format!("9 Opcode({opcode})"));
    }
    running.end().unwrap();
}

#[test]
fn interrupt_is_refused_for_good() {
    let (server, _heard) = Recorder::new();
    let running = Running::start(server, 1);
    let got = running.kernel.ask(36, 11, 0, &Bytes::new().u64(10));
    assert_eq!(got, reply(11, -libc::ENOSYS, &Bytes::new()));
    running.end().unwrap();
}

#[test]
fn release_and_destroy_are_answered() {
    let (server, _heard) = Recorder::new();
    let running = Running::start(server, 1);
    let got = running.kernel.ask(18, 10, 9, &Bytes::new().zeros(24));
    assert_eq!(got, reply(10, 0, &Bytes::new()));
    let got = running.kernel.ask(38, 12, 0, &Bytes::new());
    assert_eq!(got, reply(12, 0, &Bytes::new()));
    running.end().unwrap();
}

/// Each operation with its body cut at every length that is too short.
#[test]
fn truncated_messages_are_answered_with_an_error() {
    let (server, heard) = Recorder::new();
    let running = Running::start(server, 1);
    let all = [entries(), attributes(), contents()].concat();
    for (opcode, body, _, _) in all {
        for len in 0..body.0.len() {
            let cut = Bytes(body.0[..len].to_vec());
            let got = running.kernel.ask(opcode, 10, 9, &cut);
            // The body of SYNCFS has no meaning.
            let served = opcode == 50;
            let refused = got == reply(10, -libc::EIO, &Bytes::new());
            assert_eq!(refused, !served, "operation {opcode}, {len} bytes");
            assert_eq!(heard.try_recv().is_ok(), served, "operation {opcode}");
        }
    }
    running.end().unwrap();
}

#[test]
fn messages_with_wrong_length_are_refused() {
    let (server, _heard) = Recorder::new();
    let running = Running::start(server, 1);
    let kernel = &running.kernel;
    for announced in [0_u32, 39, 41, u32::MAX] {
        let mut message = crate::fake::request(17, 10, 9, &Bytes::new());
        message[..4].copy_from_slice(&announced.to_ne_bytes());
        kernel.send(&message);
        assert_eq!(kernel.receive(), reply(10, -libc::EIO, &Bytes::new()));
    }
    // Without a header there is nothing to reply to.
    kernel.send(&[1; 39]);
    let got = kernel.ask(17, 12, 9, &Bytes::new());
    assert_eq!(got.len(), 16 + 80);
    running.end().unwrap();
}

#[test]
fn malformed_forgets_have_no_reply() {
    let (server, heard) = Recorder::new();
    let running = Running::start(server, 1);
    let kernel = &running.kernel;
    for body in [
        Bytes::new(),
        Bytes::new().u32(2).u32(0).u64(6).u64(1),
        Bytes::new().u32(u32::MAX).u32(0),
    ] {
        kernel.send(&crate::fake::request(42, 10, 0, &body));
    }
    let mut message = crate::fake::request(2, 10, 5, &Bytes::new().u64(1));
    message[0] += 1;
    kernel.send(&message);
    kernel.send(&crate::fake::request(2, 10, 5, &Bytes::new().u32(1)));
    let got = kernel.ask(38, 12, 0, &Bytes::new());
    assert_eq!(got, reply(12, 0, &Bytes::new()));
    assert!(heard.try_recv().is_err());
    running.end().unwrap();
}

#[test]
fn names_are_neither_empty_nor_endless() {
    let (server, heard) = Recorder::new();
    let running = Running::start(server, 1);
    let b = Bytes::new;
    for (opcode, body) in [
        (1, b().raw(b"no end")),
        (1, b().name(b"")),
        (6, b().name(b"n").raw(b"no end")),
        (12, b().u64(8).name(b"old").raw(b"no end")),
        (12, b().u64(8).name(b"old").name(b"")),
        (21, b().u32(9).u32(0).u32(0).u32(0).name(b"a").raw(b"short")),
    ] {
        let got = running.kernel.ask(opcode, 10, 9, &body);
        assert_eq!(got, reply(10, -libc::EIO, &b()), "operation {opcode}");
    }
    assert!(heard.try_recv().is_err());
    running.end().unwrap();
}

#[test]
fn notifications_have_exact_bytes() {
    let (server, _heard) = Recorder::new();
    let running = Running::start(server, 1);
    let (kernel, notifier) = (&running.kernel, &running.notifier);
    let b = Bytes::new;
    let send = |notification| notifier.send(&notification).unwrap();
    send(Notification::inval_inode(5, -1, 0));
    assert_eq!(
        kernel.receive(),
        reply(0, 2, &b().u64(5).u64(u64::MAX).u64(0))
    );
    send(Notification::inval_entry(5, b"name", true));
    let body = b().u64(5).u32(4).u32(1).name(b"name");
    assert_eq!(kernel.receive(), reply(0, 3, &body));
    send(Notification::delete(5, 6, b"name"));
    let body = b().u64(5).u64(6).u32(4).u32(0).name(b"name");
    assert_eq!(kernel.receive(), reply(0, 6, &body));
    running.end().unwrap();
}
