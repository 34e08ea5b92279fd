//! The same with worker threads: pushes and merges run concurrently with the calls. The disk events
//! then differ from run to run, so a failure has no id for a replay; the promises are the same.

use std::time::Duration;

use cairnfs::fs::Options;
use cairnfs_sim::explore::{Depth, Tally};
use cairnfs_sim::record::{Run, VOLUME_SIZE, fresh_volume, options};
use cairnfs_sim::workload::{Runner, random_steps};

use crate::support::{text, try_recording};

const DEPTH: Depth = Depth {
    states: 300,
    interrupted: 16,
    within: 6,
    used: 16,
};

#[test]
fn workers_run_beside_the_calls() {
    let mut all = Tally::default();
    for seed in 0..20 {
        let with_workers = Options {
            workers: true,
            durability_interval: Some(Duration::from_millis(1)),
            ..options(seed)
        };
        let run = Run::begin(fresh_volume(VOLUME_SIZE).unwrap(), &with_workers, 0).unwrap();
        let steps = random_steps(seed, 300);
        let mut runner = Runner::new(run.fs());
        for step in &steps {
            // POSIX allows these errors.
            let _ = runner.run(step);
        }
        all.add(try_recording(&text(&steps), &run.end(), &DEPTH));
    }
    println!(
        "with workers: {} crash states recovered, {} distinct disks",
        all.states,
        all.disks.len()
    );
}
