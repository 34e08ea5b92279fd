//! All free space is discarded between the calls and concurrently with them. A discarded block of
//! the simulated disk reads as bytes that no call wrote, so discarding a block that is in use, or
//! may be in use after a power failure, is detected.
//!
//! Contract: atomic

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cairnfs::fs::Options;
use cairnfs_sim::explore::Depth;
use cairnfs_sim::record::{Run, VOLUME_SIZE, fresh_volume, options};
use cairnfs_sim::workload::{Runner, random_steps};
use cairnfs_tier::size;

use crate::support::{text, try_recording};

const DEPTH: Depth = Depth {
    states: 100,
    interrupted: 8,
    within: 4,
    used: 8,
};

fn run(seed: u64, options: &Options, work: impl FnOnce(&Run)) {
    let run = Run::begin(fresh_volume(VOLUME_SIZE).unwrap(), options, 0).unwrap();
    work(&run);
    let steps = random_steps(seed, 120);
    let tally = try_recording(&text(&steps), &run.end(), &DEPTH);
    println!("seed {seed}: {} crash states recovered", tally.states);
}

#[test]
fn trim_between_calls_keeps_used_blocks() {
    for seed in 0..size(2, 6) {
        run(seed, &options(seed), |run| {
            let mut runner = Runner::new(run.fs());
            for (n, step) in random_steps(seed, 120).iter().enumerate() {
                // POSIX allows these errors.
                let _ = runner.run(step);
                if n % 8 == 0 {
                    assert!(run.fs().trim().unwrap() > 0);
                }
            }
        });
    }
}

#[test]
fn trim_during_calls_keeps_used_blocks() {
    for seed in 0..size(2, 4) {
        let workers = Options {
            workers: true,
            ..options(seed)
        };
        run(seed, &workers, |run| {
            let done = AtomicBool::new(false);
            thread::scope(|scope| {
                let trims = scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        run.fs().trim().unwrap();
                    }
                });
                let mut runner = Runner::new(run.fs());
                for step in random_steps(seed, 120) {
                    let _ = runner.run(&step);
                }
                done.store(true, Ordering::Relaxed);
                trims.join().unwrap();
            });
        });
    }
}
