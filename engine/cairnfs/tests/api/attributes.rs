//! Attributes and extended attributes.

use std::io::ErrorKind;
use std::time::{Duration, UNIX_EPOCH};

use cairnfs::{FileKind, FileTimes, OpenOptions, Volume, XattrMode};

use super::{SIZE, fails, fails_with, permissions, volume};

#[test]
fn attributes_are_stored_and_read_back() {
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
    v.set_permissions("f", permissions(0o4711)).unwrap();
    v.chown("f", Some(5), None).unwrap();
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
    assert_eq!(
        (m.modified().unwrap(), m.accessed().unwrap()),
        (then, before)
    );
    let file = v.open_with("f", OpenOptions::new().write(true)).unwrap();
    file.set_modified(before).unwrap();
    file.set_permissions(permissions(0o600)).unwrap();
    let m = file.metadata().unwrap();
    assert_eq!((m.modified().unwrap(), m.mode()), (before, 0o100_600));
    assert!(m.changed().unwrap() > then && m.created().unwrap() > then);
    v.mknod("fifo", FileKind::Fifo.mode_bits() | 0o600, 0)
        .unwrap();
    v.mknod("null", FileKind::CharDevice.mode_bits() | 0o600, 0x103)
        .unwrap();
    assert_eq!(v.metadata("fifo").unwrap().file_type(), FileKind::Fifo);
    assert_eq!(v.metadata("null").unwrap().rdev(), 0x103);
    fails_with(v.open_file("fifo"), libc::EOPNOTSUPP);
}

/// The caller is the volume's owner, whose only group is the file's group or another one.
#[test]
fn unprivileged_changes_clear_set_id_bits() {
    let v = Volume::options()
        .size(SIZE)
        .owner(12, 34)
        .in_memory()
        .unwrap();
    let file = v.create_file("f").unwrap();
    let changes: [&dyn Fn(); 6] = [
        &|| file.write_all_at(&[1; 5000], 0).unwrap(),
        &|| file.set_len(3).unwrap(),
        &|| file.set_len(100_000).unwrap(),
        &|| file.allocate(0, 10).unwrap(),
        &|| file.punch_hole(8192, 4096).unwrap(),
        &|| file.zero_range(0, 9000).unwrap(),
    ];
    let left = [
        (34, 0o6654, 0o654),
        (34, 0o6644, 0o2644),
        (99, 0o6654, 0o654),
        (99, 0o7644, 0o1644),
        (99, 0o644, 0o644),
    ];
    for change in changes {
        for (group, before, after) in left {
            v.chown("f", None, Some(group)).unwrap();
            v.set_permissions("f", permissions(before)).unwrap();
            change();
            let found = v.metadata("f").unwrap().mode() & 0o7777;
            assert_eq!(found, after, "{before:o} of group {group} became {found:o}");
        }
    }
}

#[test]
fn access_list_follows_mode() {
    let v = volume();
    v.write("f", b"").unwrap();
    let list = |mask: u8| {
        let entries: [[u8; 8]; 5] = [
            [1, 0, 6, 0, 255, 255, 255, 255],
            [2, 0, 7, 0, 232, 3, 0, 0],
            [4, 0, 5, 0, 255, 255, 255, 255],
            [16, 0, mask, 0, 255, 255, 255, 255],
            [32, 0, 0, 0, 255, 255, 255, 255],
        ];
        [&[2, 0, 0, 0][..], &entries.concat()].concat()
    };
    const NAME: &str = "system.posix_acl_access";
    v.set_xattr("f", NAME, list(7)).unwrap();
    assert_eq!(v.metadata("f").unwrap().mode() & 0o7777, 0o670);
    v.set_permissions("f", permissions(0o620)).unwrap();
    assert_eq!(v.get_xattr("f", NAME).unwrap().unwrap(), list(2));
    fails_with(v.set_xattr("f", NAME, b"no list"), libc::EINVAL);
    fails_with(
        v.set_xattr_with("f", NAME, list(7), XattrMode::Create),
        libc::EEXIST,
    );
    assert_eq!(v.get_xattr("f", NAME).unwrap().unwrap(), list(2));
}

#[test]
fn extended_attributes_are_set_replaced_listed_and_removed() {
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
fn unsupported_xattr_namespaces_are_refused() {
    let v = volume();
    v.write("f", b"").unwrap();
    let names = ["system.x", "system.", "system.posix_acl_accessory", "x"];
    for name in names {
        fails_with(v.set_xattr("f", name, b"1"), libc::EOPNOTSUPP);
        fails_with(v.get_xattr("f", name), libc::EOPNOTSUPP);
        fails_with(v.remove_xattr("f", name), libc::EOPNOTSUPP);
    }
    assert!(v.list_xattrs("f").unwrap().is_empty());
}

#[test]
fn names_beyond_list_limit_are_refused_with_enospc() {
    let v = volume();
    v.write("f", b"").unwrap();
    let name = |n: usize| format!("user.{n:0>59}");
    for n in 0..1008 {
        v.set_xattr("f", name(n), b"").unwrap();
    }
    fails_with(v.set_xattr("f", name(1008), b""), libc::ENOSPC);
    v.set_xattr("f", "user.fits", b"").unwrap();
    fails_with(v.set_xattr("f", name(1008), b""), libc::ENOSPC);
    v.set_xattr("f", name(5), b"again").unwrap();
    v.remove_xattr("f", name(5)).unwrap();
    v.set_xattr("f", name(1008), b"").unwrap();
    assert_eq!(v.list_xattrs("f").unwrap().len(), 1009);
}

#[test]
fn xattr_calls_follow_symlinks_to_target() {
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
fn xattr_calls_succeed_while_file_is_replaced() {
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

#[test]
fn open_file_has_owner_and_extended_attributes() {
    let v = volume();
    let file = v.create_new_file("f").unwrap();
    v.remove_file("f").unwrap();
    file.chown(Some(7), None).unwrap();
    let owner = file.metadata().unwrap();
    file.chown(None, Some(8)).unwrap();
    assert_eq!(file.metadata().unwrap().uid(), owner.uid());
    assert_eq!(file.metadata().unwrap().gid(), 8);

    file.set_xattr("user.a", b"1").unwrap();
    let again = file.set_xattr_with("user.a", b"2", XattrMode::Create);
    fails(again, ErrorKind::AlreadyExists);
    let missing = file.set_xattr_with("user.b", b"2", XattrMode::Replace);
    fails_with(missing, libc::ENODATA);
    assert_eq!(
        file.get_xattr("user.a").unwrap().as_deref(),
        Some(&b"1"[..])
    );
    assert_eq!(file.list_xattrs().unwrap(), ["user.a"]);
    file.remove_xattr("user.a").unwrap();
    assert_eq!(file.get_xattr("user.a").unwrap(), None);
    fails_with(file.remove_xattr("user.a"), libc::ENODATA);
}
