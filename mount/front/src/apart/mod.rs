//! Calls that wait in the kernel for requests of a mount, made by another process than the one that
//! serves it.
//!
//! Such a wait ends with the reply or with the connection, and not by a signal. A process that is killed
//! while one of its threads waits so keeps its memory and descriptors, and with them the rings and the
//! connection: the kernel would never end the connection, and so never the wait. A process that has
//! nothing of them can wait: the connection ends with the serving one. Notifications are in
//! [`notifying`], because they need the connection.
//!
//! Both ends are here: [`Apart`] starts the program of the serving process with the word for a call,
//! which [`perform`] makes there. A process that serves a mount for itself only makes the calls itself.

pub(crate) mod notifying;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::fs::{fstat, major, minor, syncfs};

use crate::mounter::{self, Way};
use crate::{control, opening};

/// The program that runs, also after its file was replaced.
const PROGRAM: &str = "/proc/self/exe";

/// Exit code of a call that found the mount in use.
const BUSY: u8 = 16;

/// The word for sending notifications.
const NOTIFY: &str = "notify";

/// A call that may wait for requests of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// Makes the kernel begin to send what it holds back.
    Send,
    /// Makes everything durable ([`control::sync`]), and has to tell what that returns.
    Sync,
    /// Unmounts.
    Unmount,
    /// Detaches.
    Detach,
    /// Removes the directory that was mounted on.
    Remove,
}

impl Call {
    const ALL: [Self; 5] = [
        Self::Send,
        Self::Sync,
        Self::Unmount,
        Self::Detach,
        Self::Remove,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Sync => "sync",
            Self::Unmount => "unmount",
            Self::Detach => "detach",
            Self::Remove => "remove",
        }
    }

    /// Makes the call for the mount with this device number on `dir` in this process.
    fn make(self, dir: &Path, device: &str) -> io::Result<Option<String>> {
        match self {
            Self::Send => send(dir, device)?,
            Self::Sync => return control::sync(dir),
            Self::Unmount => mounter::unmount(dir, Way::Plain)?,
            Self::Detach => mounter::unmount(dir, Way::Lazy)?,
            Self::Remove => fs::remove_dir(dir)?,
        }
        Ok(None)
    }
}

/// Makes the call of this word for the mount with this device number on `dir`, for the process that
/// serves it; returns the exit code. What there is to tell is printed.
pub fn perform(word: &str, dir: &Path, device: &str) -> u8 {
    let call = Call::ALL.into_iter().find(|call| call.word() == word);
    let done = match call {
        Some(call) => call.make(dir, device),
        None if word == NOTIFY => notifying::serve(dir, device).map(|()| None),
        None => Err(io::ErrorKind::InvalidInput.into()),
    };
    match done {
        Ok(told) => {
            // The process that asked may be gone.
            if let Some(told) = told {
                let _ = writeln!(io::stdout(), "{told}");
            }
            0
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            match error.kind() {
                io::ErrorKind::ResourceBusy => BUSY,
                _ => 1,
            }
        }
    }
}

/// Makes the kernel begin to send what it holds back of the mount of this device number on `dir`. Not
/// every kernel waits for the writes that this begins.
fn send(dir: &Path, device: &str) -> io::Result<()> {
    let dir = opening::inside(dir)?;
    let found = fstat(&dir)?.st_dev;
    if format!("{}:{}", major(found), minor(found)) != device {
        return Err(io::Error::other(
            "its daemon does not see it there: it was unmounted with --lazy while files were open, or is \
             in another mount namespace; close what is open in it, or unmount it there",
        ));
    }
    // The result tells only of refusals, also of earlier ones.
    let _ = syncfs(&dir);
    Ok(())
}

/// How a process makes such calls for the mounts that it serves.
#[derive(Debug, Default)]
pub struct Apart {
    /// The arguments of its program before those of a call; `None` if it makes all calls itself.
    args: Option<Vec<OsString>>,
}

impl Apart {
    /// By this program, which calls [`perform`] if it gets these arguments, and then the word, the
    /// device number, `--`, and the directory.
    pub fn by_program(args: &[&str]) -> Self {
        let args = args.iter().map(OsString::from).collect();
        Self { args: Some(args) }
    }

    /// Makes a call; returns what there is to tell.
    ///
    /// # Errors
    /// The call failed: `ResourceBusy` if the mount is in use.
    pub(crate) fn call(&self, call: Call, dir: &Path, device: &str) -> io::Result<Option<String>> {
        let Some(mut command) = self.command(call.word(), dir, device) else {
            return call.make(dir, device);
        };
        command.stdin(Stdio::null());
        match command.output() {
            // Without a code a signal has ended it: the system is being shut down.
            Ok(output) if output.status.code().is_some() => outcome(&output),
            Ok(_) => call.make(dir, device),
            Err(error) => {
                let (word, shown) = (call.word(), dir.display());
                tracing::warn!("no process to {word} {shown}, so the daemon does it: {error}");
                call.make(dir, device)
            }
        }
    }

    fn command(&self, word: &str, dir: &Path, device: &str) -> Option<Command> {
        let mut command = Command::new(PROGRAM);
        command.args(self.args.as_ref()?);
        command.args([word, device, "--"]).arg(dir);
        // A signal of the terminal is for the process that serves.
        command.process_group(0);
        Some(command)
    }
}

fn outcome(output: &Output) -> io::Result<Option<String>> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let why = || text(&output.stderr);
    match output.status.code() {
        Some(0) => Ok(Some(text(&output.stdout)).filter(|told| !told.is_empty())),
        Some(code) if code == i32::from(BUSY) => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, why()))
        }
        _ => Err(io::Error::other(why())),
    }
}
