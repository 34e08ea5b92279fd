//! Frames and objects that rot: what is read of a moment is right, or told; what was lost is stored again
//! from the volume.
//!
//! `CAIRNFS_DAMAGE_SEEDS` is the number of seeds, `CAIRNFS_DAMAGE_FROM` the first one.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use cairnfs_backup::{
    Catalogue, DamagedMoment, Image, Report, Seal, Shipped, Shipper, Store, Unwatched,
    WriterOptions, check, restore, restore_readable,
};
use cairnfs_mutate::random::Random;
use cairnfs_tier::size_from;

use crate::store::{Objects, Trouble};
use crate::volume::{BLOCK, Volume, contents};

/// Blocks of the volume.
const SIZE: u64 = 700;

fn options() -> WriterOptions {
    WriterOptions {
        name: "here".into(),
        ..WriterOptions::default()
    }
}

/// A backup of four moments, each with several frames of its own.
fn backup() -> (Objects, Volume) {
    let (objects, volume) = (Objects::default(), Volume::new("v", SIZE));
    let mut shipper = Shipper::open(objects.client(Trouble::None), &volume, options()).unwrap();
    for round in 0..4 {
        volume.write(round * 130, 300, round + 1);
        volume.free(20 * round, 5 + round);
        shipper.ship(&volume, &Unwatched).unwrap();
    }
    (objects, volume)
}

/// Damages layers: mostly a bit, sometimes the end of an object, or a whole one.
fn rot(objects: &Objects, lot: &mut Random) {
    let names = objects.names();
    let layers: Vec<_> = names
        .iter()
        .filter(|name| name.as_ref().contains("layers/"))
        .collect();
    for _ in 0..=lot.below(3) {
        let name = layers[lot.below(layers.len())];
        let bytes = objects.bytes(name);
        if bytes.is_empty() {
            continue;
        }
        match lot.below(12) {
            0 => objects.set(name, Bytes::new()),
            1 => objects.set(name, bytes.slice(..lot.below(bytes.len()))),
            _ => {
                let mut bytes = bytes.to_vec();
                let at = lot.below(bytes.len());
                bytes[at] ^= 1 << lot.below(8);
                objects.set(name, bytes.into());
            }
        }
    }
}

fn report(store: &Store) -> Report {
    let catalogue = Catalogue::open(store).unwrap();
    check(store, &catalogue, &Seal::default(), true, &Unwatched).unwrap()
}

/// Restores every moment: each block is right, or told, as the check tells the moment. Returns the numbers of
/// the blocks that were lost of each; `None` of a moment that was refused.
fn restored(store: &Arc<Store>, volume: &Volume, report: &Report) -> Vec<Option<BTreeSet<u64>>> {
    let catalogue = Catalogue::open(store).unwrap();
    let mut all = Vec::new();
    for moment in catalogue.moments() {
        let told = report.damaged.iter().find(|it| it.number == moment.number);
        let image = Image::open(Arc::clone(store), Arc::default(), &catalogue, moment);
        let Ok(image) = image else {
            let none = DamagedMoment {
                number: moment.number,
                blocks: None,
            };
            assert_eq!(told, Some(&none));
            all.push(None);
            continue;
        };
        let file = tempfile::tempfile().unwrap();
        let lost = restore_readable(&image, &file, &Unwatched).unwrap();
        let blocks: BTreeSet<u64> = (0..SIZE)
            .filter(|block| lost.blocks.within(*block, 1).next().is_some())
            .collect();
        assert_eq!(lost.is_none(), lost.whys.is_empty());
        assert_eq!(
            told.map_or(Some(0), |it| it.blocks),
            Some(blocks.len() as u64)
        );
        assert_eq!(told.is_some(), !blocks.is_empty());
        let wanted = volume.image(&moment.checkpoint);
        for block in 0..SIZE {
            let mut found = [0; BLOCK];
            file.read_exact_at(&mut found, block * BLOCK as u64)
                .unwrap();
            let seed = wanted.get(&block).filter(|_| !blocks.contains(&block));
            let right = seed.map_or([0; BLOCK], |seed| contents(*seed));
            assert!(found == right, "block {block} of moment {}", moment.number);
        }
        let whole = restore(&image, &tempfile::tempfile().unwrap(), &Unwatched);
        assert_eq!(whole.is_ok(), blocks.is_empty());
        all.push(Some(blocks));
    }
    all
}

#[test]
fn what_can_be_read_is_restored_and_the_rest_is_told_and_stored_again() {
    let (whole, source) = backup();
    let from: u64 = size_from("CAIRNFS_DAMAGE_FROM", 0, 0);
    for seed in from..from + size_from("CAIRNFS_DAMAGE_SEEDS", 40, 300) {
        let (objects, volume, mut lot) = (whole.copied(), source.cloned(), Random::new(seed));
        rot(&objects, &mut lot);
        let store = objects.client(Trouble::None);
        let found = report(&store);
        let lost = restored(&store, &volume, &found);
        let before = volume.image(&Catalogue::open(&store).unwrap().moments()[3].checkpoint);
        if seed % 2 == 0 {
            volume.write(lot.below(600) as u64, 1 + lot.below(90) as u64, 1000 + seed);
        }
        let mut shipper = Shipper::open(Arc::clone(&store), &volume, options()).unwrap();
        let (shipped, mended) = shipper.mend(&volume, &found.losses, &Unwatched).unwrap();
        let is_whole = matches!(shipped, Shipped::Moment { is_whole: true, .. });
        // What nothing is known of is stored as a whole.
        assert_eq!(lost[3].is_none(), is_whole, "{seed}");
        assert!(mended.blocks == 0 || !is_whole, "{seed}");

        // Whatever was lost, the newest state is whole again, and no other one lacks more than before.
        let left = report(&store);
        let after = restored(&store, &volume, &left);
        assert_eq!(after.last().unwrap(), &Some(BTreeSet::new()), "{seed}");
        let now = Catalogue::open(&store).unwrap();
        let newest = now.moments().last().unwrap().checkpoint.clone();
        let now = volume.image(&newest);
        for (place, (lost, after)) in lost.iter().zip(&after).enumerate() {
            let (Some(lost), Some(after)) = (lost, after) else {
                assert_eq!(lost.is_none(), after.is_none());
                continue;
            };
            assert!(after.is_subset(lost), "{seed}: moment {place}");
            // The moment that the volume is compared with lacks only what was written since, or is there no more.
            let gone = |block: &u64| now.get(block) != before.get(block);
            assert!(
                place != 3 || lost.is_empty() || mended.blocks == 0 || after.iter().all(gone),
                "{seed}"
            );
        }
        if seed % 10 > 0 {
            continue;
        }
        // Further moments are added as ever.
        volume.write(1, 3, 5000 + seed);
        shipper.ship(&volume, &Unwatched).unwrap();
        let last = restored(&store, &volume, &report(&store));
        assert_eq!(last.last().unwrap(), &Some(BTreeSet::new()), "{seed}");
    }
}

#[test]
fn a_backup_behind_a_lost_index_stores_everything_again() {
    let (objects, volume) = backup();
    let names = objects.names();
    let layers: Vec<_> = names
        .iter()
        .filter(|name| name.as_ref().contains("layers/"))
        .collect();
    for name in layers {
        let bytes = objects.bytes(name);
        objects.set(name, bytes.slice(..bytes.len() - 1));
    }
    volume.write(3, 1, 77);
    let store = objects.client(Trouble::None);
    let mut shipper = Shipper::open(Arc::clone(&store), &volume, options()).unwrap();
    let shipped = shipper.ship(&volume, &Unwatched).unwrap();
    assert!(
        matches!(shipped, Shipped::Moment { is_whole: true, .. }),
        "{shipped:?}"
    );
    let found = report(&store);
    assert_eq!(found.damaged.len(), 4, "{:?}", found.problems);
    let all = restored(&store, &volume, &found);
    assert_eq!(all.last().unwrap(), &Some(BTreeSet::new()));
}

#[test]
fn damage_that_a_later_layer_covers_is_no_problem_of_any_moment() {
    let (objects, volume) = backup();
    let mut lot = Random::new(3);
    let store = objects.client(Trouble::None);
    let names = objects.names();
    let first = names
        .iter()
        .find(|name| name.as_ref().contains("layers/"))
        .unwrap();
    let mut bytes = objects.bytes(first).to_vec();
    bytes[100 + lot.below(200)] ^= 1;
    objects.set(first, bytes.into());
    let found = report(&store);
    assert!(!found.problems.is_empty() && found.covered.is_empty());
    let newest = |found: &Report| {
        found
            .damaged
            .iter()
            .any(|it| it.number == newest_number(&store))
    };
    let mut shipper = Shipper::open(Arc::clone(&store), &volume, options()).unwrap();
    shipper.mend(&volume, &found.losses, &Unwatched).unwrap();
    let left = report(&store);
    assert!(!newest(&left));
    assert_eq!(left.damaged.is_empty(), left.problems.is_empty());
    assert_eq!(left.damaged.is_empty(), !left.covered.is_empty());
}

fn newest_number(store: &Store) -> u64 {
    Catalogue::open(store)
        .unwrap()
        .moments()
        .last()
        .unwrap()
        .number
}
