//! Commands of this program that `cairnfs try` runs in processes of their own.
//!
//! Each has its own process group, so that Ctrl-C at a terminal reaches only `try`, which decides what
//! it ends. What they say goes through a pipe: a terminal may stop processes of another group that
//! write to it. Uses failures and signals.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

use cairnfs_daemon::failure::{Explain, Failure};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::interrupt;

/// What came of a command that a signal may interrupt.
pub(super) enum Outcome {
    Done,
    Failed,
    Interrupted(i32),
}

/// Runs a command to its end.
pub(super) fn run<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> Result<(), Failure> {
    let words: Vec<&OsStr> = words.into_iter().collect();
    let (status, ()) = with(&words, |_| ())?;
    let what = words.first().copied().unwrap_or_default();
    if status.success() {
        Ok(())
    } else {
        Err(Failure::new(
            format_args!("cairnfs {}", what.display()),
            status,
        ))
    }
}

/// Runs a command, which a signal to this process ends.
pub(super) fn run_unless_interrupted(words: &[&OsStr]) -> Result<Outcome, Failure> {
    let (status, signal) = with(words, |child| {
        let process = pidfd_open(pid(child)?, PidfdFlags::empty()).ok()?;
        if interrupt::wait(&process).is_ok() {
            return None;
        }
        // It may have ended.
        let _ = kill_process(pid(child)?, Signal::TERM);
        interrupt::take()
    })?;
    Ok(match (signal, status.success()) {
        (Some(signal), _) => Outcome::Interrupted(signal),
        (None, true) => Outcome::Done,
        (None, false) => Outcome::Failed,
    })
}

/// The path of this program.
pub(super) fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().explain("this program")
}

/// The process number of a child.
pub(super) fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

/// Runs a command, and `meanwhile` beside it.
fn with<T>(
    words: &[&OsStr],
    meanwhile: impl FnOnce(&Child) -> T,
) -> Result<(ExitStatus, T), Failure> {
    let mut child = Command::new(this_program()?)
        .args(words)
        .process_group(0)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .explain("this program")?;
    let errors = child.stderr.take();
    let telling = thread::spawn(move || {
        // The terminal may be gone.
        errors.map(|mut errors| io::copy(&mut errors, &mut io::stderr()))
    });
    let result = meanwhile(&child);
    let status = child.wait().explain("this program")?;
    let _ = telling.join();
    Ok((status, result))
}
