//! What is done to a target: a module for each workload, and the one way that all of them run.
//!
//! A workload works in a directory of its own, in which each thread has one. It says what to make
//! before the clock starts and which phases there are; making the directories, opening, cleaning
//! up and closing are the same for all.

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

/// A workload, as it is set.
pub trait Workload {
    /// Its name.
    fn name(&self) -> &'static str;

    /// What its operations are counted in, in the plural.
    fn unit(&self) -> &'static str;

    /// How many threads have a directory.
    fn threads(&self) -> usize;

    /// How it is set, for the report.
    fn settings(&self) -> Vec<(&'static str, u64)>;

    /// Refuses settings that make no sense.
    ///
    /// # Errors
    /// What is wrong with them.
    fn check(&self) -> Result<()>;

    /// Makes what must be there before the clock starts; it is durable then.
    ///
    /// # Errors
    /// The target's.
    fn prepare(&self, ground: &Ground<'_>) -> Result<()>;

    /// Does the work, phase by phase.
    ///
    /// # Errors
    /// The target's, or that it lost something.
    fn measure(&self, ground: &Ground<'_>, meter: &mut Meter<'_>) -> Result<()>;

    /// Whether it closes the target and opens it again.
    fn reopens(&self) -> bool {
        false
    }

    /// How many files live their whole life in the workload, if it measures that: then closing
    /// the target is measured too, and a line holds the sum of all.
    fn lives(&self) -> Option<u64> {
        None
    }
}

/// The sum of all phases.
pub const ALL: &str = "all, until synced";

/// Where a workload works.
pub struct Ground<'t> {
    target: &'t dyn Target,
    top: String,
    keep: bool,
}

impl Ground<'_> {
    /// Whether the files are to stay.
    fn keep(&self) -> bool {
        self.keep
    }

    fn thread(&self, thread: usize) -> String {
        format!("{}/t{thread}", self.top)
    }

    /// The directory of a thread.
    fn dir(&self, thread: usize) -> Result<Box<dyn Dir + '_>> {
        self.target.dir(&self.thread(thread))
    }

    /// A directory in that of a thread.
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

/// Runs a workload, and gives its figures.
///
/// # Errors
/// Settings that make no sense, or the first failure of the target. What was made until then stays
/// in its own directory of the target.
pub fn measure(workload: &dyn Workload, place: &Place) -> Result<Report> {
    place.check()?;
    workload.check()?;
    let target = target::open(place)?;
    // What is not opened by the benchmark is not closed by it either.
    let closes = place.volume().is_some();
    measure_on(workload, &*target, place.keep, closes)
}

/// Runs a workload on a target that is open; closes it, and measures that if `closes`.
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
        // A file's whole life is one operation here.
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

/// The name of a thread's file.
fn file_name(file: u64) -> String {
    format!("file{file:08}")
}

/// Bytes to write; not zeros, which a file system might not store.
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

/// Refuses what would not fit in memory, where bytes are held once.
fn at_most_1g(what: &str, bytes: u64) -> Result<()> {
    match bytes > 1 << 30 {
        true => Err(format!("{what} may be at most 1G").into()),
        false => Ok(()),
    }
}
