//! The same with worker threads: pushes and merges run concurrently with the calls. The disk events
//! then differ from run to run, so a failure has no id for a replay; the promises are the same.
//!
//! Contract: atomic

use std::time::Duration;

use cairnfs::fs::Options;
use cairnfs_sim::disk::{Fault, Kind};
use cairnfs_sim::explore::{Depth, Tally};
use cairnfs_sim::record::{Run, VOLUME_SIZE, crowded, fresh_volume, options};
use cairnfs_sim::workload::random_steps;
use cairnfs_tier::size;

use crate::support::{counted, do_steps, text, try_recording};

const DEPTH: Depth = Depth {
    states: 300,
    interrupted: 16,
    within: 6,
    used: 16,
};

fn show(what: &str, all: &Tally) {
    println!(
        "{what}: {} crash states recovered, {} distinct disks",
        all.states,
        all.disks.len()
    );
}

#[test]
fn workers_run_beside_the_calls() {
    let mut all = Tally::default();
    for seed in 0..size(4, 20) {
        let with_workers = Options {
            workers: true,
            durability_interval: Some(Duration::from_millis(1)),
            ..options(seed)
        };
        let run = Run::begin(fresh_volume(VOLUME_SIZE).unwrap(), &with_workers, 0).unwrap();
        let steps = random_steps(seed, 300);
        do_steps(&run, &steps);
        all.add(try_recording(&text(&steps), &run.end(), &DEPTH));
    }
    show("with workers", &all);
}

#[test]
fn pushes_beside_each_other_and_merges_in_threads_run_beside_the_calls() {
    let (mut all, mut most) = (Tally::default(), 0);
    let (mut contexts, mut merges) = (0, 0);
    for seed in 0..size(4, 20) {
        let run = Run::begin(fresh_volume(VOLUME_SIZE).unwrap(), &crowded(seed), 0).unwrap();
        run.disk().slow_down();
        let steps = random_steps(seed, 300);
        do_steps(&run, &steps);
        most = most.max(run.disk().most_together());
        contexts += counted(run.fs(), "contexts");
        merges += counted(run.fs(), "merges");
        all.add(try_recording(&text(&steps), &run.end(), &DEPTH));
    }
    show("with many workers", &all);
    println!("{contexts} contexts, {merges} merges, up to {most} writes at the same time");
    assert!(most > 1, "no two writes overlapped");
    assert!(merges > size(4, 20), "only the last calls merged");
}

#[test]
fn kills_while_many_workers_run() {
    let mut all = Tally::default();
    for seed in 0..size(3, 12) {
        let start = fresh_volume(VOLUME_SIZE).unwrap();
        let mut run = Run::begin(start, &crowded(seed), 0).unwrap();
        run.disk().slow_down();
        let mut told = String::new();
        for life in 0..4 {
            let steps = random_steps(seed * 10 + life, 60);
            // Not a read: after one that failed, calls may succeed that need no other one.
            let (kind, nth) = match life % 2 {
                0 => (Kind::Write, (seed * 7 + life * 13) % 70),
                _ => (Kind::Flush, (seed + life) % 8),
            };
            run.disk().plan(kind, nth, Fault::Killed);
            do_steps(&run, &steps);
            told += &format!("killed at {kind:?} {nth} of {}\n", text(&steps));
            let next = crowded(1000 + seed * 10 + life);
            run.kill(&next).unwrap_or_else(|e| panic!("{told}{e}"));
        }
        all.add(try_recording(&told, &run.end(), &DEPTH));
    }
    show("killed beside many workers", &all);
}
