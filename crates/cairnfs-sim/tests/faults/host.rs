//! The file system below the volume gets full: what is refused, what waits, and that it goes on.
//!
//! Nothing stops the volume. Changes that need space are refused, syncs fail while something waits in
//! memory, reads go on; once there is space again all goes on without another opening. Power cuts in
//! that state, and a process that ends in it, lose nothing that was promised.

use std::sync::Arc;

use cairnfs::Error;
use cairnfs::fs::{FileSystem, Options};
use cairnfs_sim::disk::{Fault, Kind, SimDisk};
use cairnfs_sim::record::{Recording, options};
use cairnfs_sim::tree::Tree;
use cairnfs_sim::workload::{Runner, Step, steps};

use crate::support::{
    Count, Told, Workload, difference, every_step, is_failure, long_truncations, random, seeds,
    verdict,
};

/// Moments of a run at which the power fails, those while what waited is written not counted, and
/// states tried of each.
const MOMENTS: usize = 4;
const STATES: usize = 5;

/// What is done when there is space again.
const AFTERWARDS: &str = "
    create after; write after 0 9000; fsync after; mkdir dir; rename after dir/after; merge;
    write dir/after 4096 20000; sync; unlink dir/after; merge; rmdir dir; sync";

/// When there is space again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogSpaceReclaimer {
    /// So many steps later.
    Behind(usize),
    /// Not before the volume is closed.
    Never,
}

struct Watch<'a> {
    fs: &'a FileSystem,
    disk: &'a SimDisk,
    runner: Runner<'a>,
    /// The tree as it was last seen.
    seen: Tree,
    refused: u64,
    /// Moments between steps.
    steps: Vec<usize>,
    /// Moments while what waited was written.
    drained: Vec<usize>,
}

impl Watch<'_> {
    /// A step while there may be no space: it is done, or refused and has changed nothing.
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
                // Zeroing and temporary files are made in steps of their own.
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

    /// There is space again: everything becomes durable, and nothing is refused any more.
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

/// Runs a workload on a disk whose space ends with the `n`-th write; `None` if there are not so many.
fn run(
    work: &Workload,
    with: &Options,
    n: u64,
    fault: Fault,
    relief: LogSpaceReclaimer,
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
            if relief == LogSpaceReclaimer::Behind(behind.saturating_sub(1)) && behind > 0 {
                watch.go_on();
                break;
            }
        }
        disk.hit()?;
        if relief != LogSpaceReclaimer::Never {
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

/// The power fails at these moments.
fn crash(recording: &Recording, moments: impl Iterator<Item = usize>) -> u64 {
    let mut cursor = recording.cursor();
    let mut states = 0;
    let mut moments: Vec<usize> = moments.collect();
    moments.sort_unstable();
    moments.dedup();
    for at in moments {
        cursor.step_to(at);
        let choices = cursor.choices(true);
        let step = choices.len().div_ceil(STATES).max(1);
        for fates in choices.iter().step_by(step) {
            let image = cursor.image(fates);
            let result = verdict(recording, &image, recording.moment(at));
            assert_eq!(result, Ok(()), "a power cut at {at}: {fates:?}");
            states += 1;
        }
    }
    states
}

/// Every step, but for an allocation that makes the file larger: refused half way, it has set times.
fn steps_at_once() -> Workload {
    let mut work = every_step();
    for step in &mut work.steps {
        if let Step::Allocate(path, at, len) = step {
            *step = Step::Reserve(path.clone(), *at, *len);
        }
    }
    work
}

/// Space ends with every `step`-th write of a workload in turn.
fn every_write(work: &Workload, with: &Options, step: usize) {
    let mut count = Count::default();
    for fault in [Fault::HolesFull, Fault::Full] {
        for relief in [
            LogSpaceReclaimer::Behind(0),
            LogSpaceReclaimer::Behind(3),
            LogSpaceReclaimer::Never,
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
fn a_full_host_stops_nothing_wherever_it_gets_full() {
    every_write(&steps_at_once(), &options(4), 1);
}

#[test]
fn a_full_host_stops_nothing_within_long_truncations() {
    every_write(&long_truncations(), &options(4), 10);
}

#[test]
fn a_full_host_stops_nothing_in_random_work() {
    for seed in seeds(2) {
        every_write(&random(seed, 80), &options(4), 5);
    }
}

#[test]
fn a_full_host_stops_no_worker() {
    let workers = Options {
        workers: true,
        ..options(4)
    };
    every_write(&steps_at_once(), &workers, 7);
}
