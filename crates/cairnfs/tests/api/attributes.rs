//! Attributes and extended attributes.

use std::io::ErrorKind;
use std::time::{Duration, UNIX_EPOCH};

use cairnfs::{FileKind, FileTimes, OpenOptions, Volume, XattrMode};

use super::{SIZE, fails, fails_with, volume};

#[test]
fn attributes_are_kept() {
    let v = Volume::options()
        .size(SIZE)
        .owner(12, 34)
        .in_memory()
        .unwrap();
    v.write("f", b"12345").unwrap();
    let m = v.metadata("f").unwrap();
    assert_eq!((m.uid(), m.gid(), m.len(), m.nlink()), (12, 34, 5, 1));
    assert_eq!(m.mode(), 0o100_644);
    assert_eq!(
        (
            v.metadata("/").unwrap().uid(),
            v.metadata("/").unwrap().gid()
        ),
        (12, 34)
    );
    v.set_permissions("f", 0o4711).unwrap();
    v.set_owner("f", Some(5), None).unwrap();
    let m = v.metadata("f").unwrap();
    assert_eq!((m.uid(), m.gid()), (5, 34));
    assert_eq!(m.mode() & 0o777, 0o711);
    let then = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    let before = UNIX_EPOCH - Duration::new(5, 250_000_000);
    v.set_times(
        "f",
        FileTimes::new().set_modified(then).set_accessed(before),
    )
    .unwrap();
    let m = v.metadata("f").unwrap();
    assert_eq!((m.modified(), m.accessed()), (then, before));
    let file = v.open_with(OpenOptions::new().write(true), "f").unwrap();
    file.set_modified(before).unwrap();
    file.set_permissions(0o600).unwrap();
    let m = file.metadata().unwrap();
    assert_eq!((m.modified(), m.permissions()), (before, 0o600));
    assert!(m.changed() > then && m.created() > then);
    v.mknod("fifo", FileKind::Fifo.mode_bits() | 0o600, 0)
        .unwrap();
    v.mknod("null", FileKind::CharDevice.mode_bits() | 0o600, 0x103)
        .unwrap();
    assert_eq!(v.metadata("fifo").unwrap().file_type(), FileKind::Fifo);
    assert_eq!(v.metadata("null").unwrap().rdev(), 0x103);
    fails_with(v.open_file("fifo"), libc::EOPNOTSUPP);
}

#[test]
fn extended_attributes() {
    let v = volume();
    v.write("f", b"").unwrap();
    v.symlink("f", "l").unwrap();
    assert_eq!(v.get_xattr("f", "user.a").unwrap(), None);
    v.set_xattr("l", "user.a", b"1").unwrap();
    v.set_xattr_with("f", "user.b", b"", XattrMode::Create)
        .unwrap();
    fails(
        v.set_xattr_with("f", "user.a", b"2", XattrMode::Create),
        ErrorKind::AlreadyExists,
    );
    fails_with(
        v.set_xattr_with("f", "user.c", b"2", XattrMode::Replace),
        libc::ENODATA,
    );
    v.set_xattr_with("f", "user.a", b"22", XattrMode::Replace)
        .unwrap();
    assert_eq!(v.get_xattr("l", "user.a").unwrap().unwrap(), b"22");
    assert_eq!(v.get_xattr("f", "user.b").unwrap().unwrap(), b"");
    let mut listed = v.list_xattrs("f").unwrap();
    listed.sort();
    assert_eq!(listed, ["user.a", "user.b"]);
    v.remove_xattr("f", "user.a").unwrap();
    fails_with(v.remove_xattr("f", "user.a"), libc::ENODATA);
    assert_eq!(v.list_xattrs("f").unwrap(), ["user.b"]);
    let large = vec![9; 60_000];
    v.set_xattr("/", "user.large", &large).unwrap();
    assert_eq!(v.get_xattr("/", "user.large").unwrap().unwrap(), large);
}

#[test]
fn an_attribute_is_set_on_whatever_a_path_leads_to() {
    let v = Volume::in_memory(64 << 20).unwrap();
    v.create_dir("d").unwrap();
    v.write("d/f", b"").unwrap();
    v.symlink("d", "way").unwrap();
    v.symlink("missing", "nowhere").unwrap();
    for (path, value) in [("d/f", b"1"), ("way/f", b"2"), ("d/", b"3"), ("way/", b"4")] {
        v.set_xattr(path, "user.a", value).unwrap();
        assert_eq!(v.get_xattr(path, "user.a").unwrap().unwrap(), value);
    }
    assert_eq!(v.get_xattr("d", "user.a").unwrap().unwrap(), b"4");
    fails_with(v.set_xattr("d/f/", "user.a", b"5"), libc::ENOTDIR);
    fails_with(v.set_xattr("nowhere", "user.a", b"5"), libc::ENOENT);
    fails_with(v.get_xattr("d/g", "user.a"), libc::ENOENT);
}

#[test]
fn a_file_that_is_replaced_meanwhile_is_found_all_the_same() {
    let v = Volume::in_memory(64 << 20).unwrap();
    v.write("f", b"").unwrap();
    std::thread::scope(|scope| {
        let replaced = scope.spawn(|| {
            for _ in 0..500 {
                v.write("new", b"").unwrap();
                v.rename("new", "f").unwrap();
            }
        });
        while !replaced.is_finished() {
            v.set_xattr("f", "user.a", [1; 100]).unwrap();
            v.get_xattr("f", "user.a").unwrap();
        }
    });
}
