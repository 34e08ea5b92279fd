//! Writers that end at every request, and stores that do all sorts of things.

use cairnfs_backup::{
    Ended, Error, Keep, PruneOptions, Shipped, Shipper, Store, Unwatched, WriterOptions, prune,
};
use cairnfs_tier::size;
use jiff::tz::TimeZone;

use crate::store::{Objects, Trouble};
use crate::volume::Volume;
use std::sync::Arc;

const SIZE: u64 = 400;

fn options() -> WriterOptions {
    WriterOptions {
        name: "here".into(),
        ..WriterOptions::default()
    }
}

fn ship(store: &Arc<Store>, volume: &Volume) -> Result<Shipped, Error> {
    let mut shipper = Shipper::open(Arc::clone(store), volume, options())?;
    shipper.ship(volume, &Unwatched)
}

fn prune_to(store: &Arc<Store>, last: u32) -> Result<(), Error> {
    let options = PruneOptions {
        keep: Keep {
            last,
            ..Keep::default()
        },
        ..PruneOptions::default()
    };
    prune(store, &options, &TimeZone::UTC, &Unwatched).map(drop)
}

/// What a program does until its store ends: three backups, a prune, one more backup.
fn work(store: &Arc<Store>, volume: &Volume, acknowledged: &mut Vec<String>) -> Result<(), Error> {
    let mut note = |shipped| {
        if let Shipped::Moment { moment, .. } = shipped {
            acknowledged.push(moment.checkpoint);
        }
    };
    volume.write(0, 200, 1);
    note(ship(store, volume)?);
    volume.write(50, 20, 2);
    volume.free(100, 30);
    note(ship(store, volume)?);
    volume.write(120, 5, 3);
    note(ship(store, volume)?);
    acknowledged.drain(..acknowledged.len() - 2);
    prune_to(store, 2)?;
    volume.write(300, 70, 4);
    acknowledged.clear();
    let shipped = ship(store, volume)?;
    if let Shipped::Moment { moment, .. } = shipped {
        acknowledged.push(moment.checkpoint);
    }
    Ok(())
}

#[test]
fn a_program_that_ends_at_any_request_leaves_whole_moments() {
    let mut ends = 0;
    for effect in [false, true] {
        for at in 1.. {
            let (objects, volume) = (Objects::default(), Volume::new("v", SIZE));
            let mut acknowledged = Vec::new();
            let store = objects.client(Trouble::EndsAt(at, effect));
            let ended = work(&store, &volume, &mut acknowledged);
            let kept = objects.verify(&volume);
            for checkpoint in &acknowledged {
                assert!(kept.contains(checkpoint), "{checkpoint} at {at}, {effect}");
            }
            // The next program goes on.
            let store = objects.client(Trouble::None);
            volume.write(10, 3, 9);
            let shipped = ship(&store, &volume).unwrap();
            assert!(matches!(shipped, Shipped::Moment { .. }), "at {at}");
            let kept = objects.verify(&volume);
            prune_to(&store, 1).unwrap();
            assert_eq!(objects.verify(&volume), kept[kept.len() - 1..]);
            let left = objects.names();
            let layers = left.iter().filter(|name| name.as_ref().contains("layers/"));
            assert!(layers.count() <= 5, "garbage is left: {left:?}");
            if ended.is_ok() {
                ends += at;
                break;
            }
        }
    }
    assert!(ends > 50, "only {ends} requests");
}

#[test]
fn stores_that_lose_delay_repeat_and_tear_leave_whole_moments() {
    let (mut moments, mut failures) = (0, 0);
    for seed in 0..size(16, 1000) {
        let (objects, volume) = (Objects::default(), Volume::new("v", SIZE));
        for round in 0..12_u64 {
            volume.write(seed % 7 * 40 + round * 11, 1 + round * 7 % 90, seed + round);
            volume.free(round * 31 % 500, seed % 9);
            let trouble = Trouble::Random(seed * 1000 + round);
            let store = objects.client(trouble);
            let done = match round % 4 {
                3 => prune_to(&store, 1 + (seed % 3) as u32).map(|()| Shipped::Unchanged),
                _ => ship(&store, &volume),
            };
            let kept = objects.verify(&volume);
            match done {
                Ok(Shipped::Moment { moment, .. }) => {
                    assert!(
                        kept.contains(&moment.checkpoint),
                        "seed {seed}, round {round}"
                    );
                    moments += 1;
                }
                Ok(Shipped::Unchanged) => {}
                Err(_) => failures += 1,
            }
        }
        objects.settle();
        objects.verify(&volume);
        let store = objects.client(Trouble::None);
        volume.write(1, 1, seed);
        ship(&store, &volume).unwrap();
        objects.verify(&volume);
    }
    println!("{moments} moments stored, {failures} backups and prunes failed");
    assert!(moments > size(50, 100) && failures > 10);
}

#[test]
fn a_checkpoint_that_gives_way_is_made_again() {
    let (objects, volume) = (Objects::default(), Volume::new("v", SIZE));
    let store = objects.client(Trouble::None);
    let mut shipper = Shipper::open(Arc::clone(&store), &volume, options()).unwrap();
    volume.write(0, 100, 1);
    shipper.ship(&volume, &Unwatched).unwrap();
    volume.write(7, 3, 2);
    volume.give_way(2);
    let shipped = shipper.ship(&volume, &Unwatched).unwrap();
    let is_small = matches!(
        shipped,
        Shipped::Moment {
            is_whole: false,
            blocks: 3,
            ..
        }
    );
    assert!(is_small, "{shipped:?}");
    objects.verify(&volume);
    volume.write(7, 3, 3);
    volume.give_way(1000);
    assert!(
        shipper.ship(&volume, &Unwatched).is_err(),
        "it ends some time"
    );
}

#[test]
fn a_store_that_does_not_answer_is_not_waited_for_when_the_work_shall_end() {
    let (objects, volume) = (Objects::default(), Volume::new("v", SIZE));
    let store = Arc::into_inner(objects.client(Trouble::Silence)).unwrap();
    let store = Arc::new(store.ended_by(Ended::when(|| true)));
    let refused = Shipper::open(store, &volume, options()).err();
    assert!(matches!(refused, Some(Error::Interrupted)), "{refused:?}");
}
