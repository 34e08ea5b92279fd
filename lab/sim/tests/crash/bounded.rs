//! All sequences of one step, and of two and three steps those that the tier has: a sample in the
//! short one, all of two and a larger sample of three in the deep one, all of three on request.
//!
//! Contract: atomic

use cairnfs_sim::explore::Depth;
use cairnfs_sim::workload::{Bounded, base_volume};
use cairnfs_tier::size;

use crate::support::try_all;

/// One of this many sequences of three steps is tried: in the short tier, and in the deep one.
const SHARE: [u64; 2] = [3001, 127];
/// The same of two steps.
const SHARE_OF_TWO: [u64; 2] = [37, 1];

fn sequences(length: u32, share: u64, interval: u64) {
    let bounded = Bounded::new(length);
    let durable = ["", ", all durable after each step"][interval as usize];
    let (name, depth) = (format!("sequences of {length}{durable}"), Depth::default());
    try_all(
        &name,
        &base_volume().unwrap(),
        interval,
        &|i| {
            let number = i as u64 * share;
            (number < bounded.count()).then(|| bounded.sequence(number))
        },
        &depth,
    );
}

#[test]
fn sequences_of_one_and_two_steps() {
    for interval in [0, 1] {
        sequences(1, 1, interval);
        sequences(2, size(SHARE_OF_TWO[0], SHARE_OF_TWO[1]), interval);
    }
}

#[test]
fn sample_of_sequences_of_three_steps() {
    sequences(3, size(SHARE[0], SHARE[1]), 0);
}

#[test]
#[ignore = "deep: all 343,000 sequences, twice; scripts/deep sequences runs it"]
fn all_sequences_of_three_steps() {
    for interval in [0, 1] {
        sequences(3, 1, interval);
    }
}
