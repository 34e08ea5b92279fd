//! A process is killed, and later the power fails: what the dead process left in the disk's cache
//! must be durable before a later process builds on it.
//!
//! Contract: durable.fsync, durable.opening

use cairnfs_sim::disk::{Fault, Kind};
use cairnfs_sim::explore::Depth;
use cairnfs_sim::record::{Run, VOLUME_SIZE, fresh_volume, options};
use cairnfs_sim::workload::{Step, random_steps, steps};
use cairnfs_tier::size;

use crate::support::{do_steps, try_recording};

const DEPTH: Depth = Depth {
    states: 400,
    interrupted: 8,
    within: 8,
    used: 8,
};

/// Kills the process at the `nth` write or flush of `last`; other processes continue with `after`.
/// Returns whether `last` had so many calls.
fn die_in(last: Step, nth: u64, before: &[Step], after: &[Step]) -> bool {
    let seed = |life: u64| options(100 + life);
    let mut run = Run::begin(fresh_volume(VOLUME_SIZE).unwrap(), &seed(0), 0).unwrap();
    do_steps(&run, before);
    let calls = run.disk().calls();
    run.disk().plan(Kind::Any, nth, Fault::Killed);
    do_steps(&run, std::slice::from_ref(&last));
    let died = run.disk().calls() - calls > nth;
    run.kill(&seed(1)).unwrap();
    do_steps(&run, after);
    run.kill(&seed(2)).unwrap();
    do_steps(&run, &steps("create last; fsync last").unwrap());
    let what = format!("killed at call {nth} of `{last}`");
    try_recording(&what, &run.end(), &DEPTH);
    died
}

#[test]
fn kill_at_every_call_of_a_sync() {
    let before = steps("create f; write f 0 9000; sync; mkdir d; create d/g; write f 4096 4096");
    let after = steps("write f 0 100; fsync f; rename f d/g; sync").unwrap();
    let mut nth = 0;
    while die_in(Step::Sync, nth, before.as_ref().unwrap(), &after) {
        nth += 1;
    }
    assert!(nth >= 4, "a sync of {nth} calls");
}

#[test]
fn kill_at_every_call_of_a_merge() {
    let before =
        steps("create f; write f 0 20000; setxattr f a 9000; sync; merge; truncate f 5000");
    let after = steps("create g; write g 0 30000; fsync g; merge; unlink f; sync").unwrap();
    let mut nth = 0;
    while die_in(Step::Merge, nth, before.as_ref().unwrap(), &after) {
        nth += 1;
    }
    assert!(nth >= 8, "a merge of {nth} calls");
}

#[test]
fn kill_between_random_steps() {
    for seed in 0..size(3, 12) {
        let mut run = Run::begin(fresh_volume(VOLUME_SIZE).unwrap(), &options(seed), 0).unwrap();
        for life in 0..4 {
            do_steps(&run, &random_steps(seed * 10 + life, 40));
            run.kill(&options(1000 + seed * 10 + life)).unwrap();
        }
        try_recording(&format!("seed {seed}"), &run.end(), &DEPTH);
    }
}
