//! Merges in steps and recoveries with little memory: whichever part of the log is in the index
//! when the power fails, replaying the log over it gives the promised state.

use cairnfs::fs::{Options, Pressure};
use cairnfs_sim::explore::Depth;
use cairnfs_sim::record::{VOLUME_SIZE, fresh_volume, options, pressed};
use cairnfs_sim::workload::{random_steps, record_as, steps};
use cairnfs_tier::size;

use crate::support::{THOROUGH, try_each, try_recording};

const DEPTH: Depth = Depth {
    states: 300,
    interrupted: 4,
    within: 8,
    used: 16,
};

fn one_key_at_a_time() -> Options {
    Options {
        pressure: Some(Pressure::steps(0, 1)),
        ..options(4)
    }
}

/// Tries a history on an empty volume, with merges and replays that handle one key at a time.
pub fn history_in_steps(text: &str) {
    let start = fresh_volume(VOLUME_SIZE).unwrap();
    let recording = record_as(start, &steps(text).unwrap(), &one_key_at_a_time(), 0).unwrap();
    try_recording(text, &recording, &THOROUGH);
}

/// The log first puts blocks 9 to 11 into one extent, then parts of them into others. When the
/// power fails, a step of a merge has brought the parts into the index.
#[test]
fn extents_split_by_a_later_record() {
    history_in_steps(
        "create f; write f 36864 12288; fsync f; write f 28672 12288; fsync f; create g; create h; \
         sync; merge",
    );
}

#[test]
fn extents_joined_by_a_later_record() {
    history_in_steps(
        "create f; write f 0 40960; sync; write f 8192 4096; fsync f; truncate f 8192; fsync f; \
         write f 8192 8192; fsync f; unlink f; create f; write f 0 20000; sync; merge",
    );
}

#[test]
fn names_moved_between_merge_steps() {
    history_in_steps(
        "mkdir d; mkdir e; create d/a; sync; rename d/a e/b; fsync e/b; create d/a; link d/a e/c; \
         fsync d; rename e/b d/b; sync; merge; unlink d/a; sync; merge",
    );
}

#[test]
fn workloads_with_merges_in_steps() {
    try_each("workloads, merges in steps", size(20, 40), &DEPTH, &|i| {
        let steps = random_steps(7000 + i as u64, 30 + 20 * (i % 4));
        let start = fresh_volume(VOLUME_SIZE).unwrap();
        (
            record_as(start, &steps, &pressed(2 * i as u64), 0).unwrap(),
            steps,
        )
    });
}
