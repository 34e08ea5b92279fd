//! `cairnfs try`: runs a program in a fork of the mounted volume, and then publishes, keeps or drops what
//! it did.
//!
//! Forks, mounts, compares and publishes as the other commands do; a mount and its end are left to them
//! altogether. The program runs in [`inside`], unmounts go there by [`follower`], and what becomes of its
//! work is decided in [`ending`].

mod ending;
mod follower;
mod inside;

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use cairnfs::format::root::MAIN_NAME;
use cairnfs::refs::stamp;
use cairnfs_fuse::holders::Holders;
use cairnfs_fuse::{control, elsewhere, mountinfo};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{AnyError, Explain, Failure, shown};
use crate::handover::attempts::ANSWER;
use crate::handover::caller::{Call, Lease};
use crate::handover::folder::SocketName;
use crate::stage::Stage;
use crate::verbs;
use follower::Outside;

const EXAMPLES: &str = "\
Examples:
  cairnfs try make install               then publish, keep or drop what it did
  cairnfs try --yes -- cargo update      publish if it succeeds
  cairnfs try --drop ./risky.sh          look at what it would do
  cairnfs try --volume disk.img sh       of a volume that is not mounted

CMD runs in a fork of the branch that is mounted at the working directory: it sees
all files, and what it changes is in the fork only. After it the differences are
shown, and you are asked whether to publish them onto the branch, to keep the fork
as a branch, or to drop it. Without a terminal, and without --yes, --keep or --drop,
it is kept. A fork in which nothing changed is dropped. Several may run at once.

Where the system permits it (user namespaces, or root), CMD finds the fork under
the path of the branch, so absolute paths lead into it, too; else, and with
--beside, CMD runs in a directory of its own, and a note says so. CAIRNFS_BRANCH
has the name of the fork.

This is no sandbox: CMD can do everything that you can, outside of the volume too.

Exit codes: that of CMD; 2 wrong arguments; 125 if try itself failed, or could not
publish; 126 CMD cannot be executed, 127 it was not found.";

/// Exit code if this command fails itself, as that of timeout(1) and env(1).
const FAILED: u8 = 125;

/// What the names of directories begin with on which forks are mounted.
const PREFIX: &str = "cairnfs-try-";

/// Time that programs have to end after CMD, before a note says who is waited for; and before the fork
/// is left to them.
const MOMENT: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(5);

/// Run a program in a fork of a volume, then publish, keep or drop what it did
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume, or where it is mounted [default: the mount of the working directory]
    #[arg(long)]
    volume: Option<PathBuf>,
    /// Name of the fork [default: try- and the time]
    #[arg(long)]
    name: Option<String>,
    /// Publish what CMD did, without asking, if it succeeds; else keep the fork
    #[arg(long, group = "end")]
    yes: bool,
    /// Keep the fork as a branch, without asking
    #[arg(long, group = "end")]
    keep: bool,
    /// Drop the fork, without asking
    #[arg(long, group = "end")]
    drop: bool,
    /// Run CMD in a directory of its own, not under the path of the branch
    #[arg(long)]
    beside: bool,
    /// Print only what CMD prints, and failures
    #[arg(short, long)]
    quiet: bool,
    /// Print the result as JSON; what CMD prints goes to standard error
    #[arg(long)]
    json: bool,
    /// Show FORK under the path BASE, and execute CMD in its directory BELOW
    #[arg(long, hide = true, num_args = 3, value_names = ["BASE", "FORK", "BELOW"])]
    inside: Vec<PathBuf>,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// The tree that is forked.
struct Base {
    /// The volume as it is named: by its path, or by a directory in a mount.
    place: PathBuf,
    branch: String,
    /// Where the branch is mounted, and the working directory in it.
    mounted: Option<(PathBuf, PathBuf)>,
}

/// A fork that is mounted.
struct Fork {
    name: String,
    dir: Directory,
    /// While it lives. After that, also if this process is killed, the daemon unmounts the fork when
    /// nothing uses it any more.
    lease: Option<Lease>,
}

/// A directory to mount on. When this is dropped, it is removed if it is empty and nothing is mounted
/// there: whatever happens, no file of a fork is removed with it. Its path has no symbolic links.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, AnyError> {
    if let [base, fork, below] = &args.inside[..] {
        let code = inside::execute((base, fork), below, &args.command);
        return Ok(ExitCode::from(code));
    }
    let failed = |error: AnyError| match error.downcast::<Failure>() {
        Ok(failure) => failure.code(FAILED).into(),
        Err(other) => other,
    };
    attempt(args).map(ExitCode::from).map_err(failed)
}

fn attempt(args: &Args) -> Result<u8, AnyError> {
    let base = Base::find(args.volume.as_deref())?;
    let fork = Fork::make(&base, args)?;
    let code = fork.run(&base, args);
    let name = fork.name.clone();
    // What the program did is there, also if it could not be waited for.
    fork.unmount(args.quiet)?;
    ending::decide(args, &base, &name, code?)
}

impl Base {
    /// The branch that is mounted at a directory, or the main branch of a volume.
    fn find(volume: Option<&Path>) -> Result<Self, Failure> {
        let place = match volume {
            Some(place) => std::path::absolute(place).explain(shown(place))?,
            None => std::env::current_dir().explain("the working directory")?,
        };
        if !place.is_dir() {
            return Ok(Self {
                place,
                branch: MAIN_NAME.into(),
                mounted: None,
            });
        }
        let entry = mountinfo::holding(&place).explain(shown(&place))?;
        let Some(entry) = entry.filter(mountinfo::MountEntry::is_ours) else {
            return Err(
                Failure::new(shown(&place), "is not in a mounted volume").hint(
                    "change to a directory of one, or name it: cairnfs try --volume VOLUME CMD",
                ),
            );
        };
        let path = place.canonicalize().explain(shown(&place))?;
        let below = path
            .strip_prefix(&entry.mountpoint)
            .unwrap_or(Path::new(""));
        Ok(Self {
            branch: mountinfo::branch_of(&entry.source)
                .unwrap_or(MAIN_NAME)
                .to_owned(),
            mounted: Some((entry.mountpoint.clone(), below.to_path_buf())),
            place: entry.mountpoint,
        })
    }

    /// The path of the volume.
    fn volume(&self) -> Result<PathBuf, Failure> {
        match &self.mounted {
            Some((dir, _)) => control::volume(dir).explain(shown(dir)),
            None => Ok(self.place.clone()),
        }
    }

    /// Performs a command on snapshots and branches of the volume; returns its exit code and output.
    /// Failures are told.
    fn capture(&self, verb: &str, words: &[&str]) -> Result<(u8, String), AnyError> {
        const WHAT: &str = "a file for output";
        let mut output = tempfile::tempfile().explain(WHAT)?;
        let stage = Stage::on_errors()?.with(None, Some(output.try_clone().explain(WHAT)?));
        let words = words.iter().map(OsStr::new);
        let all = [OsStr::new(verb), self.place.as_os_str()].into_iter();
        let code = verbs::perform_words(all.chain(words), &stage)?;
        let mut text = String::new();
        output.rewind().explain(WHAT)?;
        output.read_to_string(&mut text).explain(WHAT)?;
        Ok((code, text))
    }
}

impl Fork {
    /// Forks and mounts. Nothing is left if one of both fails.
    fn make(base: &Base, args: &Args) -> Result<Self, AnyError> {
        let now = stamp(SystemTime::now().into());
        let own = format!("try-{now}-{}", std::process::id());
        let name = args.name.clone().unwrap_or(own);
        let above = std::env::temp_dir();
        let above = above.canonicalize().explain(shown(&above))?;
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(above);
        let dir = Directory(dir.explain("a directory for the fork")?.keep());
        let volume = base.volume()?;
        let words = ["-q", &name, "--from", &base.branch];
        if base.capture("branch", &words)?.0 != 0 {
            return Err(Failure::new(shown(&volume), "cannot be forked").into());
        }
        let branch = format!("branch={name}");
        let words = [OsStr::new("mount"), OsStr::new("-o"), OsStr::new(&branch)];
        let words = words
            .into_iter()
            .chain([volume.as_os_str(), dir.0.as_os_str()]);
        if let Err(failure) = command(words) {
            base.capture("drop", &["-q", &name])?;
            return Err(failure.into());
        }
        let lease = lease(&volume, &dir.0);
        Ok(Self { name, dir, lease })
    }

    /// Runs the program; returns its exit code.
    fn run(&self, base: &Base, args: &Args) -> Result<u8, Failure> {
        let mut command = self.program(base, args)?;
        command.env("CAIRNFS_BRANCH", &self.name);
        if args.json {
            let errors = io::stderr().as_fd().try_clone_to_owned();
            command.stdout(Stdio::from(errors.explain("standard error")?));
        }
        let signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP]);
        let mut signals = signals.explain("handlers for signals")?;
        let outside = Outside::see();
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(e) => return Ok(inside::not_executed(&args.command, &e)),
        };
        let base = base.mounted.as_ref().map(|(dir, _)| dir.as_path());
        let base = base.filter(|_| !args.beside);
        let follower = outside
            .zip(base)
            .and_then(|(o, base)| o.follow(child.id(), base));
        let (handle, pid) = (signals.handle(), child.id());
        let passing = thread::spawn(move || pass_on(&mut signals, pid));
        let status = child.wait();
        drop(follower);
        handle.close();
        // It ends with its signals.
        let _ = passing.join();
        Ok(code_of(status.explain("the program")?))
    }

    /// The program, in the fork.
    fn program(&self, base: &Base, args: &Args) -> Result<Command, Failure> {
        if let (Some((mountpoint, below)), false) = (&base.mounted, args.beside) {
            let mut command = Command::new(this_program()?);
            command.args(["try", "--inside"]);
            command.args([mountpoint, &self.dir.0, &Path::new(".").join(below)]);
            command.arg("--").args(&args.command);
            return Ok(command);
        }
        let below = base.mounted.as_ref().map(|(_, below)| below.as_path());
        let there = self.dir.0.join(below.unwrap_or(Path::new("")));
        let mut command = inside::words(&args.command);
        command.current_dir(&there).env("PWD", &there);
        Ok(command)
    }

    /// Unmounts it; it is durable then. Programs that CMD has left in the background are waited for
    /// shortly. If they go on, they keep the fork in use, or if they see it in their own mount
    /// namespace, its connection; they lose nothing.
    fn unmount(self, quiet: bool) -> Result<(), Failure> {
        self.wait_for_users(quiet).map_err(|why| self.stays(why))?;
        let unmount = [OsStr::new("umount"), self.dir.0.as_os_str()];
        command(unmount).map_err(|_| self.stays("it is still in use".into()))
    }

    /// Waits until nothing uses it.
    ///
    /// # Errors
    /// What uses it after a while.
    fn wait_for_users(&self, quiet: bool) -> Result<(), String> {
        let (began, mut pause, mut told) = (Instant::now(), MOMENT / 8, quiet);
        while let Some(users) = self.users() {
            let waited = began.elapsed();
            if waited >= PATIENCE {
                return Err(format!("it is still in use by {users}"));
            }
            if waited >= MOMENT && !told {
                told = true;
                eprintln!(
                    "cairnfs try: note: the fork {} is in use by {users}: waiting {} seconds for that to \
                     end",
                    self.name,
                    PATIENCE.as_secs()
                );
            }
            thread::sleep(pause);
            pause = MOMENT.min(pause * 2);
        }
        Ok(())
    }

    /// The programs that use it, if there are any.
    fn users(&self) -> Option<Holders> {
        let entry = mountinfo::at(&self.dir.0).ok()??;
        Some(elsewhere::users(&entry)).filter(|users| !users.is_empty())
    }

    /// The failure for a fork that is in use.
    fn stays(&self, why: String) -> Failure {
        let name = &self.name;
        let failure = Failure::new(format_args!("the fork {name} is kept"), why);
        match self.lease {
            Some(_) => failure.hint(format_args!(
                "it is unmounted by itself when that has ended; then publish or drop {name}"
            )),
            None => failure.hint(format_args!(
                "when that has ended: cairnfs umount {}; then publish or drop {name}",
                shown(&self.dir.0)
            )),
        }
    }
}

/// Has the daemon of a volume unmount what is mounted on `dir` when this process is gone.
fn lease(volume: &Path, dir: &Path) -> Option<Lease> {
    let entry = mountinfo::at(dir).ok()??;
    let name = SocketName::of(&volume.metadata().ok()?);
    Call::begin(&name, geteuid().as_raw(), ANSWER)?.lease(&entry.device)
}

/// Passes signals on that a terminal does not send to the program itself.
fn pass_on(signals: &mut Signals, pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    for signal in signals.forever() {
        let signal = match signal {
            SIGTERM => Signal::TERM,
            SIGHUP => Signal::HUP,
            _ => continue,
        };
        if let Some(pid) = pid {
            // It may have ended.
            let _ = kill_process(pid, signal);
        }
    }
}

/// The exit code of a program, as shells have it.
fn code_of(status: ExitStatus) -> u8 {
    let signalled = || status.signal().map(|signal| signal + 128);
    let code = status.code().or_else(signalled);
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(FAILED)
}

fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().explain("this program")
}

/// Runs a command of this program in a process of its own, which tells its failures.
fn command<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> Result<(), Failure> {
    let words: Vec<&OsStr> = words.into_iter().collect();
    let status = Command::new(this_program()?).args(&words).status();
    let status = status.explain("this program")?;
    let what = words.first().copied().unwrap_or_default();
    match status.success() {
        true => Ok(()),
        false => Err(Failure::new(
            format_args!("cairnfs {}", what.display()),
            status,
        )),
    }
}
