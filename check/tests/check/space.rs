//! Damage to the group table, the bitmaps and their counts.

use zerocopy::little_endian::{U16, U64};

use super::image::*;
use super::plan::*;
use super::{with_image, with_plan};

#[test]
fn bit_rot_in_group_table_is_found() {
    let found = with_image(|image| image.flip(geometry().table_start(1), 2000));
    assert_eq!(found, ["table-checksum"]);
    let found = with_image(|image| image.flip(geometry().table_start(0), 2000));
    assert_eq!(found, Vec::<&str>::new(), "the other copy does not count");
}

#[test]
fn invalid_group_table_entry_is_found() {
    let found = with_image(|image| {
        image.group.copy = 2;
        image.write_table();
    });
    assert_eq!(found, ["table-entry"]);
}

/// Contract: rot
#[test]
fn bit_rot_in_bitmap_is_found() {
    let found = with_image(|image| image.flip(geometry().bitmap_block(0, 1), 300));
    assert_eq!(found, ["bitmap-checksum"]);
}

#[test]
fn wrong_counts_are_found() {
    let found = with_image(|image| {
        image.group.free = U16::new(image.group.free.get() + 1);
        image.write_table();
    });
    assert_eq!(found, ["group-free-count"]);
    let found = with_image(|image| {
        let free = image.superblock.free_blocks.get() - 1;
        image.edit_superblock(|s| s.free_blocks = U64::new(free));
    });
    assert_eq!(found, ["free-count"]);
}

/// Contract: rot
#[test]
fn blocks_in_use_that_are_marked_free_are_found() {
    let units = Plan::base().build().units;
    let last = geometry().total_blocks + 5;
    for block in [0, 16, data_block(0), data_block(12), 2000, units[1], last] {
        let mut image = Plan::base().build();
        image.unmark(block);
        image.write_bitmaps();
        let findings = image.check(true).unwrap().findings;
        let found: Vec<_> = findings.iter().map(|f| (f.code, f.block)).collect();
        assert_eq!(found, [("block-not-allocated", Some(block))]);
    }
}

#[test]
fn neighbouring_leaked_blocks_are_one_finding() {
    let found = with_image(|image| {
        image.mark(3000, 70);
        image.write_bitmaps();
    });
    assert_eq!(found, ["block-leaked"]);
}

#[test]
fn block_used_only_by_log_must_be_free_in_bitmap() {
    let found = with_image(|image| {
        image.mark(data_block(20), 1);
        image.write_bitmaps();
    });
    assert_eq!(found, ["block-leaked"]);
}

#[test]
fn block_used_by_node_and_file_is_found() {
    let mut plan = Plan::base();
    let mut value = unwritten(10, 1);
    value[..8].copy_from_slice(&2001u64.to_le_bytes());
    plan.context(vec![put(extent_key(22, 0), value)]);
    assert_eq!(codes(&plan.build()), ["block-shared"]);
}

#[test]
fn block_reused_before_merge_is_found() {
    let put_and_replace = |block: u64, ino: u64| {
        let mut plan = Plan::base();
        let mut value = unwritten(10, 1);
        value[..8].copy_from_slice(&block.to_le_bytes());
        plan.context(vec![put(extent_key(ino, 90), value)]);
        plan.context(vec![delete(extent_key(ino, 90), vec![])]);
        codes(&plan.build())
    };
    assert_eq!(put_and_replace(2001, 22), ["block-shared"], "a node has it");
    assert_eq!(put_and_replace(data_block(0), 22), ["block-shared"]);
    let own = put_and_replace(data_block(0), 16);
    assert_eq!(own, Vec::<&str>::new(), "the file has it still");
    assert_eq!(put_and_replace(3000, 22), Vec::<&str>::new());
}

/// An extent of the index that the log replaces keeps its blocks until that is merged.
#[test]
fn blocks_of_replaced_extent_in_the_index_are_used_once() {
    let replaced = |changes: Vec<Change>| {
        with_plan(|plan| {
            plan.context(changes);
        })
    };
    let moved = put(extent_key(16, 0), extent(22, 2, 7));
    assert_eq!(replaced(vec![moved.clone()]), [] as [&str; 0]);
    // The file behind it in key order takes the first of them.
    let taken = put(extent_key(22, 0), extent(0, 1, 7));
    assert_eq!(replaced(vec![moved, taken]), ["block-shared"]);
    let split = vec![
        put(extent_key(16, 0), extent(0, 1, 3)),
        put(extent_key(16, 1), extent(1, 1, 3)),
    ];
    assert_eq!(replaced(split), [] as [&str; 0]);
    let joined = with_plan(|plan| {
        plan.items.insert(extent_key(16, 0), extent(0, 1, 3));
        plan.items.insert(extent_key(16, 1), extent(1, 1, 3));
        plan.context(vec![
            put(extent_key(16, 0), extent(0, 2, 3)),
            delete(extent_key(16, 1), vec![]),
        ]);
    });
    assert_eq!(joined, [] as [&str; 0]);
}
