//! Signals in the middle of a copy: nothing incomplete is left, and the exit is by the signal.
//!
//! Contract: copies.failed

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::{Pid, Signal, kill_process};

use super::place::{Place, pattern};

const SIGNALS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];
/// Bytes of the file being copied.
const LEN: usize = 24 << 20;

/// Starts `cairnfs` with the default actions of signals, also where these tests run with some of
/// them ignored, as in the background of a shell or below nohup(1).
pub fn start(p: &Place, args: &[&str]) -> Child {
    Command::new("env")
        .arg("--default-signal=INT,TERM,HUP")
        .arg(env!("CARGO_BIN_EXE_cairnfs"))
        .current_dir(p.path(""))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

pub fn kill(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Temporary names of the command in a directory.
fn temporary(dir: PathBuf) -> usize {
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with(".cairnfs-"))
        .count()
}

fn names(dir: PathBuf) -> BTreeSet<OsString> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|e| e.unwrap().file_name()).collect()
}

/// Whether a process has a file open that has no name and got none before.
fn has_nameless_file(child: &Child) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{}/fd", child.id())) else {
        return false;
    };
    let mut links = open.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    let is_one = |link: PathBuf| {
        let link = link.to_string_lossy().into_owned();
        link.contains("/#") && link.ends_with(" (deleted)")
    };
    links.any(is_one)
}

/// Runs a command, and sends a signal as soon as `begun`. Runs it again after `again` if it ended
/// before the signal arrived.
fn interrupt(
    p: &Place,
    args: &[&str],
    signal: Signal,
    begun: impl Fn(&Child) -> bool,
    again: impl Fn(),
) -> ExitStatus {
    loop {
        let mut child = start(p, args);
        while !begun(&child) && child.try_wait().unwrap().is_none() {
            std::hint::spin_loop();
        }
        if child.try_wait().unwrap().is_none() {
            kill(&child, signal);
        }
        let status = child.wait().unwrap();
        if !status.success() {
            return status;
        }
        again();
    }
}

/// A volume with one file that takes long to compress.
fn with_file() -> Place {
    let p = Place::with_volume();
    fs::create_dir(p.path("in")).unwrap();
    let mut state = 1u64;
    let noise = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    });
    fs::write(p.path("in/f"), noise.take(LEN).collect::<Vec<_>>()).unwrap();
    p.ok(&["import", "-q", "in", "v.img"]);
    p
}

#[test]
fn interrupted_export_leaves_old_archive_only() {
    let p = with_file();
    fs::write(p.path("a.tar.gz"), b"old").unwrap();
    let before = names(p.path(""));
    for signal in SIGNALS {
        let old = || fs::write(p.path("a.tar.gz"), b"old").unwrap();
        old();
        let begun = |_: &Child| temporary(p.path("")) > 0;
        let args = ["export", "-q", "-f", "v.img", "a.tar.gz"];
        let status = interrupt(&p, &args, signal, begun, old);
        assert_eq!(status.signal(), Some(signal.as_raw()), "{status:?}");
        assert_eq!(fs::read(p.path("a.tar.gz")).unwrap(), b"old");
        assert_eq!(temporary(p.path("")), 0);

        let new = p.path("new.tar.gz");
        let gone = || fs::remove_file(&new).unwrap();
        let args = ["export", "-q", "v.img", "new.tar.gz"];
        let begun = |child: &Child| has_nameless_file(child) || temporary(p.path("")) > 0;
        let status = interrupt(&p, &args, signal, begun, gone);
        assert_eq!(status.signal(), Some(signal.as_raw()), "{status:?}");
        assert!(!new.exists());
    }
    assert_eq!(names(p.path("")), before);
}

#[test]
fn killed_restore_and_export_leave_nothing() {
    let p = with_file();
    let flags = OFlags::WRONLY | OFlags::TMPFILE;
    if rustix::fs::open(p.path(""), flags, Mode::RUSR).is_err() {
        println!("skipped: the directory for temporary files has no files without a name");
        return;
    }
    p.ok(&["backup", "-q", "v.img", "b"]);
    let before = names(p.path(""));
    for command in [
        ["export", "-q", "v.img", "new.tar.gz"],
        ["restore-from", "-q", "b", "new"],
    ] {
        let gone = || fs::remove_file(p.path(command[3])).unwrap();
        let status = interrupt(&p, &command, Signal::KILL, has_nameless_file, gone);
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{status:?}");
        assert_eq!(names(p.path("")), before);
    }
    p.ok(&["restore-from", "-q", "b", "new"]);
    p.ok(&["check", "new"]);
}

#[test]
fn interrupted_export_leaves_no_partial_file() {
    let p = with_file();
    fs::create_dir(p.path("out")).unwrap();
    for command in [
        &["export", "-q", "-f", "v.img", "out"][..],
        &["cp", "-q", "v.img:/f", "out"],
    ] {
        let old = || fs::write(p.path("out/f"), b"old").unwrap();
        old();
        let begun = |_: &Child| temporary(p.path("out")) > 0;
        let status = interrupt(&p, command, Signal::TERM, begun, old);
        assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{status:?}");
        assert_eq!(fs::read(p.path("out/f")).unwrap(), b"old");
        assert_eq!(temporary(p.path("out")), 0);
    }
}

/// A request of the store that is not answered must not hold up the end.
#[test]
fn interrupted_backup_does_not_wait_for_its_store() {
    let p = Place::with_volume();
    fs::create_dir(p.path("b")).unwrap();
    let root = p.path("b/cairnfs-backup.json");
    mknodat(CWD, root, FileType::Fifo, Mode::RUSR, 0).unwrap();
    for command in [
        &["backup", "-q", "v.img", "b"][..],
        &["backup", "check", "-q", "b"],
        &["backup", "prune", "-q", "b"],
        &["backup", "repair", "b"],
        &["restore-from", "-q", "b", "new"],
    ] {
        let waits = |child: &Child| {
            let tasks = fs::read_dir(format!("/proc/{}/task", child.id()));
            let name = |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm"));
            let mut tasks = tasks.into_iter().flatten().flatten();
            tasks.any(|task| name(&task).is_ok_and(|name| name == "store\n"))
        };
        let status = interrupt(&p, command, Signal::INT, waits, || {});
        assert_eq!(status.signal(), Some(Signal::INT.as_raw()), "{status:?}");
    }
    assert!(p.ok(&["check", "v.img"]).contains("clean"));
}

/// An archive of the file `whole`, and of the file `f` without its last bytes.
fn archive() -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, data) in [("whole", &b"whole"[..]), ("f", &pattern(LEN))] {
        let mut header = tar::Header::new_ustar();
        header.set_path(name).unwrap();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.truncate(bytes.len() - 4096);
    bytes
}

#[test]
fn interrupted_import_leaves_old_files() {
    let archive = archive();
    for signal in SIGNALS {
        let p = Place::with_volume();
        fs::write(p.path("f"), b"old").unwrap();
        p.ok(&["cp", "f", "v.img:/f"]);
        let mut child = start(&p, &["import", "-q", "-", "v.img"]);
        // The command has most of the archive when the pipe has taken all of it. It waits for the
        // rest when the signal arrives, or a moment later.
        let mut input = child.stdin.take().unwrap();
        input.write_all(&archive).unwrap();
        kill(&child, signal);
        let status = child.wait().unwrap();
        drop(input);
        assert_eq!(status.signal(), Some(signal.as_raw()), "{status:?}");
        assert!(p.ok(&["check", "--data", "v.img"]).contains("clean"));
        assert_eq!(p.ok(&["ls", "-a", "v.img"]), ".\n..\nf\nwhole\n");
        assert_eq!(p.ok(&["cat", "v.img:/f"]), "old");
    }
}

#[test]
fn interrupted_import_removes_volume_that_it_made() {
    let archive = archive();
    let p = Place::new();
    let made = ["import", "-q", "--create", "--size", "64M", "-", "v.img:/"];
    let mut child = start(&p, &made);
    let mut input = child.stdin.take().unwrap();
    input.write_all(&archive).unwrap();
    kill(&child, Signal::TERM);
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{status:?}");
    assert!(!p.path("v.img").exists());
}

#[test]
fn signal_ignored_by_parent_does_not_interrupt() {
    let p = Place::with_volume();
    let line = "trap '' HUP; echo $$ >pid; exec \"$cairnfs\" import -q - v.img";
    let mut archive = archive();
    archive.resize(archive.len() + 4096 + 1024, 0);
    let (first, rest) = archive.split_at(LEN / 2);
    let out = p.shell(line, |input| {
        input.write_all(first).unwrap();
        let pid = loop {
            let pid = fs::read_to_string(p.path("pid")).unwrap_or_default();
            if let Some(pid) = pid.strip_suffix('\n') {
                break pid.parse().unwrap();
            }
        };
        kill_process(Pid::from_raw(pid).unwrap(), Signal::HUP).unwrap();
        input.write_all(rest).unwrap();
    });
    assert!(out.status.success(), "{out:?}");
    assert_eq!(p.ok(&["ls", "v.img"]), "f\nwhole\n");
}

#[test]
fn closed_pipe_ends_export_as_sigpipe_does() {
    let p = with_file();
    let line = "(\"$cairnfs\" export -q v.img -; echo $? >code) | head -c 1 >/dev/null; cat code";
    let out = p.shell(line, |_| {});
    assert_eq!(String::from_utf8_lossy(&out.stdout), "141\n");
    assert_eq!(String::from_utf8_lossy(&out.stderr), "");
}
