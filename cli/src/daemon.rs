//! Sends requests to the daemon of a mount, and turns failures into messages for an operator.
//!
//! Uses [`cairnfs_fuse::control`]. Each request runs in a child process, by [`answer_parent`]: a
//! process whose request the daemon has accepted but does not answer cannot be ended, not even by
//! SIGKILL. No other module of the command sends a daemon a request. A child without an answer is
//! left behind. An errno only means "input/output error"; the daemon knows the cause.

use std::io::{self, PipeReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cairnfs_daemon::failure::{io_text, show_bytes, shown};
use cairnfs_daemon::holder;
use cairnfs_daemon::shell::word_of_path;
use cairnfs_fuse::control;
use cairnfs_fuse::mountinfo::{self, MountEntry};
use cairnfs_fuse::status::Status;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::inherited;
use crate::interrupt;

/// Time that a daemon has for an answer, unless an option sets another one.
pub const WAIT: Duration = Duration::from_secs(30);

/// Time after which a daemon that works on a request is asked whether it still answers.
const CHECK: Duration = Duration::from_secs(2);

/// The option that makes this program the child process which sends a request.
pub const ASKING: &str = "--asking";

/// A request that a child process sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Request {
    /// The status: [`Answer`].
    Status,
    /// Whether the daemon can write the volume: `bool`.
    Writable,
    /// Make everything durable: [`Synced`].
    Sync,
    /// The status, then make everything durable: [`Leaving`].
    Leave,
    /// Discard free space: the number of bytes.
    Trim,
}

/// A daemon's status, and its mount.
#[derive(Serialize, Deserialize)]
pub struct Answer {
    /// The status as the daemon reports it.
    pub status: Status,
    /// The path of the volume.
    #[serde(with = "cairnfs_daemon::raw_path")]
    pub volume: PathBuf,
    /// Where the volume is mounted; the requested path if the mount is not visible.
    #[serde(with = "cairnfs_daemon::raw_path")]
    pub mountpoint: PathBuf,
    /// Whether the mount itself is read-only, independent of the daemon's own state.
    pub mounted_read_only: bool,
}

/// What is to be told after everything was made durable.
#[derive(Serialize, Deserialize)]
pub struct Synced {
    /// What was refused because a publish or restore had replaced its file.
    pub refused: Option<String>,
    /// The image was moved, replaced or deleted.
    pub displaced: Option<String>,
}

/// What to know of a mount before it is unmounted.
#[derive(Serialize, Deserialize)]
pub struct Leaving {
    /// The status before everything was made durable; `None` if it could not be asked for.
    pub before: Option<Answer>,
    /// Whether everything is durable.
    pub synced: Result<Synced, Refusal>,
}

/// The class of a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// The path is in no CairnFS volume.
    Foreign,
    /// The path is no directory, and the request needs one.
    NotDirectory,
    /// The daemon is dead.
    Gone,
    /// The daemon does not answer.
    Silent,
    /// The caller has no permission.
    Denied,
    /// What holds the volume cannot do it.
    Unsupported,
    /// The file system that holds the volume is full.
    HostFull,
    /// Any other failure.
    Other,
}

/// Why a request was not carried out.
#[derive(Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// The class of the failure.
    pub cause: Cause,
    /// The reason and, where there is one, the next step; without the name of the mount.
    pub text: String,
}

impl Refusal {
    /// The failure of a request about `dir`, for this errno.
    fn of(dir: &Path, error: &io::Error) -> Self {
        if mountinfo::is_dead(error) {
            return Self {
                cause: Cause::Gone,
                text: missing(dir),
            };
        }
        let status = control::status(dir).ok();
        let full = status.as_ref().and_then(|s| host_full(s, error));
        let cause = match error.kind() {
            _ if is_foreign(error) && status.is_none() => Cause::Foreign,
            _ if full.is_some() => Cause::HostFull,
            io::ErrorKind::PermissionDenied => Cause::Denied,
            io::ErrorKind::Unsupported => Cause::Unsupported,
            _ => Cause::Other,
        };
        let stopped = status.as_ref().and_then(Status::stopped);
        let known = stopped.or(full);
        Self {
            cause,
            text: known.map_or_else(|| io_text(error), |text| show_bytes(text.as_bytes())),
        }
    }

    fn silent(dir: &Path, wait: Duration) -> Self {
        // What is left of a time that a user has given has more digits.
        let tenths = (wait.as_secs_f64() * 10.0).round() / 10.0;
        Self {
            cause: Cause::Silent,
            text: format!(
                "the daemon does not answer within {tenths} seconds: {}; `cairnfs umount --lazy {}` takes \
                 the mount away",
                advice(dir),
                word_of_path(dir)
            ),
        }
    }

    fn interrupted(dir: &Path) -> Self {
        Self {
            cause: Cause::Silent,
            text: format!(
                "interrupted, and the daemon has not answered: {}",
                advice(dir)
            ),
        }
    }

    /// The request could not be sent, or its answer not be read.
    fn unsent(why: impl std::fmt::Display) -> Self {
        Self {
            cause: Cause::Other,
            text: format!("cannot ask the daemon: {why}"),
        }
    }

    /// Message with the name of the path that the request was about.
    pub fn about(&self, dir: &Path) -> String {
        let name = shown(dir);
        match self.cause {
            Cause::Foreign => format!("{name} is not in a mounted volume"),
            _ => format!("{name}: {}", self.text),
        }
    }
}

/// Asks the daemon of the mount at (or above) `dir` for its status; waits for an answer at most
/// for `wait`.
///
/// # Errors
/// There is no answer: [`Refusal`] has the reason.
pub fn status(dir: &Path, wait: Duration) -> Result<Answer, Refusal> {
    ask(Request::Status, dir, wait, || {
        Err(Refusal::silent(dir, wait))
    })
}

/// Whether the daemon of the mount at (or above) `dir` can write the volume; waits as [`status`].
pub fn is_writable(dir: &Path, wait: Duration) -> Result<bool, Refusal> {
    ask(Request::Writable, dir, wait, || {
        Err(Refusal::silent(dir, wait))
    })
}

/// Makes everything in the volume mounted at (or above) `dir` durable. Waits as long as the daemon
/// works, but not for one that does not answer for `wait`.
///
/// # Errors
/// Not everything is durable: [`Refusal`] has the reason.
pub fn sync(dir: &Path, wait: Duration) -> Result<Synced, Refusal> {
    work(Request::Sync, dir, wait)
}

/// The status of the mount at `dir`, then as [`sync`]; by one child process.
///
/// # Errors
/// The daemon is dead or does not answer, or cannot be asked.
pub fn leave(dir: &Path, wait: Duration) -> Result<Leaving, Refusal> {
    work(Request::Leave, dir, wait)
}

/// Discards the free space of the volume mounted at `dir`; returns the number of bytes. Waits as
/// [`sync`].
///
/// # Errors
/// Not discarded: [`Refusal`] has the reason.
pub fn trim(dir: &Path, wait: Duration) -> Result<u64, Refusal> {
    work(Request::Trim, dir, wait)
}

/// Sends a request that may take any time, and asks meanwhile whether the daemon answers: both
/// together take no more than `wait` if it does not. Any other failure is reported by the request
/// itself.
fn work<T: DeserializeOwned>(request: Request, dir: &Path, wait: Duration) -> Result<T, Refusal> {
    let (interval, rest) = parts(wait);
    ask(request, dir, interval, || match status(dir, rest) {
        Err(refusal) if refusal.cause == Cause::Silent => Err(Refusal::silent(dir, wait)),
        _ => Ok(()),
    })
}

/// Divides the time for an answer: how long to wait until the daemon is asked, and for that answer.
fn parts(wait: Duration) -> (Duration, Duration) {
    let interval = CHECK.min(wait / 2);
    (interval, wait.saturating_sub(interval))
}

/// Has a child process send a request. Each time `interval` passes without an answer, `overdue`
/// decides whether to wait on.
fn ask<T: DeserializeOwned>(
    request: Request,
    dir: &Path,
    interval: Duration,
    overdue: impl Fn() -> Result<(), Refusal>,
) -> Result<T, Refusal> {
    let unsent = |e: io::Error| Refusal::unsent(io_text(&e));
    let (mut child, mut output) = start(request, dir).map_err(unsent)?;
    loop {
        match interrupt::wait_until(&output, Instant::now().checked_add(interval)) {
            Ok(true) => break,
            Ok(false) => overdue()?,
            Err(_) => return Err(Refusal::interrupted(dir)),
        }
    }
    let mut text = String::new();
    output.read_to_string(&mut text).map_err(unsent)?;
    // The child's descriptor in the mount is closed once it has ended.
    let ended = child.wait().map_err(unsent)?;
    if !ended.success() {
        return Err(Refusal::unsent(format_args!(
            "the process that asks it ended with {ended}"
        )));
    }
    serde_json::from_str(&text).map_err(Refusal::unsent)?
}

/// Starts a child process that sends a request, and writes the answer, or nothing, to the pipe.
fn start(request: Request, dir: &Path) -> io::Result<(Child, PipeReader)> {
    let (answer, output) = io::pipe()?;
    let request = request.to_possible_value();
    let child = Command::new(std::env::current_exe()?)
        .args(["stats", ASKING])
        .args(request.as_ref().map(PossibleValue::get_name))
        .arg("--")
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()?;
    Ok((child, answer))
}

/// Sends the daemon a request, waits without a timeout, and writes the answer to standard output.
///
/// # Errors
/// Standard output cannot be written, for example because the parent has exited.
pub fn answer_parent(request: Request, dir: &Path) -> io::Result<()> {
    inherited::close()?;
    let text = match request {
        Request::Status => answer(dir, status_now(dir)),
        Request::Writable => answer(dir, control::is_writable(dir)),
        Request::Sync => answer(dir, synced(dir)),
        Request::Leave => answer(dir, leaving(dir)),
        Request::Trim if mountinfo::is_directory(dir) => answer(dir, control::trim(dir)),
        Request::Trim => serde_json::to_vec(&Err::<(), _>(Refusal {
            cause: Cause::NotDirectory,
            text: "is no directory".into(),
        })),
    };
    // Only a whole answer is written.
    io::stdout().lock().write_all(&text?)
}

fn answer<T: Serialize>(dir: &Path, answer: io::Result<T>) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&answer.map_err(|e| Refusal::of(dir, &e)))
}

fn status_now(dir: &Path) -> io::Result<Answer> {
    let status = control::status(dir)?;
    let mount = mountinfo::holding(dir)?.filter(MountEntry::is_ours);
    Ok(Answer {
        status,
        volume: control::volume(dir)?,
        mounted_read_only: mount.as_ref().is_some_and(|m| m.has("ro")),
        mountpoint: mount.map_or_else(|| dir.to_owned(), |m| m.mountpoint),
    })
}

fn synced(dir: &Path) -> io::Result<Synced> {
    let refused = control::sync(dir)?;
    Ok(Synced {
        refused: refused.map(|text| show_bytes(text.as_bytes())),
        displaced: displaced(dir),
    })
}

fn leaving(dir: &Path) -> io::Result<Leaving> {
    let before = match status_now(dir) {
        Err(e) if mountinfo::is_dead(&e) => return Err(e),
        // The caller may not read the directory.
        other => other.ok(),
    };
    Ok(Leaving {
        before,
        synced: synced(dir).map_err(|e| Refusal::of(dir, &e)),
    })
}

fn displaced(dir: &Path) -> Option<String> {
    let status = control::status(dir).ok()?;
    status.displaced().map(|text| show_bytes(text.as_bytes()))
}

/// A message if a call failed because the file system that holds the volume is full; else `None`.
fn host_full(status: &Status, error: &io::Error) -> Option<String> {
    let held = status.counter("held_bytes");
    let full = error.kind() == io::ErrorKind::StorageFull && held > 0;
    full.then(|| {
        format!(
            "the file system that holds {} is full: {held} bytes wait in memory until there is space",
            show_bytes(status.volume.as_bytes())
        )
    })
}

/// The text about a path whose daemon is gone, without the path itself.
pub fn missing(path: &Path) -> String {
    format!(
        "the daemon of this mount is gone; `cairnfs umount {}` takes the mount away, and `cairnfs mount` \
         mounts the volume again, with all that was durable",
        word_of_path(&mountpoint_above(path))
    )
}

/// The directory to unmount: the path itself, or the mountpoint above it.
fn mountpoint_above(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_default();
    match mount_above(&absolute) {
        Some(above) if above.mountpoint != absolute => above.mountpoint,
        _ => path.to_path_buf(),
    }
}

/// The mount that an absolute path is in, by the table of mounts alone: its daemon is not asked.
fn mount_above(path: &Path) -> Option<MountEntry> {
    let table = mountinfo::list(Path::new("/proc/self/mountinfo"));
    let on = |dir: &Path| {
        let mut mounts = table.iter().rev();
        mounts.find(|e| e.is_ours() && e.mountpoint == *dir)
    };
    path.ancestors().find_map(on).cloned()
}

/// What to do about the daemon of the mount that a path is in, or of the volume there.
fn advice(path: &Path) -> String {
    let above = std::path::absolute(path)
        .ok()
        .and_then(|path| mount_above(&path));
    match above {
        Some(above) => holder::advice(mountinfo::volume_of(&above.source)),
        None => holder::advice(path),
    }
}

/// Whether the error means that the path is not on a CairnFS mount: other file systems do not
/// have these attributes, or have no attributes at all.
fn is_foreign(error: &io::Error) -> bool {
    let code = error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error);
    matches!(
        code,
        Some(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_daemon_is_given_up_after_the_time_that_was_given() {
        for wait in [0, 1, 200, 3_000, 30_000].map(Duration::from_millis) {
            let (interval, rest) = parts(wait);
            assert_eq!(interval + rest, wait);
            assert!(interval <= CHECK && interval <= rest);
        }
    }
}
