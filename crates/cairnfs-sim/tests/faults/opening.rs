//! The disk fails while a volume is opened: opening fails, and opening again loses nothing.

use std::sync::Arc;

use cairnfs::fs::{FileSystem, Options};
use cairnfs_sim::disk::{Fault, Kind, SimDisk};
use cairnfs_sim::image::Image;
use cairnfs_sim::model::Moment;
use cairnfs_sim::record::{Recording, options};
use cairnfs_sim::states::Cursor;
use cairnfs_sim::workload::record;

use crate::support::{Count, Told, Workload, every_step, long_truncations, random, seeds, verdict};

/// Places of a recording at which the power fails.
const PLACES: usize = 4;
/// States tried of each recovery that failed.
const STATES: usize = 2;

fn open_fails(recording: &Recording, image: &Image, moment: Moment, count: &mut Count) {
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
            let error = opened.map(|_| ()).unwrap_err();
            assert!(error.to_string().contains("simulated"), "{error}");
            assert_eq!(verdict(recording, &disk.image(), moment), Ok(()));
            count.add((fault, hit.kind), 1);
            if n % 4 == 0 {
                count.add("crash states", crash(recording, image, &disk, moment));
            }
            told.well();
        }
    }
    reading_fails(image, count);
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

/// Opened for reading only, the volume is not changed.
fn reading_fails(image: &Image, count: &mut Count) {
    let read_only = Options {
        read_only: true,
        ..options(1)
    };
    for n in 0.. {
        let disk = Arc::new(SimDisk::new(image.clone(), false));
        disk.plan(Kind::Read, n, Fault::Error);
        let opened = FileSystem::open_device(disk.clone(), &read_only);
        if disk.hit().is_none() {
            return;
        }
        assert!(opened.is_err());
        assert_eq!(disk.image().digest(), image.digest());
        count.add("read-only", 1);
    }
}

#[test]
fn a_failure_while_opening_loses_nothing() {
    let mut count = Count::default();
    let mut work = vec![every_step(), long_truncations()];
    work.extend(seeds(2).map(|seed| random(seed, 150)));
    for Workload { name, start, steps } in work {
        let told = Told::new(name);
        let recording = record(start, &steps).unwrap();
        let end = recording.events().len();
        for place in 1..=PLACES {
            let event = end * place / PLACES;
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
