//! Volumes whose front was overwritten, and volumes whose copies of the superblock were.
//!
//! Contract: rot.front

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::sync::Arc;

use cairnfs::fs::{FileSystem, Options};
use cairnfs::{Error, Result};
use cairnfs_check::{CheckOptions, check};
use cairnfs_disk::format::checksum::crc;
use cairnfs_disk::format::geometry::{LOG_START, SUPERBLOCK_SLOTS};
use cairnfs_disk::format::superblock::{COPIES, Superblock, copy_blocks_of};
use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS, ROOT_INO};
use cairnfs_disk::types::Creds;
use cairnfs_mutate::base::{Base, merged, one_of_everything};
use cairnfs_mutate::image::{Bounded, Image};
use cairnfs_mutate::random::Random;
use cairnfs_mutate::{Outcome, Verdict, bases, seal, survives};
use zerocopy::little_endian::U64;

fn outcome(image: &Image) -> Outcome {
    survives(image).unwrap_or_else(|broken| panic!("{broken}"))
}

fn open(image: &Image, read_only: bool) -> (Arc<Bounded>, Result<Arc<FileSystem>>) {
    let device = Bounded::new(image);
    let options = Options {
        read_only,
        workers: false,
        durability_interval: None,
        ..Options::default()
    };
    (device.clone(), FileSystem::open_device(device, &options))
}

/// The image after the volume was opened for changes and closed.
fn opened_once(image: &Image) -> Image {
    let (device, fs) = open(image, false);
    fs.unwrap().close().unwrap();
    device.image()
}

fn codes(image: &Image) -> Vec<&'static str> {
    let options = CheckOptions { data: true };
    let report = check(&*Bounded::new(image), &options, &mut |_| {}).unwrap();
    report.findings.iter().map(|f| f.code).collect()
}

fn notes(image: &Image) -> Vec<(&'static str, Option<u64>)> {
    let report = check(&*Bounded::new(image), &CheckOptions::default(), &mut |_| {}).unwrap();
    report.notes.iter().map(|n| (n.code, n.block)).collect()
}

fn at_front(image: &Image) -> [Option<Superblock>; 2] {
    SUPERBLOCK_SLOTS.map(|block| Superblock::decode(block, &image.read(block, 1)).ok())
}

/// Overwrites everything before the log.
fn without_front(image: &Image, random: Option<u64>) -> Image {
    let mut image = image.clone();
    let mut bytes = vec![0; LOG_START as usize * BLOCK_SIZE];
    if let Some(seed) = random {
        Random::new(seed).fill(&mut bytes);
    }
    for (block, bytes) in (0..).zip(bytes.chunks(BLOCK_SIZE)) {
        image.write(block, bytes);
    }
    image
}

/// The superblock as it was some generations before.
fn older(newest: &Superblock, by: u64) -> Superblock {
    let mut old = *newest;
    old.generation = U64::new(newest.generation.get() - by);
    old
}

fn units(base: &Base) -> Vec<u64> {
    let units: Vec<u64> = base.layout.superblock.copy_units().collect();
    assert_eq!(units.len(), 2);
    units
}

fn wipe(image: &mut Image, unit: u64) {
    for block in unit..unit + NODE_BLOCKS {
        image.write(block, &[0xff; BLOCK_SIZE]);
    }
}

#[test]
fn overwritten_front_is_replaced_by_a_copy_and_mended() {
    for base in bases() {
        let whole = outcome(&base.image);
        assert_eq!(whole.verdict, Verdict::Harmless, "{}", base.name);
        for random in [None, Some(1), Some(2)] {
            let image = without_front(&base.image, random);
            let found = outcome(&image);
            assert_eq!(found.verdict, Verdict::Found, "{}", base.name);
            assert_eq!(found.codes.as_deref(), Some(&["superblock-front"][..]));
            assert_eq!(found.tree, whole.tree, "{}", base.name);
            let (_, fs) = open(&image, true);
            let front = fs.unwrap().info().front.unwrap();
            assert!(!front.mended && front.foreign.is_none());
            let mended = opened_once(&image);
            assert!(at_front(&mended).iter().all(Option::is_some));
            assert_eq!(outcome(&mended).verdict, Verdict::Harmless);
            assert_eq!(
                outcome(&mended).tree,
                outcome(&opened_once(&base.image)).tree
            );
        }
    }
}

/// What a sync stated before a kill is not lost in silence with the front and the beginning of the
/// log.
#[test]
fn front_overwritten_with_the_beginning_of_the_log_is_damage() {
    let base = merged();
    let tail = LOG_START + base.layout.superblock.tail_lsn.get();
    for more in [1, 2, 8] {
        let (device, fs) = open(&base.image, false);
        let fs = fs.unwrap();
        for n in 0..200 {
            let name = format!("synced-{n}");
            let creds = Creds { uid: 0, gid: 0 };
            fs.mknod(ROOT_INO, name.as_bytes(), 0o100_644, 0, creds)
                .unwrap();
        }
        fs.sync_stated().unwrap();
        let mut image = device.image();
        for block in 0..tail + more {
            image.write(block, &[0xa5; BLOCK_SIZE]);
        }
        assert_eq!(codes(&image), ["superblock-front", "log-damaged"]);
        for read_only in [true, false] {
            let (device, fs) = open(&image, read_only);
            assert!(matches!(fs.err(), Some(Error::Corrupt(_))));
            assert!(!device.image().differs_from(&image));
        }
    }
}

#[test]
fn one_copy_is_enough_and_without_any_it_is_still_a_volume() {
    for base in [merged(), one_of_everything()] {
        let whole = outcome(&base.image).tree;
        let [end, middle] = units(&base)[..] else {
            panic!()
        };
        for unit in [end, middle] {
            let mut image = without_front(&base.image, None);
            wipe(&mut image, unit);
            assert_eq!(outcome(&image).tree, whole);
            assert_eq!(codes(&image), ["superblock-copy", "superblock-front"]);
            assert_eq!(codes(&opened_once(&image)), [""; 0]);
        }
        let mut image = without_front(&base.image, Some(3));
        wipe(&mut image, end);
        wipe(&mut image, middle);
        for read_only in [true, false] {
            let (device, fs) = open(&image, read_only);
            let error = fs.err().unwrap();
            assert!(matches!(error, Error::FrontLost { .. }), "{error}");
            assert!(error.to_string().contains("this CairnFS volume"), "{error}");
            assert!(!device.image().differs_from(&image));
        }
        let checked = check(
            &*Bounded::new(&image),
            &CheckOptions::default(),
            &mut |_| {},
        );
        assert!(matches!(checked, Err(Error::FrontLost { .. })));
    }
}

#[test]
fn lost_and_stale_copies_are_one_finding_each_and_are_mended() {
    let base = one_of_everything();
    let newest = base.layout.superblock;
    for unit in units(&base) {
        let [even, odd] = copy_blocks_of(unit);
        let mut lost = base.image.clone();
        wipe(&mut lost, unit);
        let mut stale = base.image.clone();
        for by in [2, 3] {
            let old = older(&newest, by);
            let block = if old.slot() == 0 { even } else { odd };
            stale.write(block, &old.encode_copy(block));
        }
        for image in [lost, stale] {
            let found = outcome(&image);
            assert_eq!(found.verdict, Verdict::Found);
            assert_eq!(found.codes.as_deref(), Some(&["superblock-copy"][..]));
            assert_eq!(codes(&opened_once(&image)), [""; 0]);
        }
        // A power cut leaves one slot like this.
        let mut cut = base.image.clone();
        cut.write(even, &[0; BLOCK_SIZE]);
        assert_eq!(outcome(&cut).verdict, Verdict::Harmless);
    }
}

/// Each place alone: the others have the same, and what a power cut may have left is no error.
#[test]
fn one_rotten_place_is_noted_and_mended() {
    for base in [merged(), one_of_everything()] {
        let (device, fs) = open(&base.image, false);
        // The marks are there.
        fs.unwrap().sync_stated().unwrap();
        let image = device.image();
        assert_eq!(notes(&image), []);
        let newest = base.layout.superblock;
        let slots = SUPERBLOCK_SLOTS.into_iter();
        let slots = slots.chain(units(&base).into_iter().flat_map(copy_blocks_of));
        let marks = newest.mark_blocks().map(|(block, _)| ("mark-place", block));
        let slots = slots.map(|block| ("superblock-place", block));
        for (code, block) in slots.chain(marks) {
            let mut rotten = image.clone();
            let byte = image.read(block, 1)[17];
            rotten.patch(block, 17, &[byte ^ 4]);
            assert_eq!(codes(&rotten), [""; 0], "{code} {block}");
            assert_eq!(notes(&rotten), [(code, Some(block))]);
            let (device, fs) = open(&rotten, false);
            fs.unwrap().sync_stated().unwrap();
            assert_eq!(notes(&device.image()), [], "{code} {block}");
        }
    }
}

#[test]
fn front_of_an_earlier_time_does_not_hide_newer_copies() {
    let base = one_of_everything();
    let whole = outcome(&base.image).tree;
    let newest = base.layout.superblock;
    let mut image = base.image.clone();
    for by in [2, 3] {
        let mut old = older(&newest, by);
        old.root = Default::default();
        image.write(old.slot_block(), &old.encode());
    }
    let found = outcome(&image);
    assert_eq!(found.tree, whole);
    assert_eq!(found.codes.as_deref(), Some(&["superblock-front"][..]));
    assert_eq!(codes(&opened_once(&image)), [""; 0]);
}

#[test]
fn volume_under_another_file_system_is_read_and_never_written() {
    let base = one_of_everything();
    let mut image = without_front(&base.image, None);
    image.patch(0, 0x438, &[0x53, 0xef]);
    let found = outcome(&image);
    assert_eq!(found.verdict, Verdict::Refused);
    assert_eq!(found.tree, outcome(&base.image).tree);
    let (_, fs) = open(&image, true);
    let front = fs.unwrap().info().front.unwrap();
    assert!(front.foreign.unwrap().contains("ext4"));
    let (device, fs) = open(&image, false);
    let error = fs.err().unwrap().to_string();
    for word in ["ext4", "cairnfs export", "mount -o ro", "wipefs"] {
        assert!(error.contains(word), "{error}");
    }
    assert!(!device.image().differs_from(&image));
    // As `wipefs` leaves it.
    image.patch(0, 0x438, &[0, 0]);
    assert_eq!(codes(&opened_once(&image)), [""; 0]);
}

/// The volume as a version made it that knew no copies.
fn without_copies(base: &Base) -> Image {
    let (mut image, layout) = (base.image.clone(), &base.layout);
    let mut superblock = layout.superblock;
    let table = layout
        .geometry
        .table_start(superblock.table_copy.get() as u8);
    let copy = image.read(table, 1)[6];
    let bitmap = layout.geometry.bitmap_block(0, copy);
    let mut map = image.read(bitmap, 1);
    for unit in units(base) {
        for block in unit..unit + NODE_BLOCKS {
            map[block as usize / 8] &= !(1 << (block % 8));
        }
        wipe(&mut image, unit);
    }
    image.write(bitmap, &map);
    let free: u32 = map.iter().map(|byte| byte.count_zeros()).sum();
    image.patch(table, 0, &crc(&map).to_le_bytes());
    image.patch(table, 4, &(free as u16).to_le_bytes());
    superblock.ro_compatible &= U64::new(!COPIES);
    superblock.copies = Default::default();
    superblock.free_blocks = U64::new(free.into());
    let newest = superblock.generation.get();
    for generation in [newest - 1, newest] {
        superblock.generation = U64::new(generation);
        image.write(superblock.slot_block(), &superblock.encode());
    }
    seal::table(&mut image, layout);
    image
}

#[test]
fn volume_of_an_earlier_version_gets_copies_when_it_is_opened_for_changes() {
    for base in [merged(), one_of_everything()] {
        let old = without_copies(&base);
        assert_eq!(codes(&old), [""; 0]);
        let (device, fs) = open(&old, true);
        drop(fs.unwrap());
        assert!(!device.image().differs_from(&old));
        let new = opened_once(&old);
        assert_eq!(codes(&new), [""; 0]);
        let newest = at_front(&new).into_iter().flatten();
        let newest = newest.max_by_key(|s| s.generation.get()).unwrap();
        assert_eq!(newest.copy_units().count(), 2);
        let lost = without_front(&new, Some(4));
        assert_eq!(codes(&lost), ["superblock-front"]);
        assert_eq!(outcome(&lost).tree, outcome(&new).tree);
        // Without the first write there is nothing but traces.
        let (_, fs) = open(&without_front(&old, None), true);
        assert!(matches!(fs.err(), Some(Error::FrontLost { .. })));
    }
}
