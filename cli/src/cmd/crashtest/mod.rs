//! `cairnfs crashtest`: runs a program on a simulated volume, simulates a power failure at every
//! moment, and reports whether each recovered state keeps the contract.
//!
//! [`record`] makes the recording, [`place`] mounts simulated volumes, [`report`] prints the
//! result. No volume on the machine is changed.

mod image;
mod place;
mod record;
mod report;

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use cairnfs::Volume;
use cairnfs_daemon::failure::{AnyError, Explain, Failure, shown};
use cairnfs_sim::explore::{
    Crash, Depth, Tally, count_states, explore_with, image_of, parse_id, replay_with,
};
use cairnfs_sim::record::Recording;

use crate::output::Progress;
use crate::size;
use place::Processes;

/// Exit code: a state violates a guarantee.
const BROKEN: u8 = 4;
/// Exit code: the test could not be run.
const OPERATIONAL: u8 = 8;
/// Exit code: invalid arguments.
const USAGE: u8 = 16;
/// Maximum number of disks that `--keep` writes in each run.
const KEPT: usize = 20;
/// The intervals that are tried by default: each has states that the other has not.
const INTERVALS: [u64; 2] = [1, 0];

const EXAMPLES: &str = "\
Examples:
  cairnfs crashtest -- sh -c 'echo new > f.tmp; mv f.tmp f'
  cairnfs crashtest --check 'grep -qx -e old -e new f' -- ./update-f
  cairnfs crashtest                          try things in a shell
  cairnfs crashtest --steps 'create a; write a 0 5000; rename a b; fsync b'
  cairnfs crashtest --steps 'create a; fsync a' --replay 6.1 --image disk.img

The volume lives in memory and is mounted on a temporary directory, in which
COMMAND runs; its path is also in CAIRNFS_CRASHTEST_DIR. All requests of the
volume to its disk are recorded, and then the power is cut at every moment: each
write that no flush covers may be on the disk, complete or torn, or be missing.
Each of these disks is checked, recovered, and compared with the guarantees of
the calls.

COMMAND runs twice, each time in a new volume. In the first run everything is
made durable after each call, guaranteed or not, because on a volume in use that
may happen at any time: so a crash is tried between any two calls. In the second
run only the syncs of COMMAND make anything durable: that shows a sync that is
missing or too late. --interval 1 and --interval 0 do only one of the two, and a
shell without COMMAND runs once, as with --interval 1.

--check runs a shell command in each state, mounted anew, with
CAIRNFS_CRASHTEST_STATE its id and CAIRNFS_CRASHTEST_SYNCS the number of fsync
and sync calls that had returned. It must exit with 0. It costs a mount for
each state: see --states.

Steps are commands with paths and numbers, separated by `;` or newlines: create
P, mkdir P, symlink P LEN, link P Q, unlink P, rmdir P, rename P Q, exchange P
Q, write P AT LEN, append P LEN, truncate P LEN, punch P AT LEN, zero P AT LEN,
chmod P MODE, setlist P MODE, setxattr P NAME LEN, removexattr P NAME, fsync P,
fdatasync P, sync, merge and others. The same steps have the same states each
time.

Exit codes: 0 all states keep the contract, 4 some do not, 8 the test could not
be done, 16 usage. A COMMAND that fails is reported, and its crashes are tried
all the same; with --strict the exit code is 8.";

/// Cut the power under a program, at every moment, on a simulated disk
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Program to run in the volume, with its arguments [default: $SHELL, on a terminal]
    #[arg(trailing_var_arg = true, conflicts_with_all = ["steps", "file"])]
    command: Vec<OsString>,
    /// Run these steps instead of a command; needs no mount
    #[arg(long, conflicts_with = "file")]
    steps: Option<String>,
    /// Run the steps in this file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Size of the simulated volume [default: 64M; 16M for steps]
    #[arg(long, value_parser = size::parse, conflicts_with = "volume")]
    size: Option<u64>,
    /// Begin with a copy of this volume, which is not changed
    #[arg(long, value_name = "IMAGE")]
    volume: Option<PathBuf>,
    /// Make everything durable after every so many calls; 0: only when asked for [default: one run
    /// with 1, and one with 0; for --replay 1]
    #[arg(long, value_name = "CALLS")]
    interval: Option<u64>,
    /// Times and random numbers of the volume follow from this number
    #[arg(long, default_value_t = 4)]
    seed: u64,
    /// Try at most about so many states of each run, evenly; 0: all
    #[arg(long, value_name = "N", default_value_t = 5000)]
    states: usize,
    /// Shell command that must succeed in each recovered state
    #[arg(long, value_name = "COMMAND")]
    check: Option<String>,
    /// Try this state only
    #[arg(long, value_name = "ID", conflicts_with = "command", value_parser = id)]
    replay: Option<String>,
    /// Write the disk of the state, before recovery, to this file
    #[arg(long, value_name = "FILE", requires = "replay")]
    image: Option<PathBuf>,
    /// Write the disks of states that fail into this directory, as ID-intervalN.img
    #[arg(long, value_name = "DIR", conflicts_with = "replay")]
    keep: Option<PathBuf>,
    /// Stop if COMMAND fails
    #[arg(long)]
    strict: bool,
    /// Print the result as JSON; what COMMAND prints goes to standard error
    #[arg(long)]
    json: bool,
    /// Print nothing except failures
    #[arg(short, long)]
    quiet: bool,
}

fn id(text: &str) -> Result<String, String> {
    parse_id(text).map(|_| text.to_owned())
}

/// Runs the command.
///
/// # Errors
/// The test could not be run.
pub fn run(mut args: Args) -> Result<ExitCode, AnyError> {
    let by_steps = args.steps.is_some() || args.file.is_some();
    if !by_steps && args.command.is_empty() {
        args.command.push(shell(&args)?);
        // A shell is used once: the user would have to repeat everything.
        args.interval.get_or_insert(INTERVALS[0]);
    }
    if args.replay.is_some() && !by_steps {
        let why = "needs --steps or --file: the states of a command differ from run to run";
        return Err(Failure::new("--replay", why).code(USAGE).into());
    }
    let processes = Processes::watch().explain("signals").map_err(cannot)?;
    match &args.replay {
        Some(id) => {
            let run = record::run(&args, args.interval.unwrap_or(INTERVALS[0]), &processes)?;
            replay(&args, &run.recording, id, &processes)
        }
        None => try_intervals(&args, &processes),
    }
}

fn try_intervals(args: &Args, processes: &Processes) -> Result<ExitCode, AnyError> {
    let intervals = match args.interval {
        Some(interval) => vec![interval],
        None => INTERVALS.to_vec(),
    };
    let mut runs = Vec::new();
    let mut stopped = None;
    for interval in intervals {
        match try_all(args, interval, processes) {
            Ok((run, ended)) => {
                runs.push(run);
                stopped = ended.err();
            }
            Err(failure) if runs.is_empty() => return Err(failure.into()),
            Err(failure) => stopped = Some(failure),
        }
        if stopped.is_some() {
            break;
        }
    }
    let allowed = report::tell(args, runs, stopped.is_none())?;
    match stopped {
        Some(failure) => Err(failure.into()),
        None if allowed => Ok(ExitCode::SUCCESS),
        None => Ok(ExitCode::from(BROKEN)),
    }
}

/// Gives a failure the exit code of a test that could not be run.
fn cannot(failure: Failure) -> Failure {
    failure.code(OPERATIONAL)
}

fn shell(args: &Args) -> Result<OsString, Failure> {
    if args.replay.is_none() && !args.json && io::stdin().is_terminal() {
        say!("What you do in this shell is tested when you leave it.");
        return Ok(std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()));
    }
    Err(
        Failure::new("what to test", "no COMMAND, --steps or --file")
            .hint("for example: cairnfs crashtest -- make test")
            .code(USAGE),
    )
}

/// The caller's own check, and the reason if it could not be run.
struct Checker<'a> {
    command: Option<&'a str>,
    processes: &'a Processes,
    stopped: RefCell<Option<Failure>>,
}

impl<'a> Checker<'a> {
    fn new(args: &'a Args, processes: &'a Processes) -> Self {
        Self {
            command: args.check.as_deref(),
            processes,
            stopped: RefCell::new(None),
        }
    }

    fn check(&self, volume: &Volume, crash: &Crash<'_>) -> Result<(), String> {
        let Some(text) = self.command else {
            return Ok(());
        };
        if self.stopped.borrow().is_some() {
            return Ok(());
        }
        let ran = place::mounted(volume.file_system(), |dir| {
            let mut command = Command::new("sh");
            command
                .args(["-c", text])
                .env("CAIRNFS_CRASHTEST_STATE", crash.id)
                .env("CAIRNFS_CRASHTEST_CALLS", crash.returned.calls.to_string())
                .env("CAIRNFS_CRASHTEST_SYNCS", crash.returned.syncs.to_string());
            self.processes.output(place::inside(&mut command, dir))
        });
        match ran.and_then(|output| output.explain("sh")) {
            Ok(output) if output.status.success() || self.processes.interrupted() => Ok(()),
            Ok(output) => Err(report::last_words(&output)),
            Err(failure) => {
                *self.stopped.borrow_mut() = Some(failure);
                Ok(())
            }
        }
    }

    fn finish(self) -> Result<(), Failure> {
        match self.stopped.into_inner() {
            Some(failure) => Err(cannot(failure)),
            None if self.processes.interrupted() => Err(cannot(Failure::new(
                "interrupted",
                "not all states were tried",
            ))),
            None => Ok(()),
        }
    }
}

/// Records a run and tries its crash states; the second result is why not all were tried.
fn try_all(
    args: &Args,
    interval: u64,
    processes: &Processes,
) -> Result<(report::Run, Result<(), Failure>), Failure> {
    let run = record::run(args, interval, processes)?;
    let recording = &run.recording;
    let depth = Depth {
        states: match args.states {
            0 => usize::MAX,
            n => n,
        },
        ..Depth::default()
    };
    let checker = Checker::new(args, processes);
    let bar = Progress::steps("crash states", args.quiet || args.json);
    let total = recording.events().len() as u64;
    let tally = explore_with(
        recording,
        &depth,
        &mut |volume, crash| checker.check(volume, crash),
        &mut |at| {
            bar.set(at.events as u64, total);
            if processes.interrupted() || checker.stopped.borrow().is_some() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    );
    drop(bar);
    let kept = keep(args, interval, recording, &tally)?;
    let ended = checker.finish();
    let report = report::Run::new(
        interval,
        &run,
        &tally,
        count_states(recording),
        &kept,
        ended.is_ok(),
    );
    Ok((report, ended))
}

/// Writes the disks of states that fail.
fn keep(
    args: &Args,
    interval: u64,
    recording: &Recording,
    tally: &Tally,
) -> Result<Vec<PathBuf>, Failure> {
    let Some(dir) = &args.keep else {
        return Ok(Vec::new());
    };
    std::fs::create_dir_all(dir)
        .explain(shown(dir))
        .map_err(cannot)?;
    let mut kept = Vec::new();
    for failure in tally.failures.iter().take(KEPT) {
        if let Ok(disk) = image_of(recording, &failure.id) {
            let id = failure.id().replace('/', "_");
            let path = dir.join(format!("{id}-interval{interval}.img"));
            image::save(&disk, &path)
                .explain(shown(&path))
                .map_err(cannot)?;
            kept.push(path);
        }
    }
    Ok(kept)
}

fn replay(
    args: &Args,
    recording: &Recording,
    id: &str,
    processes: &Processes,
) -> Result<ExitCode, AnyError> {
    let wrong = |why: String| Failure::new(format_args!("state {id}"), why).code(USAGE);
    let states = parse_id(id).map_err(wrong)?;
    let disk = image_of(recording, &states).map_err(wrong)?;
    if let Some(path) = &args.image {
        image::save(&disk, path)
            .explain(shown(path))
            .map_err(cannot)?;
    }
    let checker = Checker::new(args, processes);
    let verdict = replay_with(recording, &states, &mut |volume, crash| {
        checker.check(volume, crash)
    });
    checker.finish()?;
    report::tell_one(args, recording, &states, &verdict)?;
    Ok(ExitCode::from(match verdict {
        Ok(()) => 0,
        Err(_) => BROKEN,
    }))
}
