//! Resolution of paths: dots, slashes, symlinks, and the paths in errors.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use cairnfs::{Error, OpenOptions};
use cairnfs_disk::types::RenameMode;

use super::engine::{self, OWNER, ROOT};
use super::{fails, fails_with, names, volume};

#[test]
fn paths_are_absolute_or_relative_alike() {
    let v = volume();
    v.create_dir_all("/a/b").unwrap();
    v.write("a/b/f", b"x").unwrap();
    for path in [
        "a/b/f",
        "/a/b/f",
        "//a///b//f",
        "./a/./b/f",
        "a/b/../b/f",
        "../../a/b/f",
        "/../a/b/f",
        "a/../../../a/b/f",
    ] {
        assert_eq!(v.read(path).unwrap(), b"x", "{path}");
    }
    for root in ["/", ".", "..", "a/..", "/../..", "a/b/../../."] {
        assert_eq!(
            v.metadata(root).unwrap().ino(),
            v.metadata("/").unwrap().ino()
        );
        assert!(v.metadata(root).unwrap().is_dir());
    }
}

#[test]
fn bad_paths_are_refused() {
    let v = volume();
    v.write("f", b"").unwrap();
    fails(v.metadata(""), ErrorKind::NotFound);
    fails(v.metadata("none"), ErrorKind::NotFound);
    fails(v.metadata("none/.."), ErrorKind::NotFound);
    fails(v.metadata("f/x"), ErrorKind::NotADirectory);
    fails(v.metadata("f/.."), ErrorKind::NotADirectory);
    fails(v.metadata("f/."), ErrorKind::NotADirectory);
    fails(v.metadata("f/"), ErrorKind::NotADirectory);
    fails(v.metadata("a\0b"), ErrorKind::InvalidInput);
    fails_with(v.write("n".repeat(256), b""), libc::ENAMETOOLONG);
    v.write("n".repeat(255), b"").unwrap();
    fails(v.create_dir("none/d"), ErrorKind::NotFound);
    fails(v.create_dir("f/d"), ErrorKind::NotADirectory);
}

#[test]
fn errors_name_the_path() {
    let v = volume();
    let error = v.read("no/such/file").unwrap_err();
    assert_eq!(error.to_string(), "no/such/file: no such file or directory");
    assert!(matches!(error.cause(), Error::NotFound));
    let io: std::io::Error = error.into();
    assert_eq!(io.kind(), ErrorKind::NotFound);
    assert!(io.to_string().contains("no/such/file"));
    v.create_dir("d").unwrap();
    v.write("f", b"").unwrap();
    assert!(
        v.rename("gone", "d")
            .unwrap_err()
            .to_string()
            .starts_with("gone:")
    );
    assert!(
        v.rename("f", "d")
            .unwrap_err()
            .to_string()
            .starts_with("d:")
    );
}

#[test]
fn names_are_bytes() {
    use std::os::unix::ffi::OsStrExt;
    let v = volume();
    let name = std::ffi::OsStr::from_bytes(b"\xff\xfe \n");
    v.write(name, b"bytes").unwrap();
    let entry = v.read_dir("/").unwrap().next().unwrap().unwrap();
    assert_eq!(entry.file_name(), name);
    assert_eq!(v.read(entry.path()).unwrap(), b"bytes");
}

#[test]
fn symlinks_are_followed() {
    let v = volume();
    v.create_dir_all("a/b").unwrap();
    v.write("a/f", b"target").unwrap();
    v.symlink("../f", "a/b/up").unwrap();
    v.symlink("/a/b", "abs").unwrap();
    v.symlink("abs/up", "chain").unwrap();
    v.symlink("../../../../a/f", "a/far").unwrap();
    for path in [
        "a/b/up",
        "abs/up",
        "chain",
        "abs/../f",
        "a/far",
        "abs/../b/up",
    ] {
        assert_eq!(v.read(path).unwrap(), b"target", "{path}");
    }
    assert!(v.symlink_metadata("abs").unwrap().is_symlink());
    assert!(v.symlink_metadata("abs/").unwrap().is_dir());
    assert!(v.metadata("abs").unwrap().is_dir());
    fails(v.metadata("chain/"), ErrorKind::NotADirectory);
    assert_eq!(v.read_link("chain").unwrap(), Path::new("abs/up"));
    fails(v.read_link("a/f"), ErrorKind::InvalidInput);
    assert_eq!(v.canonicalize("chain").unwrap(), Path::new("/a/f"));
    assert_eq!(v.canonicalize("abs/..").unwrap(), Path::new("/a"));
    assert_eq!(v.canonicalize("abs").unwrap(), Path::new("/a/b"));
    assert_eq!(v.canonicalize("a/b/../..").unwrap(), Path::new("/"));
    v.symlink("/", "root").unwrap();
    assert_eq!(
        v.canonicalize("root/root/a/./b").unwrap(),
        Path::new("/a/b")
    );
    fails(v.canonicalize("a/none"), ErrorKind::NotFound);
}

#[test]
fn symlink_loop_fails_with_eloop() {
    let v = volume();
    v.symlink("b", "a").unwrap();
    v.symlink("a", "b").unwrap();
    v.symlink("self/x", "self").unwrap();
    for path in ["a", "b", "a/", "a/x", "self"] {
        fails_with(v.metadata(path), libc::ELOOP);
    }
    fails_with(v.write("a", b""), libc::ELOOP);
    assert!(v.symlink_metadata("a").unwrap().is_symlink());
    assert!(v.exists("a").is_err());
    v.write("end", b"e").unwrap();
    v.symlink("end", "l1").unwrap();
    for i in 2..=41 {
        v.symlink(format!("l{}", i - 1), format!("l{i}")).unwrap();
    }
    assert_eq!(v.read("l40").unwrap(), b"e");
    fails_with(v.read("l41"), libc::ELOOP);
}

#[test]
fn create_follows_dangling_symlink_but_create_new_does_not() {
    let v = volume();
    v.create_dir("d").unwrap();
    v.symlink("d/made", "l").unwrap();
    assert!(!v.exists("l").unwrap());
    let mut new = OpenOptions::new();
    new.write(true).create_new(true);
    fails(v.open_with("l", &new), ErrorKind::AlreadyExists);
    v.write("l", b"through").unwrap();
    assert_eq!(v.read("d/made").unwrap(), b"through");
    assert!(v.symlink_metadata("l").unwrap().is_symlink());
    fails(v.create_dir("l"), ErrorKind::AlreadyExists);
    fails(v.symlink("", "empty"), ErrorKind::NotFound);
}

#[test]
fn trailing_slash_requires_directory() {
    let v = volume();
    v.create_dir("d/").unwrap();
    v.write("f", b"").unwrap();
    assert!(v.metadata("d/").unwrap().is_dir());
    fails(v.open_file("f/"), ErrorKind::NotADirectory);
    fails(v.create_file("new/"), ErrorKind::IsADirectory);
    fails(v.create_file("f/"), ErrorKind::IsADirectory);
    fails(v.remove_file("f/"), ErrorKind::NotADirectory);
    fails(v.remove_file("d/"), ErrorKind::IsADirectory);
    fails(v.symlink("x", "new/"), ErrorKind::NotFound);
    fails(v.symlink("x", "d/"), ErrorKind::AlreadyExists);
    fails(v.hard_link("f", "new/"), ErrorKind::NotFound);
    fails(v.rename("f/", "g"), ErrorKind::NotADirectory);
    fails(v.rename("f", "g/"), ErrorKind::NotADirectory);
    v.rename("d/", "e/").unwrap();
    v.remove_dir("e/").unwrap();
    assert_eq!(names(&v, "/"), ["f"]);
}

#[test]
fn root_and_dot_components_cannot_be_created_or_removed() {
    let v = volume();
    v.create_dir_all("a/b").unwrap();
    use ErrorKind::{DirectoryNotEmpty, InvalidInput, ResourceBusy};
    for (path, removing) in [
        ("/", ResourceBusy),
        (".", InvalidInput),
        ("..", DirectoryNotEmpty),
        ("a/b/..", DirectoryNotEmpty),
        ("a/b/.", InvalidInput),
    ] {
        fails(v.create_dir(path), ErrorKind::AlreadyExists);
        fails(v.remove_dir(path), removing);
        fails(v.remove_dir_all(path), removing);
        fails(v.rename(path, "x"), ResourceBusy);
        fails(v.rename("a", path), ResourceBusy);
        fails(v.remove_file(path), ErrorKind::IsADirectory);
        fails(v.create_file(path), ErrorKind::IsADirectory);
        fails(v.symlink("x", path), ErrorKind::AlreadyExists);
    }
    v.create_dir_all(".").unwrap();
    v.create_dir_all("/").unwrap();
    assert!(v.exists("a/b").unwrap());
}

#[test]
fn path_hint_returns_path_of_inode() {
    let fs = engine::open(engine::fresh());
    let shown = |ino| fs.path_hint(ino).to_str().unwrap().to_owned();
    let dir = |above, name: &[u8]| fs.mkdir(above, name, 0o755, OWNER).unwrap().ino;
    let file = engine::create(&fs, "file");
    let (a, b) = (dir(ROOT, b"a"), dir(ROOT, b"b"));
    let below = dir(a, b"below");
    assert_eq!((shown(ROOT), shown(file)), ("/".into(), "/file".into()));
    assert_eq!(shown(below), "/a/below");
    fs.rename(ROOT, b"file", below, b"moved", RenameMode::Replace)
        .unwrap();
    assert_eq!(shown(file), "/a/below/moved");
    fs.link(file, b, b"link").unwrap();
    assert!(["/b/link", "/a/below/moved"].contains(&&*shown(file)));
    fs.unlink(b, b"link").unwrap();
    fs.unlink(below, b"moved").unwrap();
    assert!(shown(file).ends_with("/..."), "{}", shown(file));
    assert_eq!(shown(99_999), "/...");
    let deep = (0..200).fold(b, |above, _| dir(above, b"d"));
    assert!(shown(deep).starts_with("/.../d/d"), "bounded");
}

#[test]
fn path_through_link_exists_while_link_is_replaced() {
    let v = volume();
    for dir in ["a", "b"] {
        v.create_dir(dir).unwrap();
        v.write(format!("{dir}/file"), b"here").unwrap();
    }
    v.symlink("a", "current").unwrap();
    let replaced = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..50_000 {
                v.symlink(["b", "a"][i % 2], "new").unwrap();
                v.rename("new", "current").unwrap();
            }
            replaced.store(true, Ordering::Release);
        });
        while !replaced.load(Ordering::Acquire) {
            assert_eq!(v.read("current/file").unwrap(), b"here");
        }
    });
}
