//! Work beside shipments: moments are thinned, layers merged and waste deleted in any order with
//! shipments, prunes and readers, and wherever it ends every kept moment is whole.

use std::sync::Arc;
use std::time::Duration;

use cairnfs_backup::{
    Cache, Catalogue, Error, Fetch, Image, Keep, MomentDevice, PruneOptions, Rules, Seal, Shipper,
    Store, Unwatched, WriterOptions, prune,
};
use jiff::tz::TimeZone;

use crate::store::{Objects, Trouble};
use crate::volume::{BLOCK, Volume};

const AT_ONCE: Duration = Duration::ZERO;
const LATER: Duration = Duration::from_secs(1 << 40);

fn shipper(store: &Arc<Store>, volume: &Volume) -> Result<Shipper, Error> {
    let options = WriterOptions {
        name: "here".into(),
        automatic: true,
        ..WriterOptions::default()
    };
    Shipper::open(Arc::clone(store), volume, options)
}

fn last(last: u32) -> Keep {
    Keep {
        last,
        ..Keep::default()
    }
}

fn keep_last(count: u32) -> Rules {
    Rules::Keep(last(count))
}

/// Does what is left to do.
fn work(shipper: &mut Shipper, grace: Duration) -> Result<u32, Error> {
    let mut done = 0;
    while let Some(job) = shipper.next_job(grace)? {
        let result = job.run(&Unwatched)?;
        shipper.job_done(result)?;
        done += 1;
    }
    Ok(done)
}

/// A program that reads one of the moments.
fn reader_of(store: &Arc<Store>, catalogue: &Catalogue, moment: usize) -> MomentDevice {
    let (store, seal) = (Arc::clone(store), Arc::<Seal>::default());
    let image = Image::open(store, seal, catalogue, &catalogue.moments()[moment]).unwrap();
    MomentDevice::new(image, Cache::new(1 << 20, None).unwrap(), Fetch::Frame)
}

fn layers(objects: &Objects) -> usize {
    let names = objects.names();
    let is_layer = |name: &&object_store::path::Path| name.as_ref().contains("layers/");
    names.iter().filter(is_layer).count()
}

#[test]
fn what_thinning_removes_stays_for_readers_and_goes_later() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 200));
    let store = objects.client(Trouble::None);
    let mut shipper = shipper(&store, &volume).unwrap();
    for round in 0..6 {
        // Each moment has a layer of its own, which no later one needs.
        volume.forget();
        volume.write(0, 150, round);
        shipper.ship(&volume, &Unwatched).unwrap();
    }
    let catalogue = Catalogue::open(&store).unwrap();
    let reader = reader_of(&store, &catalogue, 0);
    assert_eq!(shipper.thin(&keep_last(2), &TimeZone::UTC).unwrap(), 4);
    assert_eq!(objects.verify(&volume).len(), 2);
    assert_eq!(shipper.thin(&keep_last(2), &TimeZone::UTC).unwrap(), 0);

    work(&mut shipper, LATER).unwrap();
    assert_eq!(layers(&objects), 6);
    reader.read_blocks(0, &mut [0; BLOCK]).unwrap();
    assert!(work(&mut shipper, AT_ONCE).unwrap() > 0);
    assert!(layers(&objects) < 6);
    let refused = reader.read_blocks(100, &mut [0; BLOCK]).unwrap_err();
    assert!(matches!(refused, Error::Missing(_)), "{refused}");
    assert!(refused.to_string().contains("a prune has removed it"));
    volume.write(3, 1, 9);
    shipper.ship(&volume, &Unwatched).unwrap();
    assert_eq!(objects.verify(&volume).len(), 3);
}

#[test]
fn moments_that_somebody_asked_for_are_not_thinned() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 60));
    let store = objects.client(Trouble::None);
    volume.set_clock(0);
    volume.write(0, 9, 1);
    let asked = WriterOptions {
        name: "here".into(),
        ..WriterOptions::default()
    };
    let mut by_hand = Shipper::open(Arc::clone(&store), &volume, asked).unwrap();
    by_hand.ship(&volume, &Unwatched).unwrap();
    let wanted = by_hand.writer().catalogue().moments()[0].number;
    drop(by_hand);
    let mut shipper = shipper(&store, &volume).unwrap();
    let count = 1200;
    for round in 0..count {
        volume.set_clock(round as i64 / 100);
        volume.write(round % 50, 1, 10 + round);
        shipper.ship(&volume, &Unwatched).unwrap();
        shipper.tidy(&Unwatched).unwrap();
    }
    assert_eq!(shipper.thin(&Rules::All, &TimeZone::UTC).unwrap(), 0);
    // All are of one minute: the last thousand stay.
    assert_eq!(shipper.thin(&Rules::Thin, &TimeZone::UTC).unwrap(), 200);
    let catalogue = Catalogue::open(&store).unwrap();
    assert_eq!(catalogue.moments().len(), 1001);
    assert_eq!(catalogue.moments()[0].number, wanted);
    assert!(catalogue.moments()[1].automatic);
    work(&mut shipper, AT_ONCE).unwrap();
    objects.verify(&volume);
}

/// Three moments, of which two go, with what an interrupted backup has left.
fn series(
    store: &Arc<Store>,
    volume: &Volume,
    acknowledged: &mut Vec<String>,
) -> Result<(), Error> {
    let mut shipper = shipper(store, volume)?;
    for round in 0..3 {
        volume.forget();
        volume.write(round * 10, 60, round);
        let shipped = shipper.ship(volume, &Unwatched)?;
        if let cairnfs_backup::Shipped::Moment { moment, .. } = shipped {
            *acknowledged = vec![moment.checkpoint];
        }
    }
    shipper.thin(&keep_last(1), &TimeZone::UTC)?;
    work(&mut shipper, AT_ONCE)?;
    volume.write(9, 9, 9);
    shipper.ship(volume, &Unwatched)?;
    Ok(())
}

#[test]
fn thinning_that_ends_at_any_request_leaves_whole_moments_and_its_waste_goes_later() {
    for effect in [false, true] {
        for at in 1.. {
            let (objects, volume) = (Objects::default(), Volume::new("v", 200));
            let mut acknowledged = Vec::new();
            let store = objects.client(Trouble::EndsAt(at, effect));
            let ended = series(&store, &volume, &mut acknowledged);
            let kept = objects.verify(&volume);
            for checkpoint in &acknowledged {
                assert!(kept.contains(checkpoint), "{checkpoint} at {at}, {effect}");
            }
            // The next mount goes on, and removes what is left of this one.
            let store = objects.client(Trouble::None);
            let mut shipper = shipper(&store, &volume).unwrap();
            volume.write(10, 3, 11);
            shipper.ship(&volume, &Unwatched).unwrap();
            shipper.thin(&keep_last(1), &TimeZone::UTC).unwrap();
            work(&mut shipper, AT_ONCE).unwrap();
            assert_eq!(objects.verify(&volume).len(), 1);
            let named = shipper.writer().catalogue().layers().len();
            assert_eq!(layers(&objects), named, "at {at}, {effect}");
            if ended.is_ok() {
                assert!(at > 20, "only {at} requests");
                break;
            }
        }
    }
}

#[test]
fn jobs_go_on_beside_shipments_and_count_afterwards() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 400));
    let store = objects.client(Trouble::None);
    let mut shipper = shipper(&store, &volume).unwrap();
    let ship = |shipper: &mut Shipper, round: u64| {
        volume.write(round * 7 % 300, 5, round);
        shipper.ship(&volume, &Unwatched).unwrap();
    };
    let (mut merges, mut left) = (0, Vec::new());
    for round in 0..200 {
        ship(&mut shipper, round);
        let before = shipper.writer().catalogue().moments().last().unwrap();
        let before = before.layers.len();
        let Some(job) = shipper.next_job(AT_ONCE).unwrap() else {
            continue;
        };
        // Its work is done while a moment is stored, and counts after the one behind that.
        let other = std::thread::scope(|scope| {
            let job = scope.spawn(|| job.run(&Unwatched).unwrap());
            ship(&mut shipper, 1000 + round);
            job.join().unwrap()
        });
        if round % 20 == 0 {
            shipper.thin(&keep_last(5), &TimeZone::UTC).unwrap();
        }
        ship(&mut shipper, 2000 + round);
        shipper.job_done(other).unwrap();
        let after = shipper.writer().catalogue().moments().last().unwrap();
        merges += u32::from(after.layers.len() < before);
        left.push(after.layers.len());
    }
    assert!(merges > 5, "{merges} merges of {left:?}");
    assert!(left.iter().all(|layers| *layers <= 28), "{left:?}");
    shipper.thin(&keep_last(5), &TimeZone::UTC).unwrap();
    work(&mut shipper, AT_ONCE).unwrap();
    assert_eq!(objects.verify(&volume).len(), 5);
}

#[test]
fn a_prune_by_a_person_between_any_two_requests_does_not_end_thinning() {
    for at in 0..60 {
        let (objects, volume) = (Objects::default(), Volume::new("v", 200));
        let other = objects.clone();
        let store = objects.client_with(at, move || {
            let options = PruneOptions {
                keep: last(2),
                ..PruneOptions::default()
            };
            // There may be no backup yet.
            let _ = prune(
                &other.client(Trouble::None),
                &options,
                &TimeZone::UTC,
                &Unwatched,
            );
        });
        let mut shipper = shipper(&store, &volume).unwrap();
        for round in 0..4 {
            volume.write(round * 10, 60, round);
            shipper.ship(&volume, &Unwatched).unwrap();
        }
        shipper.thin(&keep_last(3), &TimeZone::UTC).unwrap();
        // A job may find another writer; the next shipment begins again.
        while let Err(why) = work(&mut shipper, AT_ONCE) {
            assert!(matches!(why, Error::Lost { .. }), "at {at}: {why}");
            volume.write(1, 2, 100 + at);
            shipper.ship(&volume, &Unwatched).unwrap();
        }
        volume.write(9, 9, 9);
        shipper.ship(&volume, &Unwatched).unwrap();
        let kept = objects.verify(&volume).len();
        assert!((2..=5).contains(&kept), "at {at}: {kept}");
        work(&mut shipper, AT_ONCE).unwrap();
        assert_eq!(objects.verify(&volume).len(), kept);
    }
}

/// Names of checkpoints are long here, so that few moments are as large as many.
#[test]
fn a_backup_that_names_all_it_can_goes_on_after_it_was_thinned() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 100));
    let store = objects.client(Trouble::None);
    let mut shipper = shipper(&store, &volume).unwrap();
    for (round, tag) in ["x", "y", "v"].into_iter().enumerate() {
        volume.rename(&tag.repeat(31 << 20));
        if tag == "v" {
            volume.rename(tag);
        }
        volume.write(0, 9, round as u64);
        let shipped = shipper.ship(&volume, &Unwatched);
        assert_eq!(matches!(shipped, Err(Error::Full)), tag == "v");
    }
    assert_eq!(shipper.thin(&keep_last(1), &TimeZone::UTC).unwrap(), 1);
    shipper.ship(&volume, &Unwatched).unwrap();
    assert_eq!(objects.verify(&volume).len(), 2);
}

fn pruned(store: &Arc<Store>, count: u32, grace: Duration) -> cairnfs_backup::Pruned {
    let options = PruneOptions {
        keep: last(count),
        grace,
        ..PruneOptions::default()
    };
    prune(store, &options, &TimeZone::UTC, &Unwatched).unwrap()
}

/// Ages are those that the store tells, so that some time has to pass.
const MOMENT: Duration = Duration::from_millis(200);

#[test]
fn a_prune_leaves_what_may_be_read_and_a_later_one_deletes_it() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 200));
    let store = objects.client(Trouble::None);
    let mut shipper = shipper(&store, &volume).unwrap();
    for round in 0..4 {
        volume.forget();
        volume.write(0, 150, round);
        shipper.ship(&volume, &Unwatched).unwrap();
    }
    let catalogue = Catalogue::open(&store).unwrap();
    let reader = reader_of(&store, &catalogue, 0);
    let first = pruned(&store, 3, LATER);
    assert_eq!((first.removed.len(), first.objects), (1, 0));
    assert_eq!(first.left_objects, 1);
    assert!(first.left_bytes > 0);
    std::thread::sleep(MOMENT);
    // What was removed before that goes, what is removed now does not, however often prunes run.
    let second = pruned(&store, 2, MOMENT);
    assert_eq!((second.removed.len(), second.objects), (1, 1));
    assert_eq!((second.bytes, second.left_objects), (first.left_bytes, 1));
    let refused = reader.read_blocks(0, &mut [0; BLOCK]).unwrap_err();
    assert!(matches!(refused, Error::Missing(_)), "{refused}");
    let reader = reader_of(&store, &catalogue, 1);
    for _ in 0..2 {
        assert_eq!(pruned(&store, 2, LATER).left_objects, 1);
    }
    reader.read_blocks(0, &mut [0; BLOCK]).unwrap();
    assert_eq!(pruned(&store, 2, AT_ONCE).objects, 1);
    assert_eq!(layers(&objects), 2);
    assert_eq!(objects.verify(&volume).len(), 2);
}

/// What a mount finds that was removed before it is not kept for the whole time again.
#[test]
fn prunes_and_mounts_delete_what_the_other_ones_have_left() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 200));
    let store = objects.client(Trouble::None);
    let ship = |shipper: &mut Shipper, seed| {
        volume.forget();
        volume.write(0, 150, seed);
        shipper.ship(&volume, &Unwatched).unwrap();
    };
    let mut first = shipper(&store, &volume).unwrap();
    (0..3).for_each(|seed| ship(&mut first, seed));
    assert_eq!(pruned(&store, 1, LATER).left_objects, 2);
    std::thread::sleep(MOMENT);
    let mut second = shipper(&store, &volume).unwrap();
    ship(&mut second, 9);
    work(&mut second, MOMENT).unwrap();
    assert_eq!(layers(&objects), 2);
    // A backup that ends before its head: nobody has ever named its layer.
    volume.forget();
    volume.write(0, 150, 10);
    let requests = store.asked().requests;
    shipper(&store, &volume).unwrap();
    let opening = store.asked().requests - requests;
    let ends = (opening + 1..).find(|at| {
        let dying = objects.client(Trouble::EndsAt(*at, true));
        let ended = shipper(&dying, &volume).and_then(|mut s| s.ship(&volume, &Unwatched));
        assert!(ended.is_err());
        layers(&objects) == 3
    });
    assert!(ends.is_some());
    assert_eq!(pruned(&store, 0, LATER).objects, 0);
    std::thread::sleep(MOMENT);
    assert_eq!(pruned(&store, 0, MOMENT).objects, 1);
    assert_eq!(objects.verify(&volume).len(), 2);
}
