//! The commands on snapshots and branches: how they reach a volume that is mounted, and one that is not.
//!
//! Of a mounted volume the daemon performs the command, on its engine and with the streams of this
//! process; otherwise the volume is opened here. Either performs the same [`Verb`]. Files that a command
//! names are opened here, with the rights and the working directory of the caller.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use cairnfs::Error;
use cairnfs_daemon::failure::{self, AnyError, Failure, io_text, shown};
use cairnfs_daemon::handover::folder::SocketName;
use cairnfs_daemon::handover::frames::{Answer, NamedMount, Run};
use cairnfs_daemon::holder;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::cmd::backup::now;
use crate::cmd::{branch, diff, drop, log, publish, receive, rename, restore, send, snapshot};
use crate::handover::attempts::{ANSWER, Alone, Asked, ask_or_do_alone};
use crate::handover::caller::Call;
use crate::interrupt;
use crate::mount_location::{self, MountLocation};
use crate::named_volume::Named;
use crate::opened_roots::Roots;
use crate::ship;
use crate::stage::Stage;
use crate::volume_by_path::Access;

/// A command on snapshots and branches.
#[derive(Debug, clap::Subcommand, Serialize, Deserialize)]
pub enum Verb {
    Snapshot(snapshot::Args),
    Branch(branch::Args),
    Log(log::Args),
    Diff(diff::Args),
    Restore(restore::Args),
    Publish(publish::Args),
    Rename(rename::Args),
    Drop(drop::Args),
    Send(send::Args),
    Receive(receive::Args),
    /// Its own module has the command line.
    #[command(skip)]
    Backup(now::Args),
    /// Its own module has the command line.
    #[command(skip)]
    Ship(ship::Ship),
}

impl Verb {
    /// The volume as the user has named it.
    pub fn volume(&self) -> &Path {
        match self {
            Verb::Snapshot(args) => &args.new.volume,
            Verb::Branch(args) => &args.new.volume,
            Verb::Log(args) => &args.volume,
            Verb::Diff(args) => &args.volume,
            Verb::Restore(args) => &args.volume,
            Verb::Publish(args) => &args.volume,
            Verb::Rename(args) => &args.volume,
            Verb::Drop(args) => &args.volume,
            Verb::Send(args) => &args.volume,
            Verb::Receive(args) => &args.volume,
            Verb::Backup(args) => &args.volume,
            Verb::Ship(args) => &args.mount,
        }
    }

    /// How the volume must be open for it.
    pub fn access(&self) -> Access {
        match self {
            Verb::Log(_) | Verb::Diff(_) | Verb::Send(_) | Verb::Ship(_) => Access::Read,
            _ => Access::Write,
        }
    }

    /// Checks the arguments as far as their declaration does not.
    ///
    /// # Errors
    /// What is wrong with them.
    fn check(&self) -> Result<(), Failure> {
        match self {
            Verb::Drop(args) => drop::check(args),
            _ => Ok(()),
        }
    }

    /// Performs the command on an open volume; returns its exit code.
    ///
    /// # Errors
    /// Those of the command, with its exit code.
    pub fn perform(&self, roots: &Roots<'_>) -> Result<u8, AnyError> {
        match self {
            Verb::Snapshot(args) => snapshot::perform(args, roots),
            Verb::Branch(args) => branch::perform(args, roots),
            Verb::Log(args) => log::perform(args, roots),
            Verb::Diff(args) => diff::perform(args, roots),
            Verb::Restore(args) => restore::perform(args, roots),
            Verb::Publish(args) => publish::perform(args, roots),
            Verb::Rename(args) => rename::perform(args, roots),
            Verb::Drop(args) => drop::perform(args, roots),
            Verb::Send(args) => send::perform(args, roots),
            Verb::Receive(args) => receive::perform(args, roots),
            Verb::Backup(args) => now::perform(args, roots),
            Verb::Ship(args) => ship::ship(args, roots),
        }
    }

    /// Gives a failure the exit code that this command has for it.
    pub fn failed(&self, error: AnyError) -> AnyError {
        match self {
            Verb::Diff(_) => diff::in_trouble(error),
            _ => error,
        }
    }
}

/// Runs a command.
pub fn run(verb: &Verb) -> Result<ExitCode, AnyError> {
    code_of(verb).map(ExitCode::from)
}

/// Runs a command, and returns its exit code.
pub fn code_of(verb: &Verb) -> Result<u8, AnyError> {
    with_files(verb).map_err(|error| verb.failed(error))
}

/// A command as it is typed, behind the name of the program.
#[derive(clap::Parser)]
struct Line {
    #[command(subcommand)]
    verb: Verb,
}

/// Performs a command that is given as words, on `stage`; returns its exit code. Its own failures are
/// told there. If it names a directory of a mount, that is the mount of `location`, whatever is there now.
///
/// # Errors
/// The words are no command.
pub fn perform_words<'a>(
    words: impl IntoIterator<Item = &'a OsStr>,
    location: Option<&MountLocation>,
    stage: &Stage,
) -> Result<u8, AnyError> {
    let words = std::iter::once(OsStr::new("cairnfs")).chain(words);
    let verb = <Line as clap::Parser>::try_parse_from(words)?.verb;
    let named = match location {
        Some(location) => Ok(Named::located(verb.volume(), location.clone())),
        None => Named::find(verb.volume()),
    };
    let done = named.map_err(AnyError::from);
    let done = done.and_then(|named| work(&verb, &named, stage));
    let done = done.map_err(|error| verb.failed(error));
    Ok(done.unwrap_or_else(|error| failure::report(error.as_ref(), &mut stage.errors())))
}

/// Opens the files that the command names, and runs it.
fn with_files(verb: &Verb) -> Result<u8, AnyError> {
    verb.check()?;
    let stage = Stage::own()?;
    let named = &Named::find(verb.volume())?;
    match verb {
        Verb::Send(args) => {
            let mut target = send::Target::open(args, &stage)?;
            let code = work(verb, named, &stage.with(None, target.output()?))?;
            if code == 0 {
                target.complete()?;
            }
            Ok(code)
        }
        Verb::Receive(args) => {
            let input = receive::open(args, &stage)?;
            work(verb, named, &stage.with(input, None))
        }
        _ => work(verb, named, &stage),
    }
}

/// Has the command performed by the daemon that has the volume open, or opens it.
fn work(verb: &Verb, named: &Named, stage: &Stage) -> Result<u8, AnyError> {
    verb.check()?;
    let alone = || {
        let volume = named.path()?;
        let error = match Roots::open(&volume, named.branch()?, verb.access(), stage) {
            Ok(roots) => return perform_here(verb, named, roots).map(Alone::Done),
            Err(error) => error,
        };
        if !matches!(error, Error::InUse(_)) {
            return Err(Failure::opening(&volume, &error).into());
        }
        let holder = holder::of(&volume);
        let failure = Failure::held(&volume, &holder).into();
        if named.mount.is_none() && holder.is_no_daemon() {
            Err(failure)
        } else {
            Ok(Alone::Locked(failure))
        }
    };
    ask_or_do_alone(|| ask(verb, named, stage), alone)
}

/// Performs the command on a volume that was opened for it, and closes it.
fn perform_here(verb: &Verb, named: &Named, roots: Roots<'_>) -> Result<u8, AnyError> {
    let (path, stage) = (roots.path().to_path_buf(), roots.stage());
    let done = verb.perform(&roots);
    let closed = roots.close();
    let unmerged = |e: &AnyError| matches!(e.downcast_ref(), Some(Error::ReadOnly));
    if done.as_ref().is_err_and(|e| failure::is_untold(e.as_ref())) {
        // It is not done if it could not be written.
        closed?;
        return done;
    }
    if !done.as_ref().is_err_and(unmerged) {
        let code = done?;
        closed?;
        return Ok(code);
    }
    // Changes in the log of a volume that was not closed properly must be merged first.
    let open = |access| {
        let opened = Roots::open(&path, named.branch()?, access, stage);
        opened.map_err(|e| Failure::opening(&path, &e))
    };
    open(Access::Write)?.close()?;
    let roots = open(Access::Read)?;
    let done = verb.perform(&roots);
    roots.close()?;
    done
}

/// Has the command performed by the daemon of the volume, if there is one.
fn ask(verb: &Verb, named: &Named, stage: &Stage) -> Result<Asked<u8>, AnyError> {
    let by_path = || Some(SocketName::of(&named.volume.metadata().ok()?));
    let Some(mount) = &named.mount else {
        return ask_at(verb, named, (by_path(), None), stage);
    };
    if !mount.is_located() && !mount.entry.has("ro") {
        // Mostly the volume is where it was mounted. Its daemon knows its mounts by their devices, so
        // another one does nothing; and the branch of one that is not read-only.
        let likely = (by_path(), Some(mount_location::named(&mount.entry)));
        if let done @ Asked::Done(_) = ask_at(verb, named, likely, stage)? {
            return Ok(done);
        }
    }
    let location = mount.location()?;
    ask_at(
        verb,
        named,
        (location.socket(), Some(location.named())),
        stage,
    )
}

/// Has the command performed by the daemon with this socket, if it serves the mount.
fn ask_at(
    verb: &Verb,
    named: &Named,
    (socket, mount): (Option<SocketName>, Option<NamedMount>),
    stage: &Stage,
) -> Result<Asked<u8>, AnyError> {
    let user = geteuid().as_raw();
    let Some(call) = socket.and_then(|name| Call::begin(&name, user, ANSWER)) else {
        return Ok(Asked::Nobody);
    };
    // A second signal ends the process at once.
    interrupt::defer()?;
    let (streams, manner) = stage.parts();
    let run = Run {
        verb: serde_json::to_value(verb)?,
        manner: serde_json::to_value(manner)?,
        mount,
    };
    let wrong = |why: String| Failure::new(shown(&named.volume), why);
    match call.run(run, &streams) {
        Ok(Answer::Done(code)) => Ok(Asked::Done(code)),
        Ok(Answer::Closing) => Ok(Asked::Closing(call.ending())),
        // It has the volume open, and does not serve this mount: that has ended, or is another reader's.
        Ok(Answer::Unknown) => Ok(Asked::Nobody),
        Ok(Answer::Refused(why)) => Err(wrong(why).into()),
        Ok(_) => Err(wrong("the daemon's answer is not understood".into()).into()),
        Err(e) if Call::is_unanswered(&e) => Err(wrong(io_text(&e))
            .hint(holder::advice(&named.volume))
            .into()),
        Err(e) => Err(wrong(io_text(&e)).into()),
    }
}
