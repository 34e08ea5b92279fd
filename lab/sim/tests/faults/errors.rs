//! A write or flush fails, once or permanently: the volume stops, reports why, and loses nothing.
//!
//! Contract: failure.write

use std::sync::Arc;

use cairnfs::Error;
use cairnfs::fs::{FileSystem, Options};
use cairnfs_sim::disk::{Fault, Hit, Kind, SimDisk};
use cairnfs_sim::record::{Recording, options};
use cairnfs_sim::tree::Tree;
use cairnfs_sim::workload::{Runner, Step};
use cairnfs_tier::size;

use crate::support::{
    Count, Told, Workload, difference, every_step, is_failure, long_truncations, random, seeds,
    trees, verdict,
};

/// Number of crash states tried after a fault.
const STATES: usize = 6;

/// Observations of a run with a fault.
struct Seen {
    hit: Option<Hit>,
    recording: Recording,
}

fn makes_durable(step: &Step) -> bool {
    matches!(
        step,
        Step::Fsync(_) | Step::Fdatasync(_) | Step::Sync | Step::Merge
    )
}

/// Whether a step may find nothing to do: a rename to another name of the same file, a hole in an
/// empty file, an allocation of allocated space.
fn may_do_nothing(step: &Step) -> bool {
    matches!(
        step,
        Step::Rename(..)
            | Step::Exchange(..)
            | Step::Whiteout(..)
            | Step::Punch(..)
            | Step::Allocate(..)
            | Step::Reserve(..)
    )
}

struct Watch<'a> {
    fs: &'a FileSystem,
    trees: &'a [Tree],
    fault: Fault,
}

impl Watch<'_> {
    /// Checks the volume after the step in which the fault was injected.
    fn struck(&self, steps: &[Step], at: usize, runner: &mut Runner<'_>, error: bool) {
        let step = &steps[at];
        assert!(error || !makes_durable(step), "`{step}` was acknowledged");
        let failure = self.fs.failure().unwrap();
        assert!(failure.to_string().contains("simulated"), "{failure}");
        let struck = self.reads(at, step);
        for step in &steps[at + 1..] {
            let result = runner.run(step);
            match result {
                Ok(()) => assert!(may_do_nothing(step), "`{step}` was done"),
                Err(Error::Stopped(cause)) => assert!(cause.to_string().contains("simulated")),
                // Look-ups fail too once the disk is gone.
                Err(e) => assert!(
                    !is_failure(&e) || self.fault == Fault::Gone,
                    "`{step}`: {e}"
                ),
            }
        }
        assert!(self.reads(at, step) == struck, "something was done later");
        assert!(
            self.fs
                .sync()
                .unwrap_err()
                .to_string()
                .contains("simulated")
        );
        assert!(self.fs.merge().is_err());
    }

    /// Checks that the readable tree is the one before or after the step.
    fn reads(&self, at: usize, step: &Step) -> Option<Tree> {
        if self.fault == Fault::Gone {
            return None;
        }
        let tree = Tree::read(self.fs).unwrap();
        let known = [&self.trees[at], &self.trees[at + 1]];
        // Zeroing first punches a hole and then fills it.
        let in_steps = matches!(step, Step::Zero(..));
        assert!(
            in_steps || known.iter().any(|t| t.is_but_for_times(&tree)),
            "`{step}` left something between: {}",
            difference(&tree, known[0])
        );
        Some(tree)
    }
}

/// Runs a workload whose `n`-th call of a kind fails.
fn run(work: &Workload, trees: &[Tree], kind: Kind, n: u64, fault: Fault) -> Seen {
    let disk = Arc::new(SimDisk::new(work.start.clone(), true));
    let (recording, hit) = Recording::on(&disk, &options(4), |fs| {
        disk.plan(kind, n, fault);
        let mut runner = Runner::new(fs);
        let watch = Watch { fs, trees, fault };
        for (at, step) in work.steps.iter().enumerate() {
            let result = runner.run(step);
            match disk.hit() {
                // Failing reads have their own test.
                Some(hit) if hit.kind == Kind::Read => return Some(hit),
                Some(hit) => {
                    watch.struck(&work.steps, at, &mut runner, result.is_err());
                    assert!(fs.close().is_err());
                    return Some(hit);
                }
                None => assert!(!result.is_err_and(|e| is_failure(&e)), "`{step}`"),
            }
        }
        None
    })
    .unwrap();
    let seen = Seen { hit, recording };
    if hit.is_some_and(|h| h.kind != Kind::Read) {
        let end = seen.recording.moment(seen.recording.events().len());
        let kept = verdict(&seen.recording, &disk.image(), end);
        assert_eq!(kept, Ok(()), "killed after the fault");
    }
    seen
}

/// Makes the power fail after the fault: each unflushed write survives completely, in part, or not
/// at all.
fn crash(recording: &Recording) -> u64 {
    let mut cursor = recording.cursor();
    let end = recording.events().len();
    cursor.step_to(end);
    let choices = cursor.choices(true);
    let step = choices.len().div_ceil(STATES).max(1);
    let mut states = 0;
    for fates in choices.iter().step_by(step) {
        let image = cursor.image(fates);
        let result = verdict(recording, &image, recording.moment(end));
        assert_eq!(result, Ok(()), "a power cut after the fault: {fates:?}");
        states += 1;
    }
    states
}

/// Makes every call of a workload fail once.
fn every_call(work: &Workload, kind: Kind, step: usize, count: &mut Count) {
    let trees = trees(work);
    for fault in [Fault::Error, Fault::Gone] {
        for n in (0..).step_by(step) {
            let told = format!("{}: {kind:?} {n} {fault:?}", work.name);
            let watched = Told::new(told);
            let seen = run(work, &trees, kind, n, fault);
            let Some(hit) = seen.hit else {
                watched.well();
                break;
            };
            count.add((fault, hit.kind), 1);
            if n % 4 == 0 && hit.kind != Kind::Read {
                count.add("crash states", crash(&seen.recording));
            }
            watched.well();
        }
    }
}

/// Contract: failure.write
#[test]
fn failed_write_or_flush_stops_volume_at_every_call() {
    let mut count = Count::default();
    every_call(&every_step(), Kind::Any, size(2, 1), &mut count);
    count.print("every step");
}

#[test]
fn failed_call_during_long_truncation_stops_volume() {
    let mut count = Count::default();
    every_call(&long_truncations(), Kind::Write, size(10, 1), &mut count);
    every_call(&long_truncations(), Kind::Flush, size(2, 1), &mut count);
    count.print("long truncations");
}

#[test]
fn failed_call_in_random_workload_stops_volume() {
    let mut count = Count::default();
    for seed in seeds(1, 3) {
        let work = random(seed, 120);
        every_call(&work, Kind::Write, size(5, 3), &mut count);
        every_call(&work, Kind::Flush, 3, &mut count);
    }
    count.print("random work");
}

#[test]
fn failed_call_in_worker_stops_volume() {
    let work = every_step();
    let mut count = Count::default();
    let workers = Options {
        workers: true,
        ..options(4)
    };
    for n in (0..60).step_by(4) {
        let disk = Arc::new(SimDisk::new(work.start.clone(), true));
        let (recording, ()) = Recording::on(&disk, &workers, |fs| {
            disk.plan(Kind::Write, n, Fault::Error);
            let mut runner = Runner::new(fs);
            for step in &work.steps {
                let before = fs.failure().is_some();
                let result = runner.run(step);
                let acknowledged = before && result.is_ok();
                assert!(!acknowledged || may_do_nothing(step), "`{step}` was done");
            }
            // No worker runs after the close.
            assert_eq!(fs.close().is_err(), disk.hit().is_some());
            assert_eq!(fs.failure().is_some(), disk.hit().is_some());
        })
        .unwrap();
        if disk.hit().is_some() {
            let end = recording.moment(recording.events().len());
            assert_eq!(verdict(&recording, &disk.image(), end), Ok(()), "{n}");
            count.add("failed writes", crash(&recording).min(1));
        }
    }
    count.print("with workers");
}
