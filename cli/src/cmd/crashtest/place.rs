//! Mounts a simulated volume on a temporary directory, and runs processes in it.
//!
//! A mount made here ends before the call that made it returns. Signals that end programs are
//! recorded and passed on to the running process; the mount then ends in the usual way.

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
use cairnfs_daemon::failure::{Explain, Failure, shown};
use cairnfs_fuse::adapter::Adapter;
use cairnfs_fuse::ops::Ops;
use cairnfs_fuse::{MountOptions, Serving};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The source of these mounts in /proc/self/mountinfo.
const SOURCE: &str = "crashtest";

/// Mounts `fs` on a temporary directory and calls `run` with that directory.
pub fn mounted<T>(fs: &Arc<FileSystem>, run: impl FnOnce(&Path) -> T) -> Result<T, Failure> {
    let dir = tempfile::Builder::new()
        .prefix("cairnfs-crashtest-")
        .tempdir()
        .and_then(|dir| dir.keep().canonicalize())
        .explain("a temporary directory")?;
    let result = serve(fs, &dir, run);
    // Not recursive: if the unmount failed, this would delete the files of the mounted volume.
    std::fs::remove_dir(&dir).explain(shown(&dir))?;
    result
}

fn serve<T>(fs: &Arc<FileSystem>, dir: &Path, run: impl FnOnce(&Path) -> T) -> Result<T, Failure> {
    let options = MountOptions {
        threads: Some(1),
        source: Some(SOURCE.into()),
        // Processes that still run in the mount are not part of the test.
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

/// Prepares a command to run in a mounted volume.
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
            // Fails if the process has just ended, which is harmless.
            let _ = pidfd_send_signal(process, signal);
        }
    }
}

/// Runs processes, one at a time, and passes signals on to them.
pub struct Processes(Arc<Running>);

impl Processes {
    /// Starts to handle signals, which then do not end this process.
    pub fn watch() -> io::Result<Self> {
        let running = Arc::<Running>::default();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let handler = Arc::clone(&running);
        thread::Builder::new()
            .name("cairnfs-signals".into())
            .spawn(move || {
                for signal in signals.forever() {
                    handler.signal(signal);
                }
            })?;
        Ok(Self(running))
    }

    /// Whether a signal was received.
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

    /// Runs a command to its end and captures its output.
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
        // A signal that arrived before could not be passed on.
        if self.interrupted() {
            self.0.signal(SIGTERM);
        }
        Ok(())
    }
}
