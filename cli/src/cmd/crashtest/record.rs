//! Records the test: a program in a mounted simulated volume, or steps on one.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use cairnfs_daemon::failure::{Explain, Failure, shown};
use cairnfs_sim::image::Image;
use cairnfs_sim::record::{Recording, Run, VOLUME_SIZE, fresh_volume_of, options};
use cairnfs_sim::workload;

use super::place::{self, Processes};
use super::{Args, USAGE, cannot, image};
use crate::volume_by_path::caller;

/// Default size in bytes of the volume for a program.
const DEFAULT_SIZE: u64 = 64 << 20;

/// A recording, and the exit status of the command if it failed.
pub struct Ran {
    /// The recorded events.
    pub recording: Recording,
    /// The exit status of a command that failed.
    pub failed: Option<String>,
}

/// Runs the steps or the command of the arguments. Everything is made durable after every
/// `interval` calls; 0 for never.
pub fn run(args: &Args, interval: u64, processes: &Processes) -> Result<Ran, Failure> {
    let ran = if args.steps.is_some() || args.file.is_some() {
        steps(args, interval)?
    } else {
        command(args, interval, processes)?
    };
    match ran.failed.as_ref().filter(|_| args.strict) {
        Some(status) => Err(cannot(Failure::new("the command failed", status))),
        None => Ok(ran),
    }
}

/// Runs the command in a mounted volume.
fn command(args: &Args, interval: u64, processes: &Processes) -> Result<Ran, Failure> {
    let run = begin(args, interval, DEFAULT_SIZE)?;
    let ended = place::mounted(run.fs(), |dir| start(args, processes, dir)).map_err(cannot)?;
    let name = args.command.first().cloned().unwrap_or_default();
    let status = ended.explain(shown(Path::new(&name))).map_err(cannot)?;
    if processes.interrupted() {
        let why = "the command did not end, and its crashes were not tried";
        return Err(cannot(Failure::new("interrupted", why)));
    }
    Ok(Ran {
        recording: end(run)?,
        failed: (!status.success()).then(|| status.to_string()),
    })
}

fn start(args: &Args, processes: &Processes, dir: &Path) -> std::io::Result<ExitStatus> {
    let (name, rest) = args.command.split_first().unwrap_or((&EMPTY, &[]));
    // The caller gives the path relative to its own directory; the command runs in another one.
    let program = match Path::new(name) {
        path if path.components().count() > 1 => path.canonicalize()?,
        path => path.to_path_buf(),
    };
    let mut command = Command::new(program);
    command.args(rest);
    if args.json {
        command.stdout(Stdio::from(std::io::stderr()));
    }
    processes.status(place::inside(&mut command, dir))
}

static EMPTY: std::ffi::OsString = std::ffi::OsString::new();

/// Runs the steps on a volume.
fn steps(args: &Args, interval: u64) -> Result<Ran, Failure> {
    let text = match (&args.steps, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => std::fs::read_to_string(path)
            .explain(shown(path))
            .map_err(cannot)?,
        (None, None) => String::new(),
    };
    let steps = workload::steps(&text).map_err(|e| Failure::new("steps", e).code(USAGE))?;
    let run = begin(args, interval, VOLUME_SIZE)?;
    let mut runner = workload::Runner::new(run.fs());
    for step in &steps {
        runner
            .run(step)
            .explain(format_args!("step `{step}`"))
            .map_err(cannot)?;
    }
    Ok(Ran {
        recording: end(run)?,
        failed: None,
    })
}

fn begin(args: &Args, interval: u64, size: u64) -> Result<Run, Failure> {
    let start = first(args, size).map_err(cannot)?;
    Run::begin(start, &options(args.seed), interval)
        .explain("the simulated volume")
        .map_err(cannot)
}

fn first(args: &Args, size: u64) -> Result<Image, Failure> {
    match &args.volume {
        Some(path) => image::load(path).explain(shown(path)),
        None => {
            let size = args.size.unwrap_or(size);
            let owner = caller();
            fresh_volume_of(size, (owner.uid, owner.gid)).explain("the simulated volume")
        }
    }
}

/// Makes everything durable and closes the volume. The power failure may also be in this phase.
fn end(run: Run) -> Result<Recording, Failure> {
    let closed = run.fs().sync().and_then(|()| run.fs().close());
    closed.explain("the simulated volume").map_err(cannot)?;
    Ok(run.end())
}
