//! Long random workloads. A failure is shrunk to the steps that it needs.

use cairnfs_sim::explore::Depth;
use cairnfs_sim::record::{VOLUME_SIZE, fresh_volume};
use cairnfs_sim::workload::{Step, random_names, random_step, random_steps, random_values, record};
use proptest::prelude::*;

use crate::support::{text, try_all, try_recording};

const DEPTH: Depth = Depth {
    states: 400,
    interrupted: 16,
    within: 6,
    used: 16,
};

fn setting(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |v| v.parse().unwrap())
}

/// `CAIRNFS_CRASH_SEEDS` tells how many workloads, `CAIRNFS_CRASH_FROM` the first one's seed.
#[test]
fn workloads_of_many_seeds() {
    let seeds = setting("CAIRNFS_CRASH_SEEDS", 90);
    let from = setting("CAIRNFS_CRASH_FROM", 0);
    let name = format!("random workloads, seeds from {from}");
    let start = fresh_volume(VOLUME_SIZE).unwrap();
    let steps = |i: usize| {
        let seed = (from + i) as u64;
        (i < seeds).then(|| random_steps(seed, 40 + 60 * (i % 6)))
    };
    try_all(&name, &start, 0, &steps, &DEPTH);
}

/// The same of names and directories, with an fsync after every fourth of them.
#[test]
fn names_of_many_seeds() {
    let seeds = setting("CAIRNFS_CRASH_SEEDS", 120);
    let from = setting("CAIRNFS_CRASH_FROM", 0);
    let name = format!("random names, seeds from {from}");
    let start = fresh_volume(VOLUME_SIZE).unwrap();
    let steps = |i: usize| {
        let seed = (from + i) as u64;
        (i < seeds).then(|| random_names(seed, 60 + 60 * (i % 4)))
    };
    try_all(&name, &start, 0, &steps, &DEPTH);
}

/// The same of attributes whose values are equal, or have equal hashes.
#[test]
fn values_of_many_seeds() {
    let seeds = setting("CAIRNFS_CRASH_SEEDS", 60);
    let from = setting("CAIRNFS_CRASH_FROM", 0);
    let name = format!("random values, seeds from {from}");
    let start = fresh_volume(VOLUME_SIZE).unwrap();
    let steps = |i: usize| {
        let seed = (from + i) as u64;
        (i < seeds).then(|| random_values(seed, 40 + 40 * (i % 4)))
    };
    try_all(&name, &start, 0, &steps, &DEPTH);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_done(numbers in proptest::collection::vec(any::<u64>(), 1..150)) {
        let mut steps = vec![Step::Mkdir("d".into()), Step::Mkdir("e".into())];
        steps.extend(numbers.into_iter().map(random_step));
        let recording = record(fresh_volume(VOLUME_SIZE).unwrap(), &steps).unwrap();
        try_recording(&text(&steps), &recording, &DEPTH);
    }
}
