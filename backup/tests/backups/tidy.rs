//! Moments count before layers are merged, and stay whole wherever that ends.

use std::sync::Arc;

use cairnfs_backup::{Catalogue, Error, Shipped, Shipper, Unwatched, Watch, WriterOptions};

use crate::store::{Objects, Trouble};
use crate::volume::Volume;

/// Layers with which a moment is not merged yet.
const MOST: u64 = 24;

fn options() -> WriterOptions {
    WriterOptions {
        name: "here".into(),
        ..WriterOptions::default()
    }
}

/// A backup whose newest moment has as many layers as it may.
fn filled() -> (Objects, Volume) {
    let (objects, volume) = (Objects::default(), Volume::new("v", 60));
    let store = objects.client(Trouble::None);
    let mut shipper = Shipper::open(store, &volume, options()).unwrap();
    for round in 0..MOST {
        volume.write(round * 2, 3, round);
        shipper.ship(&volume, &Unwatched).unwrap();
    }
    (objects, volume)
}

fn newest_layers(objects: &Objects) -> u64 {
    let catalogue = Catalogue::open(&objects.client(Trouble::None)).unwrap();
    catalogue.moment_at(None).unwrap().layers.len() as u64
}

/// Ends all work.
struct Ended;

impl Watch for Ended {
    fn go_on(&self) -> cairnfs_backup::Result<()> {
        Err(Error::Interrupted)
    }
}

#[test]
fn a_moment_is_stored_before_layers_are_merged() {
    let (objects, volume) = filled();
    let store = objects.client(Trouble::None);
    let mut shipper = Shipper::open(Arc::clone(&store), &volume, options()).unwrap();
    volume.write(0, 3, 100);
    shipper.ship(&volume, &Unwatched).unwrap();
    assert_eq!(newest_layers(&objects), MOST + 1);
    // Neither loses the moment, nor keeps the next one from being stored.
    assert!(matches!(shipper.tidy(&Ended), Err(Error::Interrupted)));
    volume.write(5, 3, 101);
    let shipped = shipper.ship(&volume, &Unwatched).unwrap();
    assert!(matches!(shipped, Shipped::Moment { .. }));
    assert_eq!(newest_layers(&objects), MOST + 2);
    shipper.tidy(&Unwatched).unwrap();
    assert_eq!(newest_layers(&objects), 1);
    // A shipment is what it was, and knows what is kept, after a merge.
    volume.write(7, 1, 102);
    let before = store.asked().requests;
    shipper.ship(&volume, &Unwatched).unwrap();
    assert_eq!(store.asked().requests - before, 4);
    assert_eq!(objects.verify(&volume).len() as u64, MOST + 3);
}

#[test]
fn a_merge_that_ends_at_any_request_costs_no_moment() {
    let (objects, volume) = filled();
    let mut merged = 0;
    for at in 1.. {
        let (objects, volume) = (objects.copied(), volume.cloned());
        volume.write(0, 3, 100);
        let store = objects.client(Trouble::EndsAt(at, true));
        let shipper = Shipper::open(store, &volume, options());
        let Ok(mut shipper) = shipper else { continue };
        let Ok(Shipped::Moment { moment, .. }) = shipper.ship(&volume, &Unwatched) else {
            continue;
        };
        let tidied = shipper.tidy(&Unwatched);
        let store = objects.client(Trouble::None);
        let mut shipper = Shipper::open(store, &volume, options()).unwrap();
        shipper.ship(&volume, &Unwatched).unwrap();
        shipper.tidy(&Unwatched).unwrap();
        assert!(newest_layers(&objects) <= 2, "at {at}");
        assert!(objects.verify(&volume).contains(&moment.checkpoint));
        match tidied {
            Ok(()) => break,
            Err(_) => merged += 1,
        }
    }
    assert!(merged > 20, "only {merged} requests of merges");
}
