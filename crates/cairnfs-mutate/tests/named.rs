//! Regression tests for single kinds of damage, each as small as possible.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use cairnfs::format::BLOCK_SIZE;
use cairnfs::format::geometry::SUPERBLOCK_SLOTS;
use cairnfs::format::key::{Key, Kind};
use cairnfs::format::record::{HEADER_SIZE, RecordHeader};
use cairnfs::fs::{FileSystem, Options};
use cairnfs::types::{Creds, RenameMode};
use cairnfs::{Error, Volume, VolumeOptions};
use cairnfs_mutate::base::{Base, nested, one_of_everything, two_levels};
use cairnfs_mutate::graph::crossed;
use cairnfs_mutate::image::{Bounded, Image};
use cairnfs_mutate::{Outcome, Verdict, seal, survives};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

fn outcome(image: &Image) -> Outcome {
    survives(image).unwrap_or_else(|broken| panic!("{broken}"))
}

fn assert_found(outcome: &Outcome, verdict: Verdict, code: &str) {
    assert_eq!(outcome.verdict, verdict);
    let codes = outcome.codes.as_ref().unwrap();
    assert!(codes.contains(&code), "{codes:?}");
}

fn options() -> Options {
    Options {
        workers: false,
        durability_interval: None,
        ..Options::default()
    }
}

/// The keys of the extents in the index; the log changes the first one, but not the last.
fn extents(base: &Base) -> Vec<Key> {
    let keys = base.layout.items.iter().map(|i| i.key);
    keys.filter(|k| k.kind == Kind::Extent).collect()
}

/// Changes eight bytes of an item's value.
fn change_item(base: &Base, key: Key, at: usize, value: u64) -> Image {
    let item = base.layout.items.iter().find(|i| i.key == key).unwrap();
    let mut image = base.image.clone();
    image.patch(item.node, item.at + at, &value.to_le_bytes());
    seal::node(&mut image, &base.layout, item.node);
    image
}

/// Changes a record's header.
fn change_record(base: &Base, i: usize, change: impl FnOnce(&mut RecordHeader)) -> Image {
    let mut image = base.image.clone();
    let record = base.layout.records[i];
    let mut header = record.header;
    change(&mut header);
    let block = base.layout.log_block(record.lsn);
    image.patch(block, 0, header.as_bytes());
    seal::log(&mut image, &base.layout, i, false);
    image
}

#[test]
fn superblock_with_exhausted_counter_is_refused() {
    let base = one_of_everything();
    // Generation, sequence, tail, required LSN, next inode number; then a next inode number that is
    // too small.
    let fields = [160, 168, 176, 192, 200].map(|at| (at, u64::MAX));
    for (at, value) in fields.into_iter().chain([(200, 1)]) {
        let mut image = base.image.clone();
        for slot in SUPERBLOCK_SLOTS {
            image.patch(slot, at, &value.to_le_bytes());
            seal::superblock_bytes(&mut image, slot);
        }
        let outcome = outcome(&image);
        assert_eq!(outcome.verdict, Verdict::Refused, "field at {at}");
        assert_eq!(outcome.codes, None, "field at {at}");
    }
}

#[test]
fn log_record_with_invalid_sequence_is_damage() {
    let base = one_of_everything();
    let image = change_record(&base, 2, |h| h.seq = U64::new(u64::MAX));
    assert_found(&outcome(&image), Verdict::Refused, "log-damaged");
    let image = change_record(&base, 0, |h| h.seq = U64::new(0));
    assert_found(&outcome(&image), Verdict::Refused, "log-order");
}

#[test]
fn log_record_with_too_high_durable_lsn_is_damage() {
    let base = one_of_everything();
    let image = change_record(&base, 1, |h| h.durable_lsn = U64::new(1 << 40));
    assert_found(&outcome(&image), Verdict::Refused, "log-damaged");
}

#[test]
fn log_with_newer_superblock_generation_is_damage() {
    let base = one_of_everything();
    let image = change_record(&base, 1, |h| h.generation = U64::new(1 << 40));
    assert_found(&outcome(&image), Verdict::Refused, "superblock-lost");
}

#[test]
fn lost_superblock_is_found_in_wrapped_log() {
    let base = one_of_everything();
    let mut image = base.image.clone();
    let slot = base.layout.superblock.slot_block();
    image.write(slot, &[0; BLOCK_SIZE]);
    let ring = base.layout.geometry.log_blocks;
    for lsn in 0..ring {
        image.write(base.layout.log_block(lsn), &[0; BLOCK_SIZE]);
    }
    // The older superblock requires nothing of the log, so the end of the log alone is not damage.
    let older = SUPERBLOCK_SLOTS[0] + SUPERBLOCK_SLOTS[1] - slot;
    let tail: [u8; 8] = image.read(older, 1)[176..184].try_into().unwrap();
    image.patch(older, 192, &tail);
    seal::superblock_bytes(&mut image, older);
    let lsn = u64::from_le_bytes(tail) + ring + 5;
    let mut header = base.layout.records[1].header;
    header.lsn = U64::new(lsn);
    header.durable_lsn = U64::new(0);
    header.seal();
    let mut block = vec![0; BLOCK_SIZE];
    block[..HEADER_SIZE].copy_from_slice(header.as_bytes());
    image.write(base.layout.log_block(lsn), &block);
    assert_found(&outcome(&image), Verdict::Refused, "superblock-lost");
}

#[test]
fn extent_outside_volume_is_damage() {
    let base = one_of_everything();
    let extents = extents(&base);
    for block in [3, base.layout.geometry.total_blocks - 1, u64::MAX] {
        let image = change_item(&base, *extents.last().unwrap(), 0, block);
        assert_found(&outcome(&image), Verdict::ReadError, "extent-range");
        // Only the merge that replaces this extent reads it.
        let image = change_item(&base, extents[0], 0, block);
        assert_found(&outcome(&image), Verdict::ReadError, "extent-item");
    }
}

#[test]
fn inode_with_too_many_blocks_is_damage() {
    let base = one_of_everything();
    let ino = extents(&base).last().unwrap().object;
    let image = change_item(&base, Key::inode(ino), 40, u64::MAX / 8);
    assert_found(&outcome(&image), Verdict::ReadError, "inode-item");
}

#[test]
fn rename_into_directory_cycle_terminates() {
    let base = two_levels();
    let open = |image: &Image| FileSystem::open_device(Bounded::new(image), &options()).unwrap();
    let lookup = |fs: &FileSystem, dir: u64, name: &str| {
        let found = fs.lookup(dir, name.as_bytes()).unwrap();
        fs.forget(found.ino, 1);
        found.ino
    };
    let sound = open(&base.image);
    let above = lookup(&sound, 1, "dir-0");
    let below = lookup(&sound, above, "below");
    drop(sound);
    let image = change_item(&base, Key::inode(above), 104, below);
    let fs = open(&image);
    fs.mkdir(1, b"moved", 0o755, Creds::default()).unwrap();
    let result = fs.rename(1, b"moved", below, b"moved", RenameMode::Replace);
    let Err(Error::Corrupt(damage)) = result else {
        panic!("{result:?}")
    };
    assert_eq!(damage.what, "directory parents");
    let codes = outcome(&image).codes.unwrap();
    assert!(codes.contains(&"parent"), "{codes:?}");
}

/// The volume in `image`.
fn volume(image: &Image) -> Volume {
    let options = VolumeOptions::new().durability_interval(None);
    options.open_device(Bounded::new(image)).unwrap()
}

#[test]
fn walk_enters_each_directory_once() {
    let base = nested();
    let dirs = volume(&base.image).walk("/").unwrap().count();
    for circular in [false, true] {
        let walk = volume(&crossed(&base, circular)).walk("/").unwrap();
        // The limit makes the test fail instead of running forever.
        let found = walk.take(10 * dirs).count();
        assert_eq!(found, dirs, "circular: {circular}");
    }
}

#[test]
fn recursive_removal_of_directory_cycle_is_refused() {
    let volume = volume(&crossed(&nested(), true));
    let result = volume.remove_dir_all("a");
    let damage = matches!(
        result.as_ref().map_err(Error::cause),
        Err(Error::Corrupt(_))
    );
    assert!(damage, "{result:?}");
}
