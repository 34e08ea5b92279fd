//! Volumes are made, filled, read, copied and checked without a mount.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "offline/appended.rs"]
mod appended;
#[path = "offline/archives.rs"]
mod archives;
#[path = "offline/backups.rs"]
mod backups;
#[path = "offline/damaged.rs"]
mod damaged;
#[path = "offline/deep.rs"]
mod deep;
#[path = "offline/differences.rs"]
mod differences;
#[path = "offline/drops.rs"]
mod drops;
#[path = "offline/front.rs"]
mod front;
#[path = "offline/going_on.rs"]
mod going_on;
#[path = "offline/hostile.rs"]
mod hostile;
#[path = "offline/hostile_volumes.rs"]
mod hostile_volumes;
#[path = "offline/interrupted.rs"]
mod interrupted;
#[path = "offline/interrupted_verbs.rs"]
mod interrupted_verbs;
#[path = "offline/patches.rs"]
mod patches;
#[path = "offline/place.rs"]
mod place;
#[path = "offline/replaced.rs"]
mod replaced;
#[path = "offline/roots.rs"]
mod roots;
#[path = "offline/roots_words.rs"]
mod roots_words;
#[path = "offline/rotten.rs"]
mod rotten;
#[path = "offline/salvage.rs"]
mod salvage;
#[path = "offline/trees.rs"]
mod trees;
#[path = "offline/typed.rs"]
mod typed;
#[path = "offline/usage.rs"]
mod usage;
#[path = "offline/ways_out.rs"]
mod ways_out;
#[path = "offline/words.rs"]
mod words;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use place::{Place, pattern};

/// A time with nanoseconds, which every copy must keep.
fn time() -> std::time::SystemTime {
    UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789)
}

/// Whether the host's directory supports user attributes.
fn takes_xattrs(path: &Path) -> bool {
    rustix::fs::lsetxattr(path, "user.probe", b"", rustix::fs::XattrFlags::empty()).is_ok()
}

/// Makes a tree with everything that a copy must keep.
fn plant(root: &Path) {
    fs::create_dir_all(root.join("dir/deeper")).unwrap();
    fs::write(root.join("empty"), b"").unwrap();
    fs::write(root.join("dir/deeper/small"), b"small\n").unwrap();
    fs::write(root.join("large"), pattern(3_000_001)).unwrap();
    fs::write(root.join("one"), b"linked").unwrap();
    fs::hard_link(root.join("one"), root.join("dir/two")).unwrap();
    symlink("dir/deeper/small", root.join("sym")).unwrap();
    symlink("/absent", root.join("dangling")).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"odd \xff\n")), b"odd").unwrap();
    fs::write(root.join("n".repeat(255)), b"long").unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::from_bits_truncate(0o620);
    rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), fifo, mode, 0).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(20 << 20).unwrap();
    sparse.write_all_at(b"data", 10 << 20).unwrap();
    drop(sparse);
    if takes_xattrs(root) {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(root.join("one"), "user.note", b"two\nlines\0=", flags).unwrap();
        rustix::fs::lsetxattr(root.join("dir"), "user.dir", &[7; 3000], flags).unwrap();
    }
    fs::set_permissions(root.join("large"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(root.join("dir"), fs::Permissions::from_mode(0o1750)).unwrap();
    for name in ["large", "one", "dir"] {
        let file = fs::File::open(root.join(name)).unwrap();
        file.set_modified(time()).unwrap();
    }
}

fn same(a: &Path, b: &Path) {
    let what = b.display();
    let (ma, mb) = (a.symlink_metadata().unwrap(), b.symlink_metadata().unwrap());
    assert_eq!(ma.mode(), mb.mode(), "{what}");
    assert_eq!((ma.uid(), ma.gid()), (mb.uid(), mb.gid()), "{what}");
    assert_eq!(ma.modified().unwrap(), mb.modified().unwrap(), "{what}");
    assert_eq!(xattrs(a), xattrs(b), "{what}");
    if ma.is_symlink() {
        assert_eq!(fs::read_link(a).unwrap(), fs::read_link(b).unwrap());
    } else if ma.is_file() {
        assert_eq!(ma.nlink(), mb.nlink(), "{what}");
        assert!(fs::read(a).unwrap() == fs::read(b).unwrap(), "{what}");
    } else if ma.is_dir() {
        let (na, nb) = (names(a), names(b));
        assert_eq!(na, nb, "{what}");
        for name in na {
            same(&a.join(&name), &b.join(&name));
        }
    }
}

fn names(dir: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    names
}

fn xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut list = vec![0; 65_536];
    let Ok(len) = rustix::fs::llistxattr(path, &mut list) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for name in list[..len]
        .split(|b| *b == 0)
        .filter(|n| n.starts_with(b"user."))
    {
        let mut value = vec![0; 65_536];
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value).unwrap();
        found.push((name.to_vec(), value[..len].to_vec()));
    }
    found.sort();
    found
}

#[test]
fn mkfs_makes_sparse_file_and_info_shows_it() {
    let p = Place::new();
    let said = p.ok(&["mkfs", "-L", "work", "--size", "1G", "v.img"]);
    assert!(said.contains("1 GiB"), "{said}");
    let meta = p.path("v.img").metadata().unwrap();
    assert_eq!(meta.len(), 1 << 30);
    assert!(meta.blocks() * 512 < 64 << 20, "only the log is written");
    let info = p.json(&["info", "--json", "v.img"]);
    assert_eq!(info["label"], "work");
    assert_eq!(info["size"], 1u64 << 30);
    assert_eq!(info["in_use"], false);
    assert_eq!(info["problem"], serde_json::Value::Null);
    assert!(info["space"]["available"].as_u64().unwrap() > 900 << 20);
    let table = p.ok(&["info", "v.img"]);
    assert!(table.contains(info["uuid"].as_str().unwrap()), "{table}");
    assert!(table.contains("Free"), "{table}");
}

/// Contract: copies.private
#[test]
fn new_images_are_private() {
    let p = Place::new();
    fs::write(p.path("f"), b"x").unwrap();
    let mode = |name: &str| p.path(name).metadata().unwrap().mode() & 0o7777;
    p.ok(&["mkfs", "-q", "--size", "64M", "made.img"]);
    p.ok(&[
        "import",
        "-q",
        "--create",
        "--size",
        "64M",
        ".",
        "imported.img",
    ]);
    cairnfs::Volume::create(p.path("library.img"), 64 << 20).unwrap();
    let steps = [
        "crashtest",
        "--steps",
        "create a; fsync a",
        "--replay",
        "1.0",
    ];
    p.run(&[&steps[..], &["--image", "replayed.img"]].concat());
    let moments = format!("file://{}", p.path("moments").display());
    p.ok(&["backup", "imported.img", &moments]);
    p.ok(&["restore-from", &moments, "restored.img"]);
    for name in [
        "made.img",
        "imported.img",
        "library.img",
        "replayed.img",
        "restored.img",
    ] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
    let shared = fs::Permissions::from_mode(0o640);
    fs::set_permissions(p.path("made.img"), shared).unwrap();
    p.ok(&["mkfs", "-q", "-f", "made.img"]);
    assert_eq!(mode("made.img"), 0o640, "an existing file stays as it is");
}

#[test]
fn incomplete_image_is_removed() {
    let p = Place::new();
    let out = p.limited("mkfs --size 64M v.img");
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("File too large"), "{text}");
    assert!(!p.path("v.img").exists());
}

#[test]
fn mkfs_reports_default_size() {
    let p = Place::new();
    let said = p.ok(&["mkfs", "v.img"]);
    assert!(said.contains("64 GiB") && said.contains("sparse"), "{said}");
    assert_eq!(p.path("v.img").metadata().unwrap().len(), 64 << 30);
}

#[test]
fn mkfs_takes_blank_file_and_its_size() {
    let p = Place::new();
    fs::File::create(p.path("v.img"))
        .unwrap()
        .set_len(33 << 20)
        .unwrap();
    let said = p.ok(&["mkfs", "v.img"]);
    assert!(
        said.contains("33 MiB") && !said.contains("--size"),
        "{said}"
    );
    p.ok(&["check", "v.img"]);
    p.fails(&["mkfs", "v.img"], 1, "not empty");
}

#[test]
fn mkfs_overwrites_only_with_force() {
    let p = Place::with_volume();
    let uuid = p.json(&["info", "--json", "v.img"])["uuid"].clone();
    p.fails(&["mkfs", "v.img"], 1, "--force");
    p.fails(&["mkfs", "--size", "64M", "v.img"], 1, "--force");
    assert_eq!(p.json(&["info", "--json", "v.img"])["uuid"], uuid);
    fs::write(p.path("letter"), b"dear reader").unwrap();
    p.fails(&["mkfs", "--size", "64M", "letter"], 1, "--force");
    assert_eq!(fs::read(p.path("letter")).unwrap(), b"dear reader");
    p.ok(&["mkfs", "-q", "-f", "v.img"]);
    assert_ne!(p.json(&["info", "--json", "v.img"])["uuid"], uuid);
}

#[test]
fn mkfs_refuses_invalid_sizes_and_paths() {
    let p = Place::new();
    p.fails(&["mkfs", "--size", "1M", "v.img"], 1, "16 MiB");
    p.fails(
        &["mkfs", "--size", "64M", "--log-size", "1K", "v.img"],
        1,
        "log",
    );
    p.fails(
        &["mkfs", "--size", "64M", "no/such/dir/v.img"],
        1,
        "No such file",
    );
}

#[test]
fn files_that_are_not_volumes_are_named() {
    let p = Place::new();
    fs::write(p.path("text"), vec![b'x'; 1 << 20]).unwrap();
    fs::write(p.path("empty"), b"").unwrap();
    for file in ["text", "empty"] {
        p.fails(&["info", file], 1, file);
        p.fails(&["ls", file], 1, file);
        p.fails(&["check", file], 8, file);
    }
}

#[test]
fn truncated_volumes_are_reported() {
    let p = Place::with_volume();
    for len in [40 << 20, 1 << 20, 4096, 100] {
        let file = fs::File::options()
            .write(true)
            .open(p.path("v.img"))
            .unwrap();
        file.set_len(len).unwrap();
        p.fails(&["mkdir", "v.img:/d"], 1, "v.img");
        p.fails(&["info", "v.img"], 1, "");
        // At this length the log and the root nodes remain.
        if len == 40 << 20 {
            assert_eq!(p.ok(&["ls", "v.img"]), "")
        } else {
            p.fails(&["export", "v.img", "out"], 1, "v.img")
        }
    }
}

#[test]
fn fresh_volume_is_clean() {
    let p = Place::with_volume();
    assert!(p.ok(&["check", "v.img"]).contains("clean"));
    assert!(
        p.ok(&["check", "-n", "-f", "--data", "v.img"])
            .contains("clean")
    );
    assert_eq!(p.json(&["check", "--json", "v.img"])["clean"], true);
    assert_eq!(p.ok(&["ls", "v.img"]), "");
}

/// Contract: durable.sync
#[test]
fn directory_round_trip_is_unchanged() {
    let p = Place::with_volume();
    fs::create_dir(p.path("in")).unwrap();
    plant(&p.path("in"));
    let said = p.json(&["import", "--json", "--same-owner", "in", "v.img"]);
    assert_eq!(said["hard_links"], 1);
    assert_eq!(said["failed"], 0);
    assert!(
        said["bytes"].as_u64().unwrap() < 8 << 20,
        "holes are not read"
    );
    p.ok(&["check", "--data", "v.img"]);
    p.ok(&["export", "-q", "v.img", "out"]);
    same(&p.path("in"), &p.path("out"));
    let ino = |name: &str| p.path("out").join(name).metadata().unwrap().ino();
    assert_eq!(ino("one"), ino("dir/two"));
    let sparse = p.path("out/sparse").metadata().unwrap();
    assert!(sparse.blocks() * 512 < 1 << 20, "holes stay holes");
}

/// Contract: durable.sync
#[test]
fn archive_round_trip_is_unchanged() {
    let p = Place::with_volume();
    fs::create_dir(p.path("in")).unwrap();
    plant(&p.path("in"));
    p.ok(&["import", "-q", "--same-owner", "in", "v.img:/some/place"]);
    p.ok(&["export", "-q", "v.img:some/place", "out.tar"]);
    assert!(p.path("out.tar").metadata().unwrap().len() < 8 << 20);
    p.fails(&["export", "-q", "v.img", "out.tar"], 1, "--force");
    p.ok(&[
        "import",
        "-q",
        "--same-owner",
        "--create",
        "--size",
        "64M",
        "out.tar",
        "w.img:/",
    ]);
    p.ok(&["check", "--data", "w.img"]);
    p.ok(&["export", "-q", "w.img", "out"]);
    same(&p.path("in"), &p.path("out"));
    let sparse = p.path("out/sparse").metadata().unwrap();
    assert!(sparse.blocks() * 512 < 1 << 20, "holes stay holes");
}

#[test]
fn importing_twice_changes_nothing() {
    let p = Place::with_volume();
    fs::create_dir(p.path("in")).unwrap();
    plant(&p.path("in"));
    p.ok(&["import", "-q", "--same-owner", "in", "v.img"]);
    p.ok(&["import", "-q", "--same-owner", "in", "v.img"]);
    p.ok(&["check", "--data", "v.img"]);
    p.ok(&["export", "-q", "v.img", "out"]);
    same(&p.path("in"), &p.path("out"));
}

#[test]
fn hostile_archives_are_refused() {
    let p = Place::with_volume();
    for name in ["../up", "/abs", "a/../../b"] {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(0);
        header.set_mode(0o644);
        header.set_cksum();
        let mut archive = header.as_bytes().to_vec();
        archive.resize(2048, 0);
        fs::write(p.path("bad.tar"), archive).unwrap();
        p.fails(&["import", "bad.tar", "v.img"], 1, "refusing");
    }
    assert_eq!(p.ok(&["ls", "-a", "v.img"]), ".\n..\n");
    p.ok(&["check", "v.img"]);
}

#[test]
fn cp_copies_files_in_and_out() {
    let p = Place::with_volume();
    fs::write(p.path("a"), pattern(100_000)).unwrap();
    fs::write(p.path("b:c"), b"colon").unwrap();
    p.ok(&["mkdir", "-p", "v.img:/x/y"]);
    p.fails(&["mkdir", "v.img:/x"], 1, "exists");
    p.ok(&["cp", "a", "b:c", "v.img:/x/y"]);
    assert_eq!(p.ok(&["ls", "v.img:x/y"]), "a\nb:c\n");
    p.ok(&["cp", "v.img:/x/y/b:c", "v.img:/x/y/copy"]);
    assert_eq!(
        p.ok(&["cat", "v.img:/x/y/copy", "v.img:/x/y/b:c"]),
        "coloncolon"
    );
    p.ok(&["cp", "v.img:/x/y/a", "back"]);
    assert!(fs::read(p.path("back")).unwrap() == pattern(100_000));
    p.fails(&["cp", "v.img:/x", "."], 1, "-r");
    p.ok(&["cp", "-r", "v.img:/x", "."]);
    assert_eq!(fs::read(p.path("x/y/copy")).unwrap(), b"colon");
    p.fails(&["cat", "v.img:/x"], 1, "is a directory");
    p.fails(&["cat", "v.img:/nothing"], 1, "no such file");
    p.ok(&["check", "--data", "v.img"]);
}

#[test]
fn cp_refuses_copy_onto_or_into_itself() {
    let p = Place::with_volume();
    fs::write(p.path("a"), b"precious").unwrap();
    p.ok(&["mkdir", "-p", "v.img:/d/e"]);
    p.ok(&["cp", "a", "v.img:/d"]);
    p.fails(&["cp", "v.img:/d/a", "v.img:/d/a"], 1, "same file");
    p.fails(&["cp", "v.img:/d/a", "v.img:/d"], 1, "same file");
    p.fails(&["cp", "-r", "v.img:/d", "v.img:/d/e"], 1, "into itself");
    assert_eq!(p.ok(&["cat", "v.img:/d/a"]), "precious");
}

#[test]
fn cp_archive_keeps_all_attributes() {
    let p = Place::with_volume();
    p.ok(&["mkfs", "-q", "--size", "64M", "w.img"]);
    fs::create_dir(p.path("in")).unwrap();
    plant(&p.path("in"));
    p.ok(&["cp", "-a", "in", "v.img:/"]);
    p.ok(&["cp", "-a", "v.img:/in", "w.img:/moved"]);
    p.ok(&["cp", "-a", "w.img:/moved", "out"]);
    same(&p.path("in"), &p.path("out"));
    p.ok(&["check", "--data", "w.img"]);
}

#[test]
fn ls_shows_all_entries() {
    let p = Place::with_volume();
    fs::create_dir(p.path("in")).unwrap();
    plant(&p.path("in"));
    p.ok(&["import", "-q", "in", "v.img"]);
    let long = p.ok(&["ls", "-l", "v.img"]);
    assert!(long.contains("sym -> dir/deeper/small"), "{long}");
    assert!(
        long.lines()
            .any(|l| l.starts_with("-rw-r-----") && l.ends_with("large")),
        "{long}"
    );
    assert!(
        long.lines()
            .any(|l| l.starts_with("prw") && l.ends_with("fifo")),
        "{long}"
    );
    let all = p.ok(&["ls", "-R", "v.img"]);
    assert!(all.contains("\n/dir/deeper:\nsmall\n"), "{all}");
    let listing = p.json(&["ls", "-R", "--json", "v.img"]);
    let large = listing
        .as_array()
        .unwrap()
        .iter()
        .find(|e| e["path"] == "/large")
        .unwrap();
    assert_eq!(large["size"], 3_000_001);
    assert_eq!(large["mtime"], "2009-02-13T23:31:30.123456789Z");
    assert_eq!(p.ok(&["cat", "v.img:/sym"]), "small\n");
    p.fails(&["cat", "v.img:/dangling"], 1, "no such file");
    p.fails(&["cat", "v.img:/fifo"], 1, "v.img:/fifo: is no regular");
}

#[test]
fn rm_removes_files_and_trees() {
    let p = Place::with_volume();
    fs::create_dir(p.path("in")).unwrap();
    plant(&p.path("in"));
    p.ok(&["import", "-q", "in", "v.img:/t"]);
    p.fails(&["rm", "v.img:/t"], 1, "-r");
    p.fails(&["rm", "v.img:/no"], 1, "no such file");
    p.ok(&["rm", "-f", "v.img:/no"]);
    p.ok(&["rm", "v.img:/t/large"]);
    p.ok(&["rm", "-r", "v.img:/t"]);
    p.fails(&["rm", "-r", "v.img:/"], 1, "root");
    assert_eq!(p.ok(&["ls", "v.img"]), "");
    p.ok(&["check", "--data", "v.img"]);
}

/// Contract: failure.removal
#[test]
fn full_volume_refuses_cp_and_stays_clean() {
    let p = Place::new();
    p.ok(&["mkfs", "-q", "--size", "16M", "v.img"]);
    fs::write(p.path("third"), pattern(4 << 20)).unwrap();
    p.ok(&["cp", "third", "v.img:/a"]);
    p.ok(&["cp", "third", "v.img:/b"]);
    p.fails(&["cp", "third", "v.img:/c"], 1, "no space");
    p.ok(&["check", "--data", "v.img"]);
    p.ok(&["rm", "v.img:/a"]);
    p.ok(&["cp", "third", "v.img:/c"]);
    assert_eq!(p.ok(&["ls", "v.img"]), "b\nc\n");
    p.ok(&["check", "--data", "v.img"]);
}
