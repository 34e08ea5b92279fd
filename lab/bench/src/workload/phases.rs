//! The skeleton of all workloads: phases, which worker threads execute side by side, each in its
//! own directory.
//!
//! The meter starts the threads together, takes the time and adds up their counts; a workload only
//! says what one worker does.

use crate::Result;
use crate::phase::Meter;
use crate::tally::Tally;
use crate::target::{Dir, Target, Tree};

/// The phases of one run of a workload.
pub struct Phases<'t> {
    ground: Ground<'t>,
    threads: usize,
    /// Measures what is not done by workers, and sums.
    pub meter: Meter<'t>,
}

impl<'t> Phases<'t> {
    /// Creates the directories of the threads, has `prepare` fill each, and makes all durable.
    pub fn begin(
        target: &'t dyn Target,
        threads: usize,
        keep: bool,
        prepare: impl Fn(&Worker<'_>) -> Result<()>,
    ) -> Result<Self> {
        let ground = Ground {
            target,
            top: format!("cairnfs-bench-{}", std::process::id()),
            keep,
        };
        target.make_dir(&ground.top)?;
        (0..threads).try_for_each(|thread| target.make_dir(&ground.thread(thread)))?;
        for number in 0..threads {
            prepare(&Worker {
                ground: &ground,
                number,
                tally: &mut Tally::default(),
            })?;
        }
        target.sync()?;
        Ok(Self {
            ground,
            threads,
            meter: Meter::new(target),
        })
    }

    /// Whether the files are kept at the end.
    pub fn keeps(&self) -> bool {
        self.ground.keep
    }

    /// Makes a tree that can be forked whole, beside the directories of the threads.
    pub fn tree(&self, git: bool) -> Result<Box<dyn Tree + 't>> {
        self.ground.target.tree(&self.ground.top, git)
    }

    /// A phase of all threads.
    pub fn run(
        &mut self,
        name: &'static str,
        work: impl Fn(&mut Worker<'_>) -> Result<()> + Sync,
    ) -> Result<()> {
        self.run_first(self.threads, name, work)
    }

    /// A phase of the first `threads` threads only.
    pub fn run_first(
        &mut self,
        threads: usize,
        name: &'static str,
        work: impl Fn(&mut Worker<'_>) -> Result<()> + Sync,
    ) -> Result<()> {
        let ground = &self.ground;
        self.meter.threads(name, threads, |number, tally| {
            work(&mut Worker {
                ground,
                number,
                tally,
            })
        })
    }

    /// Removes the directories, unless they are kept; returns the meter.
    pub fn end(self) -> Result<Meter<'t>> {
        if !self.ground.keep {
            self.ground.target.remove_tree(&self.ground.top)?;
        }
        Ok(self.meter)
    }
}

/// The directories in which a workload works.
struct Ground<'t> {
    target: &'t dyn Target,
    top: String,
    keep: bool,
}

impl Ground<'_> {
    fn thread(&self, thread: usize) -> String {
        format!("{}/t{thread}", self.top)
    }
}

/// One thread of a phase.
pub struct Worker<'p> {
    ground: &'p Ground<'p>,
    /// Its number, from 0.
    pub number: usize,
    /// Its counts.
    pub tally: &'p mut Tally,
}

impl<'p> Worker<'p> {
    /// Opens its directory.
    pub fn dir(&self) -> Result<Box<dyn Dir + 'p>> {
        self.ground.target.dir(&self.ground.thread(self.number))
    }

    /// Opens a directory in its directory.
    pub fn subdir(&self, name: &str) -> Result<Box<dyn Dir + 'p>> {
        self.ground.target.dir(&self.path(name))
    }

    /// Creates a directory in its directory.
    pub fn make_subdir(&self, name: &str) -> Result<()> {
        self.ground.target.make_dir(&self.path(name))
    }

    /// Executes one operation for each item, and counts the operations.
    pub fn each<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut operation: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        for item in items {
            operation(item)?;
            self.tally.operations += 1;
        }
        Ok(())
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.ground.thread(self.number))
    }
}
