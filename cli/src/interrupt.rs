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
use std::time::Instant;

use cairnfs_daemon::failure::{Explain, Failure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::{flag, low_level};

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
    DEFERRED.get()?.arrived()
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
    loop {
        if let Some(signal) = take() {
            return Some(signal);
        }
        if is_first(&end, &deferred.arrived).ok()? {
            return None;
        }
    }
}

impl Deferred {
    fn arrived(&self) -> Option<i32> {
        number(self.signal.load(Ordering::Relaxed))
    }

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
    wait_until(input, None).map(drop)
}

/// As [`wait`], until the other end of `input` was closed, too, and not beyond a time. Returns whether
/// something came of it in time.
///
/// # Errors
/// A signal has arrived.
pub fn wait_until(input: impl AsFd, until: Option<Instant>) -> io::Result<bool> {
    wait_for(DEFERRED.get(), input, PollFlags::IN, until)
}

/// As [`wait_until`], until `output` can be written.
///
/// # Errors
/// A signal has arrived.
pub fn wait_to_write(output: impl AsFd, until: Option<Instant>) -> io::Result<bool> {
    wait_for(DEFERRED.get(), output, PollFlags::OUT, until)
}

/// As [`wait_until`], whatever signals arrive.
///
/// # Errors
/// It cannot be waited for.
pub fn wait_through(input: impl AsFd, until: Instant) -> io::Result<bool> {
    wait_for(None, input, PollFlags::IN, Some(until))
}

fn wait_for(
    deferred: Option<&Deferred>,
    file: impl AsFd,
    event: PollFlags,
    until: Option<Instant>,
) -> io::Result<bool> {
    loop {
        // Looked at after the pipe was emptied: the byte of a signal comes after its number.
        if deferred.and_then(Deferred::arrived).is_some() {
            return Err(ended());
        }
        let mut fds = vec![PollFd::new(&file, event)];
        fds.extend(deferred.map(|deferred| PollFd::new(&deferred.arrived, PollFlags::IN)));
        poll_until(&mut fds, until)?;
        let is_signal = fds
            .get(1)
            .is_some_and(|arrived| !arrived.revents().is_empty());
        match deferred {
            Some(deferred) if is_signal => deferred.drain(),
            _ => return Ok(fds.iter().any(|fd| !fd.revents().is_empty())),
        }
    }
}

/// Waits until `input` can be read, or `end`, or until the other end of that was closed.
///
/// # Errors
/// It was `end`.
pub fn wait_beside(end: impl AsFd, input: impl AsFd) -> io::Result<()> {
    if is_first(end, input)? {
        Err(ended())
    } else {
        Ok(())
    }
}

fn ended() -> io::Error {
    io::Error::other(format!("interrupted; {INCOMPLETE}"))
}

/// Waits for one of both; returns whether `end` can be read, or its other end was closed.
fn is_first(end: impl AsFd, input: impl AsFd) -> io::Result<bool> {
    let mut both = [
        PollFd::new(&end, PollFlags::IN | PollFlags::RDHUP),
        PollFd::new(&input, PollFlags::IN),
    ];
    poll_until(&mut both, None)?;
    let [end, _] = both;
    Ok(!end.revents().is_empty())
}

/// Waits until one of them is ready, and not beyond a time.
fn poll_until(fds: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<()> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(fds, left.as_ref()) {
            Err(Errno::INTR) => {}
            polled => return Ok(polled.map(drop)?),
        }
    }
}

/// Ends the process by the signal that was deferred, if there is one.
pub fn deliver() {
    if let Some(signal) = arrived() {
        // Cannot fail: these signals end a process by default.
        let _ = low_level::emulate_default_handler(signal);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn signals_and_their_bytes_may_be_seen_apart() {
        let (arrived, mut notice) = io::pipe().unwrap();
        let signal = Arc::new(AtomicUsize::new(0));
        let deferred = Deferred {
            signal: Arc::clone(&signal),
            arrived,
        };
        let (input, mut written) = io::pipe().unwrap();
        let now = || Some(Instant::now());
        let wait = || wait_for(Some(&deferred), &input, PollFlags::IN, now());
        assert!(!wait().unwrap());
        // The byte of a signal that was taken is no signal.
        notice.write_all(&[0]).unwrap();
        assert!(!wait().unwrap());
        // A signal whose byte was read with that of an earlier one ends the wait.
        signal.store(15, Ordering::Relaxed);
        wait().unwrap_err();
        // Also if something can be read.
        written.write_all(&[0]).unwrap();
        wait().unwrap_err();
        signal.store(0, Ordering::Relaxed);
        assert!(wait().unwrap());
    }
}
