//! Snapshots and branches as a whole: comparing, sending, receiving, publishing, restoring.
//!
//! Uses only items that the crate exports.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails where it stands"
)]

mod merges;
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
