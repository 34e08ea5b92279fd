//! Long random workloads. Proptest shrinks a failing one to the steps that it needs.
//!
//! Contract: atomic

use cairnfs_sim::explore::Depth;
use cairnfs_sim::record::{VOLUME_SIZE, fresh_volume};
use cairnfs_sim::workload::{Step, random_names, random_step, random_steps, random_values, record};
use cairnfs_tier::{size, size_from};
use proptest::prelude::*;

use crate::support::{text, try_all, try_recording};

const DEPTH: Depth = Depth {
    states: 400,
    interrupted: 16,
    within: 6,
    used: 16,
};

/// Tries workloads that get a seed and an index. `CAIRNFS_CRASH_SEEDS` is their number,
/// `CAIRNFS_CRASH_FROM` the first seed.
#[track_caller]
fn many_seeds(what: &str, few: [usize; 2], workload: &(dyn Fn(u64, usize) -> Vec<Step> + Sync)) {
    let seeds = size_from("CAIRNFS_CRASH_SEEDS", few[0], few[1]);
    let from = size_from("CAIRNFS_CRASH_FROM", 0, 0);
    let name = format!("random {what}, seeds from {from}");
    let start = fresh_volume(VOLUME_SIZE).unwrap();
    let steps = |i: usize| (i < seeds).then(|| workload((from + i) as u64, i));
    try_all(&name, &start, 0, &steps, &DEPTH);
}

#[test]
fn random_workloads_of_many_seeds() {
    many_seeds("workloads", [12, 48], &|seed, i| {
        random_steps(seed, 40 + 60 * (i % 6))
    });
}

/// The same with steps on names and directories, about a quarter of them fsyncs.
#[test]
fn random_name_changes_of_many_seeds() {
    many_seeds("names", [12, 60], &|seed, i| {
        random_names(seed, 60 + 60 * (i % 4))
    });
}

/// The same with steps on attributes whose values are equal or have equal hashes.
#[test]
fn random_shared_values_of_many_seeds() {
    many_seeds("values", [8, 32], &|seed, i| {
        random_values(seed, 40 + 40 * (i % 4))
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: size(6, 24), max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_steps_keep_the_contract(numbers in proptest::collection::vec(any::<u64>(), 1..150)) {
        let mut steps = vec![Step::Mkdir("d".into()), Step::Mkdir("e".into())];
        steps.extend(numbers.into_iter().map(random_step));
        let recording = record(fresh_volume(VOLUME_SIZE).unwrap(), &steps).unwrap();
        try_recording(&text(&steps), &recording, &DEPTH);
    }
}
