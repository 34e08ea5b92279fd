//! Orderly end of a copy on SIGINT, SIGTERM or SIGHUP.
//!
//! After [`defer`] the first of these signals only sets a flag. Copies test it between entries and
//! between reads, remove what is incomplete and close the volume; then [`deliver`] ends the process
//! by the signal. A second signal ends it at once. A command that decides itself what a signal ends
//! calls [`hold`], and takes each signal. Signals that the parent process had ignored, as nohup(1) does,
//! stay ignored.

use std::io::{self, PipeReader, Read};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
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
    install(&[SIGINT, SIGTERM, SIGHUP], true)
}

/// Defers the signals, and SIGQUIT, until each is taken by [`take`] or [`next`]. A further signal does
/// not end the process. [`defer`] changes nothing after this.
///
/// # Errors
/// The process has no descriptor left.
pub fn hold() -> Result<(), Failure> {
    install(&[SIGINT, SIGQUIT, SIGTERM, SIGHUP], false)
}

/// Installs the handlers, once.
fn install(signals: &[i32], second_ends: bool) -> Result<(), Failure> {
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
    for &number in signals {
        if ignored & (1 << (number - 1)) != 0 {
            continue;
        }
        let notice = notice.try_clone().explain(WHAT)?;
        // Actions run in this order, so the first signal does not take the default action, and what
        // arrived is known when the pipe can be read.
        if second_ends {
            flag::register_conditional_default(number, again.clone())
                .and_then(|_| flag::register(number, again.clone()))
                .explain(WHAT)?;
        }
        flag::register_usize(number, signal.clone(), number.unsigned_abs() as usize)
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

/// The signal that has arrived, if one has.
pub fn arrived() -> Option<i32> {
    number(DEFERRED.get()?.signal.load(Ordering::Relaxed))
}

fn number(signal: usize) -> Option<i32> {
    i32::try_from(signal).ok().filter(|signal| *signal != 0)
}

/// Returns the signal that has arrived, if one has, and forgets it.
pub fn take() -> Option<i32> {
    let deferred = DEFERRED.get()?;
    deferred.drain();
    number(deferred.signal.swap(0, Ordering::Relaxed))
}

/// Waits for a signal and takes it; `None` once `end` can be read or its other end was closed.
pub fn next(end: impl AsFd) -> Option<i32> {
    let deferred = DEFERRED.get()?;
    while !is_first(&end, &deferred.arrived).ok()? {
        if let Some(signal) = take() {
            return Some(signal);
        }
    }
    None
}

impl Deferred {
    /// Empties the pipe. The byte of a signal that is arriving may stay.
    fn drain(&self) {
        let mut pipe = &self.arrived;
        loop {
            let mut one = [PollFd::new(pipe, PollFlags::IN)];
            match poll(&mut one, Some(&Timespec::default())) {
                Err(Errno::INTR) => {}
                Ok(1..) if matches!(pipe.read(&mut [0; 64]), Ok(1..)) => {}
                _ => return,
            }
        }
    }
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
    let Some(deferred) = DEFERRED.get() else {
        return Ok(());
    };
    while is_first(&deferred.arrived, &input)? {
        if arrived().is_some() {
            return Err(ended());
        }
        // It was taken while its byte arrived.
        deferred.drain();
    }
    Ok(())
}

/// Waits until `input` can be read, or `end`, or until the other end of that was closed.
///
/// # Errors
/// It was `end`.
pub fn wait_beside(end: impl AsFd, input: impl AsFd) -> io::Result<()> {
    match is_first(end, input)? {
        true => Err(ended()),
        false => Ok(()),
    }
}

fn ended() -> io::Error {
    io::Error::other(format!("interrupted; {INCOMPLETE}"))
}

/// Waits for one of both; returns whether `end` can be read, or its other end was closed.
fn is_first(end: impl AsFd, input: impl AsFd) -> io::Result<bool> {
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
        let [end, _] = both;
        return Ok(!end.revents().is_empty());
    }
}

/// Ends the process by the signal that was deferred, if there is one.
pub fn deliver() {
    if let Some(signal) = arrived() {
        // Cannot fail: these signals end a process by default.
        let _ = low_level::emulate_default_handler(signal);
    }
}
