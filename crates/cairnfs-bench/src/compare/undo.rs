//! What a comparison has made outside of itself, so that all of it can be taken away at any moment:
//! programs that run, mounts, a loop device, an image, a directory.
//!
//! Each is noted before it is made or at once with it, and crossed out after it is gone. On a signal
//! a thread takes away what is noted and ends the process; a failure or a panic drops the guards,
//! which do the same one by one. Programs are started, and files made and removed, under the lock of
//! the notes, which that thread never gives back: after it, nothing is made any more. A program that
//! is noted has not been reaped, so its number is its own.

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

/// Something that must not stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trace {
    /// A program, by its number, with the processes of its group.
    Program(u32),
    /// What is mounted on a directory.
    Mount(PathBuf),
    /// The loop devices of an image.
    Loops(PathBuf),
    /// A file.
    File(PathBuf),
    /// A directory with all that is in it, nothing of which is mounted any more.
    Directory(PathBuf),
}

/// The notes.
#[derive(Debug, Clone, Default)]
pub struct Undo(Arc<Mutex<Vec<Trace>>>);

impl Undo {
    /// Notes something.
    pub fn note(&self, trace: Trace) {
        self.notes().push(trace);
    }

    /// Crosses something out.
    pub fn cross_out(&self, trace: &Trace) {
        self.notes().retain(|noted| noted != trace);
    }

    /// Makes something, unless all is being taken away, and notes it.
    fn make<T>(&self, trace: &Trace, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let mut notes = self.notes();
        notes.push(trace.clone());
        make()
    }

    /// Takes something away and crosses it out.
    fn take_away(&self, trace: &Trace) -> Result<()> {
        let mut notes = self.notes();
        let gone = take_away(trace);
        notes.retain(|noted| noted != trace);
        gone
    }

    /// Starts a program in a process group of its own, which a terminal's signals do not reach.
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

    /// Waits for a program's end, and gives `last` its number while it can still be asked about.
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

    /// Ends a program that is of no more use.
    pub fn kill(&self, child: &mut Child) {
        kill(child.id());
        // It was killed, so this ends; that it failed is known.
        let _ = self.wait(child, None, |_| {});
    }

    /// Runs a program, which must succeed, and gives what it prints.
    pub fn run(&self, command: &mut Command) -> Result<String> {
        let mut child = self.start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
        let (printed, said) = (child.stdout.take(), child.stderr.take());
        let (printed, said) = std::thread::scope(|scope| {
            let said = scope.spawn(|| all_of(said));
            (all_of(printed), said.join().unwrap_or_default())
        });
        let status = self.wait(&mut child, None, |_| {})?;
        match status.success() {
            true => Ok(printed),
            false => Err(failed(command, status, &format!("{said}{printed}"))),
        }
    }

    /// Takes everything away, programs first; gives what could not be.
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

/// Things that are gone when this is, the last first.
pub struct Made {
    traces: Vec<Trace>,
    undo: Undo,
}

impl Made {
    /// Nothing yet.
    pub fn new(undo: &Undo) -> Self {
        Self {
            traces: Vec::new(),
            undo: undo.clone(),
        }
    }

    /// Makes something that leaves this trace, even if it fails half-way.
    pub fn make<T>(&mut self, trace: Trace, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let made = self.undo.make(&trace, make);
        self.traces.push(trace);
        made
    }

    /// Takes all of it away.
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
            eprintln!("cairnfs bench compare: {e}");
        }
    }
}

/// How often a directory that was not empty after all is emptied again.
const TRIES: usize = 1000;

const PAUSE: Duration = Duration::from_millis(2);

/// While it lives, a signal that ends the process takes away all that is noted.
pub struct Watch(Handle);

impl Watch {
    /// Watches from now on.
    pub fn new(undo: &Undo) -> Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let handle = signals.handle();
        let undo = undo.clone();
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // Held to the end: nothing may be made any more.
                let notes = undo.notes();
                let left = undo.all(&notes);
                eprintln!("\ncairnfs bench compare: interrupted; all that was made is taken away");
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
        // Programs are ended before anything else.
        Trace::Program(_) => Ok(()),
        Trace::Mount(dir) => {
            while rustix::mount::unmount(dir, UnmountFlags::DETACH).is_ok() {}
            Ok(())
        }
        Trace::Loops(image) => detach(image),
        Trace::File(path) => gone(path, std::fs::remove_file(path)),
        Trace::Directory(path) => gone(path, remove_used(path)),
    }
}

/// Removes a directory that others may be making files in by its path, as a workload does whose mount
/// was taken away. Under another name it is out of their reach, but for what they have begun.
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

/// The loop devices that an image is attached to.
pub fn loops_of(image: &Path) -> Result<Vec<String>> {
    let list = Command::new("losetup")
        .args(["--noheadings", "--output", "NAME", "--associated"])
        .arg(image)
        .output()
        .map_err(|e| format!("losetup: {e}; it is in the package util-linux"))?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    Ok(list.split_whitespace().map(str::to_owned).collect())
}

fn gone(path: &Path, removed: io::Result<()>) -> Result<()> {
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(format!("{}: {e}", path.display()).into())
        }
        _ => Ok(()),
    }
}

fn kill(id: u32) {
    if let Some(pid) = pid(id) {
        // It may have ended already.
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
}

/// Whether a program has ended, after waiting for it if told. It is not reaped.
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
        // What a program said until its pipe broke is all there is.
        let _ = stream.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn unstarted(command: &Command, error: &io::Error) -> Failure {
    let program = command.get_program().to_string_lossy().into_owned();
    format!("cannot run {program}: {error}").into()
}

/// A program's failure, in its own words.
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
    fn a_program_gives_what_it_prints_or_why_it_fails() {
        let undo = Undo::default();
        let mut shell = Command::new("sh");
        assert_eq!(undo.run(shell.args(["-c", "echo out"])).unwrap(), "out\n");
        let mut shell = Command::new("sh");
        let failed = undo.run(shell.args(["-c", "echo no >&2; exit 3"]));
        let told = failed.unwrap_err().to_string();
        assert!(
            told.contains("exit status: 3") && told.ends_with("no"),
            "{told}"
        );
        let missing = undo.run(&mut Command::new("no-such-program")).unwrap_err();
        assert!(missing.to_string().contains("no-such-program"));
        assert!(undo.notes().is_empty());
    }

    #[test]
    fn what_is_noted_is_taken_away() {
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
    fn a_directory_that_is_being_filled_is_removed() {
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
    fn a_program_that_does_not_end_is_told() {
        let undo = Undo::default();
        let mut child = undo.start(Command::new("sleep").arg("1000")).unwrap();
        let waited = undo.wait(&mut child, Some(Duration::ZERO), |_| {});
        assert!(waited.unwrap_err().to_string().contains("does not end"));
        undo.kill(&mut child);
        assert!(undo.notes().is_empty());
    }
}
