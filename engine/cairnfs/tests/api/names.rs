//! Directories, listings, links and renames.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use cairnfs::{FileKind, OpenOptions, RenameMode};
use cairnfs_disk::types::Creds;

use super::engine::{ROOT, create, fresh, open};
use super::{fails, names, permissions, volume};

#[test]
fn failed_calls_leave_no_inode_reference() {
    let v = volume();
    v.write("f", b"x").unwrap();
    v.symlink("f", "l").unwrap();
    let ino = v.metadata("f").unwrap().ino();
    let _ = v
        .open_with("f", OpenOptions::new().write(true).create_new(true))
        .unwrap_err();
    let _ = v.create_dir("f").unwrap_err();
    let _ = v.metadata("f/x").unwrap_err();
    let _ = v.read_dir("f").unwrap_err();
    let _ = v.hard_link("f", "l").unwrap_err();
    let _ = v.get_xattr("l", "user.none").unwrap();
    let _ = v.read("l").unwrap();
    v.hard_link("f", "g").unwrap();
    v.remove_file("g").unwrap();
    v.remove_file("f").unwrap();
    v.sync().unwrap();
    fails(v.file_system().getattr(ino), ErrorKind::NotFound);
}

#[test]
fn directories_are_made_listed_and_removed() {
    let v = volume();
    v.create_dir_all("a/b/c").unwrap();
    v.create_dir_all("a/b/c").unwrap();
    fails(v.create_dir("a"), ErrorKind::AlreadyExists);
    fails(v.remove_dir("a"), ErrorKind::DirectoryNotEmpty);
    fails(v.remove_file("a"), ErrorKind::IsADirectory);
    v.write("a/f", b"").unwrap();
    fails(v.remove_dir("a/f"), ErrorKind::NotADirectory);
    fails(v.create_dir_all("a/f/g"), ErrorKind::NotADirectory);
    fails(v.create_dir_all("a/f"), ErrorKind::AlreadyExists);
    fails(v.read_dir("a/f"), ErrorKind::NotADirectory);
    fails(v.sync_dir("a/f"), ErrorKind::NotADirectory);
    fails(v.remove_dir_all("a/f"), ErrorKind::NotADirectory);
    assert_eq!(names(&v, "a"), ["b", "f"]);
    v.sync_dir("a").unwrap();
    v.open_file("a").unwrap().sync_all().unwrap();
    v.remove_dir("a/b/c").unwrap();
    assert_eq!(names(&v, "a/b"), [""; 0]);
}

#[test]
fn removal_during_listing_keeps_listing_complete() {
    let v = volume();
    v.create_dir("big").unwrap();
    for i in 0..10_000 {
        v.mknod(format!("big/{i}"), FileKind::File.mode_bits() | 0o600, 0)
            .unwrap();
    }
    let listed: Vec<_> = v
        .read_dir("big")
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    let distinct: BTreeSet<_> = listed.iter().collect();
    assert_eq!((listed.len(), distinct.len()), (10_000, 10_000));
    let mut seen = BTreeSet::new();
    for (i, entry) in v.read_dir("/big").unwrap().enumerate() {
        let entry = entry.unwrap();
        assert!(entry.file_type().unwrap().is_file());
        assert!(seen.insert(entry.file_name()));
        v.remove_file(entry.path()).unwrap();
        if i == 5000 {
            v.write("big/late", b"").unwrap();
        }
    }
    assert!(seen.len() >= 10_000);
    v.remove_file("big/late").ok();
    v.remove_dir("big").unwrap();
}

#[test]
fn directory_entries_match_metadata() {
    let v = volume();
    v.create_dir("d").unwrap();
    v.write("d/f", b"123").unwrap();
    v.symlink("f", "d/l").unwrap();
    for entry in v.read_dir("d").unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        assert_eq!(metadata.ino(), entry.ino());
        assert_eq!(metadata.file_type(), entry.file_type().unwrap());
        assert_eq!(entry.path(), Path::new("d").join(entry.file_name()));
        assert_eq!(
            entry.file_type().unwrap().is_symlink(),
            entry.file_name() == "l"
        );
    }
    let entry = v.read_dir("d").unwrap().next().unwrap().unwrap();
    v.remove_file(entry.path()).unwrap();
    fails(entry.metadata(), ErrorKind::NotFound);
}

#[test]
fn walk_and_remove_dir_all_cover_tree() {
    let v = volume();
    v.create_dir("outside").unwrap();
    v.write("outside/kept", b"").unwrap();
    let mut expected = BTreeSet::new();
    for a in 0..5 {
        for b in 0..5 {
            v.create_dir_all(format!("t/{a}/{b}")).unwrap();
            for c in 0..5 {
                let path = format!("t/{a}/{b}/{c}");
                v.write(&path, b"x").unwrap();
                expected.insert(PathBuf::from(path));
            }
            expected.insert(format!("t/{a}/{b}").into());
        }
        expected.insert(format!("t/{a}").into());
    }
    v.symlink("/outside", "t/link").unwrap();
    expected.insert("t/link".into());
    let walked: Vec<_> = v.walk("t").unwrap().map(|e| e.unwrap().path()).collect();
    for (i, path) in walked.iter().enumerate() {
        let parent = path.parent().unwrap();
        assert!(parent == Path::new("t") || walked[..i].iter().any(|p| p == parent));
    }
    assert_eq!(walked.len(), expected.len());
    assert_eq!(walked.into_iter().collect::<BTreeSet<_>>(), expected);
    v.remove_dir_all("t").unwrap();
    assert!(!v.exists("t").unwrap());
    assert!(v.exists("outside/kept").unwrap());
    v.symlink("outside", "l").unwrap();
    fails(v.remove_dir_all("l/"), ErrorKind::NotADirectory);
    v.remove_dir_all("l").unwrap();
    assert_eq!(names(&v, "/"), ["outside"]);
    assert!(v.exists("outside/kept").unwrap());
}

#[test]
fn very_deep_tree_is_removed() {
    let v = volume();
    let mut path = PathBuf::from("deep");
    for _ in 0..500 {
        path.push("d");
    }
    v.create_dir_all(&path).unwrap();
    v.write(path.join("f"), b"bottom").unwrap();
    assert_eq!(v.walk("deep").unwrap().count(), 501);
    v.remove_dir_all("deep").unwrap();
    assert_eq!(names(&v, "/"), [""; 0]);
}

/// Contract: posix.overlay
#[test]
fn rename_leaves_whiteout() {
    let v = volume();
    let mode = |replace| RenameMode::Whiteout {
        owner: Creds { uid: 7, gid: 8 },
        replace,
    };
    v.create_dir_all("d/sub").unwrap();
    v.write("a", b"A").unwrap();
    v.write("b", b"B").unwrap();
    fails(
        v.rename_with("a", "b", mode(false)),
        ErrorKind::AlreadyExists,
    );
    v.rename_with("a", "b", mode(true)).unwrap();
    assert_eq!(v.read("b").unwrap(), b"A");
    let left = v.symlink_metadata("a").unwrap();
    let left = left.attr();
    assert_eq!((left.kind, left.mode), (FileKind::CharDevice, 0o020_000));
    assert_eq!((left.rdev, left.nlink), (0, 1));
    assert_eq!((left.uid, left.gid), (7, 8));
    v.rename_with("d", "e", mode(false)).unwrap();
    let left = v.symlink_metadata("d").unwrap();
    assert_eq!(left.attr().kind, FileKind::CharDevice);
    assert!(v.exists("e/sub").unwrap());
    // A directory with set-group-id gives its group to the whiteout.
    v.set_permissions("e", permissions(0o2755)).unwrap();
    v.write("e/f", b"f").unwrap();
    v.rename_with("e/f", "f", mode(true)).unwrap();
    assert_eq!(v.symlink_metadata("e/f").unwrap().attr().gid, 0);
    // Two names of one file are left unchanged.
    v.hard_link("b", "second").unwrap();
    v.rename_with("b", "second", mode(true)).unwrap();
    assert_eq!(v.read("b").unwrap(), b"A");
    v.remove_file("a").unwrap();
    assert!(!v.exists("a").unwrap());
}

/// Contract: dependency.data
#[test]
fn renames_replace_refuse_or_exchange() {
    let v = volume();
    v.write("a", b"A").unwrap();
    v.write("b", b"B").unwrap();
    fails(
        v.rename_with("a", "b", RenameMode::NoReplace),
        ErrorKind::AlreadyExists,
    );
    v.rename_with("a", "b", RenameMode::Exchange).unwrap();
    assert_eq!(
        (v.read("a").unwrap(), v.read("b").unwrap()),
        (b"B".to_vec(), b"A".to_vec())
    );
    v.rename("a", "b").unwrap();
    assert!(!v.exists("a").unwrap());
    assert_eq!(v.read("b").unwrap(), b"B");
    v.rename("b", "b").unwrap();
    v.rename_with("b", "c", RenameMode::NoReplace).unwrap();
    fails(
        v.rename_with("c", "none", RenameMode::Exchange),
        ErrorKind::NotFound,
    );
    v.create_dir_all("d/sub").unwrap();
    fails(v.rename("d", "d/sub/x"), ErrorKind::InvalidInput);
    fails(v.rename("c", "d"), ErrorKind::IsADirectory);
    fails(v.rename("d", "c"), ErrorKind::NotADirectory);
    v.create_dir("e").unwrap();
    fails(v.rename("e", "d"), ErrorKind::DirectoryNotEmpty);
    v.rename("d/sub", "e").unwrap();
    v.rename("e", "d").unwrap();
    assert_eq!(names(&v, "/"), ["c", "d"]);
    v.rename("c", "d/c").unwrap();
    v.rename_with("d/c", "d", RenameMode::Exchange).unwrap_err();
    assert_eq!(v.read("d/c").unwrap(), b"B");
    fails(v.rename("gone", "x"), ErrorKind::NotFound);
}

#[test]
fn hard_links_update_link_count() {
    let v = volume();
    v.write("f", b"x").unwrap();
    v.hard_link("f", "g").unwrap();
    assert_eq!(v.metadata("f").unwrap().nlink(), 2);
    assert_eq!(
        v.metadata("f").unwrap().ino(),
        v.metadata("g").unwrap().ino()
    );
    fails(v.hard_link("f", "g"), ErrorKind::AlreadyExists);
    v.create_dir("d").unwrap();
    fails(v.hard_link("d", "e"), ErrorKind::PermissionDenied);
    v.symlink("f", "l").unwrap();
    v.hard_link("l", "l2").unwrap();
    assert!(v.symlink_metadata("l2").unwrap().is_symlink());
    v.remove_file("f").unwrap();
    assert_eq!(v.metadata("g").unwrap().nlink(), 1);
}

#[test]
fn threads_modify_own_and_shared_names_concurrently() {
    let v = volume();
    std::thread::scope(|s| {
        for thread in 0..8 {
            let v = v.clone();
            s.spawn(move || {
                let dir = format!("t{thread}");
                v.create_dir(&dir).unwrap();
                for i in 0..200 {
                    let path = format!("{dir}/{i}");
                    v.write(&path, path.as_bytes()).unwrap();
                    v.rename(&path, format!("{dir}/r{i}")).unwrap();
                    if i % 3 == 0 {
                        v.remove_file(format!("{dir}/r{i}")).unwrap();
                    }
                }
            });
        }
        // All threads create and remove the same name; each removal succeeds in one of them.
        for _ in 0..4 {
            let v = v.clone();
            s.spawn(move || {
                for _ in 0..200 {
                    v.write("shared", b"w").unwrap();
                    match v.remove_file("shared") {
                        Ok(()) => {}
                        Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound),
                    }
                }
            });
        }
    });
    for thread in 0..8 {
        let dir = format!("t{thread}");
        assert_eq!(names(&v, &dir).len(), 133);
        assert_eq!(
            v.read(format!("{dir}/r1")).unwrap(),
            format!("{dir}/1").as_bytes()
        );
    }
}

#[test]
fn create_new_succeeds_in_exactly_one_thread() {
    let v = volume();
    for round in 0..50 {
        let winners = std::thread::scope(|s| {
            let racers: Vec<_> = (0..4)
                .map(|_| {
                    s.spawn(|| {
                        let mut new = OpenOptions::new();
                        new.write(true).create_new(true);
                        v.open_with(format!("f{round}"), &new).is_ok()
                    })
                })
                .collect();
            racers
                .into_iter()
                .map(|r| r.join().unwrap())
                .filter(|w| *w)
                .count()
        });
        assert_eq!(winners, 1);
    }
}

#[test]
fn repeated_renames_take_no_space() {
    let fs = open(fresh());
    create(&fs, "a");
    fs.merge().unwrap();
    let rename = |from: &[u8], to: &[u8]| {
        fs.rename(ROOT, from, ROOT, to, RenameMode::Replace)
            .unwrap();
    };
    rename(b"a", b"b");
    let available = fs.statfs().available;
    for _ in 0..10_000 {
        rename(b"b", b"a");
        rename(b"a", b"b");
    }
    assert_eq!(fs.statfs().available, available);
}

#[test]
fn directories_get_the_permissions_asked_for() {
    let v = volume();
    v.mkdir("private", 0o1700).unwrap();
    assert_eq!(
        v.metadata("private").unwrap().mode(),
        libc::S_IFDIR | 0o1700
    );
    fails(v.mkdir("private", 0o755), ErrorKind::AlreadyExists);
}
