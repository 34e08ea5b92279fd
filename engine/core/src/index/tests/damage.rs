//! Damaged and malicious trees, readers of outdated trees, and failing devices.

use std::sync::atomic::Ordering;

use crate::index::testing::{Bench, Memory, key, offset, scan};
use crate::index::{Index, Tree};
use cairnfs_disk::error::Error;
use cairnfs_disk::format::key::Key;
use cairnfs_disk::format::node::{CellValue, MAX_HEIGHT, NodeBuilder};
use cairnfs_disk::format::pointer::RawPtr;

fn filled() -> Bench {
    filled_on(Memory::default())
}

fn filled_on(device: Memory) -> Bench {
    let mut bench = Bench::on(device, 16 << 20);
    bench.put((0..3000).map(|i| (key(i), vec![i as u8; 100])));
    bench.put([(key(1500), vec![5; 40_000])]);
    bench
}

fn scan_all(index: &Index, tree: &Tree) -> cairnfs_disk::Result<()> {
    index.scan(tree, &Key::first_of(0), &mut |_, _| Ok(true))
}

#[track_caller]
fn assert_corrupt<T: std::fmt::Debug>(result: cairnfs_disk::Result<T>) -> u64 {
    match result {
        Err(Error::Corrupt(c)) => c.block,
        other => panic!("expected corruption, got {other:?}"),
    }
}

/// Contract: rot
#[test]
fn flipped_byte_is_found_and_its_block_named() {
    let bench = filled();
    let is_node = |block| bench.device.bytes.lock()[offset(block)..].starts_with(b"CNod");
    let mut units = 0;
    for block in bench.blocks() {
        let node = is_node(block);
        units += usize::from(!node);
        for at in [0, 5, 30, 100, 16_000] {
            bench.device.bytes.lock()[offset(block) + at] ^= 0x10;
            let found = assert_corrupt(scan_all(&bench.fresh(), &bench.tree));
            // The checksum of a large value covers all its units, so any of them may be named.
            assert!(found == block || !node, "{found} named for {block}");
            bench.device.bytes.lock()[offset(block) + at] ^= 0x10;
        }
    }
    assert_eq!(units, 3);
    scan_all(&bench.fresh(), &bench.tree).unwrap();
}

/// Writes an interior node with these children and lower bounds.
fn interior(bench: &Bench, block: u64, level: u8, children: &[(Key, RawPtr)]) -> RawPtr {
    let mut builder = NodeBuilder::new();
    for (key, ptr) in children {
        assert!(builder.push_child(key, ptr));
    }
    write(bench, block, level, &mut builder)
}

fn write(bench: &Bench, block: u64, level: u8, builder: &mut NodeBuilder) -> RawPtr {
    let (bytes, ptr) = builder.finish(level, block, 1, 7);
    let device: &dyn cairnfs_disk::device::Device = &*bench.device;
    device.write(offset(block) as u64, &bytes).unwrap();
    ptr
}

fn leaf(bench: &Bench, block: u64, first: u64) -> RawPtr {
    let mut builder = NodeBuilder::new();
    for i in first..first + 10 {
        assert!(builder.push(&key(i), CellValue::Inline(b"value")));
    }
    write(bench, block, 0, &mut builder)
}

/// Asserts that look-ups, scans and edits of a tree fail with an error that names `block`.
#[track_caller]
fn assert_refused(bench: &mut Bench, tree: Tree, block: u64) {
    let index = bench.fresh();
    assert_eq!(assert_corrupt(index.get(&tree, &key(3))), block);
    assert_eq!(assert_corrupt(scan_all(&index, &tree)), block);
    bench.tree = tree;
    let changes = [(key(3), Some(vec![1]))].into();
    assert_eq!(assert_corrupt(bench.step(changes, 1)), block);
}

#[test]
fn children_of_a_wrong_level_are_refused() {
    let mut bench = Bench::new(1 << 20);
    let low = leaf(&bench, 100, 0);
    let ptr = interior(&bench, 104, 2, &[(key(0), low)]);
    assert_refused(&mut bench, Tree { ptr, height: 3 }, 100);
    let ptr = interior(&bench, 104, 1, &[(key(0), low)]);
    assert_refused(&mut bench, Tree { ptr, height: 3 }, 104);
    let height = MAX_HEIGHT + 1;
    assert_refused(&mut bench, Tree { ptr, height }, 104);
}

#[test]
fn pointers_outside_data_area_or_unaligned_are_refused() {
    let mut bench = Bench::new(1 << 20);
    let low = leaf(&bench, 100, 0);
    for block in [0, 60, 101, 1 << 20, u64::MAX, u64::MAX - 3] {
        let wild = RawPtr {
            block: block.into(),
            ..low
        };
        let ptr = interior(&bench, 104, 1, &[(key(0), wild)]);
        assert_refused(&mut bench, Tree { ptr, height: 2 }, block);
    }
}

/// Contract: hostile
#[test]
fn nodes_with_keys_out_of_bounds_are_refused() {
    let mut bench = Bench::new(1 << 20);
    bench.space.lax = true;
    let (a, b) = (leaf(&bench, 100, 0), leaf(&bench, 108, 100));
    // A child with keys too large, one with keys too small, and one with its first key below the
    // lower bound.
    for (first, second, bad) in [
        ((key(0), b), (key(50), a), 108),
        ((key(0), a), (key(50), a), 100),
        ((key(1), a), (key(100), b), 100),
    ] {
        let ptr = interior(&bench, 104, 1, &[first, second]);
        bench.tree = Tree { ptr, height: 2 };
        let index = bench.fresh();
        assert_eq!(assert_corrupt(scan_all(&index, &bench.tree)), bad);
        let wanted = if bad == 100 && first.0 == key(0) {
            55
        } else {
            5
        };
        for index in [&index, &bench.fresh()] {
            assert_eq!(assert_corrupt(index.get(&bench.tree, &key(wanted))), bad);
            let range = (&key(0), &key(wanted));
            let scanned = index.scan_from_last(&bench.tree, range, &mut |_, _| Ok(false));
            assert_eq!(assert_corrupt(scanned), bad);
        }
        let changes = [(key(wanted), Some(vec![1]))].into();
        assert_eq!(assert_corrupt(bench.step(changes, 1)), bad);
    }
}

#[test]
fn checked_child_is_refused_under_another_pointer() {
    let bench = Bench::new(1 << 20);
    let a = leaf(&bench, 100, 0);
    let ptr = interior(&bench, 104, 1, &[(key(0), a), (key(50), a)]);
    let tree = Tree { ptr, height: 2 };
    // Each twice, because the first look-up records the children that it checked.
    for _ in 0..2 {
        assert!(bench.index.get(&tree, &key(5)).unwrap().is_some());
        assert_eq!(assert_corrupt(bench.index.get(&tree, &key(50))), 100);
    }
    assert_eq!(assert_corrupt(scan_all(&bench.index, &tree)), 100);
}

#[test]
fn last_child_inherits_upper_bound_of_ancestors() {
    let mut bench = Bench::new(1 << 20);
    bench.space.lax = true;
    let (a, b) = (leaf(&bench, 100, 0), leaf(&bench, 108, 40));
    let low = interior(&bench, 104, 1, &[(key(0), a), (key(40), b)]);
    let high = interior(&bench, 112, 1, &[(key(45), b)]);
    let ptr = interior(&bench, 116, 2, &[(key(0), low), (key(45), high)]);
    let tree = Tree { ptr, height: 3 };
    assert_eq!(assert_corrupt(bench.fresh().get(&tree, &key(42))), 108);
    assert_eq!(assert_corrupt(scan_all(&bench.fresh(), &tree)), 108);
    bench.tree = tree;
    let changes = [(key(42), Some(vec![1]))].into();
    assert_eq!(assert_corrupt(bench.step(changes, 1)), 108);
}

/// Contract: hostile
#[test]
fn exponential_tree_of_shared_nodes_is_refused() {
    let bench = Bench::new(1 << 20);
    let mut child = leaf(&bench, 100, 0);
    for level in 1..MAX_HEIGHT {
        let cells: Vec<_> = (0..400).map(|i| (key(i), child)).collect();
        child = interior(&bench, 100 + 4 * u64::from(level), level as u8, &cells);
    }
    let tree = Tree {
        ptr: child,
        height: MAX_HEIGHT,
    };
    let mut seen = 0;
    let result = bench.index.scan(&tree, &Key::first_of(0), &mut |_, _| {
        seen += 1;
        // Without this limit a failing test would not terminate.
        Ok(seen < 100)
    });
    assert_corrupt(result);
    assert!(seen <= 10, "{seen} items of 10");
}

/// Contract: rot
#[test]
fn reader_of_old_tree_gets_old_items_or_error() {
    let mut bench = Bench::new(16 << 20);
    bench.put((0..3000).map(|i| (key(i), vec![1; 100])));
    let (old_tree, old_items) = (bench.tree, bench.model.clone());
    bench.put((0..3000).map(|i| (key(i), vec![2; 100])));
    assert_eq!(scan(&bench.index, &old_tree, &key(0)), old_items);
    bench.check();
    bench.space.reuse();
    bench.put((0..3000).map(|i| (key(i), vec![3; 100])));
    assert_corrupt(scan_all(&bench.index, &old_tree));
    assert_corrupt(bench.index.get(&old_tree, &key(9)));
    bench.check();
}

/// Contract: failure.write
#[test]
fn failed_apply_leaves_old_tree_intact() {
    let largest = || (0..60_000).map(|i| (key(i), Some(vec![2; 100])));
    for apart in [false, true] {
        let mut whole = filled();
        whole.space.apart = apart;
        let before = whole.device.writes.load(Ordering::Relaxed);
        whole.apply(largest().collect());
        let after = whole.device.writes.load(Ordering::Relaxed);
        assert!(after > before + 3, "{before} and {after} writes");
        for failing in before..after {
            let mut bench = filled_on(Memory {
                failing_from: Some(failing),
                ..Memory::default()
            });
            bench.space.apart = apart;
            let items = bench.model.clone();
            assert!(bench.step(largest().collect(), usize::MAX).is_err());
            assert_eq!(scan(&bench.index, &bench.tree, &key(0)), items);
            assert_eq!(scan(&bench.fresh(), &bench.tree, &key(0)), items);
        }
    }
}
