//! One entry fails: the failure is reported, nothing is left of the entry, and all other entries
//! are copied.
//!
//! Contract: copies

use std::fs;

use crate::place::{Place, pattern};

/// More bytes than a volume of 16 MiB holds.
const TOO_MUCH: usize = 20 << 20;

fn small_volume() -> Place {
    let p = Place::new();
    p.ok(&["mkfs", "-q", "--size", "16M", "v.img"]);
    fs::create_dir_all(p.path("in/dir")).unwrap();
    fs::write(p.path("in/a"), b"first").unwrap();
    fs::write(p.path("in/big"), pattern(TOO_MUCH)).unwrap();
    fs::write(p.path("in/dir/z"), b"last").unwrap();
    p
}

#[test]
fn import_continues_after_file_that_does_not_fit() {
    let p = small_volume();
    p.fails(&["import", "in", "v.img"], 1, "v.img:/big: no space");
    assert_eq!(p.ok(&["ls", "-R", "v.img"]), "/:\na\ndir\n\n/dir:\nz\n");
    assert_eq!(p.ok(&["cat", "v.img:/a", "v.img:/dir/z"]), "firstlast");
    p.ok(&["check", "--data", "v.img"]);
}

#[test]
fn tar_import_continues_after_file_that_does_not_fit() {
    let p = small_volume();
    p.ok(&["import", "-q", "--create", "--size", "64M", "in", "w.img"]);
    p.ok(&["export", "-q", "w.img", "in.tar"]);
    p.fails(&["import", "in.tar", "v.img"], 1, "v.img:/big: no space");
    assert_eq!(p.ok(&["cat", "v.img:/a", "v.img:/dir/z"]), "firstlast");
    assert_eq!(p.ok(&["ls", "v.img"]), "a\ndir\n");
}

#[test]
fn cp_continues_after_failed_source() {
    let p = small_volume();
    fs::write(p.path("old"), b"old").unwrap();
    p.ok(&["cp", "old", "v.img:/big"]);
    let out = p.run(&[
        "cp", "in/a", "missing", "in/big", "in/dir", "in/dir/z", "v.img:/",
    ]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{text}");
    for message in [
        "missing: No such file",
        "v.img:/big: no space",
        "in/dir: is a directory",
        "-r",
    ] {
        assert!(text.contains(message), "{text}");
    }
    assert_eq!(
        p.ok(&["cat", "v.img:/a", "v.img:/z", "v.img:/big"]),
        "firstlastold"
    );
    p.ok(&["check", "--data", "v.img"]);
}

#[test]
fn commands_continue_after_failed_argument() {
    let p = Place::with_volume();
    p.fails(
        &["mkdir", "v.img:/no/a", "v.img:/b", "missing:/c", "v.img:/d"],
        1,
        "mkdir -p",
    );
    assert_eq!(p.ok(&["ls", "v.img"]), "b\nd\n");
    p.fails(
        &["rm", "-r", "v.img:/missing", "v.img:/b"],
        1,
        "no such file",
    );
    p.fails(&["rm", "v.img:/d", "v.img:/missing"], 1, "is a directory");
    assert_eq!(p.ok(&["ls", "v.img"]), "d\n");
}

#[test]
fn export_continues_after_entry_the_target_refuses() {
    let p = Place::with_volume();
    let volume = cairnfs::Volume::open(p.path("v.img")).unwrap();
    for name in ["a", "blocked", "z"] {
        volume.write(name, name).unwrap();
    }
    volume
        .create_file("vast")
        .unwrap()
        .set_len(20 << 40)
        .unwrap();
    volume.close().unwrap();
    for args in ["export v.img out", "cp -a v.img:/. out"] {
        fs::create_dir_all(p.path("out/blocked/by")).unwrap();
        let out = p.limited(args);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{text}");
        assert!(text.contains("out/blocked: is a directory"), "{text}");
        assert!(text.contains("out/vast: File too large"), "{text}");
        for name in ["a", "z"] {
            assert_eq!(fs::read(p.path("out").join(name)).unwrap(), name.as_bytes());
        }
        let entries = fs::read_dir(p.path("out")).unwrap().count();
        assert_eq!(entries, 3, "nothing is left of what failed");
        fs::remove_dir_all(p.path("out")).unwrap();
    }
}

#[test]
fn interrupted_import_leaves_no_partial_file() {
    let p = small_volume();
    fs::remove_file(p.path("in/big")).unwrap();
    fs::write(p.path("in/m"), pattern(3 << 20)).unwrap();
    p.ok(&["import", "-q", "--create", "--size", "64M", "in", "w.img"]);
    p.ok(&["export", "-q", "w.img", "in.tar"]);
    let archive = fs::read(p.path("in.tar")).unwrap();
    fs::write(p.path("half.tar"), &archive[..archive.len() / 2]).unwrap();
    p.fails(&["import", "half.tar", "v.img"], 1, "too early");
    assert!(!p.ok(&["ls", "-R", "v.img"]).contains("m\n"));
    p.ok(&["check", "--data", "v.img"]);
    let create = ["import", "--create", "--size", "64M"];
    p.fails(
        &[&create[..], &["half.tar", "new.img"]].concat(),
        1,
        "removed again",
    );
    assert!(!p.path("new.img").exists());
    p.fails(
        &[&create[..], &["missing", "new.img"]].concat(),
        1,
        "missing",
    );
    assert!(!p.path("new.img").exists());
    p.ok(&[&create[..], &["in", "new.img"]].concat());
    p.fails(
        &[&create[..], &["half.tar", "new.img"]].concat(),
        1,
        "too early",
    );
    assert!(p.path("new.img").exists(), "it was there before");
}

#[test]
fn export_through_link_replaces_archive_not_other_links() {
    let p = Place::with_volume();
    fs::write(p.path("out.tar"), b"old").unwrap();
    fs::hard_link(p.path("out.tar"), p.path("other.tar")).unwrap();
    std::os::unix::fs::symlink("out.tar", p.path("link.tar")).unwrap();
    p.ok(&["export", "-q", "--force", "v.img", "link.tar"]);
    assert!(p.path("link.tar").is_symlink());
    assert_ne!(fs::read(p.path("out.tar")).unwrap(), b"old");
    let other = fs::read(p.path("other.tar")).unwrap();
    assert_eq!(other, b"old", "replaced, not written through");
}

#[test]
fn file_size_limit_is_reported_as_error() {
    let p = Place::new();
    fs::create_dir(p.path("in")).unwrap();
    fs::write(p.path("in/f"), pattern(16 << 20)).unwrap();
    p.ok(&["mkfs", "-q", "--size", "256M", "v.img"]);
    let out = p.limited("import -q in v.img");
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("File too large"), "{text}");
    p.ok(&["check", "--data", "v.img"]);
}
