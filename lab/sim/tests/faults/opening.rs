//! The disk fails while a volume is opened: the open fails, and another open loses nothing. If only a
//! superblock cannot be read, the open may use another of its places.
//!
//! Contract: failure.read

use std::ops::Range;
use std::sync::Arc;

use cairnfs::fs::{FileSystem, Options};
use cairnfs_disk::format::geometry::SUPERBLOCK_SLOTS;
use cairnfs_disk::format::superblock::RawSuperblock;
use cairnfs_disk::types::{Creds, SetAttr};
use cairnfs_sim::disk::{Fault, Kind, SimDisk};
use cairnfs_sim::image::{BLOCK, Image};
use cairnfs_sim::model::Moment;
use cairnfs_sim::record::{Recording, fresh_volume, options};
use cairnfs_sim::states::Cursor;
use cairnfs_sim::tree::Tree;
use cairnfs_sim::workload::record;
use cairnfs_tier::size;

use crate::support::{Count, Told, Workload, every_step, long_truncations, random, seeds, verdict};

/// Number of events of a recording at which the power fails, in each tier.
const PLACES: [usize; 2] = [2, 4];
/// Number of states tried of each failed recovery.
const STATES: usize = 2;

/// What an opening can do without.
struct Spared {
    /// The offsets of all places of the superblocks and of the durable mark: another one is used.
    copied: Vec<u64>,
    /// The record of free space, which only reading does not need.
    space: Range<u64>,
}

impl Spared {
    fn of(image: &Image) -> Self {
        let newest = SUPERBLOCK_SLOTS.into_iter().filter_map(|block| {
            let mut bytes = [0; BLOCK];
            image.read(block * BLOCK as u64, &mut bytes);
            RawSuperblock::decode(block, &bytes).ok()
        });
        let newest = newest.max_by_key(|s| s.generation.get()).unwrap();
        let copies = [0, 1].into_iter().flat_map(|slot| newest.copy_blocks(slot));
        let marks = newest.mark_blocks().map(|(block, _)| block);
        let blocks = SUPERBLOCK_SLOTS.into_iter().chain(copies).chain(marks);
        let geometry = newest.geometry();
        let [from, to] = [geometry.table_start(0), geometry.data_start()];
        Self {
            copied: blocks.map(|block| block * BLOCK as u64).collect(),
            space: from * BLOCK as u64..to * BLOCK as u64,
        }
    }
}

fn open_fails(recording: &Recording, image: &Image, moment: Moment, count: &mut Count) {
    let spared = Spared::of(image);
    for fault in [Fault::Error, Fault::Gone] {
        for n in 0.. {
            let told = Told::new(format!("opening: {n} {fault:?}"));
            let disk = Arc::new(SimDisk::new(image.clone(), true));
            disk.plan(Kind::Any, n, fault);
            let opened = FileSystem::open_device(disk.clone(), &options(n + 100));
            let Some(hit) = disk.hit() else {
                disk.cut();
                told.well();
                break;
            };
            match opened.map(|_| ()) {
                Err(error) => assert!(error.to_string().contains("simulated"), "{error}"),
                Ok(()) => {
                    // The superblock or the mark was taken from another of its places.
                    assert_eq!((hit.kind, fault), (Kind::Read, Fault::Error));
                    assert!(spared.copied.contains(&hit.offset), "{hit:?}");
                    count.add("a place of the superblock or the mark was not readable", 1);
                    disk.cut();
                }
            }
            assert_eq!(verdict(recording, &disk.image(), moment), Ok(()));
            count.add((fault, hit.kind), 1);
            if n % 4 == 0 {
                count.add("crash states", crash(recording, image, &disk, moment));
            }
            told.well();
        }
    }
    reading_fails(image, &spared, count);
}

fn crash(recording: &Recording, start: &Image, disk: &SimDisk, moment: Moment) -> u64 {
    let events = disk.take_events();
    let mut cursor = Cursor::new(start.clone(), &events);
    cursor.step_to(events.len());
    let choices = cursor.choices(true);
    let step = choices.len().div_ceil(STATES).max(1);
    let mut states = 0;
    for fates in choices.iter().step_by(step) {
        let state = cursor.image(fates);
        assert_eq!(verdict(recording, &state, moment), Ok(()), "{fates:?}");
        states += 1;
    }
    states
}

/// A read-only open does not change the volume even if it fails. What it can do without changes
/// nothing of the files.
fn reading_fails(image: &Image, spared: &Spared, count: &mut Count) {
    let read_only = Options {
        read_only: true,
        ..options(1)
    };
    let disk = Arc::new(SimDisk::new(image.clone(), false));
    let whole = Tree::read(&FileSystem::open_device(disk, &read_only).unwrap()).unwrap();
    for n in 0.. {
        let disk = Arc::new(SimDisk::new(image.clone(), false));
        disk.plan(Kind::Read, n, Fault::Error);
        let opened = FileSystem::open_device(disk.clone(), &read_only);
        let Some(hit) = disk.hit() else {
            return;
        };
        if let Ok(fs) = &opened {
            let spared = spared.copied.contains(&hit.offset) || spared.space.contains(&hit.offset);
            assert!(spared, "{hit:?}");
            assert!(Tree::read(fs).unwrap() == whole, "{hit:?}");
        }
        assert_eq!(disk.image().digest(), image.digest());
        count.add("read-only", 1);
    }
}

#[test]
fn failed_open_loses_nothing() {
    let mut count = Count::default();
    let mut work = vec![every_step(), long_truncations()];
    work.extend(seeds(1, 2).map(|seed| random(seed, 150)));
    for Workload { name, start, steps } in work {
        let told = Told::new(name);
        let recording = record(start, &steps).unwrap();
        let end = recording.events().len();
        let places = size(PLACES[0], PLACES[1]);
        for place in 1..=places {
            let event = end * place / places;
            let mut cursor = recording.cursor();
            cursor.step_to(event);
            let choices = cursor.choices(true);
            let image = cursor.image(choices.last().unwrap());
            open_fails(&recording, &image, recording.moment(event), &mut count);
        }
        told.well();
    }
    count.print("failed openings");
}

/// A volume whose log is so full that opening it starts a merge.
fn log_to_be_merged() -> Image {
    let disk = Arc::new(SimDisk::new(fresh_volume(16 << 20).unwrap(), false));
    let fs = FileSystem::open_device(disk.clone(), &options(1)).unwrap();
    let dir = fs
        .mkdir(1, b"dir", 0o755, Creds { uid: 0, gid: 0 })
        .unwrap();
    let (mut fullest, mut used) = (disk.image(), 0);
    for n in 0.. {
        let mode = SetAttr {
            mode: Some(0o700 + n % 8),
            ..SetAttr::default()
        };
        fs.setattr(dir.ino, &mode).unwrap();
        fs.fsync(dir.ino, false).unwrap();
        let now = fs.info().log_used;
        if now < used {
            break;
        }
        (fullest, used) = (disk.image(), now);
    }
    disk.cut();
    fullest
}

/// Mounts that are killed before their first merge use no more log space in total than one does.
/// Contract: failure.space
#[test]
fn opens_killed_before_a_merge_do_not_fill_the_log() {
    let begun = |image: Image, n: u64| {
        let disk = Arc::new(SimDisk::new(image, false));
        // The first write is the mount record; every later one fails.
        disk.plan(Kind::Write, 1, Fault::Gone);
        let opened = FileSystem::open_device(disk.clone(), &options(n));
        disk.cut();
        let used = opened.map(|fs| fs.info().log_used);
        (disk.image(), used)
    };
    let read = |image: &Image| {
        let disk = Arc::new(SimDisk::new(image.clone(), false));
        let tree = Tree::read(&FileSystem::open_device(disk.clone(), &options(9999)).unwrap());
        disk.cut();
        tree.unwrap()
    };
    let (mut full, mut small) = (log_to_be_merged(), fresh_volume(16 << 20).unwrap());
    let (before, _) = (read(&full), read(&small));
    let mut used = Vec::new();
    for n in 2..600 {
        let (next, opened) = begun(full, n);
        let error = opened.unwrap_err().to_string();
        assert!(error.contains("simulated"), "the merge: {error}");
        full = next;
        let (next, opened) = begun(small, n);
        used.push(opened.unwrap());
        small = next;
    }
    assert_eq!(read(&full), before);
    used.dedup();
    assert_eq!(used.len(), 1, "log used after each opening: {used:?}");
}
