//! Regression tests for single kinds of damage, each as small as possible.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::collections::BTreeSet;

use cairnfs::fs::FileSystem;
use cairnfs::{Error, Volume, VolumeOptions};
use cairnfs_check::{CheckOptions, check};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::geometry::SUPERBLOCK_SLOTS;
use cairnfs_disk::format::item::{RawExtent, decode_dir_entry};
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::format::record::{HEADER_SIZE, RecordHeader, entries, entry_size};
use cairnfs_disk::format::root::{RawRoot, Root, RootState};
use cairnfs_disk::format::superblock::copy_blocks_of;
use cairnfs_disk::types::{Creds, RenameMode};
use cairnfs_mutate::base::{Base, forked, merged, nested, one_of_everything, two_levels};
use cairnfs_mutate::graph::crossed;
use cairnfs_mutate::image::{Bounded, Image};
use cairnfs_mutate::{Outcome, Verdict, seal, survives};

use crate::options;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

fn outcome(image: &Image) -> Outcome {
    survives(image).unwrap_or_else(|broken| panic!("{broken}"))
}

fn assert_found(outcome: &Outcome, verdict: Verdict, code: &str) {
    assert_eq!(outcome.verdict, verdict);
    let codes = outcome.codes.as_ref().unwrap();
    assert!(codes.contains(&code), "{codes:?}");
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

/// The blocks with copies of superblocks.
fn copies(base: &Base) -> impl Iterator<Item = u64> + use<> {
    base.layout.superblock.copy_units().flat_map(copy_blocks_of)
}

#[test]
fn superblock_with_exhausted_counter_is_refused() {
    let base = one_of_everything();
    // Generation, sequence, tail, required LSN, next inode number; then a next inode number that is
    // too small.
    let fields = [160, 168, 176, 192, 200].map(|at| (at, u64::MAX));
    for (at, value) in fields.into_iter().chain([(200, 1)]) {
        let mut image = base.image.clone();
        for slot in SUPERBLOCK_SLOTS.into_iter().chain(copies(&base)) {
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

/// Changes the offset in the key of the first log entry of this kind.
fn change_logged_offset(base: &Base, kind: Kind, offset: u64) -> Image {
    let mut image = base.image.clone();
    for (i, record) in base.layout.records.iter().enumerate() {
        let block = base.layout.log_block(record.lsn);
        let len = record.header.payload_len.get() - record.header.checks_len.get();
        let blocks = (HEADER_SIZE + len as usize).div_ceil(BLOCK_SIZE) as u64;
        let bytes = image.read(block, blocks);
        let mut at = HEADER_SIZE;
        for entry in entries(block, &bytes[at..at + len as usize]) {
            let entry = entry.unwrap();
            if entry.key.kind == kind {
                image.patch(block, at + 16, &offset.to_le_bytes());
                seal::log(&mut image, &base.layout, i, true);
                return image;
            }
            at += entry_size(entry.value.len());
        }
    }
    panic!("no {kind:?} in the log")
}

#[test]
fn log_entry_with_impossible_offset_is_damage() {
    let base = one_of_everything();
    for kind in [Kind::DirIndex, Kind::Extent] {
        let image = change_logged_offset(&base, kind, u64::MAX);
        assert_found(&outcome(&image), Verdict::Refused, "log-entry");
    }
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
    for copy in copies(&base) {
        image.write(copy, &[0; BLOCK_SIZE]);
    }
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

/// Each extent is made as old as the volume. That is found wherever a root that lacks its blocks
/// could then be taken for one that has them; elsewhere it changes nothing.
#[test]
fn extent_that_is_older_than_its_blocks_is_found() {
    let base = forked();
    let extents = base.layout.items.iter();
    let extents = extents.filter(|item| item.key.kind == Kind::Extent);
    let mut found = 0;
    for item in extents {
        let mut image = base.image.clone();
        image.patch(item.node, item.at + 8, &1u64.to_le_bytes());
        seal::node(&mut image, &base.layout, item.node);
        let codes = outcome(&image).codes.unwrap();
        let ours = ["extent-birth", "block-shared"];
        assert!(codes.iter().all(|code| ours.contains(code)), "{codes:?}");
        found += usize::from(!codes.is_empty());
    }
    assert!(found > 3, "{found}");
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
    let open =
        |image: &Image| FileSystem::open_device(Bounded::new(image), &options(false)).unwrap();
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

/// The last entry of a directory in the index, under the greatest index that a key can have.
fn greatest_entry_index(base: &Base) -> (u64, Vec<u8>, Image) {
    let items = &base.layout.items;
    let of = |kind| items.iter().filter(move |item| item.key.kind == kind);
    let entry = of(Kind::DirIndex)
        .filter(|item| base.image.read(item.node, 4)[item.at + 8] == 0o10)
        .find(|item| {
            let same = of(Kind::DirIndex).filter(|other| other.key.object == item.key.object);
            same.map(|other| other.key.offset).max() == Some(item.key.offset)
        });
    let entry = entry.unwrap();
    let name = of(Kind::DirName).filter(|item| item.key.object == entry.key.object);
    let mut image = base.image.clone();
    let index = entry.key.offset.to_le_bytes();
    let listed = |item: &&cairnfs_mutate::layout::ItemAt| {
        base.image.read(item.node, 4)[item.at..item.at + item.len] == index
    };
    let name = name.clone().find(listed).unwrap();
    for (item, at) in [(entry, entry.at - 8), (name, name.at)] {
        image.patch(item.node, at, &u64::MAX.to_le_bytes());
        seal::node(&mut image, &base.layout, item.node);
    }
    let bytes = base.image.read(entry.node, 4);
    let value = &bytes[entry.at..entry.at + entry.len];
    let name = decode_dir_entry(value).unwrap().name.to_vec();
    (entry.key.object, name, image)
}

/// What a program does to such an entry would be logged under an index that no replay accepts.
#[test]
fn entry_index_that_the_log_refuses_is_damage() {
    let (dir, name, image) = greatest_entry_index(&merged());
    let fs = FileSystem::open_device(Bounded::new(&image), &options(false)).unwrap();
    let moved = fs.rename(dir, &name, dir, b"moved", RenameMode::Replace);
    for result in [fs.unlink(dir, &name), moved] {
        let Err(Error::Corrupt(damage)) = result else {
            panic!("{result:?}")
        };
        assert_eq!(damage.what, "directory entry");
    }
    drop(fs);
    assert_found(&outcome(&image), Verdict::Found, "dir-index");
}

/// Two frozen roots that are parents of each other end every way through the history.
#[test]
fn circle_of_parents_is_survived() {
    let base = forked();
    let frozen = base.layout.items.iter().filter(|item| {
        let bytes = base.image.read(item.node, 4);
        let value = &bytes[item.at..item.at + item.len];
        let root = (item.key.kind == Kind::Root).then(|| Root::decode(item.key.object, value));
        root.is_some_and(|root| root.unwrap().state != RootState::Head)
    });
    let frozen: Vec<_> = frozen.collect();
    assert!(frozen.len() >= 3, "{frozen:?}");
    for (a, b) in frozen.iter().zip(&frozen[1..]) {
        let mut image = base.image.clone();
        for (item, parent) in [(a, b), (b, a)] {
            let parent = parent.key.object as u32;
            image.patch(
                item.node,
                item.at + size_of::<RawRoot>(),
                &parent.to_le_bytes(),
            );
            seal::node(&mut image, &base.layout, item.node);
        }
        let found = outcome(&image).codes.unwrap();
        assert!(found.contains(&"root-lineage"), "{found:?}");
    }
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

/// A leaf that a head copied has checksums of its own for extents that the head inherits.
#[test]
fn wrong_checksum_of_inherited_extent_in_own_leaf_is_found() {
    let base = forked();
    let mut found = 0;
    for item in base
        .layout
        .items
        .iter()
        .filter(|i| i.key.kind == Kind::Extent)
    {
        let value = base.image.read(item.node, 4);
        let raw = &value[item.at..item.at + size_of::<RawExtent>()];
        if RawExtent::read_from_bytes(raw).unwrap().flags.get() != 0 {
            continue;
        }
        let mut image = base.image.clone();
        let crc = item.at + raw.len();
        image.patch(item.node, crc, &[!value[crc]]);
        seal::node(&mut image, &base.layout, item.node);
        let report = check(
            &*Bounded::new(&image),
            &CheckOptions { data: true },
            &mut |_| {},
        );
        let codes: Vec<_> = report.unwrap().findings.iter().map(|f| f.code).collect();
        let logged = codes.is_empty() && outcome(&image).verdict == Verdict::Harmless;
        assert!(
            logged || codes.contains(&"data-checksum"),
            "{item:?}: {codes:?}"
        );
        found += usize::from(!logged);
    }
    assert!(found > 0);
}

/// Roots that share a large value have it with one birth: a drop of one changes who inherits it.
#[test]
fn large_value_with_two_births_is_found() {
    let base = forked();
    let mut found = 0;
    for large in &base.layout.large {
        let same = base.layout.large.iter();
        let cells = same.filter(|l| l.units == large.units).map(|l| l.cell.node);
        if cells.collect::<BTreeSet<_>>().len() < 2 {
            continue;
        }
        let (node, at) = (large.cell.node, large.cell.at + 8);
        let value = base.image.read(node, 4);
        let birth = u64::from_le_bytes(value[at..at + 8].try_into().unwrap());
        for other in [birth - 1, birth + 1, birth + 2] {
            let mut image = base.image.clone();
            image.patch(node, at, &other.to_le_bytes());
            seal::node(&mut image, &base.layout, node);
            let report = check(
                &*Bounded::new(&image),
                &CheckOptions::default(),
                &mut |_| {},
            );
            let report = report.unwrap();
            assert!(!report.is_clean(), "{birth} -> {other} in {large:?}");
            found += 1;
        }
    }
    assert!(found > 0);
}
