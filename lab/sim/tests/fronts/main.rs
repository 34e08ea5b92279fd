//! The FUSE front end's requests: each is one transaction, unless the contract lists it as an
//! exception.
//!
//! Each call of the engine is atomic; a front end that makes two calls for one request leaves a
//! state between them. Here everything is made durable after each call of the engine, so the states
//! include a power failure between two calls, and the model treats the request as one.
//!
//! Contract: atomic.request

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

mod front;
mod replaced;

use std::collections::BTreeSet;
use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs_disk::types::{SetAttr, XattrMode};
use cairnfs_sim::disk::SimDisk;
use cairnfs_sim::explore::{Depth, Tally, explore};
use cairnfs_sim::image::Image;
use cairnfs_sim::record::{Recording, Run, VOLUME_SIZE, fresh_volume, options};
use cairnfs_sim::tree::ROOT;
use cairnfs_tier::size;
use front::Front;

/// The initial contents of the volume.
const BASE: &str = "
    create f; write f 0 9000; chmod f 0o6755; create l; write l 0 100; setfacl l 1;
    create x; setxattr x a 10; mkdir d; setdefault d; create d/h; mkdir e; setfacl e 2";

/// Requests that must be one transaction each.
const REQUESTS: &[&str] = &[
    "create n",
    "create d/n",
    "create-by-other d/n",
    "fifo d/n",
    "mkdir n",
    "mkdir d/n",
    "symlink n",
    "link f n",
    "link f d/n",
    "unlink f",
    "unlink l",
    "unlink x",
    "rmdir e",
    "rename f n",
    "rename x l",
    "rename l d/h",
    "rename e d/e",
    "exchange f d",
    "exchange l d/h",
    "whiteout f n",
    "whiteout-by-other l d/h",
    "whiteout e d/e",
    "write f 0 5000",
    "write-by-other f 0 5000",
    "write-by-other l 0 9000",
    "truncate f 5000",
    "truncate l 0",
    "truncate-by-other f 5000",
    "chmod f 0o600",
    "chmod x 0o2711",
    "chmod l 0o600",
    "chmod e 0o2700",
    "setfacl l 0",
    "setfacl l 2",
    "setfacl x 1",
    "setfacl-by-other f 1",
    "setfacl d 2",
    "chown f 9 9",
    "chown l 9 9",
    "utimes f 5",
    "utimes l 5",
    "chattr f 0o140",
    "chattr e 0o20",
    "setxattr f a 300",
    "setxattr x a 20000",
    "setdefault e",
    "removexattr x a",
    "removelist l",
];

/// Requests of several transactions, as the contract allows.
const SEVERAL: &[&str] = &[
    "allocate f 8000 20000",
    "allocate-by-other f 8000 20000",
    "punch f 0 8192",
    "punch-by-other f 1000 6000",
    "zero f 100 12000",
    "zero-by-other f 100 12000",
    "copy f x 9000",
    "copy-by-other x f 100",
    "truncate f 20000",
    "truncate-by-other f 20000",
];

const DEPTH: Depth = Depth {
    states: 400,
    interrupted: 16,
    within: 4,
    used: 16,
};

fn base() -> Image {
    let disk = Arc::new(SimDisk::new(fresh_volume(VOLUME_SIZE).unwrap(), false));
    let fs = FileSystem::open_device(disk.clone(), &options(3)).unwrap();
    Front::new(&fs).run_all(BASE, None);
    fs.close().unwrap();
    disk.image()
}

/// Records requests on a volume, with everything made durable after each call of the engine.
fn recorded(start: &Image, text: &str) -> Recording {
    let run = Run::begin(start.clone(), &options(4), 1).unwrap();
    Front::new(run.fs()).run_all(&format!("{text}; sync"), Some(&run));
    run.end()
}

/// A request of two calls of the engine: chmod and setxattr.
fn two_calls(fs: &FileSystem) {
    let ino = fs.lookup(ROOT, b"x").unwrap().ino;
    let set = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    fs.setattr(ino, &set).unwrap();
    fs.setxattr(ino, b"user.b", b"2", XattrMode::Set).unwrap();
    fs.forget(ino, 1);
}

/// Contract: atomic.request
#[test]
fn request_of_two_transactions_is_detected() {
    let start = base();
    let failures = |one: bool| {
        let run = Run::begin(start.clone(), &options(4), 1).unwrap();
        if one {
            run.request(|| two_calls(run.fs()))
        } else {
            two_calls(run.fs())
        }
        explore(&run.end(), &DEPTH, &mut |_| {}).failures
    };
    assert!(failures(false).is_empty());
    let noticed = failures(true);
    assert!(noticed.iter().any(|f| f.message.starts_with("atomic")));
}

/// Tries sequences of requests; returns those that break the contract.
fn broken(start: &Image, sequences: impl Iterator<Item = String>) -> (Tally, Vec<String>) {
    let mut all = Tally::default();
    let mut wrong = Vec::new();
    for text in sequences {
        let tally = explore(&recorded(start, &text), &DEPTH, &mut |_| {});
        if let Some(first) = tally.failures.first() {
            wrong.push(format!("{text}: {first}"));
        }
        all.add(tally);
    }
    (all, wrong)
}

#[test]
fn every_request_is_atomic() {
    let start = base();
    let alone = REQUESTS.iter().chain(SEVERAL);
    let (tally, wrong) = broken(&start, alone.map(|r| (*r).to_owned()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("requests: {} crash states recovered", tally.states);
}

#[test]
fn every_request_of_a_pair_is_atomic() {
    let start = base();
    let all: Vec<&str> = REQUESTS.iter().chain(SEVERAL).copied().collect();
    // A sample of the pairs in which each request is first and second several times.
    let pairs = (0..all.len() * all.len()).step_by(size(101, 13));
    let pairs = pairs.map(|i| format!("{}; {}", all[i / all.len()], all[i % all.len()]));
    let (tally, wrong) = broken(&start, pairs);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("pairs of requests: {} crash states recovered", tally.states);
}

fn commits(fs: &FileSystem) -> u64 {
    let counters = fs.counters().into_iter();
    let commits = counters.filter(|(name, _)| *name == "commits");
    commits.map(|(_, n)| n).sum()
}

/// The requests among these that make more than one transaction.
fn several(start: &Image, requests: &[&'static str]) -> BTreeSet<&'static str> {
    let made = |request: &str| {
        let disk = Arc::new(SimDisk::new(start.clone(), false));
        let fs = FileSystem::open_device(disk.clone(), &options(5)).unwrap();
        let before = commits(&fs);
        Front::new(&fs).run(request, None).unwrap();
        let made = commits(&fs) - before;
        disk.cut();
        made
    };
    let all = requests.iter().copied();
    all.filter(|request| made(request) > 1).collect()
}

#[test]
fn only_documented_requests_make_several_transactions() {
    let start = base();
    let several = several(&start, REQUESTS);
    assert!(several.is_empty(), "{several:?}");
}
