//! The cost of an fsync of a directory: after many names were added, and after some of them were
//! deleted, evenly spread. The synced sums also contain what the target already wrote while names
//! were added or deleted.

use super::{Description, Phases, Workload, at_least_one, file_name};
use crate::Result;

/// Sync a directory after many names were added, and after some were deleted.
#[derive(Debug, Clone, clap::Args)]
pub struct Dirfsync {
    /// Empty files to create in the directory.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub adds: u64,

    /// Files to delete after that.
    #[arg(long, value_name = "D", default_value_t = 1000)]
    pub deletes: u64,
}

impl Workload for Dirfsync {
    fn describe(&self) -> Description {
        Description {
            name: "dirfsync",
            unit: "calls",
            threads: 1,
            settings: vec![("adds", self.adds), ("deletes", self.deletes)],
        }
    }

    fn check(&self) -> Result<()> {
        at_least_one(&[("--adds", self.adds), ("--deletes", self.deletes)])?;
        if self.deletes > self.adds {
            Err("--deletes cannot be more than --adds".into())
        } else {
            Ok(())
        }
    }

    fn measure(&self, phases: &mut Phases<'_>) -> Result<()> {
        phases.run("add", |worker| {
            let dir = worker.dir()?;
            worker.each(0..self.adds, |file| {
                dir.create(&file_name(file), &[], false)
            })
        })?;
        sync_dir("fsync after adds", phases)?;
        phases.meter.both("adds synced");
        phases.meter.sync()?;
        phases.run("delete", |worker| {
            let dir = worker.dir()?;
            worker.each(self.deleted(), |file| dir.remove(&file_name(file)))
        })?;
        sync_dir("fsync after deletes", phases)?;
        phases.meter.both("deletes synced");
        Ok(())
    }
}

fn sync_dir(name: &'static str, phases: &mut Phases<'_>) -> Result<()> {
    phases.run(name, |worker| {
        let dir = worker.dir()?;
        worker.tally.timed(|| dir.sync())
    })
}

impl Dirfsync {
    /// The deleted files, evenly spread.
    fn deleted(&self) -> impl Iterator<Item = u64> {
        let step = self.adds / self.deletes;
        (0..self.deletes).map(move |n| n * step)
    }
}
