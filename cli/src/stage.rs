//! Where a command on roots speaks, and how it learns that it shall end.
//!
//! Such a command runs in its own process, or in the daemon that has the volume open, for the process
//! that was called. [`Stage`] has the streams of that process, how its terminal looks, its time zone,
//! and whether it was interrupted. So a command must not use the streams, terminal, time zone or signals
//! of the process in which it runs. Uses output, looks and
//! signals.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::OnceLock;

use cairnfs_core::refs::{local_zone, time_zone};
use cairnfs_daemon::commands::{Streams, has_left};
use cairnfs_daemon::failure::{AnyError, Explain, Failure};
use indicatif::ProgressDrawTarget;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::interrupt;
use crate::look::Look;
use crate::output::{self, Progress};

/// The name of the time zone that is not known.
const UNKNOWN: &str = "Etc/Unknown";

/// How the process that was called wants output, as it tells a daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Manner {
    look: Look,
    /// Whether standard error is a terminal.
    shows_progress: bool,
    /// The name or the POSIX form of the time zone; `None`: that of the system.
    zone: Option<String>,
}

impl Manner {
    /// That of this process.
    pub fn own() -> Self {
        Self::with(Look::of_stdout())
    }

    fn with(look: Look) -> Self {
        Self {
            look,
            shows_progress: io::IsTerminal::is_terminal(&io::stderr()),
            zone: own_zone(),
        }
    }

    fn time_zone(&self) -> TimeZone {
        match self.zone.as_deref() {
            Some(zone) => time_zone(zone).unwrap_or(TimeZone::unknown()),
            None => local_zone(),
        }
    }
}

/// The time zone of this process in a form that another one understands; `None` for that of the system
/// if it has no name. Without `TZ` it is not looked up: few commands need it, and the first look-up
/// reads all directories of the system's list of zones.
fn own_zone() -> Option<String> {
    // The other process may have another zone in its environment, or none.
    let Some(told) = std::env::var_os("TZ") else {
        return system_zone();
    };
    let named = local_zone().iana_name().map(str::to_owned);
    named.or_else(|| {
        let told = told.into_string().ok()?;
        let is_known = time_zone(&told).is_ok();
        Some(if is_known { told } else { UNKNOWN.to_owned() })
    })
}

/// The name of the system's time zone, from its link into the list of zones.
fn system_zone() -> Option<String> {
    let link = Path::new("/etc/localtime");
    let target = std::fs::read_link(link).ok().filter(|_| link.exists())?;
    let (_, name) = target.to_str()?.split_once("zoneinfo/")?;
    Some(name.to_owned())
}

/// Where a command speaks.
pub struct Stage {
    input: File,
    output: File,
    errors: File,
    manner: Manner,
    /// Looked up when it is needed.
    zone: OnceLock<TimeZone>,
    end: End,
}

/// How a command learns that it shall end.
enum End {
    /// By a signal.
    Signal,
    /// The process that was called has closed its connection, in one direction or both.
    Caller(UnixStream),
}

impl Stage {
    /// That of this process.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn own() -> Result<Self, Failure> {
        let streams = own_streams().explain("standard streams")?;
        Ok(Self::new(streams, Manner::own(), End::Signal))
    }

    /// That of this process, with standard error for output, too.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn on_errors() -> Result<Self, Failure> {
        let [input, _, errors] = own_streams().explain("standard streams")?;
        let output = errors.try_clone().explain("standard streams")?;
        let manner = Manner::with(Look::of(&io::stderr()));
        Ok(Self::new([input, output, errors], manner, End::Signal))
    }

    /// That of the process at the other end of a connection, which has sent its streams.
    pub fn of_caller(streams: Streams, manner: Manner, caller: UnixStream) -> Self {
        Self::new(streams, manner, End::Caller(caller))
    }

    fn new(streams: Streams, manner: Manner, end: End) -> Self {
        let [input, output, errors] = streams.map(File::from);
        Self {
            input,
            output,
            errors,
            zone: OnceLock::new(),
            manner,
            end,
        }
    }

    /// Replaces standard input and output where a file is given.
    #[must_use]
    pub fn with(mut self, input: Option<File>, output: Option<File>) -> Self {
        self.input = input.unwrap_or(self.input);
        self.output = output.unwrap_or(self.output);
        self
    }

    /// The descriptors, in the order of [`Streams`], and what a daemon has to know of this stage.
    pub fn parts(&self) -> ([BorrowedFd<'_>; 3], &Manner) {
        let fds = [self.input.as_fd(), self.output.as_fd(), self.errors.as_fd()];
        (fds, &self.manner)
    }

    /// Standard input.
    pub fn input(&self) -> &File {
        &self.input
    }

    /// Standard output, without a buffer.
    pub fn output(&self) -> &File {
        &self.output
    }

    /// Standard output, with a buffer that must be flushed.
    pub fn out(&self) -> BufWriter<&File> {
        BufWriter::new(&self.output)
    }

    /// Standard error.
    pub fn errors(&self) -> &File {
        &self.errors
    }

    /// How standard output looks.
    pub fn look(&self) -> &Look {
        &self.manner.look
    }

    /// The time zone of the process that was called.
    pub fn zone(&self) -> &TimeZone {
        self.zone.get_or_init(|| self.manner.time_zone())
    }

    /// Its name or POSIX form; `None` for that of the system.
    pub fn zone_name(&self) -> Option<&str> {
        self.manner.zone.as_deref()
    }

    /// Writes one JSON document to standard output.
    pub fn json(&self, value: &impl Serialize) -> Result<(), AnyError> {
        let mut out = self.out();
        output::json_to(&mut out, value)?;
        Ok(out.flush()?)
    }

    /// Prints a failure and the next step on standard error.
    pub fn tell(&self, failure: &Failure) {
        // Nobody is left to be told that standard error failed.
        let _ = failure.write(&mut &self.errors);
    }

    /// A bar of progress in bytes; a total of 0 means that it is not known.
    pub fn bytes(&self, what: &'static str, total: u64, quiet: bool) -> Progress {
        Progress::bytes_on(self.bar(quiet), what, total)
    }

    /// A bar of progress in steps of any kind.
    pub fn steps(&self, what: &'static str, quiet: bool) -> Progress {
        Progress::steps_on(self.bar(quiet), what)
    }

    fn bar(&self, quiet: bool) -> ProgressDrawTarget {
        let shown = self.manner.shows_progress && !quiet;
        let both = || Some((self.errors.try_clone().ok()?, self.errors.try_clone().ok()?));
        match shown.then(both).flatten() {
            Some((read, write)) => {
                let term = console::Term::read_write_pair(read, write);
                ProgressDrawTarget::term(term, output::FRAMES)
            }
            None => ProgressDrawTarget::hidden(),
        }
    }

    /// Makes an interrupt a failure of [`Self::check`], so that the command can end in an orderly way.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn defer_interrupts(&self) -> Result<(), Failure> {
        match self.end {
            End::Signal => interrupt::defer(),
            End::Caller(_) => Ok(()),
        }
    }

    /// Fails once the command was interrupted.
    ///
    /// # Errors
    /// A fatal failure.
    pub fn check(&self) -> Result<(), Failure> {
        match &self.end {
            End::Signal => interrupt::check(),
            End::Caller(caller) if has_left(caller) => Err(interrupt::interrupted()),
            End::Caller(_) => Ok(()),
        }
    }

    /// Tells other threads, which may outlive this, whether the command was interrupted.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn interruption(&self) -> Result<impl Fn() -> bool + Send + Sync + 'static, Failure> {
        let caller = match &self.end {
            End::Signal => None,
            End::Caller(caller) => Some(caller.try_clone().explain("the connection")?),
        };
        Ok(move || match &caller {
            None => interrupt::check().is_err(),
            Some(caller) => has_left(caller),
        })
    }

    /// Waits until standard input can be read.
    ///
    /// # Errors
    /// The command was interrupted.
    pub fn wait_for_input(&self) -> io::Result<()> {
        match &self.end {
            End::Signal => interrupt::wait(&self.input),
            End::Caller(caller) => interrupt::wait_beside(caller, &self.input),
        }
    }
}

fn own_streams() -> io::Result<Streams> {
    Ok([
        io::stdin().as_fd().try_clone_to_owned()?,
        io::stdout().as_fd().try_clone_to_owned()?,
        io::stderr().as_fd().try_clone_to_owned()?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage_of_caller(zone: Option<&str>) -> (Stage, UnixStream) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let manner = Manner {
            zone: zone.map(str::to_owned),
            ..Manner::own()
        };
        let streams = [(); 3].map(|()| tempfile::tempfile().unwrap().into());
        (Stage::of_caller(streams, manner, ours), theirs)
    }

    #[test]
    fn caller_that_is_gone_or_writes_no_more_interrupts() {
        let (stage, caller) = stage_of_caller(None);
        stage.check().unwrap();
        let interrupted = stage.interruption().unwrap();
        assert!(!interrupted());
        caller.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(stage.check().is_err() && stage.wait_for_input().is_err());
        drop(stage);
        assert!(interrupted());
        let (stage, caller) = stage_of_caller(None);
        stage.wait_for_input().unwrap();
        drop(caller);
        assert!(stage.check().is_err());
    }

    #[test]
    fn times_are_those_of_the_callers_zone() {
        let noon = cairnfs::Time {
            secs: 43_200,
            nanos: 0,
        };
        for (zone, time) in [
            (Some("UTC"), "1970-01-01 12:00"),
            (Some("XYZ-3"), "1970-01-01 15:00"),
        ] {
            let (stage, _caller) = stage_of_caller(zone);
            assert_eq!(output::local_time(noon, stage.zone()), time);
        }
    }
}
