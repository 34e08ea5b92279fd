//! Benchmarks: workloads over the CairnFS library, or over any directory by system calls.
//!
//! A `target` is the file system under test, a `workload` the operations on it. `phase` measures
//! one step of a workload done by many threads, `tally` counts for one thread, and `report` formats
//! the figures, in `lines` of aligned cells. A workload uses targets only by their traits, so each
//! workload runs on every target. `compare` runs workloads on several file systems in turn. The
//! crate uses only what the library exports, and of the FUSE front end the session, what it
//! negotiates with the kernel, and the sync request.
//!
//! [`run`] is the command. Programs set up a workload and a place with [`parse`], and get the
//! figures as values from [`measure`].

mod args;
mod channel;
mod compare;
mod help;
mod lines;
mod noop;
mod phase;
mod processor;
mod random;
mod report;
mod settings;
mod tally;
mod target;
mod workload;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

pub use args::{Args, Command, Run};
pub use channel::{Channel, ClientArgs};
pub use compare::options::Compare;
pub use noop::Noop;
pub use phase::Phase;
pub use report::Report;
pub use settings::{Place, parse};
pub use tally::Latency;
pub use workload::{
    Ageing, Branches, Dirfsync, Fsmark, Fsync, Maildir, Mixed, Neighbour, Workload, Xattr, measure,
};

/// Parts of this crate that other benchmarks of the workspace use.
pub mod parts {
    pub use crate::compare::conditions::Conditions;
    pub use crate::compare::figures::Spread;
    pub use crate::compare::stats::{Block, Requests};
    pub use crate::compare::table;
    pub use crate::processor::process_cpu;
    pub use crate::random::Random;
    pub use crate::settings::parse_size;
    pub use crate::tally::Tally;
}

/// A failure of a benchmark; its text is for the user.
pub type Failure = Box<dyn Error + Send + Sync>;
/// The result of a fallible operation of a benchmark.
pub type Result<T> = std::result::Result<T, Failure>;

/// Runs the command in `args`, and prints the figures to standard output.
///
/// # Errors
/// Invalid arguments, or the first failure of the target. Files made until then stay in a separate
/// directory of the target.
pub fn run(args: Args) -> std::result::Result<ExitCode, Box<dyn Error>> {
    match run_to(&args, &mut std::io::stdout().lock()) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(e) => Err(e),
    }
}

/// Like [`run`], with the figures printed to `out`.
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
        Command::Neighbour(run) => print(run, out),
        Command::Ageing(run) => print(run, out),
        Command::Branches(run) => print(run, out),
        Command::Compare(compare) => compare::compare(compare, out),
        Command::Channel(channel) => channel.run(out),
        Command::ChannelClient(client) => client.run(out),
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
