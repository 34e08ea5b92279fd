//! Volumes whose record of free space is damaged, with and without snapshots that only the log has: all
//! of them are read, and none is changed.
//!
//! Contract: rot.space

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use cairnfs::Error;
use cairnfs::fs::FileSystem;
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_mutate::base::{Base, SIZE, one_of_everything, snapshot_in_log, two_levels};
use cairnfs_mutate::image::{Bounded, Image};
use cairnfs_mutate::{Outcome, Verdict, survives};

use crate::options;

/// Three groups.
const LARGE: u64 = 300 << 20;

fn outcome(image: &Image) -> Outcome {
    survives(image).unwrap_or_else(|broken| panic!("{broken}"))
}

/// The volume with one bitmap damaged, with all of them, with a damaged table, and without any of it.
fn damaged(base: &Base) -> Vec<Image> {
    let geometry = base.layout.geometry;
    let table = geometry.table_start(0);
    let bitmaps = geometry.bitmap_start();
    let groups = geometry.groups();
    let of_group = |group| vec![bitmaps + group, bitmaps + groups + group];
    let mut cases: Vec<Vec<u64>> = (0..groups).map(of_group).collect();
    cases.push((bitmaps..geometry.data_start()).collect());
    cases.push((table..bitmaps).collect());
    cases.push((table..geometry.data_start()).collect());
    let damage = |blocks: Vec<u64>| {
        let mut image = base.image.clone();
        for block in blocks {
            image.write(block, &[0x5a; BLOCK_SIZE]);
        }
        image
    };
    cases.into_iter().map(damage).collect()
}

/// The trees of a volume, and the names in the top directory of each.
fn trees(image: &Image) -> Vec<(String, Vec<Vec<u8>>)> {
    let fs = FileSystem::open_device(Bounded::new(image), &options(true)).unwrap();
    let mut found = Vec::new();
    for name in fs.roots().into_iter().filter_map(|root| root.name) {
        let tree = fs.open_named(&name).unwrap();
        let mut names = Vec::new();
        let list = tree.readdir(1, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        });
        list.unwrap();
        found.push((name, names));
    }
    found
}

#[test]
fn without_free_space_everything_is_read_and_nothing_is_changed() {
    let small = [one_of_everything(), two_levels(), snapshot_in_log(SIZE)];
    for base in small.into_iter().chain([snapshot_in_log(LARGE)]) {
        let (whole, expected) = (outcome(&base.image), trees(&base.image));
        assert_eq!(whole.verdict, Verdict::Harmless, "{}", base.name);
        for (case, image) in damaged(&base).iter().enumerate() {
            let place = format!("{} of {} blocks, case {case}", base.name, image.blocks());
            let found = outcome(image);
            assert_eq!(found.verdict, Verdict::Refused, "{place}");
            assert_eq!(found.tree, whole.tree, "{place}");
            assert_eq!(trees(image), expected, "{place}");
            let device = Bounded::new(image);
            let opened = FileSystem::open_device(device.clone(), &options(false));
            let Some(Error::Corrupt(damage)) = opened.err() else {
                panic!("{place}")
            };
            assert!(damage.what.starts_with("group "), "{place}: {damage}");
            assert!(!device.image().differs_from(image), "{place}");
        }
    }
}
