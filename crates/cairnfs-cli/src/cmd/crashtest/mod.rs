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
use cairnfs_sim::explore::{
    Crash, Depth, Tally, count_states, explore_with, image_of, parse_id, replay_with,
};
use cairnfs_sim::record::Recording;

use crate::failure::{AnyError, Explain, Failure, shown};
use crate::output::Progress;
use crate::size;
use place::Processes;

/// Exit code: a state violates a guarantee.
const BROKEN: u8 = 4;
/// Exit code: the test could not be run.
const OPERATIONAL: u8 = 8;
/// Exit code: invalid arguments.
const USAGE: u8 = 16;
/// Maximum number of disks that `--keep` writes.
const KEPT: usize = 20;

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

After each call everything is made durable, guaranteed or not, because on a
volume in use that may happen at any time. So a crash is tried between any two
calls.
--interval 0 leaves durability to COMMAND alone.

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
    /// Make everything durable after every so many calls; 0: only when asked for
    #[arg(long, value_name = "CALLS", default_value_t = 1)]
    interval: u64,
    /// Times and random numbers of the volume follow from this number
    #[arg(long, default_value_t = 4)]
    seed: u64,
    /// Try at most about so many states, evenly; 0: all
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
    /// Write the disks of states that fail into this directory, as ID.img
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
    }
    if args.replay.is_some() && !by_steps {
        let why = "needs --steps or --file: the states of a command differ from run to run";
        return Err(Failure::new("--replay", why).code(USAGE).into());
    }
    let processes = Processes::watch().explain("signals").map_err(cannot)?;
    let run = match by_steps {
        true => record::steps(&args)?,
        false => record::command(&args, &processes)?,
    };
    if let Some(status) = run.failed.as_ref().filter(|_| args.strict) {
        return Err(cannot(Failure::new("the command failed", status)).into());
    }
    match &args.replay {
        Some(id) => replay(&args, &run.recording, id, &processes),
        None => try_all(&args, &run, &processes),
    }
}

/// Gives a failure the exit code of a test that could not be run.
fn cannot(failure: Failure) -> Failure {
    failure.code(OPERATIONAL)
}

fn shell(args: &Args) -> Result<OsString, Failure> {
    if args.replay.is_none() && !args.json && io::stdin().is_terminal() {
        eprintln!("What you do in this shell is tested when you leave it.");
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

fn try_all(args: &Args, run: &record::Ran, processes: &Processes) -> Result<ExitCode, AnyError> {
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
            match processes.interrupted() || checker.stopped.borrow().is_some() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        },
    );
    drop(bar);
    let kept = keep(args, recording, &tally)?;
    report::tell(args, run, &tally, count_states(recording), &kept)?;
    checker.finish()?;
    Ok(ExitCode::from(match tally.failures.is_empty() {
        true => 0,
        false => BROKEN,
    }))
}

/// Writes the disks of states that fail.
fn keep(args: &Args, recording: &Recording, tally: &Tally) -> Result<Vec<PathBuf>, Failure> {
    let Some(dir) = &args.keep else {
        return Ok(Vec::new());
    };
    std::fs::create_dir_all(dir)
        .explain(shown(dir))
        .map_err(cannot)?;
    let mut kept = Vec::new();
    for failure in tally.failures.iter().take(KEPT) {
        if let Ok(disk) = image_of(recording, &failure.id) {
            let path = dir.join(format!("{}.img", failure.id().replace('/', "_")));
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
