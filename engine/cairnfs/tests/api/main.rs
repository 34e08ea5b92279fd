//! Tests of the public API: paths, files, listings, attributes, threads, reopening.
//!
//! Uses only items that the crate exports. Each test has its own volume, in memory unless it is
//! opened twice.
//!
//! Contract: posix

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails where it stands"
)]

mod attributes;
mod branch_model;
mod branches;
mod compared;
mod costs;
mod durability;
mod engine;
mod files;
mod flags;
mod listing;
mod mechanisms;
mod names;
mod order;
mod page_cache;
mod paths;
mod read_only;
mod signals;
mod times;
mod values;
mod volumes;

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;

use cairnfs::{Result, Volume};

const SIZE: u64 = 256 << 20;

fn volume() -> Volume {
    Volume::in_memory(SIZE).unwrap()
}

fn permissions(mode: u32) -> Permissions {
    Permissions::from_mode(mode)
}

#[track_caller]
fn fails<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind) {
    assert_eq!(result.unwrap_err().kind(), kind);
}

#[track_caller]
fn fails_with<T: std::fmt::Debug>(result: Result<T>, errno: i32) {
    assert_eq!(result.unwrap_err().errno(), errno);
}

fn names(volume: &Volume, dir: &str) -> Vec<String> {
    let mut names: Vec<_> = volume
        .read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
