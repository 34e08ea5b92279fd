//! All sequences of one and two steps, and a sample of those of three steps; all of them on
//! request.
//!
//! Contract: atomic

use cairnfs_sim::explore::Depth;
use cairnfs_sim::workload::{Bounded, base_volume};

use crate::support::try_all;

/// One of this many sequences of three steps is tried.
const SHARE: u64 = 127;

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
fn all_sequences_of_one_and_two_steps() {
    for interval in [0, 1] {
        sequences(1, 1, interval);
        sequences(2, 1, interval);
    }
}

#[test]
fn sample_of_sequences_of_three_steps() {
    sequences(3, SHARE, 0);
}

#[test]
#[ignore = "long: all 343,000 sequences, twice; scripts/crash-states runs it"]
fn all_sequences_of_three_steps() {
    for interval in [0, 1] {
        sequences(3, 1, interval);
    }
}
