//! A read fails once: only its own call fails, unless that was a merge.
//!
//! Contract: failure.read

use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs_sim::disk::{Fault, Kind, SimDisk};
use cairnfs_sim::record::{Recording, options};
use cairnfs_sim::tree::Tree;
use cairnfs_sim::workload::{Runner, Step};
use cairnfs_tier::size;

use crate::support::{
    Count, Told, Workload, difference, every_step, is_failure, long_truncations, reopen, seeds,
    sound, trees, used, verdict,
};

fn merges(fs: &FileSystem) -> u64 {
    let counters = fs.counters();
    counters.iter().find(|c| c.0 == "merges").unwrap().1
}

enum Seen {
    /// The workload has fewer reads.
    NotHit,
    Passed,
    Stopped,
}

fn run(work: &Workload, trees: &[Tree], n: u64) -> Seen {
    let disk = Arc::new(SimDisk::new(work.start.clone(), true));
    let watched = |fs: &Arc<FileSystem>| {
        disk.plan(Kind::Read, n, Fault::Error);
        let mut runner = Runner::new(fs);
        let mut steps = work.steps.iter().enumerate();
        let struck = steps.find_map(|(at, step)| {
            let before = merges(fs);
            let result = runner.run(step);
            if disk.hit().is_none() {
                assert!(!result.is_err_and(|e| is_failure(&e)), "`{step}`");
                return None;
            }
            Some((at, step, result, merges(fs) > before))
        });
        let Some((at, step, result, merged)) = struck else {
            return Seen::NotHit;
        };
        if fs.failure().is_some() {
            assert!(
                merged,
                "the volume stopped in `{step}`, which merged nothing"
            );
            assert!(fs.sync().is_err());
            return Seen::Stopped;
        }
        let tree = Tree::read(fs).unwrap();
        let known = [&trees[at], &trees[at + 1]];
        let what = difference(&tree, known[0]);
        // Zeroing first punches a hole and then fills it.
        let in_steps = matches!(step, Step::Zero(..));
        assert!(
            in_steps || known.iter().any(|t| t.is_but_for_times(&tree)),
            "`{step}` left something between: {what}"
        );
        if let Err(e) = result {
            assert!(e.to_string().contains("simulated"), "`{step}`: {e}");
            let again = runner.run(step);
            assert!(
                !again.as_ref().is_err_and(is_failure),
                "`{step}`: {again:?}"
            );
        }
        for (_, step) in steps {
            let result = runner.run(step);
            assert!(
                !result.as_ref().is_err_and(is_failure),
                "`{step}`: {result:?}"
            );
        }
        fs.sync().unwrap();
        let tree = Tree::read(fs).unwrap();
        fs.close().unwrap();
        sound(&disk.image()).unwrap();
        let again = reopen(&disk.image()).unwrap();
        assert!(again == tree, "closed: {}", difference(&again, &tree));
        Seen::Passed
    };
    let (recording, seen) = Recording::on(&disk, &options(4), watched).unwrap();
    if matches!(seen, Seen::Stopped) {
        let end = recording.moment(recording.events().len());
        assert_eq!(verdict(&recording, &disk.image(), end), Ok(()));
    }
    seen
}

/// Contract: failure.read
#[test]
fn failed_read_fails_only_its_own_call() {
    let mut count = Count::default();
    let mut work = vec![every_step(), long_truncations()];
    work.extend(seeds(1, 4).map(used));
    for work in &work {
        let trees = trees(work);
        for n in (0..).step_by(size(3, 1)) {
            let told = Told::new(format!("{}: read {n}", work.name));
            let seen = run(work, &trees, n);
            told.well();
            match seen {
                Seen::NotHit => break,
                Seen::Passed => count.add("one call failed", 1),
                Seen::Stopped => count.add("a merge stopped", 1),
            }
        }
    }
    count.print("failed reads");
}
