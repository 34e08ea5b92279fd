//! Queries the daemon of a mount for its status, and turns failures into messages for an
//! operator.
//!
//! Uses [`cairnfs_fuse::control`]. An errno only means "input/output error"; the daemon knows the
//! cause.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use cairnfs_fuse::status::Status;
use cairnfs_fuse::{control, mountinfo};
use serde::{Deserialize, Serialize};

use crate::failure::{io_text, show_bytes, shown};

/// A daemon's answer.
#[derive(Serialize, Deserialize)]
pub struct Answer {
    /// The status as the daemon reports it.
    pub status: Status,
    /// Where the volume is mounted; the requested path if the mount is not visible.
    pub mountpoint: PathBuf,
    /// Whether the mount itself is read-only, independent of the daemon's own state.
    pub mounted_read_only: bool,
}

/// Asks the daemon of the mount at (or above) `dir`, and waits for an answer at most for `wait`.
///
/// The request runs in a child process, by [`ask_for_parent`]: a process whose request the daemon
/// has accepted but does not answer cannot be ended, not even by SIGKILL. After the timeout the
/// child is left behind.
///
/// # Errors
/// A message with the reason that there is no answer, and with the next step.
pub fn ask(dir: &Path, wait: Duration) -> Result<Answer, String> {
    let failed = |e: io::Error| format!("cannot ask the daemon of {}: {}", shown(dir), io_text(&e));
    let program = std::env::current_exe().map_err(failed)?;
    let mut child = Command::new(program)
        .args(["stats", ASKING, "--"])
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let output = child.stdout.take();
    let (answers, answer) = channel();
    let reading = std::thread::Builder::new().spawn(move || {
        let mut text = String::new();
        let read = output.map(|mut output| output.read_to_string(&mut text));
        // The receiver is gone after a timeout.
        let _ = answers.send(read.transpose().map(|_| text));
    });
    reading.map_err(failed)?;
    match answer.recv_timeout(wait) {
        Ok(text) => {
            child.wait().map_err(failed)?;
            let text = text.map_err(failed)?;
            serde_json::from_str(&text).map_err(|e| failed(e.into()))?
        }
        Err(_) => Err(format!(
            "the daemon of {} does not answer within {} seconds: see whether its process is stopped \
             or waits for what holds the volume; `cairnfs umount --lazy` takes the mount away",
            shown(dir),
            wait.as_secs_f64()
        )),
    }
}

/// The option that makes this program the child process which queries the daemon.
pub const ASKING: &str = "--asking";

/// Asks the daemon without a timeout, and writes the answer to standard output.
///
/// # Errors
/// Standard output cannot be written, for example because the parent has exited.
pub fn ask_for_parent(dir: &Path) -> io::Result<()> {
    let answer = ask_now(dir).map_err(|e| unanswered(dir, &e));
    Ok(serde_json::to_writer(io::stdout().lock(), &answer)?)
}

fn ask_now(dir: &Path) -> io::Result<Answer> {
    let status = control::status(dir)?;
    let mount = mountinfo::holding(dir)?.filter(mountinfo::MountEntry::is_ours);
    Ok(Answer {
        status,
        mounted_read_only: mount.as_ref().is_some_and(|m| m.has("ro")),
        mountpoint: mount.map_or_else(|| dir.to_owned(), |m| m.mountpoint),
    })
}

/// Message for a request that the daemon of `dir` did not carry out.
pub fn told(dir: &Path, error: &io::Error) -> String {
    match is_foreign(error) {
        true => unanswered(dir, error),
        false => format!("{}: {}", shown(dir), because(dir, error)),
    }
}

/// Why a call to a mount failed, without the mount's name: the reason that the daemon recorded,
/// or else the text of the error.
pub fn because(dir: &Path, error: &io::Error) -> String {
    if mountinfo::is_dead(error) {
        return missing_daemon(dir);
    }
    let status = control::status(dir).ok();
    let stopped = status.as_ref().and_then(Status::stopped);
    let known = stopped.or_else(|| host_full(&status?, error));
    known.map_or_else(|| io_text(error), |text| show_bytes(text.as_bytes()))
}

/// A message if a call failed because the file system that holds the volume is full; else `None`.
pub fn host_full(status: &Status, error: &io::Error) -> Option<String> {
    let held = status.counter("held_bytes");
    let full = error.kind() == io::ErrorKind::StorageFull && held > 0;
    full.then(|| {
        format!(
            "the file system that holds {} is full: {held} bytes wait in memory until there is space",
            show_bytes(status.volume.as_bytes())
        )
    })
}

fn unanswered(dir: &Path, error: &io::Error) -> String {
    let name = shown(dir);
    if is_foreign(error) {
        return format!("{name} is not in a mounted volume");
    }
    match mountinfo::is_dead(error) {
        true => format!("{name}: {}", missing_daemon(dir)),
        false => format!("{name}: {}", io_text(error)),
    }
}

fn missing_daemon(dir: &Path) -> String {
    format!(
        "the daemon of this mount is gone; `cairnfs umount {}` takes the mount away, and `cairnfs mount` \
         mounts the volume again, with all that was durable",
        shown(dir)
    )
}

/// Whether the error means that the path is not on a CairnFS mount: other file systems do not
/// have these attributes, or have no attributes at all.
pub fn is_foreign(error: &io::Error) -> bool {
    let code = error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error);
    matches!(
        code,
        Some(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP)
    )
}
