//! What grows with what: requests of opening, layers of a moment, objects of a large layer.

use std::sync::Arc;

use cairnfs_backup::{
    Catalogue, Error, Image, Keep, PruneOptions, Seal, Shipped, Shipper, Unwatched, WriterOptions,
    prune,
};
use cairnfs_tier::size;
use jiff::tz::TimeZone;

use crate::store::{Objects, Trouble};
use crate::volume::Volume;

fn options() -> WriterOptions {
    WriterOptions {
        name: "here".into(),
        ..WriterOptions::default()
    }
}

#[test]
fn a_layer_of_many_objects_comes_back() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 20_000));
    volume.write(3, 9_000, 3);
    volume.write(12_000, 500, 4);
    let store = objects.client(Trouble::None);
    let mut shipper = Shipper::open(store, &volume, options()).unwrap();
    let shipped = shipper.ship(&volume, &Unwatched).unwrap();
    assert!(matches!(
        shipped,
        Shipped::Moment {
            is_whole: true,
            blocks: 9_500,
            ..
        }
    ));
    let names = objects.names();
    let layers = names
        .iter()
        .filter(|name| name.as_ref().contains("layers/"));
    assert_eq!(layers.count(), 3);
    volume.write(4_000, 1, 5);
    let shipped = shipper.ship(&volume, &Unwatched).unwrap();
    assert!(matches!(
        shipped,
        Shipped::Moment {
            is_whole: false,
            blocks: 1,
            ..
        }
    ));
    objects.verify(&volume);
}

#[test]
fn a_backup_in_a_series_needs_four_requests_and_opening_few() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 5_000));
    volume.write(0, 2_000, 1);
    let store = objects.client(Trouble::None);
    let mut shipper = Shipper::open(Arc::clone(&store), &volume, options()).unwrap();
    shipper.ship(&volume, &Unwatched).unwrap();
    let mut least = u64::MAX;
    let rounds: u64 = size(200, 600);
    for round in 2..rounds + 2 {
        volume.write(round * 7 % 2_000, 2, round);
        let before = store.asked().requests;
        shipper.ship(&volume, &Unwatched).unwrap();
        least = least.min(store.asked().requests - before);
        shipper.tidy(&Unwatched).unwrap();
    }
    assert_eq!(
        least, 4,
        "the layer, the head, whether its number was used up, and the copy"
    );

    let store = objects.client(Trouble::None);
    let catalogue = Catalogue::open(&store).unwrap();
    assert_eq!(catalogue.moments().len() as u64, rounds + 1);
    assert_eq!(
        store.asked().requests,
        6,
        "root, lists of heads and copies, one behind them, head, whole head"
    );
    for moment in catalogue.moments() {
        assert!(moment.layers.len() <= 25, "{moment:?}");
    }
    let newest = catalogue.moment_at(None).unwrap();
    let seal = Arc::<Seal>::default();
    let before = store.asked().requests;
    Image::open(Arc::clone(&store), seal, &catalogue, newest).unwrap();
    assert_eq!(store.asked().requests - before, newest.layers.len() as u64);

    let options = PruneOptions {
        keep: Keep {
            last: 3,
            ..Keep::default()
        },
        ..PruneOptions::default()
    };
    let pruned = prune(&store, &options, &TimeZone::UTC, &Unwatched).unwrap();
    assert_eq!(pruned.removed.len() as u64, rounds - 2);
    let catalogue = Catalogue::open(&store).unwrap();
    let live = catalogue.moment_at(None).unwrap().live;
    let blocks: u64 = catalogue.layers().values().map(|layer| layer.blocks).sum();
    assert!(
        blocks <= live * 5 / 3,
        "{blocks} blocks are kept, {live} are live"
    );
    objects.verify(&volume);
}

/// Names of checkpoints are long here, so that few moments are as large as many.
#[test]
fn a_backup_that_names_all_it_can_is_refused_and_goes_on_after_a_prune() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 100));
    let store = objects.client(Trouble::None);
    let mut shipper = Shipper::open(Arc::clone(&store), &volume, options()).unwrap();
    volume.write(0, 9, 1);
    shipper.ship(&volume, &Unwatched).unwrap();
    // Below the limit with one of these, above it with both.
    volume.rename(&"x".repeat(35 << 20));
    let stored = [2, 3].map(|round| {
        volume.write(0, 9, round);
        shipper.ship(&volume, &Unwatched).is_ok()
    });
    assert_eq!(stored, [true, false], "the second one cannot be read");
    volume.rename("v");
    volume.write(0, 9, 4);
    shipper.ship(&volume, &Unwatched).unwrap();
    assert_eq!(Catalogue::open(&store).unwrap().moments().len(), 3);

    volume.rename(&"y".repeat(26 << 20));
    volume.write(0, 9, 5);
    shipper.ship(&volume, &Unwatched).unwrap();
    volume.rename("v");
    volume.write(0, 9, 6);
    let before = objects.names();
    for _ in 0..2 {
        let refused = shipper.ship(&volume, &Unwatched).unwrap_err();
        assert!(matches!(refused, Error::Full), "{refused}");
        assert!(refused.to_string().contains("cairnfs backup prune"));
    }
    assert_eq!(objects.names(), before, "nothing was stored or deleted");

    let options = PruneOptions {
        keep: Keep {
            last: 1,
            ..Keep::default()
        },
        ..PruneOptions::default()
    };
    prune(&store, &options, &TimeZone::UTC, &Unwatched).unwrap();
    shipper.ship(&volume, &Unwatched).unwrap();
    assert_eq!(Catalogue::open(&store).unwrap().moments().len(), 2);
    objects.verify(&volume);
}
