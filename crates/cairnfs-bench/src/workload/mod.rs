//! The workloads, one module each, and the common sequence that runs all of them.
//!
//! A workload works in its own directory, in which each thread has one. It defines what to create
//! before the clock starts, and its phases. Creating the directories, opening, cleaning up and
//! closing are common to all.

mod dirfsync;
mod fsmark;
mod fsync;
mod maildir;
mod mixed;
mod xattr;

pub use dirfsync::Dirfsync;
pub use fsmark::Fsmark;
pub use fsync::Fsync;
pub use maildir::Maildir;
pub use mixed::Mixed;
pub use xattr::Xattr;

use crate::Result;
use crate::args::Place;
use crate::phase::{Meter, total};
use crate::report::Report;
use crate::target::{self, Dir, Target};

/// A workload with its settings.
pub trait Workload {
    /// Name of the workload.
    fn name(&self) -> &'static str;

    /// Unit of its operations, in the plural.
    fn unit(&self) -> &'static str;

    /// Number of threads with a directory.
    fn threads(&self) -> usize;

    /// Its settings, for the report.
    fn settings(&self) -> Vec<(&'static str, u64)>;

    /// Refuses invalid settings.
    ///
    /// # Errors
    /// A text that names the invalid setting.
    fn check(&self) -> Result<()>;

    /// Creates what must exist before the clock starts; the caller then makes it durable.
    ///
    /// # Errors
    /// Errors of the target.
    fn prepare(&self, ground: &Ground<'_>) -> Result<()>;

    /// Executes the workload, phase by phase.
    ///
    /// # Errors
    /// Errors of the target, or lost files or data.
    fn measure(&self, ground: &Ground<'_>, meter: &mut Meter<'_>) -> Result<()>;

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

/// The directories in which a workload works.
pub struct Ground<'t> {
    target: &'t dyn Target,
    top: String,
    keep: bool,
}

impl Ground<'_> {
    /// Whether the files are kept at the end.
    fn keep(&self) -> bool {
        self.keep
    }

    fn thread(&self, thread: usize) -> String {
        format!("{}/t{thread}", self.top)
    }

    /// Opens the directory of a thread.
    fn dir(&self, thread: usize) -> Result<Box<dyn Dir + '_>> {
        self.target.dir(&self.thread(thread))
    }

    /// Opens a directory in that of a thread.
    fn subdir(&self, thread: usize, name: &str) -> Result<Box<dyn Dir + '_>> {
        self.target.dir(&format!("{}/{name}", self.thread(thread)))
    }

    fn make_subdir(&self, thread: usize, name: &str) -> Result<()> {
        let path = format!("{}/{name}", self.thread(thread));
        self.target.make_dir(&path)
    }

    fn make_dirs(&self, threads: usize) -> Result<()> {
        self.target.make_dir(&self.top)?;
        (0..threads).try_for_each(|thread| self.target.make_dir(&self.thread(thread)))
    }
}

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
    let ground = Ground {
        target,
        top: format!("cairnfs-bench-{}", std::process::id()),
        keep,
    };
    ground.make_dirs(workload.threads())?;
    workload.prepare(&ground)?;
    target.sync()?;
    let mut meter = Meter::new(target);
    workload.measure(&ground, &mut meter)?;
    if !keep {
        target.remove_tree(&ground.top)?;
    }
    match workload.lives().is_some() && closes {
        true => meter.once("close", || target.close())?,
        false => target.close()?,
    }
    Ok(report(workload, target, meter))
}

const NOT_REOPENED: &str = "--cold closes and opens what it measures, which a directory does not allow: use \
--target lib:..., or `cairnfs bench compare`, which mounts it";

fn report(workload: &dyn Workload, target: &dyn Target, meter: Meter<'_>) -> Report {
    let (mut phases, ratios) = meter.finish();
    if let Some(files) = workload.lives() {
        // The creation and removal of a file together count as one operation.
        let all = total(ALL, files, &phases);
        phases.push(all);
    }
    Report {
        workload: workload.name(),
        target: target.name().to_owned(),
        interface: target.interface(),
        settings: workload.settings(),
        unit: workload.unit(),
        phases,
        ratios,
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
    match bytes > 1 << 30 {
        true => Err(format!("{what} may be at most 1G").into()),
        false => Ok(()),
    }
}
