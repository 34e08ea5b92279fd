//! Fill grade of trees, which nodes are rewritten, sizes of writes, and the cache limit.

use std::sync::atomic::Ordering;

use crate::index::testing::{Bench, Changes, check_joins, fill, key, numbered};
use cairnfs_disk::format::NODE_SIZE;
use cairnfs_disk::format::key::Key;
use cairnfs_tier::size;

#[test]
fn ascending_inserts_fill_the_nodes() {
    let mut bench = Bench::new(16 << 20);
    for batch in 0..60 {
        bench.put(numbered(batch * 700..(batch + 1) * 700));
    }
    bench.check();
    assert!(bench.tree.height >= 2);
    assert!(fill(&bench) > 0.85, "fill grade {}", fill(&bench));
}

#[test]
fn large_batch_makes_full_nodes_and_large_writes() {
    let mut bench = Bench::new(64 << 20);
    bench.put(numbered(0..100_000));
    bench.check();
    assert_eq!(bench.tree.height, 3);
    assert!(fill(&bench) > 0.9, "fill grade {}", fill(&bench));
    let bytes = bench.blocks().len() * NODE_SIZE;
    let writes = bench.device.writes.load(Ordering::Relaxed);
    assert_eq!(writes, bytes.div_ceil(1 << 20));
}

#[test]
fn helper_thread_writes_identical_bytes() {
    let [alone, helped] = [false, true].map(|apart| {
        let mut bench = Bench::new(1 << 20);
        bench.space.apart = apart;
        bench.put(numbered(0..100_000));
        bench.delete((0..100_000).filter(|i| i % 1000 < 500).map(key));
        bench.check();
        bench
    });
    assert_eq!(*alone.device.bytes.lock(), *helped.device.bytes.lock());
    let counts = [&alone, &helped].map(|b| b.device.writes.load(Ordering::Relaxed));
    assert_eq!(counts[0], counts[1]);
    assert_eq!(alone.device.writers.lock().len(), 1);
    assert!(helped.device.writers.lock().len() > 1);
}

#[test]
fn scattered_inserts_keep_nodes_at_least_half_full() {
    let mut bench = Bench::new(16 << 20);
    let scatter = |i: u64| Key::inode(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8);
    for batch in 0..100 {
        bench.put((batch * 50..(batch + 1) * 50).map(|i| (scatter(i), vec![1; 100])));
        bench.space.reuse();
    }
    bench.check();
    assert!(fill(&bench) > 0.5, "fill grade {}", fill(&bench));
}

#[test]
fn deletions_join_small_nodes() {
    check_joins(|bench, changes| bench.apply(changes));
}

/// The second interior node loses nearly all of its children. Its small rest must not be joined
/// with the last child of the node before it.
#[test]
fn small_rest_does_not_join_child_of_previous_node() {
    for rest in [0, 1, 5, 100] {
        let mut bench = Bench::new(64 << 20);
        bench.put(numbered(0..250_000));
        assert_eq!(bench.tree.height, 3);
        let root = bench.index.load(&bench.tree.ptr, 2).unwrap();
        let (second, third) = (root.key(1).unwrap(), root.key(2).unwrap());
        // Thin out the last leaves before it, so that the rest would fit into them.
        let thinned: Vec<Key> = bench
            .model
            .range(..second)
            .rev()
            .step_by(2)
            .take(50)
            .map(|(key, _)| *key)
            .collect();
        bench.delete(thinned);
        bench.space.reuse();
        let emptied = bench.model.range(second..third).map(|(key, _)| *key);
        let deleted: Vec<Key> = std::iter::once(key(0)).chain(emptied.skip(rest)).collect();
        bench.delete(deleted);
        bench.check();
        bench.space.reuse();
        bench.put(numbered(0..250_000).step_by(7));
        bench.check();
    }
}

#[test]
fn single_change_rewrites_only_its_path() {
    let mut bench = Bench::new(16 << 20);
    bench.put(numbered(0..50_000));
    let before = bench.blocks();
    bench.put([(key(25_000), vec![9; 40])]);
    bench.check();
    let after = bench.blocks();
    assert_eq!(
        after.difference(&before).count(),
        bench.tree.height as usize
    );
}

#[test]
fn edits_that_change_nothing_write_nothing() {
    let mut bench = Bench::new(16 << 20);
    bench.put(numbered(0..5000));
    bench.put([(key(1 << 40), vec![3; 50_000])]);
    let (tree, writes) = (bench.tree, bench.device.writes.load(Ordering::Relaxed));
    let mut same: Changes = bench
        .model
        .clone()
        .into_iter()
        .map(|(k, v)| (k, Some(v)))
        .collect();
    same.insert(key(1 << 50), None);
    bench.apply(same);
    assert_eq!(bench.tree, tree);
    assert_eq!(bench.device.writes.load(Ordering::Relaxed), writes);
}

#[test]
fn large_values_of_unchanged_items_are_not_rewritten() {
    let mut bench = Bench::new(16 << 20);
    bench.put([(key(1), vec![1; 131_072]), (key(2), vec![2; 10])]);
    let before = bench.blocks();
    bench.put([(key(2), vec![3; 10])]);
    bench.check();
    assert_eq!(bench.blocks().difference(&before).count(), 1);
}

#[test]
fn cache_respects_its_limit_and_holds_written_nodes() {
    let mut bench = Bench::new(1 << 20);
    bench.put(numbered(0..100_000));
    assert!(bench.index.counters().bytes <= 1 << 20);
    assert!(bench.index.counters().bytes > 1 << 19);
    let mut bench = Bench::new(64 << 20);
    bench.put(numbered(0..100_000));
    bench.check();
    let misses = bench.index.counters().misses;
    bench.check();
    assert_eq!(bench.index.counters().misses, misses);
}

#[test]
fn unordered_edits_and_oversized_values_are_refused() {
    let mut bench = Bench::new(1 << 20);
    let huge = vec![0; cairnfs_disk::format::MAX_VALUE + 1];
    assert!(bench.step([(key(1), Some(huge))].into(), 1).is_err());
    struct Twice;
    impl crate::index::Edits for Twice {
        fn peek(&mut self) -> cairnfs_disk::Result<Option<Key>> {
            Ok(Some(key(1)))
        }
        fn take(
            &mut self,
            _: &Key,
            _: Option<&[u8]>,
        ) -> cairnfs_disk::Result<Option<std::borrow::Cow<'_, [u8]>>> {
            Ok(None)
        }
    }
    assert!(
        bench
            .index
            .apply(&bench.tree, &mut Twice, 1, &bench.space)
            .is_err()
    );
}

/// A deterministic pseudo-random generator.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }
}

#[test]
fn high_trees_grow_and_shrink_at_all_levels() {
    let mut bench = Bench::new(16 << 20);
    let mut numbers = Numbers(1);
    bench.put((0..20_000).map(|i| (key(i), vec![1; 3000])));
    assert_eq!(bench.tree.height, 3);
    for round in 0..size(8, 24) {
        let mut changes = Changes::new();
        for _ in 0..4 {
            let (start, len) = (numbers.below(20_000), numbers.below(3000));
            let value = (numbers.below(3) == 0).then(|| vec![round; 2000]);
            let step = 1 + numbers.below(4) * numbers.below(20);
            let range = (start..start + len).step_by(step as usize);
            changes.extend(range.map(|i| (key(i), value.clone())));
        }
        let most = 500 + numbers.below(5000) as usize;
        while !changes.is_empty() {
            changes = bench.step(changes, most).unwrap();
            assert_eq!(bench.blocks(), bench.space.live());
            bench.space.reuse();
        }
        bench.check();
    }
    let keys: Vec<Key> = bench.model.keys().copied().collect();
    bench.delete(keys[100..].iter().copied());
    bench.check();
    assert!(bench.tree.height <= 2);
}

#[test]
fn small_leaf_joins_unchanged_neighbour_on_either_side() {
    for right in [false, true] {
        let mut bench = Bench::new(1 << 20);
        let even = |range: std::ops::Range<u64>| range.map(|i| (key(2 * i), vec![1; 100]));
        bench.put(even(0..130));
        bench.put((35..95).map(|i| (key(2 * i + 1), vec![2; 100])));
        assert_eq!((bench.tree.height, bench.blocks().len()), (2, 3));
        let keys: Vec<Key> = bench.model.keys().copied().collect();
        let deleted = if right { 100..188 } else { 2..90 };
        bench.delete(keys[deleted].iter().copied());
        bench.check();
        assert_eq!(bench.tree.height, 1, "rest on the right: {right}");
    }
}

#[test]
fn root_of_newest_tree_is_hot_after_first_lookup() {
    let mut bench = Bench::new(16 << 20);
    bench.put(numbered(0..2000));
    // Each round leaves a root at another block, far more than there are hot entries.
    for round in 0..500 {
        bench.put([(key(round), vec![1; 50])]);
        bench.index.get(&bench.tree, &key(5)).unwrap();
        let root = bench.index.cache.get_hot(&bench.tree.ptr);
        assert!(root.is_some(), "round {round}");
    }
}
