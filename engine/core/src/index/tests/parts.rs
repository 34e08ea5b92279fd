//! Edits in parts, compared with the same edits together and with a `BTreeMap`.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::model::{any_key, any_value};
use crate::index::testing::{Bench, Changes, Memory, check_joins, fill, key, numbered};
use crate::index::{Bounds, Edits, Part};
use cairnfs_disk::error::Error;
use cairnfs_disk::format::key::Key;
use cairnfs_tier::size;

/// A batch, and the objects at which its parts begin.
fn batch() -> impl Strategy<Value = (Changes, BTreeSet<u64>)> {
    let changes = proptest::collection::btree_map(any_key(), any_value(), 0..600);
    let object = prop_oneof![4 => 1..41_u64, 1 => 1..=u64::MAX];
    (changes, proptest::collection::btree_set(object, 0..6))
}

fn put(range: std::ops::Range<u64>) -> Changes {
    numbered(range)
        .map(|(key, value)| (key, Some(value)))
        .collect()
}

/// Part `i` of `n` of the objects of `keys` begins there.
fn even(keys: std::ops::Range<u64>, n: u64) -> BTreeSet<u64> {
    let at = |i| keys.start + (keys.end - keys.start) / n * i;
    (1..n).map(|i| key(at(i)).object).collect()
}

/// Level, number of cells and first key of each node.
fn shape(bench: &Bench) -> Vec<(u8, usize, Option<Key>)> {
    let mut out = Vec::new();
    let mut todo = Vec::from_iter(
        bench
            .tree
            .height
            .checked_sub(1)
            .map(|l| (bench.tree.ptr, l as u8)),
    );
    while let Some((ptr, level)) = todo.pop() {
        let node = bench.index.load(&ptr, level).unwrap();
        out.push((level, node.len(), node.key(0)));
        if level > 0 {
            todo.extend((0..node.len()).map(|i| (node.child(i).unwrap(), level - 1)));
        }
    }
    out
}

/// Many changes near each other, in a few places of a large tree.
fn clusters() -> impl Strategy<Value = Changes> {
    let len = prop_oneof![Just(None), (0..300usize).prop_map(Some)];
    let cluster = (0..30_000u64, 1..2000u64, 1..9u64, len);
    proptest::collection::vec(cluster, 1..6).prop_map(|clusters| {
        let mut changes = Changes::new();
        for (start, count, step, len) in clusters {
            let keys = (start..start + count).step_by(step as usize);
            changes.extend(keys.map(|i| (key(i), len.map(|len| vec![i as u8; len]))));
        }
        changes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(size(20, 60)))]
    #[test]
    fn single_part_makes_the_nodes_of_one_pass(
        batches in proptest::collection::vec(clusters(), 1..6),
    ) {
        let [mut whole, mut part] = [(), ()].map(|()| {
            let mut bench = Bench::new(64 << 20);
            bench.apply(put(0..20_000));
            bench
        });
        for changes in batches {
            whole.apply(changes.clone());
            part.apply_parts(changes, &BTreeSet::new(), 1).unwrap();
            prop_assert_eq!(shape(&whole), shape(&part));
            prop_assert_eq!(*whole.space.counts.lock(), *part.space.counts.lock());
            whole.space.reuse();
            part.space.reuse();
        }
        part.check();
    }

    #[test]
    fn tree_of_parts_agrees_with_map(
        batches in proptest::collection::vec(batch(), 1..8),
        cache in prop_oneof![Just(0usize), Just(1 << 19), Just(64 << 20)],
        threads in 0..4usize,
    ) {
        let mut bench = Bench::new(cache);
        for (changes, from) in batches {
            let nodes = bench.node_blocks().len() as i64;
            *bench.space.counts.lock() = Default::default();
            bench.apply_parts(changes, &from, threads).unwrap();
            bench.check();
            bench.space.reuse();
            let more = bench.space.counts.lock().more();
            prop_assert_eq!(bench.node_blocks().len() as i64 - nodes, more);
        }
        let all: Changes = bench.model.keys().map(|key| (*key, None)).collect();
        bench.apply_parts(all, &BTreeSet::from([7, 20]), threads).unwrap();
        prop_assert_eq!(bench.tree, Default::default());
        prop_assert!(bench.space.live().is_empty());
    }
}

/// Large parts make the tree that one pass makes, up to a leaf for each part.
#[test]
fn nodes_of_parts_are_as_full_as_those_of_one_pass() {
    let [mut whole, mut parts] = [1, 8].map(|n| {
        let mut bench = Bench::new(64 << 20);
        for batch in 0..3 {
            let keys = batch * 100_000..(batch + 1) * 100_000;
            let from = even(keys.clone(), n);
            bench.apply_parts(put(keys), &from, 2).unwrap();
            bench.space.reuse();
        }
        bench.check();
        bench
    });
    assert_eq!(whole.tree.height, parts.tree.height);
    let nodes = |bench: &Bench| bench.blocks().len();
    assert!(
        nodes(&parts) <= nodes(&whole) + 3 * 8,
        "{} and {}",
        nodes(&parts),
        nodes(&whole)
    );
    assert!(fill(&parts) > 0.85, "fill grade {}", fill(&parts));
    // Nodes above the leaves are made once, and only those with changes.
    for bench in [&mut whole, &mut parts] {
        let writes = bench.space.counts.lock().made;
        let few: Changes = (0..300_000)
            .step_by(50_000)
            .map(|i| (key(i), Some(vec![1])))
            .collect();
        bench.apply_parts(few, &even(0..300_000, 3), 1).unwrap();
        let made = bench.space.counts.lock().made - writes;
        assert!(made <= 6 + 6 + 2 + 1, "{made} nodes for six changes");
        bench.check();
    }
}

/// Small rests are joined with their unchanged neighbours within the part.
#[test]
fn deletions_in_parts_join_small_nodes() {
    check_joins(|bench, changes| {
        bench.apply_parts(changes, &even(0..20_000, 3), 2).unwrap();
    });
}

/// The same where only few leaves become small, far from each other.
#[test]
fn lone_small_leaf_joins_either_neighbour() {
    for last in [false, true] {
        let mut bench = Bench::new(16 << 20);
        bench.apply(put(0..20_000));
        let before = bench.blocks().len();
        // Nearly all of a leaf, in the middle or at the end of the tree.
        let (start, end) = if last {
            (19_900, 19_990)
        } else {
            (10_000, 10_600)
        };
        let deleted = (start..end).map(|i| (key(i), None)).collect();
        bench.apply_parts(deleted, &even(0..20_000, 2), 2).unwrap();
        bench.check();
        let one = {
            let mut one = Bench::new(16 << 20);
            one.apply(put(0..20_000));
            one.delete((start..end).map(key));
            one.blocks().len()
        };
        assert!(
            bench.blocks().len() <= one + 1,
            "{before}, {one} and {}",
            bench.blocks().len()
        );
    }
}

#[test]
fn parts_write_side_by_side_and_in_large_pieces() {
    let mut bench = Bench::new(64 << 20);
    bench
        .apply_parts(put(0..200_000), &even(0..200_000, 4), 4)
        .unwrap();
    bench.check();
    let writes = bench.device.writes.load(Ordering::Relaxed);
    let nodes = bench.blocks().len();
    assert!(writes <= nodes / 8, "{writes} writes of {nodes} nodes");
    assert!(bench.device.writers.lock().len() > 1);
}

/// Keys below the first one of the tree belong to its first leaf.
#[test]
fn part_may_begin_before_the_first_key() {
    for begin in [5, 15] {
        let mut bench = Bench::new(16 << 20);
        bench.apply(put(1000..20_000));
        assert_eq!(key(1000).object, 15);
        let last = Changes::from([(key(19_999), Some(vec![1]))]);
        bench
            .apply_parts(last, &BTreeSet::from([begin]), 2)
            .unwrap();
        bench.check();
    }
}

#[test]
fn edit_outside_its_part_is_refused() {
    struct One(Option<Key>);
    impl Edits for One {
        fn peek(&mut self) -> cairnfs_disk::Result<Option<Key>> {
            Ok(self.0)
        }
        fn take(
            &mut self,
            _: &Key,
            _: Option<&[u8]>,
        ) -> cairnfs_disk::Result<Option<std::borrow::Cow<'_, [u8]>>> {
            self.0 = None;
            Ok(None)
        }
    }
    let mut bench = Bench::new(1 << 20);
    for _ in 0..2 {
        for object in [4, 9] {
            let mut parts = [Part {
                range: Bounds::of_objects(Some(5), Some(9)),
                edits: One(Some(Key::inode(object))),
            }];
            let space = (&bench.space as &(dyn crate::index::NodeSpace + Sync), 1);
            let refused = bench.index.apply_parts(&bench.tree, &mut parts, 9, space);
            assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        }
        bench.apply(put(0..1000));
    }
}

#[test]
fn failed_part_fails_the_whole() {
    let device = Memory {
        failing_from: Some(3),
        ..Memory::default()
    };
    let mut bench = Bench::on(device, 64 << 20);
    let failed = bench.apply_parts(put(0..200_000), &even(0..200_000, 4), 2);
    assert!(matches!(failed, Err(Error::NoSpace)), "{failed:?}");
    assert_eq!(bench.tree, Default::default());
}
