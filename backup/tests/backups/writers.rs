//! Two writers of one backup: one is refused, and what is stored stays whole.

use std::sync::{Arc, Mutex};

use cairnfs_backup::format::HEADS_TOGETHER;
use cairnfs_backup::{
    Catalogue, Error, Keep, PruneOptions, Shipped, Shipper, Unwatched, WriterOptions, prune,
};
use jiff::tz::TimeZone;

use crate::store::{Objects, Trouble};
use crate::volume::Volume;

fn options(name: &str, take_over: bool) -> WriterOptions {
    WriterOptions {
        name: name.into(),
        take_over,
        ..WriterOptions::default()
    }
}

fn ship(objects: &Objects, volume: &Volume, options: WriterOptions) -> Result<Shipped, Error> {
    let store = objects.client(Trouble::None);
    Shipper::open(store, volume, options)?.ship(volume, &Unwatched)
}

#[test]
fn a_take_over_counts_also_if_nothing_has_changed() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 100));
    volume.write(0, 10, 1);
    ship(&objects, &volume, options("first", false)).unwrap();
    let taken = ship(&objects, &volume, options("second", true)).unwrap();
    assert_eq!(taken, Shipped::Unchanged);
    ship(&objects, &volume, options("second", false)).unwrap();
    let refused = ship(&objects, &volume, options("first", false)).unwrap_err();
    assert!(matches!(refused, Error::OtherWriter { writer } if writer == "second"));
    assert_eq!(objects.verify(&volume).len(), 1);
}

#[test]
fn a_second_writer_is_refused_until_it_takes_over() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 100));
    volume.write(0, 10, 1);
    let store = objects.client(Trouble::None);
    let mut first = Shipper::open(store, &volume, options("first", false)).unwrap();
    first.ship(&volume, &Unwatched).unwrap();

    let other = volume.cloned();
    let refused = ship(&objects, &other, options("second", false)).unwrap_err();
    assert!(matches!(&refused, Error::OtherWriter { writer } if writer == "first"));
    assert!(refused.to_string().contains("--take-over"));

    other.write(5, 10, 2);
    ship(&objects, &other, options("second", true)).unwrap();
    volume.write(7, 10, 3);
    let before = objects.names();
    for _ in 0..2 {
        let lost = first.ship(&volume, &Unwatched).unwrap_err();
        assert!(
            matches!(&lost, Error::Lost { writer } if writer == "second"),
            "{lost}"
        );
    }
    let garbage = objects.names().len() - before.len();
    assert!(
        garbage <= 2,
        "{garbage} objects of the writer that was refused"
    );
    objects.verify(&other);
    // And the second one goes on.
    other.write(40, 2, 4);
    ship(&objects, &other, options("second", false)).unwrap();
    assert_eq!(objects.verify(&other).len(), 3);
}

#[test]
fn another_volume_is_refused() {
    let objects = Objects::default();
    let volume = Volume::new("v", 10);
    volume.write(0, 1, 1);
    ship(&objects, &volume, options("here", false)).unwrap();
    let other = Volume::new("w", 10);
    let refused = ship(&objects, &other, options("here", true));
    assert!(matches!(refused, Err(Error::OtherVolume { .. })));
}

/// Between any two requests of the first writer another program does its work.
fn interleaved(
    mut other: impl FnMut(&Objects, &Volume) + Send + Copy + 'static,
    own_goes_on: bool,
) {
    for at in 0.. {
        let (objects, volume) = (Objects::default(), Volume::new("v", 600));
        volume.write(0, 100, 1);
        ship(&objects, &volume, options("first", false)).unwrap();
        volume.write(20, 10, 2);
        ship(&objects, &volume, options("first", false)).unwrap();

        let theirs = Arc::new(Mutex::new(None));
        let (all, clone, told) = (objects.clone(), volume.cloned(), Arc::clone(&theirs));
        let store = objects.client_with(at, move || {
            other(&all, &clone);
            *told.lock().unwrap() = Some(clone);
        });
        volume.write(50, 100, 3);
        let shipper = Shipper::open(Arc::clone(&store), &volume, options("first", false));
        let shipped = shipper.and_then(|mut shipper| shipper.ship(&volume, &Unwatched));
        let Some(theirs) = theirs.lock().unwrap().take() else {
            shipped.unwrap();
            assert!(at > 5, "only {at} requests");
            break;
        };
        let catalogue = Catalogue::open(&objects.client(Trouble::None)).unwrap();
        let is_own = |checkpoint: &str| {
            catalogue
                .moments()
                .iter()
                .any(|m| m.checkpoint == checkpoint)
        };
        match shipped {
            Ok(Shipped::Moment { moment, .. }) => {
                let newest = catalogue.moments().last().unwrap();
                assert!(is_own(&moment.checkpoint), "at {at}");
                assert!(
                    newest.checkpoint == moment.checkpoint || !own_goes_on,
                    "at {at}"
                );
            }
            Ok(Shipped::Unchanged) => panic!("something has changed"),
            Err(why) => {
                assert!(!own_goes_on, "at {at}: {why}");
                let is_told = matches!(why, Error::Lost { .. } | Error::OtherWriter { .. });
                assert!(is_told, "at {at}: {why}");
            }
        }
        objects.verify(&volume.with(&theirs));
    }
}

#[test]
fn a_take_over_between_any_two_requests_leaves_whole_moments() {
    let take_over = |objects: &Objects, clone: &Volume| {
        clone.rename("theirs");
        clone.write(300, 20, 7);
        ship(objects, clone, options("second", true)).unwrap();
    };
    interleaved(take_over, false);
}

#[test]
fn a_prune_between_any_two_requests_does_not_end_a_backup() {
    let prune = |objects: &Objects, _: &Volume| {
        let store = objects.client(Trouble::None);
        let options = PruneOptions {
            keep: Keep {
                last: 1,
                ..Keep::default()
            },
            ..PruneOptions::default()
        };
        prune(&store, &options, &TimeZone::UTC, &Unwatched).unwrap();
    };
    interleaved(prune, true);
}

/// What a prune deletes was not needed when it began; what a later writer has stored may be needed.
#[test]
fn a_backup_between_any_two_requests_of_a_prune_stays_whole() {
    for at in 0.. {
        let (objects, volume) = (Objects::default(), Volume::new("v", 600));
        for round in 1..4 {
            volume.write(0, 100, round);
            ship(&objects, &volume, options("first", false)).unwrap();
        }
        let theirs = Arc::new(Mutex::new(None));
        let (all, clone, told) = (objects.clone(), volume.cloned(), Arc::clone(&theirs));
        let store = objects.client_with(at, move || {
            clone.rename("later");
            clone.write(300, 20, 7);
            ship(&all, &clone, options("first", false)).unwrap();
            *told.lock().unwrap() = Some(clone);
        });
        let options = PruneOptions {
            keep: Keep {
                last: 1,
                ..Keep::default()
            },
            ..PruneOptions::default()
        };
        let pruned = prune(&store, &options, &TimeZone::UTC, &Unwatched);
        let Some(theirs) = theirs.lock().unwrap().take() else {
            assert!(at > 5, "only {at} requests");
            break;
        };
        let kept = objects.verify(&theirs);
        assert!(
            kept.iter().any(|name| name.starts_with("later")),
            "at {at}: {kept:?}"
        );
        assert!(pruned.is_ok() || kept.len() > 1, "at {at}");
    }
}

/// A writer sleeps while its next number is used, and deleted, by another one.
#[test]
fn a_number_that_was_deleted_is_not_used_again() {
    let (long, volume) = (Objects::default(), Volume::new("v", 600));
    let newest = |objects: &Objects| {
        let catalogue = Catalogue::open(&objects.client(Trouble::None)).unwrap();
        catalogue.newest().unwrap().number
    };
    ship(&long, &volume, options("first", false)).unwrap();
    let store = long.client(Trouble::None);
    let mut first = Shipper::open(store, &volume, options("first", false)).unwrap();
    // Both heads of the one that sleeps come before the number at which heads are deleted.
    let mut round = 0;
    while newest(&long) < HEADS_TOGETHER - 6 {
        round += 1;
        volume.write(0, 10, round);
        first.ship(&volume, &Unwatched).unwrap();
    }
    for at in 0.. {
        let (objects, volume) = (long.copied(), volume.cloned());
        let reached = Arc::new(Mutex::new(false));
        let (all, clone, told) = (objects.clone(), volume.cloned(), Arc::clone(&reached));
        let store = objects.client_with(at, move || {
            clone.rename("theirs");
            let store = all.client(Trouble::None);
            let mut other = Shipper::open(store, &clone, options("second", true)).unwrap();
            for round in 0..10 {
                clone.write(100, 1, round);
                other.ship(&clone, &Unwatched).unwrap();
            }
            assert!(newest(&all) > HEADS_TOGETHER);
            *told.lock().unwrap() = true;
        });
        volume.write(5, 1, 2);
        let shipper = Shipper::open(store, &volume, options("first", false));
        let shipped = shipper.and_then(|mut shipper| shipper.ship(&volume, &Unwatched));
        if !*reached.lock().unwrap() {
            assert!(at > 5, "only {at} requests");
            break;
        }
        let catalogue = Catalogue::open(&objects.client(Trouble::None)).unwrap();
        assert_eq!(catalogue.newest().unwrap().writer.name, "second");
        match shipped {
            Ok(Shipped::Moment { moment, .. }) => {
                let mut moments = catalogue.moments().iter();
                assert!(
                    moments.any(|kept| kept.checkpoint == moment.checkpoint),
                    "at {at}"
                );
            }
            Ok(Shipped::Unchanged) => panic!("something has changed"),
            Err(why) => assert!(
                matches!(
                    why,
                    Error::Lost { .. } | Error::OtherWriter { .. } | Error::Missing(_)
                ),
                "at {at}: {why}"
            ),
        }
    }
}
