//! Stores that refuse, clocks that jump, and layers of which a part is gone: what is kept stays whole, is
//! told, and the next backup goes on.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cairnfs_backup::{
    Cache, Catalogue, Error, Fetch, Image, Keep, MomentDevice, PruneOptions, Seal, Shipped,
    Shipper, Unwatched, WriterOptions, check, prune, restore,
};
use jiff::tz::TimeZone;

use crate::store::{Objects, Refusal, Trouble};
use crate::volume::{BLOCK, Volume};

fn options() -> WriterOptions {
    WriterOptions {
        name: "here".into(),
        ..WriterOptions::default()
    }
}

#[test]
fn a_store_that_refuses_is_told_with_the_next_step_and_goes_on_afterwards() {
    for (refusal, words) in [
        (Refusal::Expired, "missing, wrong or expired"),
        (Refusal::Denied, "list, get, put and delete are needed"),
        (Refusal::NoBucket, "does the bucket exist?"),
        (Refusal::Full, "make space, and run it again"),
    ] {
        let (objects, volume) = (Objects::default(), Volume::new("v", 200));
        let (store, client) = objects.changeable();
        volume.write(0, 50, 1);
        let mut shipper = Shipper::open(Arc::clone(&store), &volume, options()).unwrap();
        shipper.ship(&volume, &Unwatched).unwrap();
        volume.write(20, 50, 2);
        client.set(Trouble::Refuses(refusal));
        let before = store.asked().requests;
        let refused = shipper.ship(&volume, &Unwatched).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(words), "{refusal:?}: {text}");
        let asked = store.asked().requests - before;
        assert!(refusal == Refusal::Full || asked < 4, "{asked} requests");
        assert_eq!(objects.verify(&volume).len(), 1);
        client.set(Trouble::None);
        let shipped = shipper.ship(&volume, &Unwatched).unwrap();
        assert!(matches!(
            shipped,
            Shipped::Moment {
                is_whole: false,
                ..
            }
        ));
        assert_eq!(objects.verify(&volume).len(), 2);
    }
}

/// The first thing that a writer stores is a head.
#[test]
fn a_store_that_is_full_at_a_head_says_what_can_be_done() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 200));
    let (store, client) = objects.changeable();
    volume.write(0, 50, 1);
    let mut shipper = Shipper::open(Arc::clone(&store), &volume, options()).unwrap();
    client.set(Trouble::Refuses(Refusal::Full));
    let full = shipper.ship(&volume, &Unwatched).unwrap_err();
    assert!(matches!(full, Error::Unclear { .. }) && full.is_full());
    let text = full.to_string();
    for words in [
        "cannot store head 1",
        "the store is full",
        "prune URL --grace 0",
        "a mount tries again by itself",
    ] {
        assert!(text.contains(words), "{text}");
    }
    client.set(Trouble::None);
    shipper.ship(&volume, &Unwatched).unwrap();
    assert_eq!(objects.verify(&volume).len(), 1);
}

#[test]
fn a_backup_is_begun_in_no_store_that_refuses() {
    for (refusal, words) in [
        (Refusal::Expired, "missing, wrong or expired"),
        (Refusal::NoBucket, "does the bucket exist?"),
        (Refusal::Full, "make space"),
    ] {
        let (objects, volume) = (Objects::default(), Volume::new("v", 200));
        let store = objects.client(Trouble::Refuses(refusal));
        let refused = Shipper::open(store, &volume, options()).err().unwrap();
        let text = refused.to_string();
        assert!(text.contains(words), "{refusal:?}: {text}");
        assert_eq!(objects.names(), []);
    }
}

#[test]
fn a_clock_that_jumps_neither_hides_moments_nor_mixes_them() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 200));
    let store = objects.client(Trouble::None);
    let mut shipper = Shipper::open(Arc::clone(&store), &volume, options()).unwrap();
    // Years forth, back, before 1970, and to where it was.
    let clock: [i64; 6] = [1_000, 3_000_000_000, 2_000, -86_400, 2_000, 5_000];
    for (round, seconds) in (1..).zip(clock) {
        volume.set_clock(seconds);
        volume.write(round * 10, 20, round);
        shipper.ship(&volume, &Unwatched).unwrap();
    }
    let kept = objects.verify(&volume);
    assert_eq!(kept.len(), clock.len());
    let catalogue = Catalogue::open(&store).unwrap();
    let at = |seconds: u64| {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let moment = catalogue.moment_at(Some(time)).unwrap();
        kept.iter().position(|id| *id == moment.checkpoint).unwrap()
    };
    // Of those that are not later, the one that was stored last.
    assert_eq!([at(0), at(1_999), at(2_000), at(9_999)], [3, 3, 4, 5]);
    assert_eq!(at(4_000_000_000), 5);
    assert_eq!(catalogue.moment_at(None).unwrap().checkpoint, kept[5]);
    let keep = Keep {
        daily: 2,
        ..Keep::default()
    };
    let options = PruneOptions {
        keep,
        ..PruneOptions::default()
    };
    prune(&store, &options, &TimeZone::UTC, &Unwatched).unwrap();
    let left = objects.verify(&volume);
    assert_eq!(left.last(), kept.last(), "the newest one stays");
    volume.write(0, 1, 99);
    shipper.ship(&volume, &Unwatched).unwrap();
    objects.verify(&volume);
}

#[test]
fn a_layer_of_which_an_object_is_gone_costs_its_blocks_and_is_told() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 20_000));
    volume.write(0, 10_000, 1);
    let store = objects.client(Trouble::None);
    let mut shipper = Shipper::open(Arc::clone(&store), &volume, options()).unwrap();
    shipper.ship(&volume, &Unwatched).unwrap();
    let names = objects.names();
    let second = names
        .iter()
        .find(|name| name.as_ref().ends_with("-00000001"));
    let second = second.unwrap();
    objects.remove(second);
    let says = |error: Error| {
        assert!(matches!(error, Error::Missing(_)), "{error}");
        let text = error.to_string();
        assert!(
            second.as_ref().ends_with(text.split(' ').next().unwrap()),
            "{text}"
        );
    };

    let catalogue = Catalogue::open(&store).unwrap();
    let moment = catalogue.moment_at(None).unwrap();
    let seal = Arc::<Seal>::default();
    let open = || Image::open(Arc::clone(&store), Arc::clone(&seal), &catalogue, moment).unwrap();
    let device = MomentDevice::new(open(), Cache::new(1 << 20, None).unwrap(), Fetch::Frame);
    let read = |block| device.read_blocks(block, &mut [0; BLOCK]);
    read(4_095).unwrap();
    says(read(4_096).unwrap_err());
    says(read(8_191).unwrap_err());
    read(8_192).unwrap();
    read(15_000).unwrap();
    let file = tempfile::tempfile().unwrap();
    says(restore(&open(), &file, &Unwatched).unwrap_err());
    for contents in [true, false] {
        let report = check(&store, &catalogue, &seal, contents, &Unwatched).unwrap();
        assert!(!report.problems.is_empty(), "{contents}");
    }

    // Further moments are stored; that their layers cannot be merged with it costs none of them.
    let mut refused = 0;
    for round in 0..30 {
        // Once there are many layers, so much has changed that the one below is merged, too.
        let much = round >= 23;
        volume.write(0, if much { 4_096 } else { 1 }, round);
        volume.write(9_000, if much { 1_000 } else { 1 }, round);
        shipper.ship(&volume, &Unwatched).unwrap();
        if let Err(why) = shipper.tidy(&Unwatched) {
            says(why);
            refused += 1;
        }
    }
    assert_eq!(refused, 7, "merges from 25 layers on");
    let catalogue = Catalogue::open(&store).unwrap();
    assert_eq!(catalogue.moments().len(), 31);
    // What was lost is written anew.
    volume.write(4_096, 4_096, 30);
    shipper.ship(&volume, &Unwatched).unwrap();
    shipper.tidy(&Unwatched).unwrap();
    let catalogue = Catalogue::open(&store).unwrap();
    let newest = catalogue.moment_at(None).unwrap();
    assert!(newest.layers.len() < 12, "{newest:?}");
    let image = Image::open(Arc::clone(&store), Arc::clone(&seal), &catalogue, newest).unwrap();
    restore(&image, &file, &Unwatched).unwrap();
}

#[test]
fn a_prune_without_space_removes_what_neither_a_moment_nor_a_writer_needs() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 200));
    let (store, client) = objects.changeable();
    for round in 0..3 {
        volume.write(round * 9, 50, round);
        // Each has the next epoch.
        let mut shipper = Shipper::open(Arc::clone(&store), &volume, options()).unwrap();
        shipper.ship(&volume, &Unwatched).unwrap();
    }
    let catalogue = Catalogue::open(&store).unwrap();
    let epoch = catalogue.newest().unwrap().epoch;
    let leave = |epoch: u64| {
        let name = format!("prefix/layers/{epoch:020}-{:032}-{:08}", 7, 0);
        let path = object_store::path::Path::from(name);
        objects.set(&path, "left".into());
        path
    };
    let (dead, alive) = (leave(epoch - 1), leave(epoch));
    client.set(Trouble::Refuses(Refusal::Full));
    let keep = Keep {
        last: 1,
        ..Keep::default()
    };
    let pruning = PruneOptions {
        keep,
        ..PruneOptions::default()
    };
    for _ in 0..2 {
        let refused = prune(&store, &pruning, &TimeZone::UTC, &Unwatched).unwrap_err();
        assert!(matches!(refused, Error::NoRoom { bytes: 1.. }), "{refused}");
        let names = objects.names();
        assert!(!names.contains(&dead) && names.contains(&alive));
        let copies = names
            .iter()
            .filter(|name| name.as_ref().contains("copies/"));
        assert_eq!(copies.count(), 2, "of the newest head and its base");
        assert_eq!(objects.verify(&volume).len(), 3);
    }
    client.set(Trouble::None);
    prune(&store, &pruning, &TimeZone::UTC, &Unwatched).unwrap();
    assert_eq!(objects.verify(&volume).len(), 1);
    let repaired = cairnfs_backup::repair(&store, &Unwatched).unwrap();
    assert_eq!((repaired.left, repaired.lost), (Vec::new(), None));
    volume.write(1, 1, 9);
    let mut shipper = Shipper::open(store, &volume, options()).unwrap();
    shipper.ship(&volume, &Unwatched).unwrap();
    assert_eq!(objects.verify(&volume).len(), 2);
}

#[test]
fn a_moment_that_finds_no_space_leaves_nothing_behind_and_what_nobody_needs_makes_space() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 20_000));
    let (store, client) = objects.changeable();
    let mut shipper = Shipper::open(Arc::clone(&store), &volume, options()).unwrap();
    for round in 0..3 {
        volume.forget();
        volume.write(0, 60, round);
        shipper.ship(&volume, &Unwatched).unwrap();
    }
    let rules = cairnfs_backup::Rules::Keep(Keep {
        last: 1,
        ..Keep::default()
    });
    assert_eq!(shipper.thin(&rules, &TimeZone::UTC).unwrap(), 2);
    // It was not looked yet what is left to do; then it waits for readers.
    let later = Duration::from_secs(1 << 40);
    let job = shipper.next_job(later).unwrap().unwrap();
    let done = job.run(&Unwatched).unwrap();
    shipper.job_done(done).unwrap();
    assert!(shipper.next_job(later).unwrap().is_none());
    let layers = || {
        let names = objects.names();
        names
            .iter()
            .filter(|name| name.as_ref().contains("layers/"))
            .count()
    };
    assert_eq!(layers(), 3);
    volume.write(0, 10_000, 9);
    client.set(Trouble::Refuses(Refusal::Full));
    let refused = shipper.ship(&volume, &Unwatched).unwrap_err();
    assert!(refused.is_full(), "{refused}");
    assert_eq!(layers(), 3);
    assert!(shipper.make_room().unwrap());
    assert_eq!(layers(), 1);
    assert!(!shipper.make_room().unwrap());
    client.set(Trouble::None);
    shipper.ship(&volume, &Unwatched).unwrap();
    assert_eq!(objects.verify(&volume).len(), 2);
}
