//! Superblocks and devices that do not match.

use cairnfs::Error;
use cairnfs_check::{CheckOptions, check};
use cairnfs_disk::format::geometry::MARK_BLOCK;
use cairnfs_disk::format::superblock::{CHECKPOINTS, RawCheckpoint};
use zerocopy::little_endian::U64;

use super::image::*;
use super::plan::*;
use super::{with_image, with_plan};

#[test]
fn device_without_volume_is_an_error() {
    for size in [0, 4096, 40_960, SIZE as usize] {
        let device = VecDevice(vec![0; size]);
        let result = check(&device, &CheckOptions::default(), &mut |_| {});
        assert!(matches!(result, Err(Error::NotAVolume(_))), "{size}");
    }
}

#[test]
fn unknown_features_are_refused() {
    for read_only in [false, true] {
        let mut image = Plan::base().build();
        image.edit_superblock(|s| {
            let field = if read_only {
                &mut s.ro_compatible
            } else {
                &mut s.incompatible
            };
            *field = U64::new(1 << 40);
        });
        assert!(matches!(image.check(false), Err(Error::Incompatible(_))));
    }
}

#[test]
fn compatible_features_are_ignored() {
    let found = with_image(|image| image.edit_superblock(|s| s.compatible = U64::new(1)));
    assert_eq!(found, Vec::<&str>::new());
}

const COPIES_AT: [u64; 2] = [3836, 3900];

/// Other places have the same, so it is no finding.
#[test]
fn each_rotten_place_is_a_note() {
    let [first, second] = COPIES_AT;
    let with = |block: u64| {
        let mut image = Plan::base().build();
        image.write_copies(COPIES_AT);
        assert_eq!(image.check(true).unwrap().notes, []);
        image.flip(block, 100);
        let report = image.check(true).unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
        let notes = report.notes.into_iter();
        notes.map(|n| (n.code, n.block)).collect::<Vec<_>>()
    };
    for block in [0, 8, first, first + 3, second, second + 3] {
        assert_eq!(with(block), [("superblock-place", Some(block))]);
    }
    for block in [MARK_BLOCK, first + 1, second + 1] {
        assert_eq!(with(block), [("mark-place", Some(block))]);
    }
}

#[test]
fn lost_and_stale_copies_of_superblocks_are_found() {
    let with = |damage: &dyn Fn(&mut Image)| {
        with_image(|image| {
            image.write_copies(COPIES_AT);
            damage(image);
        })
    };
    let none = Vec::<&str>::new();
    assert_eq!(with(&|_| {}), none);
    let [first, second] = COPIES_AT;
    for unit in [first, second] {
        // A power cut leaves one slot like this.
        assert_eq!(with(&|image| image.flip(unit, 100)), none);
        let both = |image: &mut Image| {
            image.flip(unit, 100);
            image.flip(unit + 3, 100);
        };
        assert_eq!(with(&both), ["superblock-copy"]);
    }
    let stale = |image: &mut Image| {
        image.write_copies_of(2);
        image.write_copies_of(3);
    };
    assert_eq!(with(&stale), ["superblock-copy", "superblock-copy"]);
    let without_front = |image: &mut Image| {
        image.flip(0, 100);
        image.flip(8, 100);
    };
    assert_eq!(with(&without_front), ["superblock-front"]);
    assert_eq!(with(&|image| image.flip(0, 100)), none);
    let not_in_use = |image: &mut Image| {
        for block in second..second + 4 {
            image.unmark(block);
        }
        image.write_bitmaps();
        image.write_copies_of(0);
        image.write_copies_of(1);
    };
    assert_eq!(with(&not_in_use), ["block-not-allocated"]);
    let shared = with_image(|image| image.write_copies([first, data_block(0)]));
    assert!(shared.contains(&"block-shared"), "{shared:?}");
}

#[test]
fn impossible_checkpoints_are_found() {
    let checkpoint = |seq: u64| RawCheckpoint {
        seq: U64::new(seq),
        number: U64::new(9),
    };
    let found = |marked: u64, newest: u64, before: u64| {
        with_image(|image| {
            image.edit_superblock(|s| {
                s.ro_compatible = U64::new(marked);
                s.checkpoint = checkpoint(newest);
                s.checkpoint_before = checkpoint(before);
            });
        })
    };
    assert_eq!(found(CHECKPOINTS, MERGED, MERGED - 1), Vec::<&str>::new());
    assert_eq!(found(CHECKPOINTS, MERGED, MERGED), Vec::<&str>::new());
    assert_eq!(found(CHECKPOINTS, MERGED + 1, 1), ["checkpoint"]);
    assert_eq!(found(CHECKPOINTS, MERGED - 1, MERGED), ["checkpoint"]);
    assert_eq!(found(0, MERGED, 1), ["checkpoint"]);
}

#[test]
fn truncated_device_is_found() {
    let found = with_image(|image| image.bytes.truncate(SIZE as usize / 2));
    assert_eq!(found, ["device-too-small"]);
}

#[test]
fn superblock_in_wrong_slot_is_found() {
    let found = with_image(|image| {
        let newest = image.superblock;
        image.write(8 - image.newest_slot(), &newest.encode());
    });
    assert_eq!(found, ["superblock-slot"]);
}

#[test]
fn superblock_slots_of_two_volumes_are_found() {
    let found = with_image(|image| {
        let mut older = image.superblock;
        older.generation = U64::new(7);
        older.uuid = [1; 16];
        image.write(older.slot_block(), &older.encode());
    });
    assert_eq!(found, ["superblock-mismatch"]);
}

#[test]
fn corrupt_newest_superblock_is_found_by_log() {
    let found = with_image(|image| image.flip(image.newest_slot(), 100));
    assert_eq!(found, ["superblock-lost"]);
}

/// Contract: rot.log
#[test]
fn lost_superblock_is_found_by_any_record_in_ring() {
    let mut plan = Plan::base();
    let log = std::mem::take(&mut plan.log);
    let mut image = plan.build();
    // The only record left is far from the tail in the older superblock.
    image.write_record(&log[0], TAIL + 500, 0);
    image.flip(image.newest_slot(), 100);
    assert_eq!(codes(&image), ["superblock-lost"]);
}

#[test]
fn lost_superblock_write_is_found_by_log() {
    let found = with_plan(|plan| plan.log[2].generation = 9);
    assert_eq!(found, ["superblock-lost"]);
}
