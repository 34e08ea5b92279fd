//! The workloads, one module each, and the common sequence that runs all of them.
//!
//! A workload works in its own directory, in which each thread has one. It defines what a thread
//! creates before the clock starts, and its phases. Creating the directories, threads, timing,
//! opening, cleaning up and closing are common to all (`phases`).

mod ageing;
mod branches;
mod dirfsync;
mod fsmark;
mod fsync;
mod maildir;
mod mixed;
mod neighbour;
mod phases;
mod xattr;

pub use ageing::Ageing;
pub use branches::Branches;
pub use dirfsync::Dirfsync;
pub use fsmark::Fsmark;
pub use fsync::Fsync;
pub use maildir::Maildir;
pub use mixed::Mixed;
pub use neighbour::Neighbour;
pub use xattr::Xattr;

use std::sync::atomic::{AtomicBool, Ordering};

use crate::Result;
use crate::phase::{Meter, total};
use crate::report::Report;
use crate::settings::Place;
use crate::target::{self, Target};

use phases::{Phases, Worker};

/// What a report says of a workload, and its threads.
#[derive(Debug, Clone)]
pub struct Description {
    /// Name of the workload.
    pub name: &'static str,
    /// Unit of its operations, in the plural.
    pub unit: &'static str,
    /// Number of threads with a directory.
    pub threads: usize,
    /// Its settings.
    pub settings: Vec<(&'static str, u64)>,
}

/// A workload with its settings.
pub trait Workload {
    /// Describes it.
    fn describe(&self) -> Description;

    /// Refuses invalid settings.
    ///
    /// # Errors
    /// A text that names the invalid setting.
    fn check(&self) -> Result<()>;

    /// Creates what one thread needs before the clock starts; the caller then makes it durable.
    fn prepare(&self, _worker: &Worker<'_>) -> Result<()> {
        Ok(())
    }

    /// Executes the workload, phase by phase.
    ///
    /// # Errors
    /// Errors of the target, or lost files or data.
    fn measure(&self, phases: &mut Phases<'_>) -> Result<()>;

    /// Whether it closes the target and opens it again.
    fn reopens(&self) -> bool {
        false
    }

    /// Number of files that the workload both creates and removes, if it measures that: closing the
    /// target is then measured too, and a line contains the sum of all phases.
    fn lives(&self) -> Option<u64> {
        None
    }
}

/// Name of the sum of all phases.
pub const ALL: &str = "all, until synced";

/// Runs a workload, and returns its figures.
///
/// # Errors
/// Invalid settings, or the first failure of the target. Files made until then stay in a separate
/// directory of the target.
pub fn measure(workload: &dyn Workload, place: &Place) -> Result<Report> {
    place.check()?;
    workload.check()?;
    let target = target::open(place)?;
    // A target that the benchmark did not open is not closed by it either.
    let closes = place.volume().is_some();
    measure_on(workload, &*target, place.keep, closes)
}

/// Runs a workload on an open target; closes it, and measures the close if `closes`.
pub fn measure_on(
    workload: &dyn Workload,
    target: &dyn Target,
    keep: bool,
    closes: bool,
) -> Result<Report> {
    workload.check()?;
    if workload.reopens() && !target.can_reopen() {
        return Err(NOT_REOPENED.into());
    }
    let threads = workload.describe().threads;
    let mut phases = Phases::begin(target, threads, keep, |worker| workload.prepare(worker))?;
    workload.measure(&mut phases)?;
    let mut meter = phases.end()?;
    if workload.lives().is_some() && closes {
        meter.once("close", || target.close())?
    } else {
        target.close()?
    }
    Ok(report(workload, target, meter))
}

const NOT_REOPENED: &str = "--cold closes and opens what it measures, which a directory does not allow: use \
--target lib:..., or `cairnfs-bench compare`, which mounts it";

fn report(workload: &dyn Workload, target: &dyn Target, meter: Meter<'_>) -> Report {
    let (mut phases, ratios) = meter.finish();
    if let Some(files) = workload.lives() {
        // The creation and removal of a file together count as one operation.
        let all = total(ALL, files, &phases);
        phases.push(all);
    }
    let about = workload.describe();
    Report {
        workload: about.name,
        target: target.name().to_owned(),
        interface: target.interface(),
        settings: about.settings,
        unit: about.unit,
        phases,
        ratios,
    }
}

/// Stops what other threads do when dropped, so also when this one fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the name of a thread's file.
fn file_name(file: u64) -> String {
    format!("file{file:08}")
}

/// Returns data to write; not zeros because a file system might not store them.
fn contents(size: u64) -> Vec<u8> {
    (0..size).map(|i| (i % 251) as u8).collect()
}

/// Refuses a setting of 0.
fn at_least_one(settings: &[(&str, u64)]) -> Result<()> {
    match settings.iter().find(|(_, value)| *value == 0) {
        Some((name, _)) => Err(format!("{name} must be at least 1").into()),
        None => Ok(()),
    }
}

/// Refuses sizes that may not fit in memory, which holds the data once.
fn at_most_1g(what: &str, bytes: u64) -> Result<()> {
    if bytes > 1 << 30 {
        Err(format!("{what} may be at most 1G").into())
    } else {
        Ok(())
    }
}
