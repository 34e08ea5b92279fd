//! `cairnfs try`: runs a program in a fork of the mounted volume, and then publishes, keeps or drops what
//! it did.
//!
//! Forks, mounts, compares and publishes as the other commands do; a mount and its end are left to them
//! altogether ([`fork`], [`children`]). The program runs in [`inside`], unmounts go there by [`follower`],
//! and what becomes of its work is decided in [`ending`].
//!
//! Signals end nothing by themselves. Before the program has begun, one leaves nothing behind; while it
//! runs, the program gets them; after that, one keeps the fork.

mod children;
mod ending;
mod follower;
mod fork;
mod inside;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cairnfs_daemon::failure::{AnyError, Explain, Failure, shown};
use cairnfs_daemon::shell::{word, word_of_path};
use cairnfs_disk::format::root::MAIN_NAME;
use cairnfs_fuse::mountinfo;
use signal_hook::low_level::signal_name;

use crate::interrupt;
use crate::mount_location::{self, MountLocation};
use crate::stage::Stage;
use crate::verbs;
use fork::{Fork, Ran};

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
it is kept. A fork in which nothing changed is dropped. Several may run at once. Of
a snapshot there is nothing to publish onto: --yes is refused before CMD runs.
A fork that is renamed, or whose branch is unmounted, while CMD runs is kept; with
--drop the second is dropped.

Where the system permits it (user namespaces, or root), CMD finds the fork under
the path of the branch, so absolute paths lead into it, too, and so do what
`mount --bind` shows of the branch elsewhere; else, and with
--beside, CMD runs in a directory of its own, and a note says so. CAIRNFS_BRANCH
has the name of the fork.

This is no sandbox: CMD can do everything that you can, outside of the volume too.

A signal (Ctrl-C, SIGTERM, SIGHUP) while CMD runs is CMD's. Before that it ends try
without leaving a fork, after that the fork is kept.

Exit codes: that of CMD; 2 wrong arguments; 125 if try itself failed, or could not
publish; 126 CMD cannot be executed, 127 it was not found; 128 and the number of the
signal that ended try.";

/// Exit code if this command fails itself, as that of timeout(1) and env(1).
const FAILED: u8 = 125;

/// What the names of directories begin with on which forks are mounted.
const PREFIX: &str = "cairnfs-try-";

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
    /// Run CMD without the library by which it asks the daemon of the volume (cairnfs run)
    #[arg(long)]
    no_preload: bool,
    /// Show FORK under the path BASE, where its directory PART is, and execute CMD in BELOW of that
    #[arg(long, hide = true, num_args = 4, value_names = ["BASE", "FORK", "PART", "BELOW"])]
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
    mounted: Option<Mount>,
}

/// The mount of the base.
struct Mount {
    location: MountLocation,
    /// The directory of the branch that is mounted: all of it, or what `mount --bind` shows.
    part: PathBuf,
    /// The working directory in that.
    below: PathBuf,
}

impl Mount {
    fn dir(&self) -> &Path {
        &self.location.entry.mountpoint
    }

    /// The working directory, from the root of the branch on.
    fn inside(&self) -> PathBuf {
        self.part.join(&self.below)
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, AnyError> {
    if let [base, fork, part, below] = &args.inside[..] {
        let code = inside::execute(
            (base, fork),
            (part, below),
            (&args.command, !args.no_preload),
        );
        return Ok(ExitCode::from(code));
    }
    let error = match attempt(args) {
        Ok(code) => return Ok(ExitCode::from(code)),
        Err(error) => error,
    };
    if let Some(Interrupted(signal)) = error.downcast_ref() {
        return Ok(ExitCode::from(code_of_signal(*signal)));
    }
    Err(match error.downcast::<Failure>() {
        Ok(failure) => failure.code(FAILED).into(),
        Err(other) => other,
    })
}

fn attempt(args: &Args) -> Result<u8, AnyError> {
    interrupt::hold()?;
    let mut base = Base::find(args.volume.as_deref())?;
    base.check_end(args)?;
    let mut fork = Fork::make(&base, args)?;
    let ran = match fork.run(&base, args) {
        Ok(Ran::Interrupted(signal)) => {
            fork.unmake(&base)?;
            return Err(Interrupted::before(signal).into());
        }
        Ok(Ran::Ended(ran)) => Ok(ran),
        Err(failure) => Err(failure),
    };
    let before = fork.follow_name();
    base.follow_name();
    let name = fork.name.clone();
    // What the program did is there, also if it could not be waited for.
    fork.unmount(&base, args.quiet)?;
    base.check_whole(&name, before.as_deref(), args.drop)?;
    ending::decide(args, &base, &name, &ran?)
}

/// A signal ends this command. What it leaves has been told.
#[derive(Debug)]
struct Interrupted(i32);

impl Interrupted {
    /// Tells that nothing is left of what was prepared.
    fn before(signal: i32) -> Self {
        note(format_args!("{}: the program was not run", name_of(signal)));
        Self(signal)
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by {}", name_of(self.0))
    }
}

impl std::error::Error for Interrupted {}

fn name_of(signal: i32) -> &'static str {
    signal_name(signal).unwrap_or("a signal")
}

/// The exit code of what a signal has ended, as shells have it.
fn code_of_signal(signal: i32) -> u8 {
    u8::try_from(signal).map_or(FAILED, |signal| signal.saturating_add(128))
}

/// Tells something on standard error. The terminal may be gone.
fn note(text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "cairnfs try: {text}");
}

impl Base {
    /// The branch that is mounted at a directory, or the main branch of a volume.
    fn find(volume: Option<&Path>) -> Result<Self, Failure> {
        let (place, named) = match volume {
            Some(named) => (std::path::absolute(named).explain(shown(named))?, named),
            None => (working_directory()?, Path::new(".")),
        };
        if !mountinfo::is_directory(named) {
            return Ok(Self {
                place,
                branch: MAIN_NAME.into(),
                mounted: None,
            });
        }
        let Some(location) = MountLocation::of(&place)? else {
            return Err(
                Failure::new(shown(&place), "is not in a mounted volume").hint(
                    "change to a directory of one, or name it: cairnfs try --volume VOLUME CMD",
                ),
            );
        };
        let mount = Mount::find(location, &place, named)?;
        Ok(Self {
            branch: mount.location.branch().unwrap_or(MAIN_NAME).to_owned(),
            place: mount.dir().to_path_buf(),
            mounted: Some(mount),
        })
    }

    /// Refuses what cannot be done at the end, and tells what can be.
    fn check_end(&self, args: &Args) -> Result<(), Failure> {
        if !self.is_snapshot() {
            return Ok(());
        }
        let name = shown(Path::new(&self.branch));
        if args.yes {
            let why = "is a snapshot: what CMD does cannot be published onto it";
            return Err(Failure::new(&name, why).hint(format_args!(
                "use --keep or --drop; or make a branch of it, and try it where that is mounted: \
                 cairnfs branch {} NAME --from {}",
                word_of_path(&self.place),
                word(&self.branch)
            )));
        }
        if !args.keep && !args.drop && !args.quiet {
            note(format_args!(
                "note: {name} is a snapshot: what CMD does can be kept as a branch or dropped, and not \
                 published onto it"
            ));
        }
        Ok(())
    }

    fn is_snapshot(&self) -> bool {
        self.mounted
            .as_ref()
            .is_some_and(|m| m.location.is_snapshot())
    }

    /// Takes over the name that the mounted branch has now. Without an answer of the daemon it stays as
    /// it is, and what is done by a wrong one later fails.
    fn follow_name(&mut self) {
        let Some(mount) = &mut self.mounted else {
            return;
        };
        let Ok(Some(location)) = MountLocation::of(mount.dir()) else {
            return;
        };
        // Another mount may hide it.
        if mount_location::is_same(&location.entry, &mount.location.entry) {
            location
                .branch()
                .unwrap_or(MAIN_NAME)
                .clone_into(&mut self.branch);
            mount.location = location;
        }
    }

    /// Fails if the fork had another name `before`, or the base is not mounted any more: what the user
    /// means to do with it is not known then, unless it is `to_drop`, which needs no base.
    fn check_whole(&self, fork: &str, before: Option<&str>, to_drop: bool) -> Result<(), Failure> {
        if let Some(before) = before {
            let why = format!("it was renamed to {fork} meanwhile");
            return Err(self.kept(before, why).hint(self.next_steps(fork)));
        }
        if to_drop || self.is_there() {
            Ok(())
        } else {
            let why = format!("{} is not mounted any more", shown(&self.place));
            Err(self.kept(fork, why).hint(self.next_steps(fork)))
        }
    }

    fn kept(&self, fork: &str, why: impl fmt::Display) -> Failure {
        Failure::new(format_args!("the fork {fork} is kept"), why)
    }

    fn is_there(&self) -> bool {
        self.mounted.as_ref().is_none_or(|m| m.location.is_there())
    }

    /// The path of the volume, as far as it is known.
    fn volume(&self) -> PathBuf {
        match &self.mounted {
            Some(Mount { location, .. }) => {
                location.path().unwrap_or_else(|| location.volume.clone())
            }
            None => self.place.clone(),
        }
    }

    /// Performs a command on snapshots and branches of the volume; returns its exit code and output.
    /// Failures are told. If the base is not mounted any more, the path of the volume leads to it.
    fn capture(&self, verb: &str, words: &[&str]) -> Result<(u8, String), AnyError> {
        const WHAT: &str = "a file for output";
        let mut output = tempfile::tempfile().explain(WHAT)?;
        let stage = Stage::on_errors()?.with(None, Some(output.try_clone().explain(WHAT)?));
        let words = words.iter().map(OsStr::new);
        let (place, location) = match &self.mounted {
            Some(Mount { location, .. }) if !location.is_there() => {
                let gone = || Failure::new(shown(&location.volume), "was moved or deleted");
                (location.path().ok_or_else(gone)?, None)
            }
            mounted => (
                self.place.clone(),
                mounted.as_ref().map(|mount| &mount.location),
            ),
        };
        let all = [OsStr::new(verb), place.as_os_str()].into_iter();
        let code = verbs::perform_words(all.chain(words), location, &stage)?;
        let mut text = String::new();
        output.rewind().explain(WHAT)?;
        output.read_to_string(&mut text).explain(WHAT)?;
        Ok((code, text))
    }

    /// Performs a command on the fork `name` to its end, also if signals arrive; returns whether it
    /// succeeded.
    fn persist(&self, verb: &str, words: &[&str]) -> Result<bool, AnyError> {
        loop {
            if self.capture(verb, words)?.0 == 0 {
                return Ok(true);
            }
            if interrupt::take().is_none() {
                return Ok(false);
            }
        }
    }

    /// What can be done with a fork that is kept.
    fn next_steps(&self, fork: &str) -> String {
        let place = if self.is_there() {
            self.place.clone()
        } else {
            self.volume()
        };
        self.next_steps_in(&place, fork)
    }

    /// The same once the base may not be mounted any more.
    fn next_steps_in(&self, place: &Path, fork: &str) -> String {
        let (place, fork) = (word_of_path(place), word(fork));
        let drop = format!("cairnfs drop {place} {fork}");
        if self.is_snapshot() {
            format!(
                "cairnfs mount -o branch={fork} {} DIR, or {drop}",
                word_of_path(&self.volume())
            )
        } else {
            format!(
                "cairnfs publish {place} {fork} --onto {}, or {drop}",
                word(&self.branch)
            )
        }
    }
}

impl Mount {
    /// The working directory `place` in its mount. `named` leads there, too, whatever was mounted over it.
    fn find(location: MountLocation, place: &Path, named: &Path) -> Result<Self, Failure> {
        let wrong = |why: &str| Failure::new(shown(place), why);
        let seen = mountinfo::holding(named).explain(shown(place))?;
        if seen.is_none_or(|seen| seen.id != location.entry.id) {
            return Err(wrong("is hidden by another mount"));
        }
        let path = place.canonicalize().explain(shown(place))?;
        let below = path.strip_prefix(&location.entry.mountpoint);
        let below = below.map_err(|_| wrong("is not below the directory of its mount"))?;
        let part = location.entry.part();
        let part = part.ok_or_else(|| wrong("is in a directory that was removed"))?;
        Ok(Self {
            part: part.to_path_buf(),
            below: below.to_path_buf(),
            location,
        })
    }
}

fn working_directory() -> Result<PathBuf, Failure> {
    std::env::current_dir().explain("the working directory")
}
