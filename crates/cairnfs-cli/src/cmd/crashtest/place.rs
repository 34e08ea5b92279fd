//! A simulated volume mounted on a temporary directory, and the processes that run in it.
//!
//! A mount made here is gone before the call that made it returns. Signals that end programs are
//! passed on to the process that runs, and remembered; the mount then ends as it always does.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use cairnfs::fs::FileSystem;
use cairnfs_fuse::adapter::Adapter;
use cairnfs_fuse::ops::Ops;
use cairnfs_fuse::{MountOptions, Serving};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{Explain, Failure, shown};

/// What mounts show as their source.
const SOURCE: &str = "crashtest";

/// Runs `run` with the directory on which `fs` is mounted meanwhile.
pub fn mounted<T>(fs: &Arc<FileSystem>, run: impl FnOnce(&Path) -> T) -> Result<T, Failure> {
    let dir = tempfile::Builder::new()
        .prefix("cairnfs-crashtest-")
        .tempdir()
        .and_then(|dir| dir.keep().canonicalize())
        .explain("a temporary directory")?;
    let result = serve(fs, &dir, run);
    // Not with all that is in it: while it is in use it may still be mounted.
    std::fs::remove_dir(&dir).explain(shown(&dir))?;
    result
}

fn serve<T>(fs: &Arc<FileSystem>, dir: &Path, run: impl FnOnce(&Path) -> T) -> Result<T, Failure> {
    let options = MountOptions {
        threads: Some(1),
        source: Some(SOURCE.into()),
        // What still runs in it is no part of the test.
        grace: Duration::ZERO,
        ..MountOptions::default()
    };
    let ops = Arc::new(Ops::new(Arc::clone(fs), Path::new(SOURCE), options.write));
    let adapter = Adapter::new(ops, &options);
    let failed = |e| Failure::new("the simulated volume", e);
    let serving = Serving::start(adapter, Path::new(SOURCE), dir, &options).map_err(failed)?;
    let result = run(dir);
    serving.end().map_err(failed)?;
    Ok(result)
}

/// A command as it runs in a mounted volume.
pub fn inside<'a>(command: &'a mut Command, dir: &Path) -> &'a mut Command {
    command
        .current_dir(dir)
        .env("CAIRNFS_CRASHTEST_DIR", dir)
        .env("PWD", dir)
}

#[derive(Default)]
struct Running {
    process: Mutex<Option<OwnedFd>>,
    interrupted: AtomicBool,
}

impl Running {
    fn process(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, signal: i32) {
        self.interrupted.store(true, Ordering::Release);
        let signal = match signal {
            SIGINT => Signal::INT,
            SIGHUP => Signal::HUP,
            _ => Signal::TERM,
        };
        if let Some(process) = self.process().as_ref() {
            // It fails for a process that has just ended, which is as good.
            let _ = pidfd_send_signal(process, signal);
        }
    }
}

/// Runs processes, one at a time, and passes signals on to them.
pub struct Processes(Arc<Running>);

impl Processes {
    /// From now on signals do not end this process.
    pub fn watch() -> io::Result<Self> {
        let running = Arc::<Running>::default();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let told = Arc::clone(&running);
        thread::Builder::new()
            .name("cairnfs-signals".into())
            .spawn(move || {
                for signal in signals.forever() {
                    told.signal(signal);
                }
            })?;
        Ok(Self(running))
    }

    /// Whether a signal came.
    pub fn interrupted(&self) -> bool {
        self.0.interrupted.load(Ordering::Acquire)
    }

    /// Runs a command to its end.
    pub fn status(&self, command: &mut Command) -> io::Result<ExitStatus> {
        let mut child = command.spawn()?;
        self.follow(&child)?;
        let status = child.wait();
        *self.0.process() = None;
        status
    }

    /// Runs a command to its end, and takes what it prints.
    pub fn output(&self, command: &mut Command) -> io::Result<Output> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        self.follow(&child)?;
        let output = child.wait_with_output();
        *self.0.process() = None;
        output
    }

    fn follow(&self, child: &Child) -> io::Result<()> {
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        *self.0.process() = Some(process);
        // A signal that came before had nobody to be passed on to.
        if self.interrupted() {
            self.0.signal(SIGTERM);
        }
        Ok(())
    }
}
