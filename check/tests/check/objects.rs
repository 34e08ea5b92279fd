//! Damage to the items of one object.

use cairnfs_disk::format::item::*;
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::format::xattr::*;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::image::*;
use super::plan::*;
use super::{with_image, with_plan};

#[test]
fn unexpected_items_are_found() {
    let with = |key: Key| with_plan(|plan| drop(plan.items.insert(key, vec![0; 40])));
    for key in [
        Key::inode(9),
        Key::new(5, Kind::SharedValue, 1),
        Key::new(3, Kind::Extent, 1),
        Key::new(16, Kind::SharedValue, 1),
        Key::new(2, Kind::Extent, 1),
        Key::new(16, Kind::Inode, 1),
        Key::new(16, Kind::Inline, 1),
        Key::new(16, Kind::DirIndex, 3),
        Key::new(17, Kind::Extent, 0),
        Key::new(18, Kind::Extent, 0),
        Key::new(17, Kind::Inline, 0),
        Key::new(16, Kind::Orphan, 0),
    ] {
        assert_eq!(with(key), ["unexpected-item"], "{key:?}");
    }
}

#[test]
fn invalid_inode_items_are_found() {
    let found = with_plan(|plan| drop(plan.items.insert(Key::inode(19), vec![0; 7])));
    assert_eq!(found, ["inode-item"]);
    let found = with_plan(|plan| plan.edit(19, |i| i.mode = U32::new(0o644)));
    assert_eq!(found, ["inode-item"]);
    let found = with_plan(|plan| plan.edit(16, |i| i.size = U64::new((1 << 60) + 1)));
    assert_eq!(found, ["inode-item"]);
    let found = with_plan(|plan| plan.edit(16, |i| i.flags = U32::new(INODE_FLAGS | 1)));
    assert_eq!(found, ["inode-item"]);
    let found = with_plan(|plan| plan.edit(16, |i| i.flags = U32::new(INODE_FLAGS)));
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn unassigned_inode_numbers_are_found() {
    let found = with_plan(|plan| {
        plan.inode(50, inode(S_IFREG, 0, 0));
        plan.items.insert(Key::orphan(50), vec![ORPHAN_REMOVE]);
    });
    assert_eq!(found, ["inode-number"]);
}

#[test]
fn items_without_inode_are_one_finding() {
    for ino in [16, 17, 19] {
        let found = with_plan(|plan| drop(plan.items.remove(&Key::inode(ino))));
        assert_eq!(found, ["inode-missing"], "{ino}");
    }
}

#[test]
fn wrong_block_count_is_found() {
    let found = with_plan(|plan| plan.edit(16, |i| i.blocks = U64::new(4)));
    assert_eq!(found, ["inode-blocks"]);
    let found = with_plan(|plan| plan.edit(17, |i| i.blocks = U64::new(1)));
    assert_eq!(found, ["inode-blocks"]);
}

#[test]
fn inline_contents_must_match_inode() {
    let found = with_plan(|plan| plan.edit(19, |i| i.size = U64::new(6)));
    assert_eq!(found, ["inline-item"]);
    let target = |value: Option<&[u8]>, size: u64| {
        with_plan(|plan| {
            plan.items.remove(&Key::new(18, Kind::Inline, 0));
            if let Some(value) = value {
                let key = Key::new(18, Kind::Inline, 0);
                plan.items.insert(key, value.to_vec());
            }
            plan.edit(18, |i| i.size = U64::new(size));
        })
    };
    assert_eq!(target(None, 6), ["inline-item"]);
    assert_eq!(target(Some(b"a\0b"), 3), ["inline-item"]);
    assert_eq!(target(Some(b"abc"), 4), ["inline-item"]);
    assert_eq!(target(Some(&[b'x'; 4096]), 4096), ["inline-item"]);
    assert_eq!(target(Some(&[b'x'; 4095]), 4095), Vec::<&str>::new());
    let found = with_plan(|plan| {
        plan.items.insert(extent_key(19, 0), extent(25, 1, 1));
        plan.edit(19, |i| i.blocks = U64::new(1));
    });
    assert_eq!(found, ["inline-item"], "inline and in extents");
}

#[test]
fn invalid_extent_items_are_found() {
    let found = with_plan(|plan| drop(plan.items.insert(extent_key(16, 2), vec![0; 24])));
    assert_eq!(found, ["extent-item"]);
    let found = with_plan(|plan| {
        plan.items.remove(&extent_key(16, 2));
        plan.items.insert(extent_key(16, 1 << 48), unwritten(10, 3));
    });
    assert_eq!(found, ["extent-item"]);
}

#[test]
fn extents_outside_data_area_are_found() {
    for block in [3, data_block(0) - 2, SIZE / 4096 - 2, u64::MAX] {
        let found = with_plan(|plan| {
            let mut value = unwritten(10, 3);
            value[..8].copy_from_slice(&block.to_le_bytes());
            plan.items.insert(extent_key(16, 2), value);
        });
        assert_eq!(found, ["extent-range"], "{block}");
    }
}

#[test]
fn overlapping_extents_are_found() {
    let found = with_plan(|plan| {
        let value = plan.items.remove(&extent_key(16, 2)).unwrap();
        plan.items.insert(extent_key(16, 1), value);
    });
    assert_eq!(found, ["extent-overlap"]);
}

#[test]
fn written_extents_beyond_end_are_found() {
    let shrink = |plan: &mut Plan| plan.edit(16, |i| i.size = U64::new(4096));
    assert_eq!(with_plan(shrink), ["extent-beyond-end"]);
    let found = with_plan(|plan| {
        shrink(plan);
        plan.items.insert(Key::orphan(16), vec![ORPHAN_TRUNCATE]);
    });
    assert_eq!(found, Vec::<&str>::new(), "to be truncated");
}

#[test]
fn extents_younger_than_volume_are_found() {
    let found = with_plan(|plan| drop(plan.items.insert(extent_key(16, 0), extent(0, 2, 7))));
    assert_eq!(found, ["extent-birth"]);
}

/// Contract: rot
#[test]
fn blocks_used_by_two_extents_are_found() {
    let found = with_plan(|plan| {
        plan.context(vec![put(extent_key(22, 0), extent(1, 1, 7))]);
    });
    assert_eq!(found, ["block-shared"]);
}

#[test]
fn invalid_attribute_items_are_found() {
    let key = xattr_key(16, "user.a");
    let found = with_plan(|plan| drop(plan.items.insert(key, vec![6, 1])));
    assert_eq!(found, ["xattr-item"]);
    let found = with_plan(|plan| {
        let twice = [own("user.a", b"1"), own("user.a", b"2")].concat();
        plan.items.insert(key, twice);
        plan.edit(16, |i| i.xattrs = U32::new(3));
    });
    assert_eq!(found, ["xattr-item"]);
}

#[test]
fn invalid_logged_attribute_items_are_found() {
    let found = with_plan(|plan| {
        plan.context(vec![put(xattr_key(16, "user.a"), own("user.a", b"1"))]);
    });
    assert_eq!(
        found,
        ["xattr-item"],
        "in the log attributes have their values"
    );
}

#[test]
fn logged_attributes_do_not_change_use_counts() {
    let found = with_plan(|plan| {
        let raw = RawInode {
            xattrs: U32::new(2),
            ..inode(S_IFREG, 2, 5)
        };
        plan.context(vec![
            put(Key::inode(19), raw.as_bytes().to_vec()),
            put(xattr_key(19, "user.same"), xattr("user.same", b"other")),
            put(xattr_key(19, "user.new"), xattr("user.new", &BIG)),
        ]);
    });
    assert_eq!(found, Vec::<&str>::new());
    let found = with_plan(|plan| {
        plan.items.insert(xattr_key(16, "user.a"), vec![1, 7]);
        plan.context(vec![put(xattr_key(16, "user.a"), xattr("user.a", b"2"))]);
    });
    assert_eq!(found, ["xattr-item"], "what a merge must read");
}

/// Puts a short value in the place of the long one.
fn instead_of_big(plan: &mut Plan, item: Vec<u8>) {
    plan.items.insert(big().key(), item);
    plan.items.remove(&big().bytes_key());
}

#[test]
fn invalid_shared_values_are_found() {
    for item in [
        vec![1; 7],
        encode_shared_value(0, &[9; 65]),
        encode_shared_value(2, &[9; 64]),
        [&2_u64.to_le_bytes()[..], &[9; 4089]].concat(),
    ] {
        let found = with_plan(|plan| instead_of_big(plan, item));
        assert_eq!(found, ["shared-item"]);
    }
    let found = with_plan(|plan| drop(plan.items.insert(big().key(), vec![0; 8])));
    assert_eq!(found, ["shared-item"], "no uses of a long value");
    for bytes in [vec![9; 4088], vec![9; 65_537]] {
        let found = with_plan(|plan| drop(plan.items.insert(big().bytes_key(), bytes)));
        assert_eq!(found, ["shared-item"]);
    }
}

/// Contract: atomic.attributes
#[test]
fn shared_values_under_wrong_hash_are_found() {
    let found = with_plan(|plan| instead_of_big(plan, encode_shared_value(2, &[8; 2000])));
    assert_eq!(found, ["shared-hash"]);
    let found = with_plan(|plan| {
        plan.items.insert(big().bytes_key(), vec![8; 20_000]);
    });
    assert_eq!(found, ["shared-hash"], "of a long value");
}

#[test]
fn long_value_without_count_or_count_without_value_is_found() {
    let found = with_plan(|plan| drop(plan.items.remove(&big().bytes_key())));
    assert_eq!(found, ["shared-apart"], "no bytes");
    let found = with_plan(|plan| {
        let hash = value_hash(SEED, &[6; 5000]);
        let place = SharedRef { hash, slot: 0 };
        plan.items.insert(place.bytes_key(), vec![6; 5000]);
    });
    assert_eq!(found, ["shared-apart"], "no uses");
    let found = with_plan(|plan| {
        let value = [7; 100];
        let place = SharedRef {
            hash: value_hash(SEED, &value),
            slot: 0,
        };
        let item = stored("user.same", StoredValue::Shared(place));
        plan.items.insert(xattr_key(19, "user.same"), item);
        plan.items
            .insert(place.key(), encode_shared_value(1, &value));
        plan.items.insert(big().key(), encode_shared_value(1, &BIG));
        plan.items.insert(place.bytes_key(), vec![6; 5000]);
    });
    assert_eq!(found, ["shared-apart"], "a short value has none");
}

/// Contract: atomic.attributes
#[test]
fn wrong_use_counts_are_found() {
    let uses = |told: u64| {
        with_plan(|plan| {
            let item = encode_shared_value(told, &BIG);
            plan.items.insert(big().key(), item);
        })
    };
    assert_eq!(uses(3), ["shared-uses-high"]);
    assert_eq!(uses(1), ["shared-uses-low"]);
    assert_eq!(uses(2), Vec::<&str>::new());
}

/// Contract: atomic.attributes
#[test]
fn unused_shared_values_are_found() {
    let found = with_plan(|plan| {
        let value = [7; 100];
        let hash = value_hash(SEED, &value);
        let place = SharedRef { hash, slot: 3 };
        plan.items
            .insert(place.key(), encode_shared_value(1, &value));
    });
    assert_eq!(found, ["shared-unused"]);
}

/// Contract: atomic.attributes
#[test]
fn dangling_value_references_are_found() {
    let found = with_plan(|plan| {
        plan.items.remove(&big().key());
        plan.items.remove(&big().bytes_key());
    });
    assert_eq!(found, ["shared-dangling"], "once for a value");
    let found = with_plan(|plan| {
        // The same key with another hash.
        let hash = big().hash.wrapping_sub(2);
        let item = stored(
            "user.same",
            StoredValue::Shared(SharedRef { hash, slot: 2 }),
        );
        plan.items.insert(xattr_key(19, "user.same"), item);
    });
    assert_eq!(found, ["shared-dangling"]);
}

#[test]
fn attributes_under_wrong_hash_are_found() {
    let key = xattr_key(16, "user.a");
    let found = with_plan(|plan| drop(plan.items.insert(key, own("user.b", b"1"))));
    assert_eq!(found, ["xattr-hash"]);
}

#[test]
fn wrong_attribute_count_is_found() {
    let found = with_plan(|plan| plan.edit(16, |i| i.xattrs = U32::new(3)));
    assert_eq!(found, ["xattr-count"]);
}

#[test]
fn orphan_items_must_match_their_inodes() {
    let orphan = |ino: u64, value: Vec<u8>| {
        with_plan(|plan| drop(plan.items.insert(Key::orphan(ino), value)))
    };
    assert_eq!(orphan(21, vec![7]), ["orphan-item"]);
    assert_eq!(orphan(16, vec![ORPHAN_REMOVE]), ["orphan-item"]);
    assert_eq!(orphan(99, vec![ORPHAN_REMOVE]), ["orphan-item"]);
    assert_eq!(orphan(99, vec![ORPHAN_TRUNCATE]), ["orphan-item"]);
    assert_eq!(orphan(21, vec![ORPHAN_TRUNCATE]), ["orphan-missing"]);
    let found = with_plan(|plan| drop(plan.items.remove(&Key::orphan(21))));
    assert_eq!(found, ["orphan-missing"]);
}

/// Contract: rot
#[test]
fn bit_rot_in_contents_reports_file_and_offset() {
    for (i, ino, offset) in [(1, 16, 4096), (20, 22, 0)] {
        let mut image = Plan::base().build();
        image.flip(data_block(i), 77);
        let findings = image.check(true).unwrap().findings;
        let [finding] = &findings[..] else {
            panic!("{findings:?}")
        };
        assert_eq!(finding.code, "data-checksum");
        assert_eq!(
            (finding.ino, finding.block),
            (Some(ino), Some(data_block(i)))
        );
        let text = finding.to_string();
        assert!(text.contains(&format!("file offset {offset}:")), "{text}");
    }
    let found = with_image(|image| image.flip(data_block(0), 7));
    assert_eq!(found, ["data-checksum"]);
    let found = with_image(|image| image.flip(data_block(11), 7));
    assert_eq!(
        found,
        Vec::<&str>::new(),
        "unwritten blocks have no contents"
    );
}

#[test]
fn logged_extent_may_replace_indexed_extent() {
    let found = with_plan(|plan| {
        let raw = RawInode {
            blocks: U64::new(2),
            ..inode(S_IFREG, 1, 5000)
        };
        plan.context(vec![
            put(extent_key(16, 0), extent(22, 2, 7)),
            delete(extent_key(16, 2), vec![]),
            delete(xattr_key(16, "user.a"), vec![]),
            delete(xattr_key(16, "user.big"), vec![]),
            put(Key::inode(16), raw.as_bytes().to_vec()),
        ]);
    });
    assert_eq!(found, Vec::<&str>::new());
}
