//! The cost of an fsync of a directory: after many names were added, and after some of them were
//! deleted, evenly spread. The synced sums also contain what the target already wrote while names
//! were added or deleted.

use super::{Ground, Workload, at_least_one, file_name};
use crate::Result;
use crate::phase::Meter;

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
    fn name(&self) -> &'static str {
        "dirfsync"
    }

    fn unit(&self) -> &'static str {
        "calls"
    }

    fn threads(&self) -> usize {
        1
    }

    fn settings(&self) -> Vec<(&'static str, u64)> {
        vec![("adds", self.adds), ("deletes", self.deletes)]
    }

    fn check(&self) -> Result<()> {
        at_least_one(&[("--adds", self.adds), ("--deletes", self.deletes)])?;
        match self.deletes > self.adds {
            true => Err("--deletes cannot be more than --adds".into()),
            false => Ok(()),
        }
    }

    fn prepare(&self, _: &Ground<'_>) -> Result<()> {
        Ok(())
    }

    fn measure(&self, ground: &Ground<'_>, meter: &mut Meter<'_>) -> Result<()> {
        meter.threads("add", 1, |thread, tally| {
            let dir = ground.dir(thread)?;
            (0..self.adds).try_for_each(|file| dir.create(&file_name(file), &[], false))?;
            tally.operations += self.adds;
            Ok(())
        })?;
        sync_dir("fsync after adds", ground, meter)?;
        meter.both("adds synced");
        meter.sync()?;
        meter.threads("delete", 1, |thread, tally| {
            let dir = ground.dir(thread)?;
            self.deleted()
                .try_for_each(|file| dir.remove(&file_name(file)))?;
            tally.operations += self.deletes;
            Ok(())
        })?;
        sync_dir("fsync after deletes", ground, meter)?;
        meter.both("deletes synced");
        Ok(())
    }
}

fn sync_dir(name: &'static str, ground: &Ground<'_>, meter: &mut Meter<'_>) -> Result<()> {
    meter.threads(name, 1, |thread, tally| {
        let dir = ground.dir(thread)?;
        tally.timed(|| dir.sync())
    })?;
    Ok(())
}

impl Dirfsync {
    /// The deleted files, evenly spread.
    fn deleted(&self) -> impl Iterator<Item = u64> {
        let step = self.adds / self.deletes;
        (0..self.deletes).map(move |n| n * step)
    }
}
