//! The host gets full: which requests are refused, what stays in memory, and how the volume
//! recovers.
//!
//! Lack of space does not stop the volume. Changes that need space are refused, syncs fail while
//! data waits in memory, reads continue; once there is space again, everything continues without a
//! remount. Power failures in that state, and a process that ends in it, lose nothing that was
//! promised.
//!
//! Contract: failure.host

use std::sync::Arc;

use cairnfs::Error;
use cairnfs::fs::{FileSystem, Options};
use cairnfs_sim::disk::{Fault, Kind, SimDisk};
use cairnfs_sim::record::{Recording, options};
use cairnfs_sim::tree::Tree;
use cairnfs_sim::workload::{Runner, Step, steps};
use cairnfs_tier::size;

use crate::support::{
    Count, Told, Workload, difference, every_step, is_failure, long_truncations, random, seeds,
    verdict,
};

/// Number of moments of a run at which the power fails, not counting those while the waiting data
/// is written, and number of states tried at each in each tier.
const MOMENTS: usize = 4;
const STATES: [usize; 2] = [2, 5];

/// Steps to run once there is space again.
const AFTERWARDS: &str = "
    create after; write after 0 9000; fsync after; mkdir dir; rename after dir/after; merge;
    write dir/after 4096 20000; sync; unlink dir/after; merge; rmdir dir; sync";

/// When the host has space again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpaceReturns {
    /// After this many steps.
    Behind(usize),
    /// Not before the volume is closed.
    Never,
}

struct Watch<'a> {
    fs: &'a FileSystem,
    disk: &'a SimDisk,
    runner: Runner<'a>,
    /// The tree after the last step.
    seen: Tree,
    refused: u64,
    /// Moments between steps, in events.
    steps: Vec<usize>,
    /// Moments while the waiting data was written, in events.
    drained: Vec<usize>,
}

impl Watch<'_> {
    /// Runs a step while there may be no space: it succeeds, or is refused and changes nothing.
    fn step(&mut self, step: &Step) {
        let result = self.runner.run(step);
        assert!(
            self.fs.failure().is_none(),
            "`{step}`: {:?}",
            self.fs.failure()
        );
        let tree = Tree::read(self.fs).unwrap();
        match &result {
            Err(e) if no_space(e) => {
                self.refused += 1;
                // Zeroing and temporary files consist of several calls.
                let whole = !matches!(step, Step::Zero(..) | Step::Tmpfile(_));
                assert!(
                    !whole || tree.is_but_for_times(&self.seen),
                    "`{step}` was refused and left {}",
                    difference(&tree, &self.seen)
                );
            }
            Err(e) => assert!(!is_failure(e), "`{step}`: {e}"),
            Ok(()) => {}
        }
        self.seen = tree;
        self.steps.push(self.disk.recorded());
    }

    /// Once there is space again, everything becomes durable and nothing is refused.
    fn go_on(&mut self) {
        self.disk.mend();
        let before = self.disk.recorded();
        self.fs.sync().unwrap();
        self.drained.extend(before..self.disk.recorded());
        let tree = Tree::read(self.fs).unwrap();
        assert!(tree.is_but_for_times(&self.seen));
        for step in steps(AFTERWARDS).unwrap() {
            self.runner.run(&step).unwrap();
        }
        assert_eq!(held(self.fs), 0);
    }
}

fn no_space(error: &Error) -> bool {
    matches!(error.cause(), Error::NoSpace | Error::HostFull { .. })
}

/// Bytes that wait in memory.
fn held(fs: &FileSystem) -> u64 {
    let counters = fs.counters();
    counters
        .iter()
        .find(|(name, _)| *name == "held_bytes")
        .unwrap()
        .1
}

/// Runs a workload on a disk whose space ends with the `n`-th write; `None` if there are fewer
/// writes.
fn run(
    work: &Workload,
    with: &Options,
    n: u64,
    fault: Fault,
    relief: SpaceReturns,
) -> Option<[u64; 3]> {
    let disk = Arc::new(SimDisk::new(work.start.clone(), true));
    let (recording, seen) = Recording::on(&disk, with, |fs| {
        disk.plan(Kind::Write, n, fault);
        let mut watch = Watch {
            fs,
            disk: &disk,
            runner: Runner::new(fs),
            seen: Tree::read(fs).unwrap(),
            refused: 0,
            steps: Vec::new(),
            drained: Vec::new(),
        };
        let mut behind = 0;
        let mut waited = 0;
        for step in &work.steps {
            watch.step(step);
            waited = waited.max(held(fs));
            behind += usize::from(disk.hit().is_some());
            if relief == SpaceReturns::Behind(behind.saturating_sub(1)) && behind > 0 {
                watch.go_on();
                break;
            }
        }
        disk.hit()?;
        if relief != SpaceReturns::Never {
            watch.go_on();
            fs.close().unwrap();
        } else {
            let synced = fs.sync();
            assert_eq!(synced.is_err(), held(fs) > 0, "{synced:?}");
            let closed = fs.close();
            assert!(closed.is_ok() || no_space(&closed.unwrap_err()));
        }
        let few = watch.steps.len().div_ceil(MOMENTS).max(1);
        let mut cuts = watch.drained;
        cuts.extend(watch.steps.into_iter().step_by(few));
        Some((watch.refused, waited, cuts))
    })
    .unwrap();
    let (refused, waited, cuts) = seen?;
    let end = recording.events().len();
    let left = verdict(&recording, &disk.image(), recording.moment(end));
    assert_eq!(left, Ok(()), "at the end");
    let states = crash(&recording, cuts.into_iter().chain([end]));
    Some([refused, u64::from(waited > 0), states])
}

/// Makes the power fail at these moments.
fn crash(recording: &Recording, moments: impl Iterator<Item = usize>) -> u64 {
    let mut cursor = recording.cursor();
    let mut states = 0;
    let mut moments: Vec<usize> = moments.collect();
    moments.sort_unstable();
    moments.dedup();
    for at in moments {
        cursor.step_to(at);
        let choices = cursor.choices(true);
        let step = choices.len().div_ceil(size(STATES[0], STATES[1])).max(1);
        for fates in choices.iter().step_by(step) {
            let image = cursor.image(fates);
            let result = verdict(recording, &image, recording.moment(at));
            assert_eq!(result, Ok(()), "a power cut at {at}: {fates:?}");
            states += 1;
        }
    }
    states
}

/// Every step except an allocation that extends the file: if refused half way, it has set times.
fn steps_at_once() -> Workload {
    let mut work = every_step();
    for step in &mut work.steps {
        if let Step::Allocate(path, at, len) = step {
            *step = Step::Reserve(path.clone(), *at, *len);
        }
    }
    work
}

/// Makes space end with every `step`-th write of a workload in turn.
fn every_write(work: &Workload, with: &Options, step: usize) {
    let mut count = Count::default();
    for fault in [Fault::HolesFull, Fault::Full] {
        for relief in [
            SpaceReturns::Behind(0),
            SpaceReturns::Behind(3),
            SpaceReturns::Never,
        ] {
            for n in (0..).step_by(step) {
                let told = Told::new(format!("{}: write {n}, {fault:?}, {relief:?}", work.name));
                let seen = run(work, with, n, fault, relief);
                told.well();
                let Some([refused, waited, states]) = seen else {
                    break;
                };
                count.add((fault, "runs"), 1);
                count.add((fault, "refused"), refused);
                count.add((fault, "writes waited"), waited);
                count.add("crash states", states);
            }
        }
    }
    count.print(&work.name);
}

#[test]
fn full_host_does_not_stop_volume_at_any_write() {
    every_write(&steps_at_once(), &options(4), size(3, 1));
}

#[test]
fn full_host_does_not_stop_volume_in_long_truncations() {
    every_write(&long_truncations(), &options(4), size(60, 10));
}

#[test]
fn full_host_does_not_stop_volume_in_random_workload() {
    for seed in seeds(1, 2) {
        every_write(&random(seed, 80), &options(4), size(15, 5));
    }
}

#[test]
fn full_host_does_not_stop_workers() {
    let workers = Options {
        workers: true,
        ..options(4)
    };
    every_write(&steps_at_once(), &workers, 7);
}
