//! Hands a mount over to the daemon that has the volume open, or starts a daemon.
//!
//! The command mounts, so the rights are those of the caller, and the daemon never mounts a path that
//! others name. Whichever of two commands comes first starts the daemon, and the other one finds it.
//! A mount that the daemon does not serve is taken away again.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use cairnfs_daemon::exit::{EXIT_SYSTEM, Failure, failed, in_line};
use cairnfs_daemon::failure::{io_text, shown};
use cairnfs_daemon::handover::folder::SocketName;
use cairnfs_daemon::handover::frames::{Answer, Request, Wanted};
use cairnfs_daemon::holder;
use cairnfs_daemon::serving::{IN_USE, READY};
use cairnfs_fuse::mounted::Mounted;
use cairnfs_fuse::{MountOptions, mounter};
use rustix::process::geteuid;

use super::Args;
use crate::handover::attempts::{ANSWER, Alone, Asked, ask_or_do_alone};
use crate::handover::caller::Call;
use crate::interrupt;
use crate::mount_location::MountLocation;

/// Has the volume mounted on `dir` by its daemon, which is started if there is none.
pub(super) fn join_or_start(
    args: &Args,
    volume: &Path,
    dir: &Path,
    options: &MountOptions,
) -> Result<(), Failure> {
    ask_or_do_alone(
        || ask(args, (socket(volume)?, volume), dir, options),
        || start(args, volume, dir),
    )?;
    if args.verbose {
        say!("mounted {} on {}", volume.display(), dir.display());
    }
    Ok(())
}

/// Has a branch mounted on `dir` by the daemon of the mount on `base`, wherever its volume is now.
pub(super) fn join(
    args: &Args,
    base: &Path,
    dir: &Path,
    options: &MountOptions,
) -> Result<(), Failure> {
    let location = MountLocation::of(base).map_err(|failure| failed(in_line(&failure)))?;
    let Some(location) = location else {
        return Err(failed(format_args!(
            "{} is not in a mounted volume",
            shown(base)
        )));
    };
    match ask(args, (location.socket(), &location.volume), dir, options)? {
        Asked::Done(()) => Ok(()),
        Asked::Nobody | Asked::Closing(_) => Err(failed(format_args!(
            "the daemon of the mount on {} cannot be called",
            shown(base)
        ))),
    }
}

/// Starts a daemon for what no other one can have open.
pub(super) fn start_alone(args: &Args, volume: &Path, dir: &Path) -> Result<(), Failure> {
    match start(args, volume, dir)? {
        Alone::Done(()) => {}
        Alone::Locked(why) => return Err(why),
    }
    if args.verbose {
        say!("mounted {} on {}", volume.display(), dir.display());
    }
    Ok(())
}

/// The name of the socket of the daemon that may have a volume open.
fn socket(volume: &Path) -> Result<Option<SocketName>, Failure> {
    let wrong = |e| failed(format_args!("{}: {}", shown(volume), io_text(&e)));
    let file = volume.metadata().map_err(wrong)?;
    Ok(Some(SocketName::of(&file)))
}

/// Mounts, with the consent of the daemon that has the volume open, and hands the mount over to it.
fn ask(
    args: &Args,
    (socket, volume): (Option<SocketName>, &Path),
    dir: &Path,
    options: &MountOptions,
) -> Result<Asked<()>, Failure> {
    let wrong = |e: std::io::Error| {
        let advice = Call::is_unanswered(&e).then(|| format!(": {}", holder::advice(volume)));
        let advice = advice.unwrap_or_default();
        failed(format_args!("{}: {}{advice}", shown(volume), io_text(&e)))
    };
    let user = geteuid().as_raw();
    let Some(call) = socket.and_then(|name| Call::begin(&name, user, ANSWER)) else {
        return Ok(Asked::Nobody);
    };
    let wanted = Request::Mount(Wanted {
        lists: args.options.clone(),
        by_mount8: args.helper,
        sloppy: args.sloppy,
    });
    let mut options = options.clone();
    match call.ask(&wanted, &[]).map_err(wrong)? {
        Answer::Mountable { source, read_only } => {
            options.read_only = read_only;
            options.source = source;
        }
        other => return not_served(other, call),
    }
    if args.log.is_some() {
        say!(
            "cairnfs mount: note: --log is not used: the daemon that serves {} has its own log",
            shown(volume)
        );
    }
    let cannot = |e: std::io::Error| {
        failed(format_args!(
            "cannot mount on {}: {}",
            shown(dir),
            io_text(&e)
        ))
    };
    // A mount that nobody serves must not stay.
    interrupt::defer().map_err(|failure| failed(in_line(&failure)))?;
    let device = mounter::mount(volume, dir, &options).map_err(cannot)?;
    let mounted = Mounted::here(dir, &Arc::default()).map_err(cannot)?;
    let Some(number) = mounted.device() else {
        return Err(failed(format_args!(
            "{} was unmounted before it was served",
            shown(dir)
        )));
    };
    let serve = Request::Serve {
        device: number.to_owned(),
        dir: dir.to_path_buf(),
    };
    let answer = call.ask(&serve, &[device.as_fd()]);
    match answer {
        Ok(Answer::Serving) => Ok(Asked::Done(())),
        other => {
            // Nothing serves it, so nothing can be waiting in it for long.
            drop(device);
            mounted.detach();
            not_served(other.map_err(wrong)?, call)
        }
    }
}

fn not_served(answer: Answer, call: Call) -> Result<Asked<()>, Failure> {
    match answer {
        Answer::Closing => Ok(Asked::Closing(call.ending())),
        Answer::Refused(why) => Err(failed(why)),
        _ => Err(failed("the daemon's answer is not understood")),
    }
}

/// Starts a daemon and waits until the mount is live.
fn start(args: &Args, volume: &Path, dir: &Path) -> Result<Alone<(), Failure>, Failure> {
    let system = |e: std::io::Error| Failure(EXIT_SYSTEM, format!("cannot start the daemon: {e}"));
    let program = std::env::current_exe().map_err(system)?;
    let mut command = Command::new(program);
    command.arg0("cairnfs").args(["mount", "--detached"]);
    for list in &args.options {
        command.arg("-o").arg(list);
    }
    if args.sloppy {
        command.arg("--sloppy");
    }
    if args.helper {
        command.arg("--helper");
    }
    if args.verbose {
        command.arg("--verbose");
    }
    if let Some(log) = &args.log {
        command.arg("--log");
        command.arg(std::path::absolute(log).map_err(system)?);
    }
    let mut daemon = command
        .args(args.moment.words().map_err(system)?)
        .arg("--")
        .args([volume, dir])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(system)?;
    let mut word = String::new();
    if let Some(output) = daemon.stdout.take() {
        interrupt::wait(&output)
            .map_err(|_| failed(format_args!("{}: interrupted", shown(volume))))?;
        BufReader::new(output)
            .read_line(&mut word)
            .map_err(system)?;
    }
    let word = word.trim_end();
    if word == READY {
        return Ok(Alone::Done(()));
    }
    let status = daemon.wait().map_err(system)?;
    if let Some(why) = word.strip_prefix(IN_USE) {
        return Ok(Alone::Locked(failed(why)));
    }
    Err(match status.code().map(u8::try_from) {
        Some(Ok(code)) => Failure(code, String::new()),
        _ => failed(format_args!(
            "the daemon died ({status}); {} is not mounted",
            volume.display()
        )),
    })
}
