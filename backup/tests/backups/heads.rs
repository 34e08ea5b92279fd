//! Damaged heads: what their copies are for, what can be reached without both, and what a repair does.

use std::sync::Arc;

use bytes::Bytes;
use cairnfs_backup::format::{copy_name, head_name};
use cairnfs_backup::{
    Catalogue, Error, Keep, PruneOptions, Repaired, Shipped, Shipper, Store, Unwatched,
    WriterOptions, check, prune, repair,
};
use jiff::tz::TimeZone;
use object_store::path::Path;

use crate::store::{Objects, Trouble};
use crate::volume::Volume;

/// Heads of a backup of three moments: one by which its writer begins, and one for each.
const HEADS: u64 = 4;

fn ship(store: &Arc<Store>, volume: &Volume) -> Result<Shipped, Error> {
    let options = WriterOptions {
        name: "here".into(),
        ..WriterOptions::default()
    };
    Shipper::open(Arc::clone(store), volume, options)?.ship(volume, &Unwatched)
}

fn backup() -> (Objects, Volume) {
    let (objects, volume) = (Objects::default(), Volume::new("v", 300));
    let options = WriterOptions {
        name: "here".into(),
        ..WriterOptions::default()
    };
    let store = objects.client(Trouble::None);
    let mut shipper = Shipper::open(store, &volume, options).unwrap();
    for round in 0..3 {
        volume.write(round * 40, 50, round + 1);
        shipper.ship(&volume, &Unwatched).unwrap();
    }
    (objects, volume)
}

fn path(name: &str) -> Path {
    Path::from(format!("prefix/{name}"))
}

/// One bit is another one.
fn flip(objects: &Objects, name: &str, part: usize) {
    let mut bytes = objects.bytes(&path(name)).to_vec();
    let at = (bytes.len() - 1) * part / 8;
    bytes[at] ^= 0x10;
    objects.set(&path(name), bytes.into());
}

fn problems(objects: &Objects) -> Vec<String> {
    let store = objects.client(Trouble::None);
    let catalogue = Catalogue::open(&store).unwrap();
    let report = check(&store, &catalogue, &Arc::default(), true, &Unwatched).unwrap();
    report.problems
}

fn repaired(objects: &Objects) -> Repaired {
    repair(&objects.client(Trouble::None), &Unwatched).unwrap()
}

fn opened(objects: &Objects) -> Result<Catalogue, Error> {
    Catalogue::open(&objects.client(Trouble::None))
}

/// A backup and a prune are refused, name the repair, and store nothing.
fn is_refused(objects: &Objects, volume: &Volume) {
    let before = objects.names();
    let store = objects.client(Trouble::None);
    let refused = ship(&store, volume).unwrap_err();
    let pruned = prune(&store, &PruneOptions::default(), &TimeZone::UTC, &Unwatched);
    for why in [refused, pruned.unwrap_err()] {
        assert!(matches!(why, Error::NeedsRepair { .. }), "{why}");
        assert!(why.to_string().contains("cairnfs backup repair URL"));
    }
    assert_eq!(objects.names(), before);
}

/// Of each head one object is damaged, in any region, or missing: nothing is lost, and it is put back.
#[test]
fn one_damaged_object_of_a_head_costs_nothing() {
    let (whole, volume) = backup();
    assert_eq!(problems(&whole), Vec::<String>::new());
    for number in 1..=HEADS {
        let (head, copy) = (head_name(number), copy_name(number));
        for name in [&head, &copy] {
            for part in 0..=9 {
                let objects = whole.copied();
                match part {
                    9 if *name == copy => continue,
                    9 => objects.remove(&path(name)),
                    part => flip(&objects, name, part),
                }
                let catalogue = opened(&objects).unwrap();
                assert_eq!(catalogue.moments().len(), 3, "{name}, {part}");
                assert_eq!(catalogue.unreachable(), None);
                let found = problems(&objects);
                assert_eq!(found.len(), 1, "{name}, {part}: {found:?}");
                assert!(found[0].starts_with(name.as_str()), "{found:?}");
                // The first head is whole, and the later ones add to it.
                if *name == head && [1, HEADS].contains(&number) {
                    assert_eq!(catalogue.damage().len(), 1, "{name}, {part}");
                    is_refused(&objects, &volume);
                }
                let repaired = repaired(&objects);
                assert_eq!(repaired.restored, std::slice::from_ref(name), "{part}");
                assert!(repaired.left.is_empty() && repaired.head.is_none());
                assert_eq!(objects.bytes(&path(name)), whole.bytes(&path(name)));
                assert_eq!(objects.verify(&volume).len(), 3);
                ship(&objects.client(Trouble::None), &volume).unwrap();
            }
        }
    }
}

/// Without both objects of the newest heads the older moments stay, and the backup goes on after a repair.
#[test]
fn newest_heads_that_cannot_be_read_cost_their_moments_only() {
    let (whole, volume) = backup();
    for (lost, part) in (1..=2).flat_map(|lost| (0..=8).map(move |part| (lost, part))) {
        let objects = whole.copied();
        let first = HEADS + 1 - lost;
        for number in first..=HEADS {
            flip(&objects, &head_name(number), part);
            flip(&objects, &copy_name(number), 8 - part);
        }
        let catalogue = opened(&objects).unwrap();
        assert_eq!(catalogue.moments().len() as u64, 3 - lost);
        assert_eq!(catalogue.unreachable(), Some((first, HEADS)));
        let found = problems(&objects);
        for number in first..=HEADS {
            for name in [head_name(number), copy_name(number)] {
                let of_it = found.iter().filter(|text| text.starts_with(&name));
                assert_eq!(of_it.count(), 1, "{name} in {found:?}");
            }
        }
        assert_eq!(found.len() as u64, 2 * lost, "{found:?}");
        is_refused(&objects, &volume);

        let repaired = repaired(&objects);
        assert_eq!(repaired.lost, Some((first, HEADS)));
        assert_eq!(repaired.head, Some(HEADS + 1));
        assert_eq!(repaired.left.len() as u64, 2 * lost);
        assert_eq!(objects.verify(&volume).len() as u64, 3 - lost);
        volume.write(7, 20, 9 + lost);
        ship(&objects.client(Trouble::None), &volume).unwrap();
        let store = objects.client(Trouble::None);
        prune(&store, &PruneOptions::default(), &TimeZone::UTC, &Unwatched).unwrap();
        objects.verify(&volume);
    }
}

#[test]
fn a_backup_of_which_no_head_can_be_read_is_left_as_it_is() {
    let (objects, volume) = backup();
    flip(&objects, &head_name(1), 3);
    flip(&objects, &copy_name(1), 5);
    let before = objects.names();
    let why = opened(&objects).unwrap_err();
    assert!(why.to_string().contains("no other head"), "{why}");
    assert!(why.is_damage());
    assert!(repair(&objects.client(Trouble::None), &Unwatched).is_err());
    assert!(ship(&objects.client(Trouble::None), &volume).is_err());
    assert_eq!(objects.names(), before);
}

#[test]
fn a_backup_without_copies_is_read_and_gets_them_by_a_repair() {
    let (objects, volume) = backup();
    for number in 1..=HEADS {
        objects.remove(&path(&copy_name(number)));
    }
    assert_eq!(objects.verify(&volume).len(), 3);
    assert_eq!(repaired(&objects).restored.len() as u64, HEADS);
    flip(&objects, &head_name(HEADS), 4);
    assert_eq!(opened(&objects).unwrap().moments().len(), 3);
}

/// The search ends, whatever is there or is made up at each request.
#[test]
fn a_store_with_heads_without_end_is_refused() {
    let (objects, _) = backup();
    let store = objects.client(Trouble::Endless);
    let why = Catalogue::open(&store).unwrap_err();
    assert!(why.is_damage(), "{why}");
    assert!(store.asked().requests < 2000, "{:?}", store.asked());
}

#[test]
fn far_and_impossible_numbers_do_not_hide_the_backup() {
    let (whole, volume) = backup();
    for number in [
        "0",
        "1000000000000000",
        "18446744073709551615",
        "99999999999999999999",
    ] {
        for folder in ["heads", "copies"] {
            let objects = whole.copied();
            let name = format!("{folder}/{number:0>20}");
            objects.set(&path(&name), Bytes::from_static(b"made up"));
            let store = objects.client(Trouble::None);
            let catalogue = Catalogue::open(&store).unwrap();
            assert_eq!(catalogue.moments().len(), 3, "{name}");
            assert!(store.asked().requests < 20, "{name}: {:?}", store.asked());
            repaired(&objects);
            volume.write(3, 2, 5);
            ship(&objects.client(Trouble::None), &volume).unwrap();
            objects.verify(&volume);
        }
    }
}

/// A repair that ends at any request, and the next one, keep what can be reached.
#[test]
fn a_repair_that_ends_at_any_request_is_done_by_the_next_one() {
    let (whole, volume) = backup();
    flip(&whole, &head_name(HEADS), 4);
    flip(&whole, &copy_name(HEADS), 4);
    flip(&whole, &head_name(HEADS - 1), 2);
    for effect in [false, true] {
        for at in 1.. {
            let objects = whole.copied();
            let store = objects.client(Trouble::EndsAt(at, effect));
            let ended = repair(&store, &Unwatched);
            repaired(&objects);
            assert_eq!(objects.verify(&volume).len(), 2, "at {at}");
            volume.write(9, 4, at);
            ship(&objects.client(Trouble::None), &volume).unwrap();
            if ended.is_ok() {
                assert!(at > 10, "only {at} requests");
                break;
            }
        }
    }
}

/// Between any two requests of a repair another one is done and a moment is stored: one of the two
/// repairs stores its head, and what was stored behind it stays.
#[test]
fn a_repair_beside_another_one_and_a_backup_disturbs_neither() {
    let (whole, volume) = backup();
    flip(&whole, &head_name(HEADS), 4);
    flip(&whole, &copy_name(HEADS), 4);
    for at in 0.. {
        let (objects, clone) = (whole.copied(), volume.cloned());
        let done = Arc::new(std::sync::Mutex::new(None));
        let (all, told) = (objects.clone(), Arc::clone(&done));
        let store = objects.client_with(at, move || {
            repaired(&all);
            clone.rename("theirs");
            clone.write(200, 9, 7);
            ship(&all.client(Trouble::None), &clone).unwrap();
            *told.lock().unwrap() = Some(clone);
        });
        let own = repair(&store, &Unwatched);
        let Some(theirs) = done.lock().unwrap().take() else {
            own.unwrap();
            assert!(at > 10, "only {at} requests");
            break;
        };
        if let Err(why) = own {
            assert!(why.is_lost(), "at {at}: {why}");
        }
        let kept = objects.verify(&volume.cloned().with(&theirs));
        assert_eq!(kept.len(), 3, "at {at}: {kept:?}");
    }
}

/// A prune that ends when its head is stored keeps what it keeps, if that head is damaged afterwards.
#[test]
fn a_prune_goes_on_after_a_repair() {
    let (objects, volume) = backup();
    flip(&objects, &head_name(HEADS), 4);
    flip(&objects, &copy_name(HEADS), 4);
    let options = PruneOptions {
        keep: Keep {
            last: 1,
            ..Keep::default()
        },
        ..PruneOptions::default()
    };
    is_refused(&objects, &volume);
    repaired(&objects);
    let store = objects.client(Trouble::None);
    let pruned = prune(&store, &options, &TimeZone::UTC, &Unwatched).unwrap();
    assert_eq!((pruned.kept, pruned.removed.len()), (1, 1));
    assert_eq!(objects.verify(&volume).len(), 1);
}
