//! Damaged nodes of the index: what is in other nodes can be listed, read and removed.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use cairnfs::Error;
use cairnfs::format::item::decode_dir_entry;
use cairnfs::format::key::{Key, Kind};
use cairnfs::fs::{FileSystem, Options};
use cairnfs_mutate::base::{Base, thousands};
use cairnfs_mutate::image::{Bounded, Image};
use cairnfs_mutate::layout::ItemAt;

static BASE: LazyLock<Base> = LazyLock::new(thousands);

fn options() -> Options {
    Options {
        workers: false,
        durability_interval: None,
        ..Options::default()
    }
}

fn open(image: &Image) -> (Arc<FileSystem>, Arc<Bounded>) {
    let device = Bounded::new(image);
    (
        FileSystem::open_device(device.clone(), &options()).unwrap(),
        device,
    )
}

/// The items of each leaf of the files' tree.
fn leaves(base: &Base) -> BTreeMap<u64, Vec<ItemAt>> {
    let mut leaves: BTreeMap<u64, Vec<ItemAt>> = BTreeMap::new();
    for item in base
        .layout
        .items
        .iter()
        .filter(|i| i.key.kind != Kind::Root)
    {
        leaves.entry(item.node).or_default().push(*item);
    }
    leaves
}

/// The image with a node damaged.
fn damaged(base: &Base, node: u64) -> Image {
    let mut image = base.image.clone();
    image.patch(node, 9000, b"damage");
    image
}

/// The name of each entry, by directory and index.
fn entries(base: &Base) -> BTreeMap<(u64, u64), (Vec<u8>, u64)> {
    let items = base.layout.items.iter();
    items
        .filter(|item| item.key.kind == Kind::DirIndex)
        .map(|item| {
            let bytes = base.image.read(item.node, 4);
            let entry = decode_dir_entry(&bytes[item.at..item.at + item.len]).unwrap();
            let key = (item.key.object, item.key.offset);
            (key, (entry.name.to_vec(), entry.ino))
        })
        .collect()
}

/// The names that a listing gives, `most` in each call, and how often and how it failed.
fn list(fs: &FileSystem, dir: u64, most: usize) -> (Vec<Vec<u8>>, Vec<Error>) {
    let (mut names, mut errors, mut cookie) = (Vec::new(), Vec::new(), 0);
    loop {
        let mut some = 0;
        let listed = fs.readdir(dir, cookie, &mut |entry| {
            if some == most {
                return false;
            }
            some += 1;
            cookie = entry.cookie;
            if !entry.is_dots() {
                names.push(entry.name.to_vec());
            }
            true
        });
        // A reader that has got entries asks again, as the kernel does.
        match listed {
            Err(error) if some == 0 => {
                errors.push(error);
                return (names, errors);
            }
            Ok(()) if some == 0 => return (names, errors),
            _ => {}
        }
    }
}

/// A leaf with entries before which, and behind which, its directory has others.
fn leaf_of_entries(base: &Base) -> (u64, u64) {
    let of = |node: u64, dir: u64| {
        let items = base.layout.items.iter();
        items.filter(move |i| (i.key.object, i.key.kind) == (dir, Kind::DirIndex) && i.node == node)
    };
    let middle = base.layout.items.iter().find(|item| {
        let (first, last) = (Key::new(item.key.object, Kind::DirIndex, 0), item.key);
        let before = base
            .layout
            .items
            .iter()
            .filter(|i| i.key > first && i.key < last);
        item.key.kind == Kind::DirIndex && before.count() == 500
    });
    let (node, dir) = (middle.unwrap().node, middle.unwrap().key.object);
    assert!(of(node, dir).count() > 50);
    (node, dir)
}

#[test]
fn listing_gives_all_other_entries_and_then_fails_once() {
    let base = &*BASE;
    let (node, dir) = leaf_of_entries(base);
    let hidden: BTreeSet<u64> = leaves(base)[&node].iter().map(|i| i.key.offset).collect();
    let expected: Vec<Vec<u8>> = entries(base)
        .into_iter()
        .filter(|((of, index), _)| *of == dir && !hidden.contains(index))
        .map(|(_, (name, _))| name)
        .collect();
    let (fs, _) = open(&damaged(base, node));
    for most in [usize::MAX, 1000, 64, 1] {
        let (names, errors) = list(&fs, dir, most);
        assert!(names == expected, "{} of {}", names.len(), expected.len());
        let [Error::Corrupt(found)] = &errors[..] else {
            panic!("{errors:?}");
        };
        assert_eq!(found.block, node);
    }
    let (mut names, mut cookie) = (Vec::new(), 0);
    let plus = loop {
        let before = names.len();
        let listed = fs.readdir_plus(dir, cookie, &mut |entry, attr| {
            cookie = entry.cookie;
            if !entry.is_dots() {
                names.push(entry.name.to_vec());
                assert_eq!(attr.unwrap().ino, entry.ino);
            }
            true
        });
        if listed.is_err() && before == names.len() {
            break listed;
        }
    };
    assert!(names == expected, "{} of {}", names.len(), expected.len());
    assert!(matches!(plus, Err(Error::Corrupt(found)) if found.block == node));
    let beside = entries(base).into_keys().map(|(of, _)| of);
    let beside: BTreeSet<u64> = beside.filter(|of| *of != dir).collect();
    for other in beside {
        assert!(
            list(&fs, other, 64).1.is_empty(),
            "directory {other} is whole"
        );
    }
}

/// Entries whose inodes, names or contents are hidden are listed; what is not hidden can be removed,
/// and what is removed is gone after a merge.
#[test]
fn what_can_be_read_is_removed_beside_any_damaged_leaf() {
    let base = &*BASE;
    let entries = entries(base);
    let all = leaves(base);
    for (n, (node, items)) in all.iter().enumerate().filter(|(n, _)| n % 7 == 3) {
        let root = |item: &&ItemAt| item.key == Key::inode(1);
        if items.iter().any(|item| root(&item)) {
            continue;
        }
        let (fs, device) = open(&damaged(base, *node));
        let kinds: BTreeSet<Kind> = items.iter().map(|item| item.key.kind).collect();
        let mut failed = 0;
        for ((dir, _), (name, _)) in &entries {
            if fs.unlink(*dir, name).is_err() {
                failed += 1;
            }
        }
        let most = 3 * items.len() + 60;
        assert!(failed <= most, "{failed} beside {kinds:?} of leaf {n}");
        fs.merge()
            .unwrap_or_else(|e| panic!("{kinds:?} of leaf {n}: {e}"));
        drop(fs);
        let (fs, _) = open(&device.image());
        let dirs: BTreeSet<u64> = entries.keys().map(|(dir, _)| *dir).collect();
        let left: usize = dirs.iter().map(|dir| list(&fs, *dir, 64).0.len()).sum();
        assert!(left <= most, "{left} beside {kinds:?} of leaf {n}");
    }
}
