//! The base volumes: they have all kinds of structures, and the same shape each time.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::collections::BTreeSet;

use cairnfs_disk::format::key::{Kind, ORPHANS};
use cairnfs_disk::format::record::FLAG_MOUNT;
use cairnfs_mutate::base::{Base, one_of_everything, two_levels};
use cairnfs_mutate::layout::Link;
use cairnfs_mutate::{CLASSES, bases, mutate};

fn kinds(base: &Base) -> BTreeSet<Kind> {
    base.layout.items.iter().map(|i| i.key.kind).collect()
}

#[test]
fn one_base_has_all_kinds_of_items() {
    let base = one_of_everything();
    let wanted = [
        Kind::Inode,
        Kind::Inline,
        Kind::DirIndex,
        Kind::DirName,
        Kind::Xattr,
        Kind::SharedValue,
        Kind::Extent,
        Kind::Root,
    ];
    assert!(kinds(&base).is_superset(&wanted.into()));
    let layout = &base.layout;
    assert!(layout.large.iter().any(|l| l.units.len() > 3));
    assert!(!layout.data.is_empty() && !base.older.is_empty());
    let records = layout.records.iter();
    let contexts = records.filter(|r| r.header.flags.get() & FLAG_MOUNT == 0);
    assert!(contexts.count() >= 4);
    // The orphan is in the log: its object number is in the bytes of its entry.
    let orphans = [8u8, 1, 0, 0, 1, 0, 0, 0, ORPHANS as u8];
    let logged = layout.records.iter().any(|r| {
        let bytes = layout.record(&base.image, r);
        bytes.windows(orphans.len()).any(|w| w == orphans)
    });
    assert!(logged);
}

#[test]
fn one_base_has_two_levels_and_a_wrapped_log() {
    let base = two_levels();
    let layout = &base.layout;
    let below = |node: u64| {
        let links = layout.nodes.values().flatten();
        links.filter(move |l| matches!(l, Link::Node { node: n, .. } if *n == node))
    };
    assert!(layout.nodes.keys().any(|node| below(*node).count() > 5));
    let places: Vec<u64> = layout
        .records
        .iter()
        .map(|r| layout.log_block(r.lsn))
        .collect();
    assert!(places.windows(2).any(|w| w[0] > w[1]), "{places:?}");
}

#[test]
fn bases_have_the_same_shape_each_time() {
    let shape = |base: &Base| {
        let layout = &base.layout;
        let items: Vec<_> = layout.items.iter().map(|i| (i.node, i.at, i.key)).collect();
        let records: Vec<_> = layout.records.iter().map(|r| r.lsn).collect();
        (items, records, base.used.clone())
    };
    for (a, b) in bases().iter().zip(&bases()) {
        assert!(shape(a) == shape(b), "{}", a.name);
    }
}

#[test]
fn mutation_is_deterministic_and_every_class_damages() {
    let bases = bases();
    for &class in CLASSES {
        let mut differ = 0;
        for base in &bases {
            for seed in 0..5 {
                let (a, b) = (mutate(base, class, seed), mutate(base, class, seed));
                assert_eq!(a.how, b.how);
                assert!(!a.image.differs_from(&b.image));
                differ += usize::from(a.image.differs_from(&base.image));
            }
        }
        assert!(differ > 4, "{class:?}");
    }
}
