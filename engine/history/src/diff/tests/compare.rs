//! Collected changes against a naive comparison of two models, and histories that are easy to miss.

use std::collections::BTreeSet;
use std::ops::Range;

use proptest::prelude::*;

use super::model::{Counters, Model, Node, Random, node};
use super::volume::{ModelVolume, Numbered, block_bytes, raw_inode};
use crate::diff::{Change, Changes, FileTree, InodeDelta, Item, Name, TreeDelta, Values};
use cairnfs_disk::error::Error;
use cairnfs_disk::format::item::{RawInode, S_IFDIR, S_IFREG};
use cairnfs_disk::format::{BLOCK_SIZE, ROOT_INO};

pub fn delta(old: FileTree<'_>, new: FileTree<'_>) -> TreeDelta {
    TreeDelta::collect(Changes::new(old, new).unwrap()).unwrap()
}

/// The bytes that read differently or were rewritten, one by one.
fn differing(old: Option<&Node>, new: &Node) -> Vec<Range<u64>> {
    let empty = node(new.mode, 0).contents;
    let before = old.map_or(&empty, |o| &o.contents);
    let now = &new.contents;
    let place = |c: &super::model::Contents, at: u64| {
        let block = c.blocks.get(&(at / BLOCK_SIZE as u64));
        block.filter(|(_, written)| *written).copied()
    };
    let both = old.is_some();
    let common = if both {
        before.size.min(now.size)
    } else {
        now.size
    };
    let inline = match (&before.inline, &now.inline) {
        (Some(a), Some(b)) if both => {
            let differs: Vec<usize> = (0..common as usize).filter(|i| a[*i] != b[*i]).collect();
            match (differs.first(), differs.last()) {
                (Some(first), Some(last)) => *first as u64..*last as u64 + 1,
                _ => 0..0,
            }
        }
        (None, None) => 0..0,
        (a, b) => 0..a.as_ref().or(b.as_ref()).unwrap().len() as u64,
    };
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let end = if both {
        before.size.max(now.size)
    } else {
        now.size
    };
    for at in 0..end {
        let changed = at >= common || inline.contains(&at) || place(before, at) != place(now, at);
        match ranges.last_mut() {
            Some(last) if changed && last.end == at => last.end += 1,
            _ if changed => ranges.push(at..at + 1),
            _ => {}
        }
    }
    ranges
}

pub fn naive(old: &Model, new: &Model) -> TreeDelta {
    let mut delta = TreeDelta::default();
    let all: BTreeSet<u64> = old.nodes.keys().chain(new.nodes.keys()).copied().collect();
    let visible = |model: &Model, ino: u64| -> Option<RawInode> {
        let there = model.nodes.contains_key(&ino) && model.links(ino) > 0;
        there.then(|| raw_inode(model, ino))
    };
    for ino in all {
        let (was, is) = (visible(old, ino), visible(new, ino));
        let names = |a: &Model, b: &Model| -> Vec<Name> {
            let names = a
                .names_of(ino)
                .difference(&b.names_of(ino))
                .cloned()
                .collect::<Vec<_>>();
            names
                .into_iter()
                .map(|(dir, name)| Name { dir, name })
                .collect()
        };
        let entries = |model: &Model| {
            let of_dir = model.names.iter().filter(|((dir, _), _)| *dir == ino);
            let list: BTreeSet<_> = of_dir.map(|((_, n), (i, c))| (*i, *c, n.clone())).collect();
            list
        };
        let mut inode = InodeDelta {
            item: (was != is).then_some(Item { old: was, new: is }),
            lost: names(old, new),
            gained: names(new, old),
            entries: entries(old) != entries(new),
            ..InodeDelta::default()
        };
        if is.is_some() {
            let before = was.and_then(|_| old.nodes.get(&ino));
            let now = &new.nodes[&ino];
            let value = |node: Option<&Node>, name: &Vec<u8>| node?.xattrs.get(name).cloned();
            let empty = std::collections::BTreeMap::new();
            let olds = before.map_or(&empty, |n| &n.xattrs);
            for name in olds.keys().chain(now.xattrs.keys()) {
                let (old, new) = (value(before, name), value(Some(now), name));
                if old != new {
                    inode.xattrs.insert(name.clone(), Values { old, new });
                }
            }
            if !now.is(S_IFDIR) {
                inode.contents = differing(before, now);
            }
        }
        if inode != InodeDelta::default() {
            delta.inodes.insert(ino, inode);
        }
    }
    delta
}

/// A volume with one tree for each of several states of a random history.
pub fn history(
    seed: u64,
    rounds: usize,
    changes: usize,
) -> (ModelVolume, Vec<(Model, cairnfs_core::index::Tree)>) {
    let mut random = Random(seed | 1);
    let (mut model, mut counters) = (Model::default(), Counters::default());
    let mut volume = ModelVolume::new();
    let mut states = Vec::new();
    for _ in 0..rounds {
        let most = [1, 2, 256][random.below(3)];
        let tree = volume.write(&model, most);
        states.push((model.clone(), tree));
        for _ in 0..random.below(changes) {
            model.change(&mut counters, &mut random);
        }
    }
    (volume, states)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn delta_agrees_with_a_naive_comparison(seed in any::<u64>(), changes in 1usize..150) {
        let (volume, states) = history(seed, 4, changes);
        for (old, old_tree) in &states {
            for (new, new_tree) in &states {
                let found = delta(volume.tree(*old_tree), volume.tree(*new_tree));
                prop_assert_eq!(found, naive(old, new));
            }
        }
    }

    /// Outside of the reported ranges both trees read the same.
    #[test]
    fn equal_bytes_are_outside_of_the_ranges(seed in any::<u64>(), changes in 1usize..150) {
        let (volume, states) = history(seed, 3, changes);
        let (old, new) = (volume.tree(states[0].1), volume.tree(states[2].1));
        let found = delta(old, new);
        for ino in states[0].0.inodes(S_IFREG) {
            let sizes = [old.inode(ino).unwrap(), new.inode(ino).unwrap()].map(|i| i.map(|i| i.size.get()));
            let [Some(a), Some(b)] = sizes else { continue };
            let inode = found.inodes.get(&ino).cloned().unwrap_or_default();
            if inode.is_removed() || inode.is_added() {
                continue;
            }
            let read = |tree: FileTree<'_>, size: u64| {
                let mut bytes = vec![0; size as usize];
                tree.read(&Numbered, ino, 0, &mut bytes).unwrap();
                bytes
            };
            let (before, now) = (read(old, a), read(new, b));
            for at in 0..before.len().max(now.len()) {
                if before.get(at) != now.get(at) {
                    prop_assert!(inode.contents.iter().any(|r| r.contains(&(at as u64))), "{ino}: {at}");
                }
            }
        }
    }
}

/// Changes come by inode, and a range at a time.
#[test]
fn changes_come_in_key_order() {
    let (volume, states) = history(99, 4, 200);
    let mut changes = Changes::new(volume.tree(states[0].1), volume.tree(states[3].1)).unwrap();
    let mut last = (0, 0);
    while let Some(change) = changes.next_change().unwrap() {
        let place = match change {
            Change::Inode { ino, .. } => (ino, 0),
            Change::Entry { dir, .. } => (dir, 1),
            Change::Xattr { ino, .. } => (ino, 2),
            Change::Contents { ino, range } => (ino, 3 + range.start),
        };
        assert!(place.0 >= last.0, "{place:?} after {last:?}");
        last = place;
    }
    assert!(last.0 > 0 && changes.nodes_read() > 0);
}

fn vec_of(range: Range<u64>) -> Vec<Range<u64>> {
    Vec::from([range])
}

#[test]
fn file_without_a_name_is_whole_when_it_gets_one() {
    let (mut model, mut counters) = (Model::default(), Counters::default());
    let mut volume = ModelVolume::new();
    model.nodes.insert(20, node(S_IFREG | 0o600, ROOT_INO));
    model.write(&mut counters, 20, 0, &[1; 9000]);
    let xattrs = &mut model.nodes.get_mut(&20).unwrap().xattrs;
    xattrs.insert(b"user.a".to_vec(), vec![3; 500]);
    let before = volume.write(&model, 256);
    model.link(ROOT_INO, b"named".to_vec(), 20);
    let after = volume.write(&model, 256);
    let found = delta(volume.tree(before), volume.tree(after));
    let inode = &found.inodes[&20];
    assert!(inode.is_added());
    assert_eq!(inode.contents, vec_of(0..9000));
    assert_eq!(inode.xattrs.len(), 1);
    let back = delta(volume.tree(after), volume.tree(before));
    assert!(back.inodes[&20].is_removed() && back.inodes[&20].contents.is_empty());
}

#[test]
fn preallocated_and_split_extents_read_the_same() {
    let (mut model, mut counters) = (Model::default(), Counters::default());
    let mut volume = ModelVolume::new();
    model.nodes.insert(20, node(S_IFREG | 0o600, ROOT_INO));
    model.link(ROOT_INO, b"f".to_vec(), 20);
    model.write(&mut counters, 20, 0, &[1; 40_000]);
    let joined = volume.write(&model, 256);
    let split = volume.write(&model, 1);
    assert_ne!(joined, split);
    assert_eq!(
        delta(volume.tree(joined), volume.tree(split)),
        TreeDelta::default()
    );
    let contents = &mut model.nodes.get_mut(&20).unwrap().contents;
    contents.blocks.insert(50, (counters.take(), false));
    contents.size = 51 * 4096;
    let grown = volume.write(&model, 256);
    let found = delta(volume.tree(split), volume.tree(grown));
    assert_eq!(found.inodes[&20].contents, vec_of(40_000..51 * 4096));
    let contents = &mut model.nodes.get_mut(&20).unwrap().contents;
    contents.blocks.remove(&50);
    let hole = volume.write(&model, 256);
    let found = delta(volume.tree(grown), volume.tree(hole));
    assert_eq!(found.inodes[&20].contents, []);
    let mut bytes = vec![1; 5000];
    volume
        .tree(hole)
        .read(&Numbered, 20, 4000, &mut bytes)
        .unwrap();
    let first = model.nodes[&20].contents.blocks[&0].0;
    assert_eq!(bytes[..96], block_bytes(first)[4000..]);
}

/// One place for shared values has another value, and no attribute item tells so.
#[test]
fn exchanged_shared_values_are_refused() {
    use cairnfs_disk::format::xattr::{SharedRef, encode_shared_value};
    let mut volume = ModelVolume::new();
    let place = SharedRef { hash: 77, slot: 1 };
    volume
        .bench
        .put([(place.key(), encode_shared_value(2, &[1; 100]))]);
    let old = volume.bench.tree;
    volume
        .bench
        .put([(place.key(), encode_shared_value(3, &[1; 100]))]);
    let counted = volume.bench.tree;
    volume
        .bench
        .put([(place.key(), encode_shared_value(3, &[2; 100]))]);
    let (old, counted, new) = (
        volume.tree(old),
        volume.tree(counted),
        volume.tree(volume.bench.tree),
    );
    assert_eq!(delta(old, counted), TreeDelta::default());
    let refused = Changes::new(old, new).unwrap().next_change();
    assert!(matches!(refused, Err(Error::Unsupported(_))));
}

#[test]
fn damaged_items_are_refused() {
    use cairnfs_disk::format::key::{Key, Kind};
    let (model, mut volume) = (Model::default(), ModelVolume::new());
    let old = volume.write(&model, 256);
    for (ino, kind, value) in [
        (ROOT_INO, Kind::Inode, vec![1; 112]),
        (ROOT_INO, Kind::DirIndex, vec![1; 9]),
        (ROOT_INO, Kind::Xattr, vec![9; 2]),
        (ROOT_INO, Kind::Extent, vec![9; 30]),
        (99, Kind::Inline, vec![9; 30]),
    ] {
        let key = Key::new(ino, kind, 0);
        let before = volume.bench.model.get(&key).cloned();
        volume.bench.put([(key, value)]);
        let mut changes = Changes::new(volume.tree(old), volume.tree(volume.bench.tree)).unwrap();
        assert!(
            matches!(changes.next_change(), Err(Error::Corrupt(_))),
            "{kind:?}"
        );
        drop(changes);
        volume.bench.apply([(key, before)].into());
    }
}
