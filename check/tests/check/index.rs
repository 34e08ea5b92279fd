//! Damage to the trees: nodes, large values, the table of roots.

use cairnfs_disk::format::key::{Key, Kind, MAIN_ROOT};
use cairnfs_disk::format::node::NODE_HEADER;
use cairnfs_disk::format::root::RawRoot;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::image::*;
use super::plan::*;
use super::{with_image, with_plan};

/// Contract: rot
#[test]
fn bit_rot_in_any_node_is_one_finding() {
    let nodes = Plan::base().build().nodes;
    assert!(nodes.iter().any(|n| n.0 == 2), "the tree has three levels");
    for (level, block) in nodes {
        let mut image = Plan::base().build();
        image.flip(block, 9000);
        let report = image.check(true).unwrap();
        let found: Vec<_> = report.findings.iter().map(|f| (f.code, f.block)).collect();
        assert_eq!(found, [("node-checksum", Some(block))], "level {level}");
        assert!(!report.unchecked.is_empty());
    }
}

#[test]
fn bit_rot_in_table_of_roots_is_one_finding() {
    let found = with_image(|image| {
        let block = image.superblock.root.block.get();
        image.flip(block, 9000);
    });
    assert_eq!(found, ["node-checksum"]);
}

#[test]
fn misplaced_node_is_found() {
    let found = with_plan(|plan| {
        plan.node_hook = Some(Box::new(|level, nth, bytes, _| {
            if (level, nth) == (0, 1) {
                bytes[8] ^= 4;
            }
        }));
    });
    assert_eq!(found, ["node-identity"]);
}

#[test]
fn node_with_broken_layout_is_found() {
    let found = with_plan(|plan| {
        plan.node_hook = Some(Box::new(|level, nth, bytes, _| {
            if (level, nth) == (0, 1) {
                bytes[NODE_HEADER] = 1;
                bytes[NODE_HEADER + 1] = 0;
            }
        }));
    });
    assert_eq!(found, ["node-layout"]);
}

#[test]
fn node_pointer_to_impossible_block_is_found() {
    for block in [0, 2001, u64::MAX, 4096] {
        let found = with_image(|image| {
            image.edit_superblock(|s| s.root.block = U64::new(block));
        });
        assert_eq!(found, ["node-pointer"], "{block}");
    }
}

/// The findings for a leaf born this many contexts after the last merge.
fn with_birth_behind(more: u8) -> Vec<&'static str> {
    with_plan(|plan| {
        plan.node_hook = Some(Box::new(move |level, nth, bytes, ptr| {
            if (level, nth) == (0, 1) {
                ptr.birth = U64::new(MERGED + u64::from(more));
                bytes[16] += more;
            }
        }));
    })
}

#[test]
fn node_younger_than_log_is_found() {
    // The newest context in the log is the one after the last merge.
    for more in [2, 100] {
        assert_eq!(with_birth_behind(more), ["node-birth"], "{more}");
    }
}

#[test]
fn node_of_interrupted_merge_is_sound() {
    assert_eq!(with_birth_behind(1), [""; 0]);
}

#[test]
fn keys_outside_node_bounds_are_found() {
    let found = with_plan(|plan| {
        plan.node_hook = Some(Box::new(|level, nth, bytes, _| {
            if (level, nth) == (0, 2) {
                // The object number of all keys; the shared prefix holds its upper bytes.
                bytes[NODE_HEADER - 30 + 6] = 200;
            }
        }));
    });
    assert_eq!(found, ["node-order"]);
}

#[test]
fn node_used_twice_is_found() {
    let found = with_image(|image| {
        // The root of the files' tree is the leaf that holds the table of roots too.
        let mut roots = image.superblock;
        let root = RawRoot {
            ptr: roots.root,
            height: U32::new(1),
            birth: U64::new(1),
        };
        let key = Key::new(u64::from(MAIN_ROOT), Kind::Root, 0);
        let block = roots.root.block.get();
        let mut builder = cairnfs_disk::format::node::NodeBuilder::new();
        let value = cairnfs_disk::format::node::CellValue::Inline(root.as_bytes());
        builder.push(&key, value);
        let volume = u64::from_le_bytes(UUID[..8].try_into().unwrap());
        let (bytes, ptr) = builder.finish(0, block, MERGED, volume);
        image.write(block, &bytes);
        roots.root = ptr;
        image.edit_superblock(|s| *s = roots);
    });
    assert_eq!(found, ["block-shared"]);
}

#[test]
fn broken_chain_of_large_value_is_found() {
    for next in [0u64, 17, 2001, u64::MAX] {
        let found = with_image(|image| image.write(image.units[0], &next.to_le_bytes()));
        assert_eq!(found, ["overflow-chain"], "{next}");
    }
    let found = with_image(|image| image.write(image.units[1], &2000u64.to_le_bytes()));
    assert_eq!(found, ["overflow-chain"], "goes on behind the end");
    let found = with_image(|image| {
        let first = image.units[0];
        image.write(first, &first.to_le_bytes());
    });
    assert_eq!(found, ["overflow-chain"], "a loop");
}

#[test]
fn bit_rot_in_large_value_is_found() {
    let found = with_image(|image| image.flip(image.units[1], 1000));
    assert_eq!(found, ["overflow-checksum"]);
    let found = with_image(|image| image.flip(image.units[1], 16_000));
    assert_eq!(found, ["overflow-checksum"], "in the padding");
}

#[test]
fn large_value_younger_than_any_merge_is_found() {
    let found = with_plan(|plan| {
        plan.cell_hook = Some(|_, at| at.birth = U64::new(MERGED + 100));
    });
    assert_eq!(found, ["node-birth"]);
}

#[test]
fn missing_root_is_found() {
    let found = with_plan(|plan| plan.no_main_root = true);
    assert_eq!(found, ["root-missing"]);
}

#[test]
fn invalid_root_items_are_found() {
    let key = |id: u64| Key::new(id, Kind::Root, 0);
    let found = with_plan(|plan| drop(plan.roots.insert(key(1), vec![0; 5])));
    assert_eq!(found, ["root-item"]);
    let found = with_plan(|plan| drop(plan.roots.insert(key(2), vec![0; 32])));
    assert_eq!(found, ["root-item"]);
    let found = with_plan(|plan| drop(plan.roots.insert(Key::inode(1), vec![0; 32])));
    assert_eq!(found, ["unexpected-item"]);
}
