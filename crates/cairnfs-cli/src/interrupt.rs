//! Orderly end of a copy on SIGINT, SIGTERM or SIGHUP.
//!
//! After [`defer`] the first of these signals only sets a flag. Copies test it between entries and
//! between reads, remove what is incomplete and close the volume; then [`deliver`] ends the process
//! by the signal. A second signal ends it at once. Signals that the parent process had ignored, as
//! nohup(1) does, stay ignored.

use std::io::{self, PipeReader};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::failure::{Explain, Failure};

const INCOMPLETE: &str = "the copy is incomplete";

static DEFERRED: OnceLock<Deferred> = OnceLock::new();

struct Deferred {
    /// The signal; 0 before it arrives.
    signal: Arc<AtomicUsize>,
    /// Becomes readable when the signal arrives.
    arrived: PipeReader,
}

/// Defers the signals until [`deliver`].
///
/// # Errors
/// The process has no descriptor left.
pub fn defer() -> Result<(), Failure> {
    const WHAT: &str = "handlers for signals";
    let (arrived, notice) = io::pipe().explain(WHAT)?;
    let signal = Arc::new(AtomicUsize::new(0));
    let deferred = Deferred {
        signal: signal.clone(),
        arrived,
    };
    if DEFERRED.set(deferred).is_err() {
        return Ok(());
    }
    let again = Arc::new(AtomicBool::new(false));
    let ignored = ignored();
    for number in [SIGINT, SIGTERM, SIGHUP] {
        if ignored & (1 << (number - 1)) != 0 {
            continue;
        }
        let notice = notice.try_clone().explain(WHAT)?;
        // Actions run in this order, so the first signal does not take the default action.
        flag::register_conditional_default(number, again.clone())
            .and_then(|_| flag::register(number, again.clone()))
            .and_then(|_| {
                flag::register_usize(number, signal.clone(), number.unsigned_abs() as usize)
            })
            .and_then(|_| low_level::pipe::register(number, notice))
            .explain(WHAT)?;
    }
    Ok(())
}

/// The mask of ignored signals; 0 where `/proc` is missing.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

fn arrived() -> Option<i32> {
    let signal = DEFERRED.get()?.signal.load(Ordering::Relaxed);
    i32::try_from(signal).ok().filter(|signal| *signal != 0)
}

/// Fails once a signal has arrived.
///
/// # Errors
/// A fatal failure, which ends the copy.
pub fn check() -> Result<(), Failure> {
    match arrived() {
        None => Ok(()),
        Some(_) => Err(interrupted()),
    }
}

/// The failure of what was interrupted.
pub fn interrupted() -> Failure {
    Failure::new("interrupted", INCOMPLETE).fatal()
}

/// Waits until `input` can be read. Without this a read from a pipe would hold up the end.
///
/// # Errors
/// A signal has arrived.
pub fn wait(input: impl AsFd) -> io::Result<()> {
    match DEFERRED.get() {
        Some(deferred) => wait_beside(&deferred.arrived, input),
        None => Ok(()),
    }
}

/// Waits until `input` can be read, or `end`, or until the other end of that was closed.
///
/// # Errors
/// It was `end`.
pub fn wait_beside(end: impl AsFd, input: impl AsFd) -> io::Result<()> {
    loop {
        let mut both = [
            PollFd::new(&end, PollFlags::IN | PollFlags::RDHUP),
            PollFd::new(&input, PollFlags::IN),
        ];
        match poll(&mut both, None) {
            Err(Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
            Ok(_) => {}
        }
        let [arrived, _] = both;
        return match arrived.revents().is_empty() {
            true => Ok(()),
            false => Err(io::Error::other(format!("interrupted; {INCOMPLETE}"))),
        };
    }
}

/// Ends the process by the signal that was deferred, if there is one.
pub fn deliver() {
    if let Some(signal) = arrived() {
        // Cannot fail: these signals end a process by default.
        let _ = low_level::emulate_default_handler(signal);
    }
}
