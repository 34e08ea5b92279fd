//! Damaged nodes of the index: what is in other nodes can be listed, read and removed.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};

use cairnfs::Error;
use cairnfs::RemovedDamage;
use cairnfs::fs::FileSystem;
use cairnfs_check::{CheckOptions, check};
use cairnfs_disk::device::Device;
use cairnfs_disk::format::checksum::hash64;
use cairnfs_disk::format::item::decode_dir_entry;
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::types::{Attr, FileKind};
use cairnfs_mutate::base::{Base, bases, forked, merged, one_of_everything, thousands, two_levels};
use cairnfs_mutate::image::{Bounded, Image};
use cairnfs_mutate::layout::{ItemAt, Link};
use cairnfs_mutate::random::Random;
use cairnfs_tier::size;

use crate::options;

static BASE: LazyLock<Base> = LazyLock::new(thousands);

fn open(image: &Image) -> (Arc<FileSystem>, Arc<Bounded>) {
    let device = Bounded::new(image);
    (
        FileSystem::open_device(device.clone(), &options(false)).unwrap(),
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

/// Contract: rot.salvage
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
/// Contract: rot.salvage
#[test]
fn what_can_be_read_is_removed_beside_any_damaged_leaf() {
    let base = &*BASE;
    let entries = entries(base);
    let all = leaves(base);
    for (n, (node, items)) in all.iter().enumerate().filter(|(n, _)| n % size(14, 7) == 3) {
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

/// The nodes that may be damaged: those of the tree of files, without its root.
fn nodes_below_root(base: &Base) -> Vec<u64> {
    let mut roots = base.layout.items.iter();
    let volume = roots.find(|item| item.key.kind == Kind::Root).unwrap().node;
    let nodes = base.layout.nodes.iter();
    nodes
        .filter(|(_, links)| {
            let below = |link: &Link| matches!(link, Link::Node { node, .. } if *node != volume);
            links.iter().all(below)
        })
        .map(|(node, _)| *node)
        .collect()
}

/// The leaves that cannot be reached without these nodes.
fn hidden_leaves(base: &Base, damaged: &BTreeSet<u64>) -> BTreeSet<u64> {
    let hidden = |leaf: &u64| {
        let mut at = *leaf;
        loop {
            if damaged.contains(&at) {
                return true;
            }
            match base.layout.nodes[&at][0] {
                Link::Superblock => return false,
                Link::Node { node, .. } => at = node,
            }
        }
    };
    leaves(base).into_keys().filter(hidden).collect()
}

/// Everything of a file, except what depends on its entries.
fn state(fs: &FileSystem, ino: u64, with_attributes: bool) -> (Attr, u64) {
    let attr = fs.getattr(ino).unwrap();
    let mut bytes = Vec::new();
    if with_attributes {
        let names = fs.listxattr(ino).unwrap();
        for name in names.split(|b| *b == 0).filter(|name| !name.is_empty()) {
            bytes.extend_from_slice(name);
            bytes.extend(fs.getxattr(ino, name).unwrap());
        }
    }
    match attr.kind {
        FileKind::File => {
            let mut contents = vec![0; attr.size as usize];
            let len = fs.read(ino, 0, &mut contents).unwrap();
            assert_eq!(len, contents.len());
            bytes.extend(contents);
        }
        FileKind::Symlink => bytes.extend(fs.readlink(ino).unwrap()),
        _ => {}
    }
    let dir = attr.kind == FileKind::Directory;
    let attr = Attr {
        nlink: 0,
        size: if dir { 0 } else { attr.size },
        ..attr
    };
    (attr, hash64(&bytes))
}

fn remove(image: &Image) -> (RemovedDamage, Image) {
    let device = Bounded::new(image);
    let removed = FileSystem::remove_damage(device.clone(), &options(false));
    let removed = removed.unwrap_or_else(|e| panic!("{e}"));
    (removed, device.image())
}

/// Opens it for changes, which removes what has no links, and closes it. Then a check finds nothing.
fn assert_clean(image: &Image, of: &str) -> Image {
    let device = Bounded::new(image);
    let fs = FileSystem::open_device(device.clone(), &options(false)).unwrap();
    fs.close().unwrap_or_else(|e| panic!("{of}: {e}"));
    drop(fs);
    for image in [image, &device.image()] {
        let device = Bounded::new(image);
        let options = CheckOptions { data: true };
        let report = check(&*device, &options, &mut |_| {}).unwrap();
        assert!(report.findings.is_empty(), "{of}: {:#?}", report.findings);
    }
    device.image()
}

#[test]
fn removal_changes_nothing_of_sound_volumes() {
    let mut all = bases();
    all.push(merged());
    for base in all {
        let (removed, image) = remove(&base.image);
        assert!(
            removed.nodes.is_empty() && removed.losses.is_empty(),
            "{removed:?}"
        );
        assert!(removed.still_damaged.is_empty(), "{removed:?}");
        assert_eq!(removed.freed, 0, "{}", base.name);
        assert_clean(&image, base.name);
    }
}

/// What is in other nodes stays as it is, under its name if that is known.
/// Contract: rot.salvage
#[test]
fn removal_leaves_the_rest_and_a_sound_volume() {
    let base = &*BASE;
    let nodes = nodes_below_root(base);
    let inner: BTreeSet<u64> = base
        .layout
        .nodes
        .values()
        .flatten()
        .filter_map(|link| match link {
            Link::Node { node, .. } => Some(*node),
            Link::Superblock => None,
        })
        .collect();
    let inner: Vec<u64> = nodes
        .iter()
        .copied()
        .filter(|node| inner.contains(node))
        .collect();
    assert!(!inner.is_empty(), "{} nodes", nodes.len());
    let (sound, _) = open(&base.image);
    let mut items: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for item in &base.layout.items {
        let own = [Kind::Inode, Kind::Inline, Kind::Xattr, Kind::Extent];
        if own.contains(&item.key.kind) {
            items.entry(item.key.object).or_default().insert(item.node);
        }
    }
    let expected = |with: bool| -> BTreeMap<u64, (Attr, u64)> {
        let states = items.keys().map(|ino| (*ino, state(&sound, *ino, with)));
        states.collect()
    };
    let expected = [expected(false), expected(true)];
    let entries = entries(base);
    let places: BTreeMap<(u64, u64), u64> = base
        .layout
        .items
        .iter()
        .filter(|item| item.key.kind == Kind::DirIndex)
        .map(|item| ((item.key.object, item.key.offset), item.node))
        .collect();
    for seed in 0..size(6, 40) {
        let mut random = Random::new(seed);
        let count = 1 + random.below(3);
        let mut damage: BTreeSet<u64> = (0..count).map(|_| *random.pick(&nodes)).collect();
        if random.once_in(6) {
            damage.insert(*random.pick(&inner));
        }
        let of = format!("seed {seed}, nodes {damage:?}");
        let mut image = base.image.clone();
        for node in &damage {
            image.patch(*node, random.below(16_000), &random.number().to_le_bytes());
        }
        let hidden = hidden_leaves(base, &damage);
        let (removed, image) = remove(&image);
        assert!(removed.still_damaged.is_empty(), "{of}: {removed:?}");
        let image = assert_clean(&image, &of);
        let (fs, _) = open(&image);
        let values = base
            .layout
            .items
            .iter()
            .any(|item| item.key.kind == Kind::SharedValue && hidden.contains(&item.node));
        let intact = |ino: &u64| items.get(ino).is_some_and(|own| own.is_disjoint(&hidden));
        for ino in items.keys().filter(|ino| intact(ino)) {
            let expected = &expected[usize::from(!values)][ino];
            assert_eq!(&state(&fs, *ino, !values), expected, "{of}: inode {ino}");
        }
        for ((dir, index), (name, ino)) in &entries {
            if intact(ino) && !hidden.contains(&places[&(*dir, *index)]) {
                let found = fs
                    .lookup(*dir, name)
                    .unwrap_or_else(|e| panic!("{of}: {dir}: {e}"));
                assert_eq!(found.ino, *ino);
                fs.forget(*ino, 1);
            }
        }
        let (again, same) = remove(&image);
        assert!(
            again.nodes.is_empty() && again.losses.is_empty(),
            "{of}: {again:?}"
        );
        assert_clean(&same, &of);
    }
}

/// The log changes what is hidden, and roots share it. Without its top node a tree begins anew.
#[test]
fn removal_leaves_sound_volumes_of_every_kind() {
    for base in [two_levels(), one_of_everything(), forked(), merged()] {
        let nodes = base.layout.nodes.iter();
        let nodes = nodes.filter(|(_, links)| !links.contains(&Link::Superblock));
        let nodes: Vec<u64> = nodes.map(|(node, _)| *node).collect();
        let mut sound = 0;
        for seed in 0..size(60, 480) {
            let mut random = Random::new(seed);
            let mut image = base.image.clone();
            let damage: BTreeSet<u64> = (0..2).map(|_| *random.pick(&nodes)).collect();
            for node in &damage {
                image.patch(*node, random.below(16_000), &random.number().to_le_bytes());
            }
            let of = format!("{}: seed {seed}, nodes {damage:?}", base.name);
            let device = Bounded::new(&image);
            let removed = FileSystem::remove_damage(device.clone(), &options(false));
            let removed = removed.unwrap_or_else(|e| panic!("{of}: {e}"));
            if removed.still_damaged.is_empty() {
                assert_clean(&device.image(), &of);
                sound += 1;
            } else {
                // A frozen root stays as it is.
                assert_eq!(base.name, "forked", "{of}");
            }
        }
        assert_eq!(sound > 0, base.name != "forked", "{}", base.name);
    }
}

/// A device whose writes fail from one on, as before a power cut.
struct Cut {
    device: Arc<Bounded>,
    left: AtomicI64,
}

impl Device for Cut {
    fn size(&self) -> u64 {
        self.device.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> cairnfs::Result<()> {
        self.device.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> cairnfs::Result<()> {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            1.. => self.device.write(offset, buf),
            _ => Err(Error::Invalid("the power is cut")),
        }
    }
    fn flush(&self) -> cairnfs::Result<()> {
        self.device.flush()
    }
    fn discard(&self, _: u64, _: u64) -> cairnfs::Result<()> {
        Ok(())
    }
}

#[test]
fn removal_cut_at_any_write_is_done_by_the_next_one() {
    let base = two_levels();
    let nodes = nodes_below_root(&base);
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let mut image = base.image.clone();
        image.patch(*random.pick(&nodes), 9000, b"damage");
        let mut ended = false;
        for writes in 0..200 {
            let device = Bounded::new(&image);
            let cut = Cut {
                device: device.clone(),
                left: AtomicI64::new(writes),
            };
            ended = FileSystem::remove_damage(Arc::new(cut), &options(false)).is_ok();
            let of = format!("seed {seed} after {writes} writes");
            assert_clean(&remove(&device.image()).1, &of);
            if ended {
                break;
            }
        }
        assert!(ended, "seed {seed}");
    }
}
