//! Forks of a whole tree of files: what a fork costs, what it costs others, the first write into
//! one, the difference to its origin, its publication, work beside many forks, and their removal.

mod beside;

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Description, Phases, Worker, Workload, at_least_one, at_most_1g, contents, file_name};
use crate::Result;
use crate::settings::parse_size;
use crate::target::{Open, Tree};

/// Fork a tree of files, change the forks, compare and remove them.
#[derive(Debug, Clone, clap::Args)]
pub struct Branches {
    /// Files of the tree, all in one directory.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10_000)]
    pub files: u64,

    /// Bytes of each file; suffixes K, M.
    #[arg(long, short = 's', value_name = "BYTES", default_value = "4K", value_parser = parse_size)]
    pub size: u64,

    /// Forks, made and removed one after the other, alone and again beside a thread that creates
    /// files.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub forks: u64,

    /// Files to create, alone and beside many forks.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub creates: u64,

    /// Files to change in a fork that is compared with the tree.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub changes: u64,

    /// Forks beside which files are created and synced again; 0: leave that out. Only where a fork
    /// does not copy the tree.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub many: u64,

    /// Also overwrite all files in a fork, and remove it beside a thread that creates files.
    #[arg(long)]
    pub rewrite: bool,

    /// Also read all files, of the tree and then of each fork.
    #[arg(long)]
    pub read: bool,

    /// Fork with `git worktree add`: for a target that is a directory.
    #[arg(long)]
    pub git: bool,
}

/// Files that are synced to compare rates.
const SYNCED: u64 = 200;

/// Times that a difference is computed.
const COMPARED: u64 = 10;

/// Bytes of a write into an existing file.
const BLOCK: u64 = 4096;

/// Names of ratios, and the phases whose medians they divide.
const MEDIANS: [(&str, (&str, &str)); 3] = [
    ("p50_fork_to_fsync", ("fork", "overwrite + fsync")),
    (
        "p50_first_overwrite_to_overwrite",
        ("first overwrite in a fork", "overwrite"),
    ),
    (
        "p50_create_beside_fork_to_alone",
        ("create beside forks", "create"),
    ),
];

impl Workload for Branches {
    fn describe(&self) -> Description {
        Description {
            name: "branches",
            unit: "operations",
            threads: 2,
            settings: vec![
                ("files", self.files),
                ("file_bytes", self.size),
                ("forks", self.forks),
                ("creates", self.creates),
                ("changes", self.changes),
                ("many", self.many),
                ("rewrite", u64::from(self.rewrite)),
                ("read", u64::from(self.read)),
                ("git", u64::from(self.git)),
            ],
        }
    }

    fn check(&self) -> Result<()> {
        at_least_one(&[
            ("--files", self.files),
            ("--forks", self.forks),
            ("--creates", self.creates),
            ("--changes", self.changes),
        ])?;
        at_most_1g("--size", self.size)?;
        if self.changes.max(self.forks) > self.files {
            Err("--changes and --forks cannot be more than --files".into())
        } else {
            Ok(())
        }
    }

    fn measure(&self, phases: &mut Phases<'_>) -> Result<()> {
        let tree = phases.tree(self.git)?;
        let run = Run {
            settings: self,
            tree: &*tree,
            next: AtomicU64::new(self.files),
        };
        run.fill(phases)?;
        if self.read {
            phases.run_first(1, "read", |worker| run.read(worker, None))?;
        }
        phases.run_first(1, "overwrite + fsync", |w| run.overwrite(w, true))?;
        phases.run_first(1, "overwrite", |w| run.overwrite(w, false))?;
        phases.run_first(1, "create", |w| run.create(w, self.creates))?;
        phases.meter.settle()?;
        phases.run_first(1, "fork", |w| run.fork(w, 0..self.forks))?;
        phases.run_first(1, "first overwrite in a fork", |worker| {
            run.first_overwrites(worker)
        })?;
        if tree.compares() {
            run.change(phases)?;
            phases.run_first(1, "diff", |worker| run.compare(worker))?;
        }
        if self.read {
            phases.run_first(1, "read in forks", |worker| {
                (0..self.forks).try_for_each(|fork| run.read(worker, Some(fork)))
            })?;
        }
        phases.run_first(1, "remove fork", |w| run.remove(w, 0..self.forks))?;
        if tree.compares() {
            phases.run_first(1, "publish", |worker| run.publish(worker))?;
        }
        run.fork_beside(phases)?;
        if self.rewrite {
            run.remove_beside(phases)?;
            let both = ("create beside removal", "create");
            let name = "p99_create_beside_removal_to_alone";
            phases.meter.ratio_of_latencies(name, both, |l| l.p99);
        }
        for (name, both) in MEDIANS {
            phases.meter.ratio_of_latencies(name, both, |l| l.p50);
        }
        if tree.is_constant() && self.many > 0 {
            run.many(phases)
        } else {
            Ok(())
        }
    }
}

/// A tree that is forked.
struct Run<'r> {
    settings: &'r Branches,
    tree: &'r dyn Tree,
    /// Number of the next file that is created in the tree.
    next: AtomicU64,
}

impl Run<'_> {
    fn fill(&self, phases: &mut Phases<'_>) -> Result<()> {
        let bytes = contents(self.settings.size);
        phases.run_first(1, "fill", |worker| {
            let dir = self.tree.dir(None)?;
            worker.each(0..self.settings.files, |file| {
                dir.create(&file_name(file), &bytes, false)
            })
        })?;
        self.tree.filled()?;
        phases.meter.settle()
    }

    /// Writes the first block of existing files, each timed. If `sync`, of the first files, and syncs
    /// each; else of the last files, to which nothing was written since they were made, like those
    /// of a fork.
    fn overwrite(&self, worker: &mut Worker<'_>, sync: bool) -> Result<()> {
        let (dir, bytes) = (self.tree.dir(None)?, contents(BLOCK));
        let files = self.settings.files;
        let nth = |n: u64| {
            if sync {
                n % files
            } else {
                files - 1 - n % files
            }
        };
        for file in (0..SYNCED).map(nth) {
            let file = dir.open(&file_name(file), Open::Existing)?;
            worker.tally.timed(|| {
                file.write_at(&bytes, 0)?;
                if sync { file.sync() } else { Ok(()) }
            })?;
        }
        Ok(())
    }

    /// Creates empty files in the tree, each timed.
    fn create(&self, worker: &mut Worker<'_>, files: u64) -> Result<()> {
        let dir = self.tree.dir(None)?;
        for _ in 0..files {
            let file = self.next.fetch_add(1, Ordering::Relaxed);
            let create = || dir.create(&file_name(file), &[], false);
            worker.tally.timed(create)?;
        }
        Ok(())
    }

    fn fork(&self, worker: &mut Worker<'_>, forks: std::ops::Range<u64>) -> Result<()> {
        for fork in forks {
            worker.tally.timed(|| self.tree.fork(fork))?;
        }
        Ok(())
    }

    fn remove(&self, worker: &mut Worker<'_>, forks: std::ops::Range<u64>) -> Result<()> {
        for fork in forks {
            worker.tally.timed(|| self.tree.remove(fork))?;
        }
        self.tree.freed()
    }

    /// Writes one block in each fork, which is the first change of it.
    fn first_overwrites(&self, worker: &mut Worker<'_>) -> Result<()> {
        let bytes = contents(BLOCK);
        for fork in 0..self.settings.forks {
            let dir = self.tree.dir(Some(fork))?;
            let file = dir.open(&file_name(fork), Open::Existing)?;
            worker.tally.timed(|| file.write_at(&bytes, 0))?;
        }
        Ok(())
    }

    /// Changes files of the first fork, evenly spread.
    fn change(&self, phases: &mut Phases<'_>) -> Result<()> {
        let bytes = contents(BLOCK);
        let step = self.settings.files / self.settings.changes;
        phases.run_first(1, "change", |worker| {
            let dir = self.tree.dir(Some(0))?;
            worker.each(0..self.settings.changes, |n| {
                let file = dir.open(&file_name(n * step), Open::Existing)?;
                file.write_at(&bytes, 0)
            })
        })?;
        phases.meter.settle()
    }

    /// Reads all files, of the tree or of a fork.
    fn read(&self, worker: &mut Worker<'_>, fork: Option<u64>) -> Result<()> {
        let dir = self.tree.dir(fork)?;
        let mut bytes = contents(self.settings.size);
        for file in 0..self.settings.files {
            let read = worker
                .tally
                .timed(|| dir.read(&file_name(file), &mut bytes))?;
            worker.tally.bytes += read as u64;
        }
        Ok(())
    }

    /// Publishes forks of forks onto their origins, which have not changed meanwhile.
    fn publish(&self, worker: &mut Worker<'_>) -> Result<()> {
        let (bytes, forks) = (contents(BLOCK), self.settings.forks);
        for origin in 0..forks {
            let fork = origin + forks;
            self.tree.fork(origin)?;
            self.tree.fork_again(origin, fork)?;
            let file = file_name(origin);
            let dir = self.tree.dir(Some(fork))?;
            dir.open(&file, Open::Existing)?.write_at(&bytes, 0)?;
            drop(dir);
            worker.tally.timed(|| self.tree.publish(fork, origin))?;
            self.tree.remove(origin)?;
        }
        self.tree.freed()
    }

    fn compare(&self, worker: &mut Worker<'_>) -> Result<()> {
        for _ in 0..COMPARED {
            let found = worker.tally.timed(|| self.tree.compare(0))?;
            if found < self.settings.changes {
                return Err(format!("a diff found {found} changes only").into());
            }
        }
        Ok(())
    }

    /// Rates beside many forks.
    fn many(&self, phases: &mut Phases<'_>) -> Result<()> {
        let many = 0..self.settings.many;
        phases.run_first(1, "fork many", |worker| self.fork(worker, many.clone()))?;
        phases.run_first(1, "create beside many", |w| {
            self.create(w, self.settings.creates)
        })?;
        phases.run_first(1, "overwrite + fsync beside many", |worker| {
            self.overwrite(worker, true)
        })?;
        phases.meter.settle()?;
        for (ratio, beside, alone) in [
            (
                "create_beside_many_to_alone",
                "create beside many",
                "create",
            ),
            (
                "fsync_beside_many_to_alone",
                "overwrite + fsync beside many",
                "overwrite + fsync",
            ),
        ] {
            phases.meter.ratio_of_rates(ratio, beside, alone);
        }
        phases.run_first(1, "remove many", |worker| self.remove(worker, many.clone()))
    }
}
