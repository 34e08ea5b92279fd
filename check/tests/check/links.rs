//! Damage to directories and to the inodes that their entries refer to.

use cairnfs_disk::format::item::*;
use cairnfs_disk::format::key::Key;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::plan::*;
use super::with_plan;

#[test]
fn invalid_entries_are_found() {
    for name in ["", ".", "..", "a/b", "a\0b"] {
        let found = with_plan(|plan| {
            plan.items
                .insert(index_key(17, 3), entry(18, S_IFLNK, name));
        });
        assert_eq!(found, ["dir-entry"], "{name:?}");
    }
}

#[test]
fn unassigned_entry_indexes_are_found() {
    let found = with_plan(|plan| plan.edit(17, |i| i.next_index = U64::new(4)));
    assert_eq!(found, ["dir-index"]);
    let found = with_plan(|plan| {
        plan.items.remove(&index_key(17, 3));
        plan.items.remove(&name_key(17, "link"));
        plan.entry(17, 2, "link", 18, S_IFLNK);
    });
    assert_eq!(found, ["dir-index"]);
}

/// The greatest index that a key can have is counted with, not beyond.
#[test]
fn greatest_entry_index_is_found() {
    let found = with_plan(|plan| {
        plan.items.remove(&index_key(17, 3));
        plan.items.remove(&name_key(17, "link"));
        plan.entry(17, u64::MAX, "link", 18, S_IFLNK);
    });
    assert_eq!(found, ["dir-index"]);
}

#[test]
fn wrong_entry_count_is_found() {
    let found = with_plan(|plan| plan.edit(17, |i| i.size = U64::new(3)));
    assert_eq!(found, ["dir-size"]);
}

#[test]
fn entries_and_name_items_must_match() {
    let found = with_plan(|plan| drop(plan.items.remove(&name_key(17, "link"))));
    assert_eq!(found, ["dir-name"], "no name item");
    let found = with_plan(|plan| drop(plan.items.remove(&index_key(17, 3))));
    assert_eq!(found, ["dir-name"], "no entry");
    let found = with_plan(|plan| {
        plan.items.insert(name_key(17, "link"), vec![3; 5]);
    });
    assert_eq!(found, ["dir-name"], "no list");
    let found = with_plan(|plan| {
        let value = plan.items.remove(&name_key(17, "link")).unwrap();
        plan.items.insert(name_key(17, "other"), value);
    });
    assert_eq!(found, ["dir-name"], "another hash");
    let found = with_plan(|plan| {
        let value = encode_dir_name(&[3, 3]);
        plan.items.insert(name_key(17, "link"), value);
    });
    assert_eq!(found, ["dir-name"], "listed twice");
}

#[test]
fn duplicate_names_are_found() {
    let found = with_plan(|plan| {
        plan.entry(17, 5, "hard", 19, S_IFREG);
        plan.edit(17, |i| i.size = U64::new(3));
        plan.edit(19, |i| i.nlink = U32::new(3));
    });
    assert_eq!(found, ["name-duplicate"]);
}

#[test]
fn dangling_entries_are_found() {
    let found = with_plan(|plan| {
        plan.entry(17, 5, "ghost", 99, S_IFREG);
        plan.edit(17, |i| i.size = U64::new(3));
    });
    assert_eq!(found, ["entry-dangling"]);
}

#[test]
fn entries_with_wrong_type_are_found() {
    for kind in [S_IFDIR, S_IFLNK, 0xf000] {
        let found = with_plan(|plan| {
            plan.items.insert(index_key(17, 4), entry(19, kind, "hard"));
        });
        assert_eq!(found, ["entry-type"], "{kind:o}");
    }
    let found = with_plan(|plan| {
        plan.items
            .insert(index_key(1, 4), entry(17, S_IFREG, "dir"));
    });
    assert_eq!(found, ["entry-type"]);
}

#[test]
fn wrong_link_counts_are_found() {
    for (ino, nlink) in [(16, 2), (19, 1), (19, 0), (17, 3), (17, 0)] {
        let found = with_plan(|plan| plan.edit(ino, |i| i.nlink = U32::new(nlink)));
        assert_eq!(found, ["link-count"], "{ino}: {nlink}");
    }
    let found = with_plan(|plan| {
        let root = inode(S_IFDIR, 2, 4);
        plan.context(vec![put(Key::inode(1), root.as_bytes().to_vec())]);
    });
    assert_eq!(found, ["link-count"], "of the root");
}

#[test]
fn wrong_parent_is_found() {
    let found = with_plan(|plan| plan.edit(17, |i| i.parent = U64::new(17)));
    assert_eq!(found, ["parent"]);
    let found = with_plan(|plan| plan.edit(16, |i| i.parent = U64::new(999)));
    assert_eq!(found, Vec::<&str>::new(), "of a file it is a hint");
}

#[test]
fn directories_with_two_entries_are_found() {
    let found = with_plan(|plan| {
        plan.entry(1, 8, "again", 17, S_IFDIR);
        let root = inode(S_IFDIR, 4, 5);
        plan.context(vec![put(Key::inode(1), root.as_bytes().to_vec())]);
    });
    assert_eq!(found, ["dir-linked-twice"]);
}

#[test]
fn directory_cycle_is_one_finding() {
    let found = with_plan(|plan| {
        for (dir, child, name) in [(23, 24, "b"), (24, 23, "a")] {
            plan.inode(
                dir,
                RawInode {
                    parent: U64::new(child),
                    ..inode(S_IFDIR, 3, 1)
                },
            );
            plan.entry(dir, 3, name, child, S_IFDIR);
        }
        let raise = inode(S_IFREG, 0, 0);
        plan.context(vec![
            put(Key::inode(25), raise.as_bytes().to_vec()),
            put(Key::orphan(25), vec![ORPHAN_REMOVE]),
        ]);
    });
    assert_eq!(found, ["dir-cycle"]);
}

#[test]
fn unreachable_inode_is_found() {
    let unlink = |index: u64, name: &str, nlink: u32| {
        with_plan(|plan| {
            plan.items.remove(&index_key(1, index));
            plan.items.remove(&name_key(1, name));
            let root = inode(S_IFDIR, nlink, 3);
            plan.context(vec![put(Key::inode(1), root.as_bytes().to_vec())]);
        })
    };
    assert_eq!(unlink(3, "file", 3), ["unreachable"]);
    assert_eq!(unlink(4, "dir", 2), ["unreachable"], "what is in it is not");
}

#[test]
fn missing_root_directory_is_found() {
    let found = with_plan(|plan| plan.context(vec![delete(Key::inode(1), vec![])]));
    assert_eq!(found, ["inode-missing"]);
}

#[test]
fn removed_directory_in_use_is_sound() {
    let found = with_plan(|plan| {
        let raw = inode(S_IFDIR, 0, 0);
        plan.context(vec![
            put(Key::inode(25), raw.as_bytes().to_vec()),
            put(Key::orphan(25), vec![ORPHAN_REMOVE]),
        ]);
    });
    assert_eq!(found, Vec::<&str>::new());
}

#[test]
fn removed_directory_with_entries_is_found() {
    let found = with_plan(|plan| {
        let raw = inode(S_IFDIR, 0, 1);
        plan.context(vec![
            put(Key::inode(25), raw.as_bytes().to_vec()),
            put(Key::orphan(25), vec![ORPHAN_REMOVE]),
            put(index_key(25, 3), entry(19, S_IFREG, "x")),
        ]);
        plan.edit(19, |i| i.nlink = U32::new(3));
    });
    assert_eq!(found, ["link-count"]);
}

/// The paths of the findings in the base volume after damaging its plan.
fn paths(damage: impl FnOnce(&mut Plan)) -> Vec<Option<String>> {
    let mut plan = Plan::base();
    damage(&mut plan);
    let report = plan.build().check(true).unwrap();
    let paths = report.findings.into_iter().map(|f| f.path);
    paths
        .map(|path| path.map(|p| String::from_utf8(p).unwrap()))
        .collect()
}

/// Contract: copies
#[test]
fn findings_have_paths() {
    let some = |path: &str| vec![Some(path.to_owned())];
    let of = |ino| paths(move |plan: &mut Plan| plan.edit(ino, |i| i.xattrs = U32::new(9)));
    let root = paths(|plan| {
        let changes = &mut plan.log[2].changes;
        changes.retain(|change| change.key != Key::inode(1));
        let wrong = RawInode {
            xattrs: U32::new(9),
            ..inode(S_IFDIR, 3, 4)
        };
        changes.push(put(Key::inode(1), wrong.as_bytes().to_vec()));
    });
    assert_eq!(root, some("/"));
    assert_eq!(of(16), some("/file"));
    assert_eq!(of(18), some("/dir/link"));
    assert_eq!(of(19), some("/small"), "one of two names");
    // By an entry in the log.
    let found = paths(|plan| {
        plan.log[2]
            .changes
            .retain(|change| change.key != extent_key(22, 0));
    });
    assert_eq!(found, some("/new"));
    // A directory that contains itself has no path to the root.
    let found = paths(|plan| {
        plan.items.remove(&index_key(1, 4));
        plan.items.remove(&name_key(1, "dir"));
        plan.entry(17, 5, "self", 17, S_IFDIR);
    });
    assert!(
        found
            .iter()
            .flatten()
            .any(|path| path.starts_with(".../self/"))
    );
    assert!(found.iter().flatten().all(|path| path.len() < 5000));
    let found = paths(|plan| {
        plan.items.remove(&index_key(17, 3));
        plan.items.remove(&name_key(17, "link"));
        plan.edit(17, |i| i.size = U64::new(1));
    });
    assert_eq!(found, [None], "nothing leads to it");
}
