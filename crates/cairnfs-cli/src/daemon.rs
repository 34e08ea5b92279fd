//! What the daemon of a mount says of itself, and in which words an operator gets to read it.
//!
//! Asks over [`cairnfs_fuse::control`]. An errno says "input/output error"; the daemon knows why.

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
    /// What it tells.
    pub status: Status,
    /// Where the volume is mounted; the path that was asked for if the mount cannot be seen.
    pub mountpoint: PathBuf,
    /// Whether the mount refuses changes, whatever the daemon would do.
    pub mounted_read_only: bool,
}

/// Asks the daemon of the mount at (or above) `dir`, and waits so long for an answer.
///
/// The kernel does not let go of a process whose request the daemon has taken and does not answer, not
/// even when it is killed. So another process asks, by [`ask_for_parent`], and is left behind then.
///
/// # Errors
/// Why there is none, in words, with what to do.
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
        // Fails if it took too long.
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

/// The option by which the program is told to ask for its parent.
pub const ASKING: &str = "--asking";

/// Asks, however long that takes, and writes the answer to standard output.
///
/// # Errors
/// The parent is gone.
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

/// What it means that the daemon of `dir` did not do what it was asked for.
pub fn told(dir: &Path, error: &io::Error) -> String {
    match is_foreign(error) {
        true => unanswered(dir, error),
        false => format!("{}: {}", shown(dir), because(dir, error)),
    }
}

/// Why a call to a mount failed, without the mount's name: as the daemon knows it, else as the error says.
pub fn because(dir: &Path, error: &io::Error) -> String {
    if mountinfo::is_dead(error) {
        return gone(dir);
    }
    let status = control::status(dir).ok();
    let stopped = status.as_ref().and_then(Status::stopped);
    let known = stopped.or_else(|| host_full(&status?, error));
    known.map_or_else(|| io_text(error), |text| show_bytes(text.as_bytes()))
}

/// That a call failed because the file system that holds the volume is full; `None` if it did not.
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
        true => format!("{name}: {}", gone(dir)),
        false => format!("{name}: {}", io_text(error)),
    }
}

fn gone(dir: &Path) -> String {
    format!(
        "the daemon of this mount is gone; `cairnfs umount {}` takes the mount away, and `cairnfs mount` \
         mounts the volume again, with all that was durable",
        shown(dir)
    )
}

/// Other file systems know nothing of our attributes, or of attributes at all.
pub fn is_foreign(error: &io::Error) -> bool {
    let code = error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error);
    matches!(
        code,
        Some(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP)
    )
}
