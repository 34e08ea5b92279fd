//! Snapshots and branches as a whole: comparing, sending, receiving, publishing, restoring.
//!
//! Uses only items that the crate exports.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails where it stands"
)]

mod at_once;
mod chains;
mod made;
mod merges;
mod replaced;
mod restored;
mod rewritten;
mod streams;
mod tree;

use cairnfs::Volume;

const SIZE: u64 = 256 << 20;

fn volume() -> Volume {
    Volume::in_memory(SIZE).unwrap()
}

/// Names of all branches and snapshots.
fn roots(volume: &Volume) -> Vec<String> {
    let roots = volume.roots().into_iter();
    let mut names: Vec<String> = roots.filter_map(|root| root.name).collect();
    names.sort();
    names
}

/// The conflicts for which nothing was published.
fn conflicts(published: cairnfs::Result<cairnfs::Published>) -> Vec<cairnfs::Conflict> {
    match published {
        Err(cairnfs::Error::Conflicts(conflicts)) => conflicts,
        other => panic!("{other:?}"),
    }
}

/// The paths of a comparison, each with what was done.
fn shown(diff: &cairnfs::Diff) -> Vec<(cairnfs::Status, String)> {
    let files = diff.report().files.iter();
    files.map(|f| (f.status, f.path.path.to_string())).collect()
}

#[test]
fn comparison_since_the_fork_leaves_out_what_the_other_did() {
    use cairnfs::{Error, Status};
    let volume = volume();
    volume.write("old", "1").unwrap();
    let work = volume.branch("work").unwrap();
    volume.write("of-main", "2").unwrap();
    volume.snapshot("monday").unwrap();
    volume.remove_file("old").unwrap();
    work.write("of-work", "3").unwrap();
    let since = |other: &str, branch: &str| volume.diff_since_fork(other, branch);
    let added = |name: &str| (Status::Added, name.to_owned());
    assert_eq!(shown(&since("main", "work").unwrap()), [added("of-work")]);
    let removed = (Status::Removed, "old".to_owned());
    assert_eq!(
        shown(&since("work", "main").unwrap()),
        [added("of-main"), removed.clone()]
    );
    // One that the other descends from.
    assert_eq!(shown(&since("monday", "main").unwrap()), [removed]);
    assert_eq!(shown(&since("main", "monday").unwrap()), []);
    assert_eq!(shown(&since("work", "work").unwrap()), []);
    // A received snapshot descends from nothing here.
    let stream = volume.send(Vec::new(), "monday", None).unwrap();
    volume.receive(&stream[..], Some("received")).unwrap();
    let nothing = since("main", "received").unwrap_err();
    assert!(matches!(nothing.cause(), Error::Invalid(_)), "{nothing}");
}

#[test]
fn reference_is_read_in_a_given_time_zone() {
    let volume = volume();
    volume.snapshot("monday").unwrap();
    let found = |zone: &str| volume.find_root_in_zone("main@-0s", zone);
    for zone in ["UTC", "XYZ-5", "CET-1CEST,M3.5.0,M10.5.0/3", "Asia/Kolkata"] {
        assert_eq!(found(zone).unwrap().name.unwrap(), "monday");
    }
    assert!(found("Nowhere/Land").is_err());
}
