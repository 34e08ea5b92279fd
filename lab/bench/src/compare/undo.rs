//! Records what a comparison created outside of itself, so that all of it can be removed at any
//! moment: running programs, mounts, a loop device, an image, a directory.
//!
//! Each item is recorded before or atomically with its creation, and its record is removed after
//! the item is. On a signal a thread removes all recorded items and ends the process. A failure or
//! a panic drops the guards, which remove the items one by one. Programs are started, and files
//! created and removed, under the lock of the records. The signal thread never releases that lock,
//! so nothing is created after it ran. A recorded program has not been reaped, so its process id
//! cannot have been reused.

use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::{Failure, Result};

/// Something that must be removed at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trace {
    /// A program by its process id, with its process group.
    Program(u32),
    /// All mounts on a directory.
    Mount(PathBuf),
    /// The loop devices of an image.
    Loops(PathBuf),
    /// A file.
    File(PathBuf),
    /// A directory with its contents, which contains no mounts any more.
    Directory(PathBuf),
}

/// The records.
#[derive(Debug, Clone, Default)]
pub struct Undo(Arc<Mutex<Vec<Trace>>>);

impl Undo {
    /// Records an item.
    pub fn note(&self, trace: Trace) {
        self.notes().push(trace);
    }

    /// Removes a record.
    pub fn cross_out(&self, trace: &Trace) {
        self.notes().retain(|noted| noted != trace);
    }

    /// Creates an item and records it. Blocks forever once a signal removes everything.
    fn make<T>(&self, trace: &Trace, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let mut notes = self.notes();
        notes.push(trace.clone());
        make()
    }

    /// Removes an item and its record.
    fn take_away(&self, trace: &Trace) -> Result<()> {
        let mut notes = self.notes();
        let removed = take_away(trace);
        notes.retain(|noted| noted != trace);
        removed
    }

    /// Starts a program in its own process group, which a terminal's signals do not reach.
    pub fn start(&self, command: &mut Command) -> Result<Child> {
        let mut notes = self.notes();
        let child = command
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|e| unstarted(command, &e))?;
        notes.push(Trace::Program(child.id()));
        Ok(child)
    }

    /// Waits for a program's end, at most until the deadline, and calls `last` with its process id
    /// before it is reaped.
    pub fn wait(
        &self,
        child: &mut Child,
        deadline: Option<Duration>,
        last: impl FnOnce(u32),
    ) -> Result<ExitStatus> {
        let start = Instant::now();
        while !has_ended(child.id(), deadline.is_none())? {
            if deadline.is_some_and(|d| start.elapsed() > d) {
                return Err(format!("process {} does not end", child.id()).into());
            }
            std::thread::sleep(PAUSE);
        }
        last(child.id());
        self.cross_out(&Trace::Program(child.id()));
        Ok(child.wait()?)
    }

    /// Kills a program that is not needed any more.
    pub fn kill(&self, child: &mut Child) {
        kill(child.id());
        // It was killed, so the wait ends; its failure is expected.
        let _ = self.wait(child, None, |_| {});
    }

    /// Runs a program, which must succeed, and returns its output.
    pub fn run(&self, command: &mut Command) -> Result<String> {
        let mut child = self.start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
        let (printed, said) = (child.stdout.take(), child.stderr.take());
        let (printed, said) = std::thread::scope(|scope| {
            let said = scope.spawn(|| all_of(said));
            (all_of(printed), said.join().unwrap_or_default())
        });
        let status = self.wait(&mut child, None, |_| {})?;
        if status.success() {
            Ok(printed)
        } else {
            Err(failed(command, status, &format!("{said}{printed}")))
        }
    }

    /// Removes everything, programs first; returns the failures.
    fn all(&self, notes: &[Trace]) -> Vec<String> {
        let mut left = Vec::new();
        let programs = notes.iter().filter_map(|trace| match trace {
            Trace::Program(id) => Some(*id),
            _ => None,
        });
        for id in programs {
            kill(id);
            let _ = has_ended(id, true);
        }
        for trace in notes.iter().rev() {
            if let Err(e) = take_away(trace) {
                left.push(e.to_string());
            }
        }
        left
    }

    fn notes(&self) -> MutexGuard<'_, Vec<Trace>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Items that are removed when this is dropped, in reverse order.
pub struct Made {
    traces: Vec<Trace>,
    undo: Undo,
}

impl Made {
    /// Creates an empty list.
    pub fn new(undo: &Undo) -> Self {
        Self {
            traces: Vec::new(),
            undo: undo.clone(),
        }
    }

    /// Creates an item; it is recorded even if its creation fails half-way.
    pub fn make<T>(&mut self, trace: Trace, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let made = self.undo.make(&trace, make);
        self.traces.push(trace);
        made
    }

    /// Removes all items.
    pub fn take_away(&mut self) -> Result<()> {
        let mut result = Ok(());
        while let Some(trace) = self.traces.pop() {
            result = result.and(self.undo.take_away(&trace));
        }
        result
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Err(e) = self.take_away() {
            eprintln!("cairnfs-bench compare: {e}");
        }
    }
}

/// Number of retries to empty a directory that others are still filling.
const TRIES: usize = 1000;

const PAUSE: Duration = Duration::from_millis(2);

/// While it exists, a signal that ends the process first removes all recorded items.
pub struct Watch(Handle);

impl Watch {
    /// Starts to watch.
    pub fn new(undo: &Undo) -> Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let handle = signals.handle();
        let undo = undo.clone();
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // Held until the process ends, so that nothing is created any more.
                let notes = undo.notes();
                let left = undo.all(&notes);
                eprintln!("\ncairnfs-bench compare: interrupted; all that was made is taken away");
                for failure in left {
                    eprintln!("  but: {failure}");
                }
                std::process::exit(128 + signal);
            }
        });
        Ok(Self(handle))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn take_away(trace: &Trace) -> Result<()> {
    match trace {
        // `Undo::all` ends programs before anything else.
        Trace::Program(_) => Ok(()),
        Trace::Mount(dir) => {
            while rustix::mount::unmount(dir, UnmountFlags::DETACH).is_ok() {}
            Ok(())
        }
        Trace::Loops(image) => detach(image),
        Trace::File(path) => ignore_missing(path, std::fs::remove_file(path)),
        Trace::Directory(path) => ignore_missing(path, remove_used(path)),
    }
}

/// Removes a directory in which other processes may still create files by its path, as a workload
/// whose mount was removed. After the rename they cannot reach it by its path any more, except by
/// operations already begun.
fn remove_used(path: &Path) -> io::Result<()> {
    let aside = path.with_extension("removed");
    std::fs::rename(path, &aside)?;
    let mut removed = std::fs::remove_dir_all(&aside);
    for _ in 0..TRIES {
        match &removed {
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {
                removed = std::fs::remove_dir_all(&aside);
            }
            _ => break,
        }
    }
    removed
}

/// Detaches all loop devices of an image.
fn detach(image: &Path) -> Result<()> {
    for device in loops_of(image)? {
        let done = Command::new("losetup").arg("-d").arg(&device).output()?;
        if !done.status.success() {
            let why = String::from_utf8_lossy(&done.stderr);
            return Err(format!("{device} stays attached: {}", why.trim()).into());
        }
    }
    Ok(())
}

/// Returns the loop devices to which an image is attached.
pub fn loops_of(image: &Path) -> Result<Vec<String>> {
    let list = Command::new("losetup")
        .args(["--noheadings", "--output", "NAME", "--associated"])
        .arg(image)
        .output()
        .map_err(|e| format!("losetup: {e}; it is in the package util-linux"))?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    Ok(list.split_whitespace().map(str::to_owned).collect())
}

fn ignore_missing(path: &Path, removed: io::Result<()>) -> Result<()> {
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(format!("{}: {e}", path.display()).into())
        }
        _ => Ok(()),
    }
}

fn kill(id: u32) {
    if let Some(pid) = pid(id) {
        // Fails if it has already ended.
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
}

/// Whether a program has ended; waits for its end if `wait`. Does not reap it.
fn has_ended(id: u32, wait: bool) -> Result<bool> {
    let Some(pid) = pid(id) else {
        return Ok(true);
    };
    let mut how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    if !wait {
        how |= WaitIdOptions::NOHANG;
    }
    loop {
        match rustix::process::waitid(WaitId::Pid(pid), how) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?.is_some()),
        }
    }
}

fn pid(id: u32) -> Option<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw)
}

fn all_of(stream: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        // Output up to a failed read of the pipe is used.
        let _ = stream.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn unstarted(command: &Command, error: &io::Error) -> Failure {
    let program = command.get_program().to_string_lossy().into_owned();
    format!("cannot run {program}: {error}").into()
}

/// Formats a program's failure with its messages.
pub fn failed(command: &Command, status: ExitStatus, said: &str) -> Failure {
    let program = command.get_program().to_string_lossy().into_owned();
    let args = command.get_args().map(|a| a.to_string_lossy().into_owned());
    let line: Vec<String> = std::iter::once(program).chain(args).collect();
    let how = match status.signal() {
        Some(signal) => format!("was ended by signal {signal}"),
        None => format!("failed ({status})"),
    };
    format!("`{}` {how}: {}", line.join(" "), said.trim()).into()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn run_returns_output_or_failure_text() {
        let undo = Undo::default();
        let mut shell = Command::new("sh");
        assert_eq!(undo.run(shell.args(["-c", "echo out"])).unwrap(), "out\n");
        let mut shell = Command::new("sh");
        let failed = undo.run(shell.args(["-c", "echo no >&2; exit 3"]));
        let message = failed.unwrap_err().to_string();
        assert!(
            message.contains("exit status: 3") && message.ends_with("no"),
            "{message}"
        );
        let missing = undo.run(&mut Command::new("no-such-program")).unwrap_err();
        assert!(missing.to_string().contains("no-such-program"));
        assert!(undo.notes().is_empty());
    }

    #[test]
    fn recorded_items_are_removed() {
        let undo = Undo::default();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("image");
        std::fs::write(&file, "").unwrap();
        undo.note(Trace::File(file.clone()));
        undo.note(Trace::Mount(dir.path().to_owned()));
        let mut child = undo.start(Command::new("sleep").arg("1000")).unwrap();
        let notes = undo.notes().clone();
        assert_eq!(undo.all(&notes), Vec::<String>::new());
        assert!(!file.exists());
        let status = undo.wait(&mut child, None, |_| {}).unwrap();
        assert_eq!(status.signal(), Some(9));
    }

    #[test]
    fn directory_being_filled_is_removed() {
        for _ in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            let full = dir.path().join("full");
            std::fs::create_dir(&full).unwrap();
            std::thread::scope(|scope| {
                for name in ["a", "b"] {
                    let full = &full;
                    let fill = move || {
                        (0..).any(|n| File::create(full.join(format!("{name}{n}"))).is_err())
                    };
                    scope.spawn(fill);
                }
                while std::fs::read_dir(&full).unwrap().count() < 2 {
                    std::thread::yield_now();
                }
                assert!(take_away(&Trace::Directory(full.clone())).is_ok());
            });
            assert!(!full.exists());
        }
    }

    #[test]
    fn wait_fails_at_deadline_of_running_program() {
        let undo = Undo::default();
        let mut child = undo.start(Command::new("sleep").arg("1000")).unwrap();
        let waited = undo.wait(&mut child, Some(Duration::ZERO), |_| {});
        assert!(waited.unwrap_err().to_string().contains("does not end"));
        undo.kill(&mut child);
        assert!(undo.notes().is_empty());
    }
}
