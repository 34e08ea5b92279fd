//! All sequences of one step, and of two and three steps those that the tier has: a sample in the
//! short one, all of two and a larger sample of three in the deep one. `scripts/crash-states` takes another
//! sample of three each time, or all.
//!
//! Contract: atomic

use cairnfs_sim::explore::Depth;
use cairnfs_sim::workload::{Bounded, base_volume};
use cairnfs_tier::{size, size_from};

use crate::support::try_all;

/// One of this many sequences of three steps is tried: in the short tier, and in the deep one.
const SHARE: [u64; 2] = [3001, 127];
/// The same of two steps.
const SHARE_OF_TWO: [u64; 2] = [37, 1];

/// Tries one of `share` sequences of so many steps, the first of them being `from`.
fn sequences(length: u32, (share, from): (u64, u64), interval: u64) {
    let bounded = Bounded::new(length);
    let durable = ["", ", all durable after each step"][interval as usize];
    let (name, depth) = (format!("sequences of {length}{durable}"), Depth::default());
    try_all(
        &name,
        &base_volume().unwrap(),
        interval,
        &|i| {
            let number = i as u64 * share + from;
            (number < bounded.count()).then(|| bounded.sequence(number))
        },
        &depth,
    );
}

#[test]
fn sequences_of_one_and_two_steps() {
    for interval in [0, 1] {
        sequences(1, (1, 0), interval);
        sequences(2, (size(SHARE_OF_TWO[0], SHARE_OF_TWO[1]), 0), interval);
    }
}

#[test]
fn sample_of_sequences_of_three_steps() {
    let share = size(SHARE[0], SHARE[1]);
    let from: u64 = size_from("CAIRNFS_SEQUENCES_FROM", 0, 0);
    sequences(3, (share, from % share), 0);
}

#[test]
#[ignore = "deep: all 343,000 sequences, twice; scripts/crash-states --all-sequences runs it"]
fn all_sequences_of_three_steps() {
    for interval in [0, 1] {
        sequences(3, (1, 0), interval);
    }
}
