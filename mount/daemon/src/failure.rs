//! Failures as users see them: `cairnfs: <what>: <why>`, and a hint with the next step.
//!
//! Every command returns a [`Failure`] (or another error that is shown as it is). Only this
//! module chooses hints and the exit code of a failure. From the crate it uses only texts, and what
//! finds the process or mount that holds a volume.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

use crate::holder::{self, Holder};
use crate::text::without_number;
pub use crate::text::{io_text, show_bytes, shown};

/// What a command returns when it fails.
pub type AnyError = Box<dyn Error>;

/// Exit code of a command whose reader closed the pipe: that of a process killed by SIGPIPE (128
/// + 13).
pub const BROKEN_PIPE: u8 = 141;

/// Exit code of a command that has done its work and cannot print what it did: `EX_IOERR` of
/// sysexits(3). A program can tell it from the codes of work that was not done.
pub const UNTOLD: u8 = 74;

/// A failure with its exit code and, where there is one, the next step.
#[derive(Debug)]
pub struct Failure {
    what: String,
    why: String,
    hint: Option<String>,
    code: u8,
    fatal: bool,
}

impl Failure {
    /// A failure of `what` because of `why`; exit code 1.
    pub fn new(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self {
            what: what.to_string(),
            why: why.to_string(),
            hint: None,
            code: 1,
            fatal: false,
        }
    }

    /// Marks the failure as one after which the run cannot continue.
    #[must_use]
    pub fn fatal(mut self) -> Self {
        self.fatal = true;
        self
    }

    /// Sets the next step, in place of any earlier one.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Sets the exit code.
    #[must_use]
    pub fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// The failure to open the volume at `path`.
    pub fn opening(path: &Path, why: &cairnfs::Error) -> Self {
        match why {
            cairnfs::Error::InUse(_) => Failure::held(path, &holder::of(path)),
            other => Failure::engine(shown(path), other),
        }
    }

    /// The failure to open the volume at `path`, which another process has open.
    pub fn held(path: &Path, holder: &Holder) -> Self {
        Failure::new(shown(path), holder).hint(holder.next_step())
    }

    /// The failure of an engine call on `what`.
    pub fn engine(what: impl fmt::Display, why: &cairnfs::Error) -> Self {
        let failure = match why {
            // The texts of these errors name the volume, which `what` already does.
            cairnfs::Error::Open { source, .. } => Failure::new(what, io_text(source)),
            cairnfs::Error::InUse(by) if !by.by_this_process => {
                Failure::new(what, "is in use by another process")
            }
            cairnfs::Error::InUse(_) => Failure::new(what, "is open in this process already"),
            cairnfs::Error::Attached { device, .. } => Failure::new(
                what,
                format_args!("is attached to {device}, which is in use"),
            )
            .hint(format_args!(
                "unmount it, and detach it first: losetup -d {device}"
            )),
            other => Failure::new(what, other),
        };
        let failure = match why {
            cairnfs::Error::Stopped(_) | cairnfs::Error::ReadOnly => failure.fatal(),
            _ => failure,
        };
        match hint_for(why) {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }

    /// Prints the failure and the next step on standard error.
    pub fn tell(&self) {
        // Nobody is left to be told that standard error failed.
        let _ = self.write(&mut io::stderr().lock());
    }

    /// Writes the failure and the next step, in one piece.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, out: &mut impl io::Write) -> io::Result<()> {
        let hint = self.hint.iter().map(|hint| format!("  {hint}\n"));
        let text = format!("cairnfs: {self}\n{}", hint.collect::<String>());
        out.write_all(text.as_bytes())
    }

    /// Whether the run ends here, because nothing else in it can succeed.
    pub fn is_fatal(&self) -> bool {
        self.fatal || self.code == BROKEN_PIPE
    }

    /// Whether the reader has closed the pipe.
    pub fn is_broken_pipe(&self) -> bool {
        self.code == BROKEN_PIPE
    }

    /// The cause, without the object that it concerns.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// The exit code.
    pub fn exit_code(&self) -> u8 {
        self.code
    }

    /// The next step.
    pub fn next_step(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

impl Error for Failure {}

/// The next step after an engine error whose own text names none.
pub fn hint_for(error: &cairnfs::Error) -> Option<&'static str> {
    use cairnfs::Error as E;
    match error {
        E::Open { source, .. } => match source.kind() {
            io::ErrorKind::NotFound => Some("to make a volume: cairnfs mkfs VOLUME"),
            io::ErrorKind::PermissionDenied => {
                Some("you need permission to read it, and for changes to write it")
            }
            io::ErrorKind::ReadOnlyFilesystem => Some("it can be read: mount it with -o ro"),
            io::ErrorKind::IsADirectory => Some("a volume is an image file or a block device"),
            _ => None,
        },
        E::Stopped(_) => {
            Some("the volume is sound up to the failure; look at it with: cairnfs check VOLUME")
        }
        E::NoSpace => {
            Some("remove files, or make a larger volume: cairnfs mkfs --size SIZE VOLUME")
        }
        E::Corrupt(damage) if matches!(damage.what, "log" | "log record order") => Some(
            "nothing was changed; to save what is before the damage, and to see what is lost: \
             cairnfs export VOLUME DIR, then make a new volume",
        ),
        E::Corrupt(damage)
            if matches!(
                damage.what,
                "group table checksum" | "group table" | "group bitmap checksum" | "group bitmap"
            ) =>
        {
            Some(
                "no file was changed, and all can be read: save them with \
                 cairnfs export VOLUME DIR, or cairnfs mount -o ro, then make a new volume",
            )
        }
        E::Corrupt(damage) if damage.what == "newest list of branches" => Some(
            "an older state is left, that of the merge before the last one: to save it, \
             cairnfs export --no-recovery VOLUME DIR; a backup may be newer: cairnfs restore-from",
        ),
        E::Corrupt(damage) if damage.what == "list of branches" => Some(
            "nothing of it can be found without that, and no older state is left: restore it from \
             a backup (cairnfs restore-from)",
        ),
        E::Corrupt(damage)
            if matches!(
                damage.what,
                "log record" | "superblock" | "space for the log's snapshots"
            ) =>
        {
            Some("to save what the last merge left: cairnfs export --no-recovery VOLUME DIR")
        }
        E::Io { .. } => {
            Some("the file or device below the volume failed: see the kernel's messages (dmesg)")
        }
        _ => None,
    }
}

/// The failure of a command's own output: the only errors that come without the object that they
/// concern.
pub fn of_output(error: &(dyn Error + 'static)) -> Option<Failure> {
    let is_io = error.is::<io::Error>();
    let json = error.downcast_ref::<serde_json::Error>();
    let is_output = is_io || json.is_some_and(serde_json::Error::is_io);
    let failure = || Failure::new("standard output", without_number(&error.to_string()));
    is_output.then(|| {
        if is_broken_pipe(error) {
            failure().code(BROKEN_PIPE)
        } else {
            failure()
        }
    })
}

/// If a command cannot print its result, changes the failure to one that says that the command is done.
pub fn told<E: Into<AnyError>>(printed: Result<(), E>) -> Result<(), AnyError> {
    printed.map_err(|error| {
        let error = error.into();
        let output = of_output(error.as_ref()).filter(|failure| !failure.is_broken_pipe());
        output.map_or(error, |failure| {
            let hint = "only this could not be printed: what the command was asked for is done";
            failure.hint(hint).code(UNTOLD).into()
        })
    })
}

/// Gives a failure of the output the exit code that a command has for what it cannot find out.
pub fn unprinted(error: AnyError, code: u8) -> AnyError {
    let output = of_output(error.as_ref()).filter(|failure| !failure.is_broken_pipe());
    output.map_or(error, |failure| failure.code(code).into())
}

/// Whether the error only means that a command could not print what it has done.
pub fn is_untold(error: &(dyn Error + 'static)) -> bool {
    is_broken_pipe(error)
        || error
            .downcast_ref::<Failure>()
            .is_some_and(|failure| failure.exit_code() == UNTOLD)
}

/// Writes a failure, and returns its exit code. A closed pipe is not reported.
pub fn report(error: &(dyn Error + 'static), out: &mut impl io::Write) -> u8 {
    if is_broken_pipe(error) {
        return BROKEN_PIPE;
    }
    let output = of_output(error);
    // Nobody is left to be told that this cannot be written.
    if let Some(failure) = error.downcast_ref::<Failure>().or(output.as_ref()) {
        let _ = failure.write(out);
        return failure.exit_code();
    }
    let _ = writeln!(out, "cairnfs: {error}");
    let engine = error.downcast_ref::<cairnfs::Error>();
    if let Some(hint) = engine.and_then(hint_for) {
        let _ = writeln!(out, "  {hint}");
    }
    1
}

/// Adds what was being done to the error of a call.
pub trait Explain<T> {
    /// Turns the error into a failure of `what`.
    fn explain(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T> Explain<T> for cairnfs::Result<T> {
    fn explain(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|e| Failure::engine(what, &e))
    }
}

impl<T> Explain<T> for io::Result<T> {
    fn explain(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|e| {
            let failure = Failure::new(what, io_text(&e));
            match e.kind() {
                io::ErrorKind::BrokenPipe => failure.code(BROKEN_PIPE),
                _ => failure,
            }
        })
    }
}

impl<T> Explain<T> for Result<T, rustix::io::Errno> {
    fn explain(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(io::Error::from).explain(what)
    }
}

/// Whether the error only means that the reader closed the pipe.
pub fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return failure.exit_code() == BROKEN_PIPE;
    }
    if let Some(json) = error.downcast_ref::<serde_json::Error>() {
        return json.io_error_kind() == Some(io::ErrorKind::BrokenPipe);
    }
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_text_is_what_then_why() {
        let f = Failure::engine("disk.img", &cairnfs::Error::NoSpace);
        assert_eq!(f.to_string(), "disk.img: no space left");
        assert!(f.next_step().is_some());
        let used = Failure::engine(
            "disk.img",
            &cairnfs::Error::InUse(cairnfs::InUse {
                path: "disk.img".into(),
                by_this_process: false,
            }),
        );
        assert_eq!(used.to_string(), "disk.img: is in use by another process");
        assert_eq!(f.exit_code(), 1);
    }

    #[test]
    fn broken_pipes_are_recognised() {
        let e = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&e));
        let f: Result<(), Failure> = Err(e).explain("standard output");
        assert!(is_broken_pipe(&f.unwrap_err()));
        assert!(!is_broken_pipe(&Failure::new("a", "b")));
    }
}
