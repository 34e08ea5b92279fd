//! Superblocks and devices that do not match.

use cairnfs::Error;
use cairnfs::format::superblock::{CHECKPOINTS, RawCheckpoint};
use cairnfs_check::{CheckOptions, check};
use zerocopy::little_endian::U64;

use crate::image::*;
use crate::plan::*;
use crate::{with_image, with_plan};

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
