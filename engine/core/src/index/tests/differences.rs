//! Differences of two trees: compared with those of two maps, and the nodes read for them.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::model::{any_key, any_value};
use crate::index::testing::{Bench, Changes, Items, key, offset};
use crate::index::{Difference, Index, Limits, OldOnly, Tree};
use cairnfs_disk::error::Error;
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::format::node::MAX_HEIGHT;
use cairnfs_tier::size;

/// All differences, and the number of nodes read.
fn walk(index: &Index, old: &Tree, new: &Tree) -> (Vec<Difference>, u64) {
    let mut walk = index.differences(old, new).unwrap();
    let mut found = Vec::new();
    while let Some(difference) = walk.next_difference().unwrap() {
        found.push(difference);
    }
    assert!(walk.next_difference().unwrap().is_none());
    (found, walk.nodes_read())
}

/// What a comparison of two full scans finds.
fn compared(old: &Items, new: &Items) -> Vec<Difference> {
    let keys: BTreeSet<&Key> = old.keys().chain(new.keys()).collect();
    let both = keys.into_iter().map(|key| Difference {
        key: *key,
        old: old.get(key).cloned(),
        new: new.get(key).cloned(),
    });
    both.filter(|d| d.old != d.new).collect()
}

/// A state of a bench; its nodes stay as long as no retired block is reused.
struct State {
    tree: Tree,
    items: Items,
    nodes: BTreeSet<u64>,
    /// The nodes, and the units of large values.
    blocks: BTreeSet<u64>,
}

impl State {
    fn of(bench: &Bench) -> Self {
        Self {
            tree: bench.tree,
            items: bench.model.clone(),
            nodes: bench.node_blocks(),
            blocks: bench.blocks(),
        }
    }
}

/// The blocks that the walk reports as the old tree's alone, each once.
fn reported(index: &Index, old: &Tree, new: &Tree) -> BTreeSet<u64> {
    let mut blocks = BTreeSet::new();
    let only = Some(Kind::Extent);
    let limits = Limits {
        only,
        ..Limits::default()
    };
    let mut walk = index.differences_within(old, new, limits).unwrap();
    walk.report_old_only(|own| {
        match own {
            OldOnly::Node(ptr) => assert!(blocks.insert(ptr.block.get())),
            OldOnly::Value(address) => {
                let mut unit = |block| assert!(blocks.insert(block));
                index.large_value(0, &address, &mut unit)?;
            }
        }
        Ok(())
    });
    while let Some(difference) = walk.next_difference().unwrap() {
        assert_eq!(Some(difference.key.kind), only);
    }
    drop(walk);
    blocks
}

/// The nodes that only one of two trees has.
fn own_nodes(a: &State, b: &State) -> u64 {
    a.nodes.symmetric_difference(&b.nodes).count() as u64
}

fn numbered(range: std::ops::Range<u64>, value: u8) -> impl Iterator<Item = (Key, Vec<u8>)> {
    range.map(move |i| (key(i), vec![value; 40 + (i % 50) as usize]))
}

fn edits() -> impl Strategy<Value = Changes> {
    let few = proptest::collection::btree_map(any_key(), any_value(), 0..12);
    let many = proptest::collection::btree_map(any_key(), any_value(), 0..600);
    prop_oneof![2 => few, 1 => many]
}

/// A range of keys to remove, as parts in 1000 of all keys: so leaves and parents vanish.
fn range() -> impl Strategy<Value = Option<(usize, usize)>> {
    prop_oneof![
        2 => Just(None),
        1 => (0usize..1000, 0usize..1000).prop_map(|(a, b)| Some((a.min(b), a.max(b)))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(size(15, 40)))]
    #[test]
    fn differences_agree_with_two_scans(
        rounds in proptest::collection::vec((edits(), range()), 1..7),
        cache in prop_oneof![Just(0usize), Just(64 << 20)],
    ) {
        let mut bench = Bench::new(cache);
        let mut states = vec![State::of(&bench)];
        for (changes, removed) in rounds {
            bench.apply(changes);
            states.push(State::of(&bench));
            if let Some((from, to)) = removed {
                let keys: Vec<Key> = bench.model.keys().copied().collect();
                let (from, to) = (from * keys.len() / 1000, to * keys.len() / 1000);
                bench.delete(keys[from..to].iter().copied());
                states.push(State::of(&bench));
            }
        }
        for old in &states {
            for new in &states {
                let (found, read) = walk(&bench.index, &old.tree, &new.tree);
                prop_assert!(found == compared(&old.items, &new.items));
                prop_assert!(read <= (old.nodes.len() + new.nodes.len()) as u64);
                let own: BTreeSet<u64> = old.blocks.difference(&new.blocks).copied().collect();
                prop_assert_eq!(reported(&bench.index, &old.tree, &new.tree), own);
                if old.tree == new.tree {
                    prop_assert_eq!(read, 0);
                }
            }
        }
    }

    /// Two trees with the same items and no common node: all that moved between nodes cancels out.
    #[test]
    fn equal_items_in_other_nodes_do_not_differ(
        items in proptest::collection::btree_map(any_key(), any_value(), 0..900),
        batch in 1usize..200,
        extra in any_key(),
    ) {
        let mut bench = Bench::new(64 << 20);
        bench.put(items.iter().filter_map(|(k, v)| Some((*k, v.clone()?))));
        let one = State::of(&bench);
        (bench.tree, bench.model) = Default::default();
        let items: Vec<(Key, Vec<u8>)> = one.items.clone().into_iter().collect();
        for part in items.chunks(batch) {
            bench.put(part.iter().cloned());
        }
        prop_assert!(walk(&bench.index, &one.tree, &bench.tree).0.is_empty());
        bench.put([(extra, vec![9; 3000])]);
        let found = walk(&bench.index, &one.tree, &bench.tree).0;
        prop_assert_eq!(found, compared(&one.items, &bench.model));
    }
}

/// The new tree has no younger leaf than the old one, and yet lacks items.
#[test]
fn diff_whole_leaf_removed() {
    let mut bench = Bench::new(16 << 20);
    bench.put(numbered(0..20_000, 1));
    let old = State::of(&bench);
    assert_eq!(old.tree.height, 2);
    let root = bench.index.load(&old.tree.ptr, 1).unwrap();
    let (second, end) = (root.key(1).unwrap(), root.key(2).unwrap());
    let removed: Vec<Key> = old.items.range(second..end).map(|(k, _)| *k).collect();
    assert!(removed.len() > 100);
    bench.delete(removed.iter().copied());
    let new = State::of(&bench);
    let (found, read) = walk(&bench.index, &old.tree, &new.tree);
    assert_eq!(found, compared(&old.items, &new.items));
    assert_eq!(found.len(), removed.len());
    assert!(found.iter().all(|d| d.new.is_none()));
    assert_eq!(read, own_nodes(&old, &new));
}

/// 100 changes among a million items: only the nodes are read that one of the trees has alone, and
/// each of them once, from the cache or from the device.
#[test]
fn reads_are_proportional_to_the_change() {
    const ITEMS: u64 = 1_000_000;
    let mut bench = Bench::new(256 << 20);
    bench.put((0..ITEMS).map(|i| (key(i), vec![1; 24])));
    let old = State::of(&bench);
    assert!(old.tree.height >= 3 && old.nodes.len() > 2000);
    let spread = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % ITEMS;
    bench.apply(
        (0..100)
            .map(|i| {
                let value = (i % 3 > 0).then(|| vec![2; 30]);
                (key(spread(i)), value)
            })
            .collect(),
    );
    let new = State::of(&bench);
    let expected = compared(&old.items, &new.items);
    assert_eq!(expected.len(), 100);
    for index in [&bench.index, &bench.fresh()] {
        let missed = index.counters().misses;
        let (found, read) = walk(index, &old.tree, &new.tree);
        assert_eq!(found, expected);
        assert_eq!(read, own_nodes(&old, &new));
        assert!(read <= 2 * 100 * u64::from(old.tree.height), "{read} nodes");
        assert!(index.counters().misses - missed <= read);
    }
}

/// A change at the front, and one that makes the tree higher, leave the rest shared.
#[test]
fn trees_of_other_heights_share_their_leaves() {
    let mut bench = Bench::new(64 << 20);
    bench.put(numbered(64..1_000, 1));
    let mut before = State::of(&bench);
    for (change, least_height) in [(1_000..40_000, 2), (40_000..300_000, 3), (0..64, 3)] {
        bench.put(numbered(change.clone(), 1));
        let now = State::of(&bench);
        assert!(now.tree.height >= least_height);
        for (old, new) in [(&before, &now), (&now, &before)] {
            let (found, read) = walk(&bench.index, &old.tree, &new.tree);
            assert_eq!(found, compared(&old.items, &new.items));
            assert_eq!(found.len() as u64, change.end - change.start);
            assert!(
                read <= own_nodes(old, new) + u64::from(MAX_HEIGHT),
                "{read}"
            );
        }
        before = now;
    }
}

#[test]
fn equal_large_values_at_other_places_do_not_differ() {
    let mut bench = Bench::new(16 << 20);
    let large = |b: u8| vec![b; 100_000];
    bench.put([(key(1), large(1)), (key(2), large(2))]);
    let old = bench.tree;
    bench.put([(key(1), large(7)), (key(2), large(3))]);
    bench.put([(key(1), large(1))]);
    let (found, _) = walk(&bench.index, &old, &bench.tree);
    let second = Difference {
        key: key(2),
        old: Some(large(2)),
        new: Some(large(3)),
    };
    assert_eq!(found, [second]);
}

#[test]
fn damage_ends_the_walk() {
    let mut bench = Bench::new(16 << 20);
    bench.put(numbered(0..20_000, 1));
    let old = State::of(&bench);
    bench.put(numbered(5_000..5_001, 2));
    let new = State::of(&bench);
    let own: Vec<u64> = old
        .nodes
        .symmetric_difference(&new.nodes)
        .copied()
        .collect();
    assert!(own.len() >= 4);
    for block in own {
        let at = offset(block) + 9_000;
        bench.device.bytes.lock()[at] ^= 1;
        let index = bench.fresh();
        let mut walk = index.differences(&old.tree, &new.tree).unwrap();
        let ended = std::iter::repeat_with(|| walk.next_difference())
            .find(|next| !matches!(next, Ok(Some(_))))
            .unwrap();
        assert!(matches!(ended, Err(Error::Corrupt(_))), "{ended:?}");
        bench.device.bytes.lock()[at] ^= 1;
    }
    let high = Tree {
        height: MAX_HEIGHT + 1,
        ..old.tree
    };
    assert!(bench.index.differences(&old.tree, &high).is_err());
}
