//! Common programs on a mounted volume: version control, compilers, databases, archives.
//!
//! Each test ends with the volume unmounted and checked, including contents. Sizes are the
//! smallest that show the behaviour; large programs are ignored unless `scripts/deep programs`
//! requests them.
//!
//! Contract: posix

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::thread;

use cairnfs_tier::size;

use crate::place::{Place, able, shell};

mod backup;
mod build;
mod containers;
mod fio;
mod forks;
mod git;
mod packages;
mod postgres;
mod sqlite;
mod suites;
mod trees;

pub use git::GIT;

/// Options of a mount that serves all users, as a kernel file system does.
const FOR_ALL: &str = "allow_other,dev,suid";

/// Lets other users reach the mountpoint of `place`.
fn open_to_all(place: &Place) {
    fs::set_permissions(place.beside(""), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(place.dir(), Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn eight_processes_work_concurrently() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("2G", "");
    let (own, shared) = (size(60, 150), size(20, 50));
    let script = format!(
        "mkdir own$ME shared 2>/dev/null || test -d shared
        for r in 1 2 3; do
            for f in $(seq {own}); do echo $ME $f > own$ME/$f; done
            for f in $(seq {shared}); do echo $ME > shared/$ME-$f; mv shared/$ME-$f shared/last-$f; done
            head -c 2000000 /dev/urandom > own$ME/data; cp own$ME/data shared/data-$ME
            cmp own$ME/data shared/data-$ME
            mv own$ME/data own$ME/data$r; ln own$ME/data$r shared/link-$ME-$r
            for f in $(seq 1 2 {own}); do rm own$ME/$f; done
        done
        test $(ls own$ME | wc -l) = $(({own} / 2 + 3)); sha256sum own$ME/* > sums$ME"
    );
    thread::scope(|scope| {
        for me in 0..8 {
            let dir = place.dir();
            let script = format!("ME={me}; {script}");
            scope.spawn(move || shell(&dir, &script));
        }
    });
    place.remount("");
    place.sh(&format!(
        "cat sums* | sha256sum -c --quiet; test $(ls shared | wc -l) = $(({shared} + 8 + 24))"
    ));
    place.finish();
}
