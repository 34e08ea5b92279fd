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
