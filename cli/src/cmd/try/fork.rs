//! The fork in which a program runs: made, mounted, and unmounted again.
//!
//! Uses the commands `branch`, `mount`, `umount` and `drop` as a user would. Before the program has
//! begun, whatever happens leaves no fork; after that nothing drops it here.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use cairnfs_core::refs::stamp;
use cairnfs_daemon::failure::{AnyError, Explain, Failure, shown};
use cairnfs_daemon::handover::folder::SocketName;
use cairnfs_daemon::shell::word_of_path;
use cairnfs_fuse::holders::Holders;
use cairnfs_fuse::mounter::{self, Way};
use cairnfs_fuse::{elsewhere, mountinfo};
use rustix::process::{Signal, geteuid, kill_process};
use signal_hook::consts::{SIGHUP, SIGTERM};

use super::children::{self, Outcome, this_program};
use super::follower::Outside;
use super::{Args, Base, FAILED, Interrupted, Mount, PREFIX, inside, name_of, note};
use crate::daemon::{self, Cause};
use crate::handover::attempts::ANSWER;
use crate::handover::caller::{Call, Lease};
use crate::interrupt;

/// Time that programs have to end after CMD, before a note says who is waited for; and before the fork
/// is left to them.
const MOMENT: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(5);

/// A fork that is mounted.
pub(super) struct Fork {
    pub name: String,
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
        let _ = fs::remove_dir(&self.0);
    }
}

/// What came of running the program.
pub(super) enum Ran {
    Ended(End),
    /// A signal arrived before it has begun.
    Interrupted(i32),
}

/// The end of the program.
pub(super) struct End {
    pub code: u8,
    /// The last signal that was passed on to it and asks `try` to end, too.
    pub signal: Option<i32>,
}

impl Fork {
    /// Forks and mounts. Nothing is left if one of both fails.
    pub(super) fn make(base: &Base, args: &Args) -> Result<Self, AnyError> {
        let now = stamp(SystemTime::now().into());
        let own = format!("try-{now}-{}", std::process::id());
        let name = args.name.clone().unwrap_or(own);
        let above = std::env::temp_dir();
        let above = above.canonicalize().explain(shown(&above))?;
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(above);
        let dir = Directory(dir.explain("a directory for the fork")?.keep());
        let words = ["-q", &name, "--from", &base.branch];
        if base.capture("branch", &words)?.0 != 0 {
            return Err(match interrupt::take() {
                Some(signal) => Interrupted::before(signal).into(),
                None => Failure::new(shown(&base.volume()), "cannot be forked").into(),
            });
        }
        let mut fork = Self {
            name,
            dir,
            lease: None,
        };
        if let Err(failure) = fork.mount(base) {
            fork.unmake(base)?;
            return Err(failure.into());
        }
        fork.lease = lease(base, &fork.dir.0);
        Ok(fork)
    }

    /// Mounts it, by the daemon of the base if that is mounted.
    fn mount(&self, base: &Base) -> Result<(), Failure> {
        let branch = format!("branch={}", self.name);
        let words = [OsStr::new("mount"), OsStr::new("-o"), OsStr::new(&branch)];
        let beside = base.mounted.as_ref().map(Mount::dir);
        let beside = beside.map(|dir| [OsStr::new("--beside"), dir.as_os_str()]);
        let volume = base.volume();
        let places = [volume.as_os_str(), self.dir.0.as_os_str()];
        let all = words.into_iter().chain(beside.into_iter().flatten());
        children::run(all.chain(places))
    }

    /// Takes over the name that it has now; returns the one before if that is another one. Without an
    /// answer of the daemon the name stays, and what is done by it later fails if it is wrong.
    pub(super) fn follow_name(&mut self) -> Option<String> {
        let answer = daemon::status(&self.dir.0, PATIENCE).ok()?;
        let now = answer.status.tree?.name;
        (now != self.name).then(|| std::mem::replace(&mut self.name, now))
    }

    /// Unmounts and drops it: the program has not begun.
    pub(super) fn unmake(self, base: &Base) -> Result<(), AnyError> {
        // What arrived has been taken into account.
        interrupt::take();
        if self.is_mounted() {
            children::run([OsStr::new("umount"), self.dir.0.as_os_str()])?;
        }
        base.persist("drop", &["-q", &self.name])?;
        Ok(())
    }

    fn is_mounted(&self) -> bool {
        matches!(mountinfo::at(&self.dir.0), Ok(Some(_)))
    }

    /// Runs the program.
    pub(super) fn run(&self, base: &Base, args: &Args) -> Result<Ran, Failure> {
        let mut command = self.program(base, args)?;
        command.env("CAIRNFS_BRANCH", &self.name);
        if args.json {
            let errors = io::stderr().as_fd().try_clone_to_owned();
            command.stdout(Stdio::from(errors.explain("standard error")?));
        }
        let (ended, end) = io::pipe().explain("a pipe")?;
        let outside = Outside::see();
        // A later one finds the program.
        if let Some(signal) = interrupt::take() {
            return Ok(Ran::Interrupted(signal));
        }
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(e) => {
                let code = inside::not_executed(&args.command, &e);
                return Ok(Ran::Ended(End { code, signal: None }));
            }
        };
        let base = base.mounted.as_ref().map(Mount::dir);
        let base = base.filter(|_| !args.beside);
        let follower = outside.zip(base);
        let follower = follower.and_then(|(outside, base)| outside.follow(child.id(), base));
        let pid = children::pid(&child);
        let passing = thread::spawn(move || {
            let mut last = None;
            // A terminal sends the others to the program itself.
            while let Some(signal) = interrupt::next(&ended) {
                let passed = match signal {
                    SIGTERM => Signal::TERM,
                    SIGHUP => Signal::HUP,
                    _ => continue,
                };
                last = Some(signal);
                if let Some(pid) = pid {
                    // It may have ended.
                    let _ = kill_process(pid, passed);
                }
            }
            last
        });
        let status = child.wait();
        drop((follower, end));
        let signal = passing.join().ok().flatten();
        // What a terminal has sent was the program's.
        let late = interrupt::take().filter(|late| [SIGTERM, SIGHUP].contains(late));
        let code = code_of(status.explain("the program")?);
        let signal = late.or(signal);
        Ok(Ran::Ended(End { code, signal }))
    }

    /// The program, in the fork.
    fn program(&self, base: &Base, args: &Args) -> Result<Command, Failure> {
        if let (Some(mount), false) = (&base.mounted, args.beside) {
            let mut command = Command::new(this_program()?);
            command.arg("try");
            if args.no_preload {
                command.arg("--no-preload");
            }
            command.arg("--inside");
            // None of them may be empty, or begin like an option.
            let [part, below] = [&mount.part, &mount.below].map(|path| Path::new(".").join(path));
            command.args([mount.dir(), &self.dir.0, &part, &below]);
            command.arg("--").args(&args.command);
            return Ok(command);
        }
        let inside = base.mounted.as_ref().map(Mount::inside);
        let there = self.dir.0.join(inside.unwrap_or_default());
        let mut command = inside::words(&args.command, !args.no_preload);
        command.current_dir(&there).env("PWD", &there);
        Ok(command)
    }

    /// Unmounts it; it is durable then. Programs that CMD has left in the background are waited for
    /// shortly. If they go on, they keep the fork in use, or if they see it in their own mount
    /// namespace, its connection; they lose nothing.
    pub(super) fn unmount(self, base: &Base, quiet: bool) -> Result<(), AnyError> {
        self.wait_for_users(base, quiet)?;
        let dir = self.dir.0.as_os_str();
        // It is not to remove what a dead daemon has left: that would look as if all was durable.
        let words = [OsStr::new("umount"), OsStr::new("--served"), dir];
        match children::run_unless_interrupted(&words)? {
            Outcome::Done => Ok(()),
            Outcome::Interrupted(signal) => Err(self.interrupted(base, signal).into()),
            Outcome::Failed if !self.is_mounted() => Err(self.lost(base).into()),
            Outcome::Failed => match daemon::status(&self.dir.0, daemon::WAIT) {
                Err(refusal) if refusal.cause == Cause::Gone => {
                    // If it is in use, the mount of a dead daemon harms nobody.
                    let _ = mounter::unmount(&self.dir.0, Way::Lazy);
                    Err(self.lost(base).into())
                }
                _ => Err(self.stays(base, "it could not be unmounted").into()),
            },
        }
    }

    /// Waits until nothing uses it.
    ///
    /// # Errors
    /// What uses it after a while.
    fn wait_for_users(&self, base: &Base, quiet: bool) -> Result<(), AnyError> {
        let (began, mut pause, mut told) = (Instant::now(), MOMENT / 8, quiet);
        while let Some(users) = self.users() {
            let waited = began.elapsed();
            if waited >= PATIENCE {
                let why = format!("it is still in use by {users}");
                return Err(self.stays(base, &why).into());
            }
            if waited >= MOMENT && !told {
                told = true;
                note(format_args!(
                    "note: the fork {} is in use by {users}: waiting {} seconds for that to end",
                    self.name,
                    PATIENCE.as_secs()
                ));
            }
            thread::sleep(pause);
            if let Some(signal) = interrupt::take() {
                return Err(self.interrupted(base, signal).into());
            }
            pause = MOMENT.min(pause * 2);
        }
        Ok(())
    }

    /// The programs that use it, if there are any.
    fn users(&self) -> Option<Holders> {
        let entry = mountinfo::at(&self.dir.0).ok()??;
        Some(elsewhere::users(&entry)).filter(|users| !users.is_empty())
    }

    /// The failure for a fork that stays mounted.
    fn stays(&self, base: &Base, why: &str) -> Failure {
        let steps = base.next_steps_in(&base.volume(), &self.name);
        let failure = base.kept(&self.name, why);
        match self.lease {
            Some(_) => failure.hint(format_args!(
                "it is unmounted by itself when nothing uses it; then {steps}"
            )),
            None => failure.hint(format_args!(
                "when nothing uses it: cairnfs umount {}; then {steps}",
                word_of_path(&self.dir.0)
            )),
        }
    }

    /// The failure for a fork whose daemon has ended before its mount.
    fn lost(&self, base: &Base) -> Failure {
        let steps = base.next_steps_in(&base.volume(), &self.name);
        base.kept(
            &self.name,
            "the daemon that served it has ended: what the program did and was not durable is lost",
        )
        .hint(format_args!("look at what is there; then {steps}"))
    }

    /// Tells that it stays because of a signal.
    fn interrupted(&self, base: &Base, signal: i32) -> Interrupted {
        self.stays(base, name_of(signal)).tell();
        Interrupted(signal)
    }
}

/// Has the daemon of the base unmount what is mounted on `dir` when this process is gone.
fn lease(base: &Base, dir: &Path) -> Option<Lease> {
    let entry = mountinfo::at(dir).ok()??;
    let name = match &base.mounted {
        Some(mount) => mount.location.socket()?,
        None => SocketName::of(&base.place.metadata().ok()?),
    };
    Call::begin(&name, geteuid().as_raw(), ANSWER)?.lease(&entry.device)
}

/// The exit code of a program, as shells have it.
fn code_of(status: ExitStatus) -> u8 {
    let signalled = || status.signal().map(|signal| signal + 128);
    let code = status.code().or_else(signalled);
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(FAILED)
}
