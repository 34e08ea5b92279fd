//! Benchmarks: workloads over the CairnFS library, or over any directory by system calls.
//!
//! A `target` is what is measured, a `workload` what is done to it, `phase` measures a step
//! done by many threads, `tally` counts for one of them, and `report` shows the figures. A workload
//! knows targets only by their traits, so each runs on everything. `compare` runs them on several
//! file systems in turn. Uses only what the library exports, and of the FUSE front how to sync.
//!
//! [`run`] is the command. Programs set a workload and a place with [`parse`], and get the figures as
//! values from [`measure`].

mod args;
mod compare;
mod noop;
mod phase;
mod random;
mod report;
mod tally;
mod target;
mod workload;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

pub use args::{Args, Command, Place, Run, parse};
pub use compare::Compare;
pub use noop::Noop;
pub use phase::Phase;
pub use report::Report;
pub use tally::Latency;
pub use workload::{Dirfsync, Fsmark, Fsync, Maildir, Mixed, Workload, Xattr, measure};

/// A failure of a benchmark, to be shown to a person.
pub type Failure = Box<dyn Error + Send + Sync>;
/// What may fail so.
pub type Result<T> = std::result::Result<T, Failure>;

/// Runs what the arguments ask for, and prints the figures to standard output.
///
/// # Errors
/// Arguments that cannot be used, or the first failure of the target. What was made until then
/// stays in its own directory of the target.
pub fn run(args: Args) -> std::result::Result<ExitCode, Box<dyn Error>> {
    match run_to(&args, &mut std::io::stdout().lock()) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(e) => Err(e),
    }
}

/// The same, printing to `out`.
///
/// # Errors
/// As [`run`], or a failure of `out`.
pub fn run_to(args: &Args, out: &mut dyn Write) -> Result<()> {
    match &args.command {
        Command::Fsmark(run) => print(run, out),
        Command::Xattr(run) => print(run, out),
        Command::Dirfsync(run) => print(run, out),
        Command::Fsync(run) => print(run, out),
        Command::Mixed(run) => print(run, out),
        Command::Maildir(run) => print(run, out),
        Command::Compare(compare) => compare::compare(compare, out),
        Command::Noop(noop) => noop.run(out),
    }
}

fn print<W: Workload + clap::Args>(run: &Run<W>, out: &mut dyn Write) -> Result<()> {
    let report = measure(&run.workload, &run.place)?;
    if run.json {
        report.print_json(out)?;
    } else {
        report.print_table(out)?;
    }
    Ok(())
}
