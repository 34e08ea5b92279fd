//! What programs look at and read by a channel, tested without a kernel.

use cairnfs_channel::call::{self, NONE, Op, Stat, Status, Why, parse_reply};
use cairnfs_disk::types::XattrMode;
use cairnfs_fuse::ops::programs::Program;

use crate::programs::{ROOT, Stand, program};

/// What is answered without changing anything: attributes, permissions, contents, and that a name is not there.
#[test]
fn files_that_the_kernel_does_not_know_are_looked_at_and_read() {
    let stand = Stand::new();
    stand.mkdir(ROOT, "d").unwrap();
    let file = stand.create(ROOT, "d/f").unwrap();
    stand.write(file, NONE, b"0123456789").unwrap();
    let link = [ROOT, 0, 0, 0, 0];
    stand.ask(Op::Symlink, link, b"l", b"d").unwrap();
    let user = program("5 5 5 5", "50 50 50 50", "0", 8);
    let errno = |op, args, text: &[u8]| {
        let reply = stand.reply_to(&stand.program, op, args, (text, &[]));
        let (status, [errno, ..]) = parse_reply(&reply).unwrap();
        assert_eq!(status, Status::Failed, "{op:?}");
        errno as i32
    };
    let at = |b: u64, c: u64| [ROOT, b, c, 0, 0];
    for (path, found) in [
        ("none", libc::ENOENT),
        ("none/f", libc::ENOENT),
        ("d/f/x", libc::ENOTDIR),
    ] {
        for op in [Op::StatAt, Op::Open, Op::OpenDir, Op::Remove, Op::Chmod] {
            assert_eq!(errno(op, at(0, 0), path.as_bytes()), found, "{op:?} {path}");
        }
    }
    for op in [Op::Mkdir, Op::Symlink] {
        let reply = stand.reply_to(&stand.program, op, at(0, 0), (b"d", b"target"));
        let (status, [errno, ..]) = parse_reply(&reply).unwrap();
        assert_eq!((status, errno as i32), (Status::Failed, libc::EEXIST));
    }
    let exclusive = (libc::O_EXCL | libc::O_CREAT | libc::O_RDWR) as u64;
    assert_eq!(
        errno(Op::Create, [ROOT, exclusive, 0o600, 0, 0], b"d/f"),
        libc::EEXIST
    );
    // Attributes, and who may do what.
    let stat_at = |who: &Program, path: &str, follows: u64, wanted: u64| {
        let found = stand.ask_as(who, Op::StatAt, at(follows, wanted), path.as_bytes(), &[]);
        found.map(|words| Stat::of(&words))
    };
    assert_eq!(stat_at(&stand.program, "d/f", 1, 0), stand.stat(file));
    assert_eq!(stat_at(&stand.program, "l", 1, 0), Err(Why::Path));
    assert_eq!(stat_at(&stand.program, "l", 0, 0).unwrap().size, 1);
    assert!(stat_at(&user, "d/f", 1, 4).is_ok());
    assert_eq!(stat_at(&user, "d/f", 1, 2), Err(Why::Permission));
    assert_eq!(stat_at(&stand.program, "d/f", 1, 1), Err(Why::Permission));
    // Contents.
    let open = |who: &Program, flags: i32| {
        let opened = stand.ask_as(who, Op::Open, at(flags as u64, 0), b"d/f", &[]);
        opened.map(|[file, ..]| file)
    };
    let read = |who: &Program, file: u64, from: u64, len: u64| {
        let reply = stand.reply_to(who, Op::Read, [file, from, len, 0, 0], (&[], &[]));
        match parse_reply(&reply).unwrap() {
            (Status::Done, [len, ..]) => Ok(reply[16..][..len as usize].to_vec()),
            (_, [why, ..]) => Err(Why::of(why).unwrap()),
        }
    };
    assert_eq!(open(&user, libc::O_RDWR), Err(Why::Permission));
    assert_eq!(
        open(&user, libc::O_RDONLY | libc::O_NOATIME),
        Err(Why::Permission)
    );
    let its = open(&user, libc::O_RDONLY).unwrap();
    assert_eq!(read(&user, its, NONE, 4).unwrap(), b"0123");
    assert_eq!(read(&user, its, NONE, 400).unwrap(), b"456789");
    assert_eq!(read(&user, its, NONE, 4).unwrap(), b"");
    assert_eq!(read(&user, its, 8, u64::MAX).unwrap(), b"89");
    assert_eq!(read(&user, its, u64::MAX - 1, 9).unwrap(), b"");
    assert_eq!(read(&stand.program, its, 0, 1), Err(Why::Call));
    let writes = stand.ask_as(&user, Op::Write, [its, NONE, 0, 0, 0], b"x", &[]);
    assert_eq!(writes, Err(Why::Permission));
    let only_writes = open(&stand.program, libc::O_WRONLY | libc::O_TRUNC).unwrap();
    assert_eq!(read(&user, its, 0, 9).unwrap(), b"");
    stand.write(only_writes, NONE, b"new").unwrap();
    assert_eq!(read(&user, its, 0, 9).unwrap(), b"new");
    assert_eq!(read(&stand.program, only_writes, 0, 9), Err(Why::Call));
    let existing = stand.create(ROOT, "d/f").unwrap();
    assert_eq!(read(&stand.program, existing, 0, 9).unwrap(), b"new");
    // A part of a file is no whole read, if others may read by the same offset.
    stand.write(only_writes, 66_000, b"x").unwrap();
    assert_eq!(read(&user, its, NONE, 70_000), Err(Why::Call));
    assert_eq!(read(&user, its, 0, 70_000).unwrap().len(), call::READ_MAX);
    // A file with capabilities loses them by a change, which is the kernel's.
    let ino = stand.stat(existing).unwrap().ino;
    let capability = b"security.capability";
    let set = |value: &[u8]| stand.fs.setxattr(ino, capability, value, XattrMode::Set);
    set(b"some").unwrap();
    assert!(open(&user, libc::O_RDONLY).is_ok());
    assert_eq!(open(&stand.program, libc::O_WRONLY), Err(Why::Permission));
    let chown = |file| stand.ask(Op::FileChown, [file, 5, NONE, 0, 0], &[], &[]);
    assert_eq!(chown(existing).unwrap_err(), Why::Permission);
    stand.fs.removexattr(ino, capability).unwrap();
    // A large file is the kernel's, and so is one that it knows.
    stand.write(only_writes, 256 << 10, b"x").unwrap();
    assert_eq!(open(&user, libc::O_RDONLY), Err(Why::Call));
    let d = stand.look_up(ROOT, "d").unwrap();
    assert!(stat_at(&user, "d", 1, 5).is_ok());
    stand.look_up(d, "f").unwrap();
    assert_eq!(read(&user, its, 0, 9), Err(Why::Known));
    assert_eq!(stat_at(&user, "d/f", 1, 0), Err(Why::Known));
    assert_eq!(open(&user, libc::O_RDONLY), Err(Why::Known));
}
