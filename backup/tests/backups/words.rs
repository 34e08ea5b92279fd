//! What failures say.

use std::fmt;
use std::sync::Arc;

use cairnfs_backup::{Catalogue, Ended, Error, Place, Shipper, Unwatched, WriterOptions, open};

use crate::store::{Objects, Trouble};
use crate::volume::Volume;

fn options() -> WriterOptions {
    WriterOptions {
        name: "here".into(),
        ..WriterOptions::default()
    }
}

fn says(error: impl fmt::Display, words: &str) {
    let text = error.to_string();
    assert!(text.contains(words), "{text}");
}

#[test]
fn an_empty_place_has_no_backup() {
    let objects = Objects::default();
    let why = Catalogue::open(&objects.client(Trouble::None)).unwrap_err();
    says(&why, "there is no backup here");
    says(why, "its disk mounted?");
}

#[test]
fn a_damaged_root_object_has_a_way_out() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 100));
    let store = objects.client(Trouble::None);
    let mut shipper = Shipper::open(Arc::clone(&store), &volume, options()).unwrap();
    shipper.ship(&volume, &Unwatched).unwrap();
    let root = objects.root();
    objects.set(&root, objects.bytes(&root).slice(1..));
    let why = Catalogue::open(&store).unwrap_err();
    says(&why, "cairnfs-backup.json is damaged");
    says(why, "or begin a new backup under another prefix");
}

#[test]
fn a_missing_layer_is_named() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 100));
    volume.write(0, 50, 1);
    let store = objects.client(Trouble::None);
    let mut shipper = Shipper::open(Arc::clone(&store), &volume, options()).unwrap();
    shipper.ship(&volume, &Unwatched).unwrap();
    let names = objects.names();
    let layer = names
        .iter()
        .find(|name| name.as_ref().contains("layers/"))
        .unwrap();
    objects.remove(layer);
    let catalogue = Catalogue::open(&store).unwrap();
    let moment = catalogue.moment_at(None).unwrap();
    let why = cairnfs_backup::Image::open(store, Arc::default(), &catalogue, moment);
    let why = why.err().unwrap();
    assert!(matches!(why, Error::Missing(_)));
    says(why, "is missing: a prune has removed it");
}

#[test]
fn a_directory_holds_a_backup_and_its_leftovers_go() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("a/b");
    let url = format!("file://{}", place.display());
    let volume = Volume::new("v", 100);
    let store = Arc::new(open(&url, Place::Make, &[], &Ended::default()).unwrap());
    let mut shipper = Shipper::open(Arc::clone(&store), &volume, options()).unwrap();
    for round in 1..4 {
        volume.write(0, 50, round);
        shipper.ship(&volume, &Unwatched).unwrap();
    }
    // What a killed put leaves.
    let leftover = place.join("layers/00000000000000000001-x-00000000#1");
    std::fs::write(&leftover, "half").unwrap();
    let options = cairnfs_backup::PruneOptions::default();
    let zone = jiff::tz::TimeZone::UTC;
    cairnfs_backup::prune(&store, &options, &zone, &Unwatched).unwrap();
    assert!(!leftover.exists());
    let again = open(place.to_str().unwrap(), Place::Find, &[], &Ended::default()).unwrap();
    assert_eq!(Catalogue::open(&again).unwrap().moments().len(), 3);
}

#[test]
fn a_full_directory_says_so() {
    // Every write to it fails for want of space.
    let full = std::path::Path::new("/dev/full");
    assert!(full.exists());
    let why = object_store::Error::Generic {
        store: "directory",
        source: Box::new(std::fs::write(full, "x").unwrap_err()),
    };
    let why = Error::Store {
        what: "cannot store",
        object: "layers/x".into(),
        source: Arc::new(why),
    };
    says(why, "make space, and run it again");
}
