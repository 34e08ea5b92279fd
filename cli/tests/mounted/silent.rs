//! Requests to a daemon: one that does not answer is given up and named, one that works is waited
//! for, and answers hold paths of any bytes.
//!
//! Contract: branch.verbs

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::{self, yield_now};

use cairnfs_fuse::mountinfo;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::gate::{Held, Mount};
use crate::place::{CAIRNFS, Place, able, arg, nap, said};
use crate::verbs::names;

#[test]
fn commands_give_up_on_stopped_daemon() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "");
    fs::write(place.at("f"), b"x").unwrap();
    place.stop();
    // The kernel would ask for the attributes of the root, which has a new entry.
    assert!(mountinfo::is_directory(&place.at("")));
    assert!(
        mountinfo::holding(&place.at(""))
            .unwrap()
            .unwrap()
            .is_ours()
    );
    let says = ["does not answer within 0.2 seconds", "umount --lazy"];
    place.fails(&["sync", "--timeout", "0.2", "m"], 1, &says);
    place.fails(&["sync", "--timeout", "0.2", "m/f"], 1, &says);
    place.fails(&["trim", "--timeout", "0.2", "m"], 1, &says);
    place.fails(&["trim", "--timeout", "0.2", "v.cairn"], 1, &says);
    let stays = ["stays mounted", says[0], says[1]];
    place.fails(&["umount", "--timeout", "0.2", "m"], 32, &stays);
    let taken = ["is taken", "does not answer", "umount --lazy"];
    place.fails(&["mount", "v.cairn", "m"], 32, &taken);
    place.signal(Signal::CONT);
    place.ok(&["sync", "--timeout", "30", "m"]);
    place.finish();
}

/// Waits until a command has called the daemon, and handles signals.
fn wait_for_call(child: &Child) {
    let status = || fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let handles = |status: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask & (1 << (Signal::TERM.as_raw() - 1)) != 0)
    };
    while !handles(&status()) {
        nap(5);
    }
}

/// Sends a command that waits one signal, which must end it; returns what it has said.
fn end(place: &Place, mut child: Child, signal: Signal, said: &str) -> String {
    kill_process(Pid::from_child(&child), signal).unwrap();
    let status = child.wait().unwrap();
    let text = fs::read_to_string(place.beside(said)).unwrap();
    assert_eq!(status.signal(), Some(signal.as_raw()), "{status}: {text}");
    text
}

/// Starts a command, which writes to the file `said`: the daemon may keep its streams open.
fn begin(place: &Place, args: &[&str], said: &str) -> Child {
    let said = fs::File::create(place.beside(said)).unwrap();
    let mut command = place.command(args);
    command
        .stdin(Stdio::piped())
        .stdout(said.try_clone().unwrap());
    command.stderr(said).spawn().unwrap()
}

#[test]
fn one_signal_ends_commands_that_wait_for_a_stopped_daemon() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "");
    fs::write(place.at("f"), b"x").unwrap();
    place.ok(&["snapshot", "m", "before"]);
    place.ok(&["branch", "m", "trial"]);
    place.stop();
    let pid = place.daemon_pid();
    let advice = format!("its process {pid} is stopped: `kill -CONT {pid}`");
    let long = "x".repeat(100);
    let paths: Vec<_> = (0..2000).map(|n| format!("{n}{long}")).collect();
    let paths = paths.iter().map(String::as_str);
    // More than a socket takes that nobody reads.
    let long: Vec<_> = ["restore", "m", "before"]
        .into_iter()
        .chain(paths)
        .collect();
    let calls = [
        &["log", "v.cairn"][..],
        &["log", "m"],
        &["diff", "m", "before"],
        &["snapshot", "m", "after"],
        &["branch", "v.cairn", "other"],
        &["drop", "v.cairn", "trial"],
        &["rename", "m", "trial", "other"],
        &["publish", "v.cairn", "trial"],
        &["send", "v.cairn", "before"],
        &["receive", "m", "--name", "came"],
        &long,
    ];
    // Each waits a moment for an answer to the end of its call, too: all at once.
    thread::scope(|scope| {
        for (n, args) in calls.into_iter().enumerate() {
            let (place, advice) = (&place, &advice);
            scope.spawn(move || {
                let said = format!("said{n}");
                let child = begin(place, args, &said);
                wait_for_call(&child);
                let text = end(place, child, Signal::TERM, &said);
                let is_told = text.contains("interrupted") && text.contains(advice);
                assert!(is_told, "{}: {text}", args[0]);
            });
        }
    });
    for args in [
        &["stats", "m"][..],
        &["sync", "m"],
        &["trim", "m"],
        &["umount", "m"],
        &["mount", "-o", "branch=trial", "v.cairn", "m2"],
    ] {
        fs::create_dir_all(place.beside("m2")).unwrap();
        end(&place, begin(&place, args, "said"), Signal::TERM, "said");
    }
    place.fails(&["sync", "--timeout", "0.2", "m"], 1, &[&advice]);
    place.signal(Signal::CONT);
    // What was asked for is not done later.
    let left = names(&place);
    while place.has_thread("cairnfs-call") {
        nap(20);
    }
    assert_eq!(left, ["before", "main", "trial"]);
    assert_eq!(names(&place), left);
    assert!(place.at("f").exists());
    place.finish();
}

#[test]
fn command_in_a_daemon_that_is_stopped_meanwhile_leaves_nothing() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "");
    fs::write(place.at("f"), vec![7; 4 << 20]).unwrap();
    place.ok(&["snapshot", "m", "before"]);
    place.ok(&["send", "m", "before", "-o", "stream"]);
    let stream = fs::read(place.beside("stream")).unwrap();
    let mut child = begin(&place, &["receive", "m", "--name", "half"], "said");
    let mut input = child.stdin.take().unwrap();
    input.write_all(&stream[..stream.len() / 2]).unwrap();
    while !place.ok(&["log", "m"]).contains("unfinished") {
        nap(50);
    }
    place.stop();
    let text = end(&place, child, Signal::TERM, "said");
    assert!(
        text.contains("interrupted, and the daemon does not answer"),
        "{text}"
    );
    place.signal(Signal::CONT);
    while place.ok(&["log", "m"]).contains("unfinished") {
        nap(50);
    }
    assert_eq!(names(&place), ["before", "main"]);
    drop(input);
    place.finish();
}

#[test]
fn lazy_umount_sends_stopped_daemon_no_request() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    place.stop();
    place.ok(&["umount", "--lazy", "m"]);
    place.signal(Signal::CONT);
    place.wait_for_end();
    place.check();
}

/// Whether a process asks the daemon of a mount for its status.
fn is_asked(dir: &OsStr) -> bool {
    let tail = [b"stats\0--asking\0status\0--\0", dir.as_bytes(), b"\0"].concat();
    fs::read_dir("/proc").unwrap().any(|entry| {
        let line = entry.and_then(|entry| fs::read(entry.path().join("cmdline")));
        line.is_ok_and(|line| line.ends_with(&tail))
    })
}

#[test]
fn sync_waits_for_daemon_that_works() {
    if !able(&[]) {
        return;
    }
    let mount = Mount::new();
    drop(mount.written("f"));
    mount.gate.hold(Held::Flushes);
    let sync = Command::new(CAIRNFS)
        .args(["sync", "--timeout", "20", arg(&mount.dir())])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    mount.gate.wait_for(1);
    // The command asks whether the daemon is alive, and goes on waiting.
    for _ in 0..2 {
        while !is_asked(mount.dir().as_os_str()) {
            yield_now();
        }
        while is_asked(mount.dir().as_os_str()) {
            yield_now();
        }
    }
    mount.gate.open();
    let out = sync.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
}

/// Takes a mount away if the test fails.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn mountpoint_that_is_not_utf8_has_status() {
    if !able(&[]) {
        return;
    }
    let place = Place::new("64M");
    let name = OsStr::from_bytes(b"b\xff");
    fs::create_dir(place.beside(name)).unwrap();
    let image = OsStr::from_bytes(b"v\xfe.cairn");
    fs::rename(place.volume(), place.beside(image)).unwrap();
    let run = |args: &[&str], tail: &[&OsStr]| {
        let out = Command::new(CAIRNFS)
            .current_dir(place.beside(""))
            .args(args)
            .args(tail)
            .output()
            .unwrap();
        assert!(out.status.success(), "{args:?}: {}", said(&out));
        String::from_utf8(out.stdout).unwrap()
    };
    run(&["mount"], &[image, name]);
    let _mounted = Mounted(place.beside(name));
    let line = run(&["stats", "--check"], &[name]);
    assert!(line.starts_with("OK") && line.contains("/b\\xff"), "{line}");
    assert!(run(&["stats"], &[name]).contains("/b\\xff"));
    let report: Value = serde_json::from_str(&run(&["stats", "--json"], &[name])).unwrap();
    let shown = report["mountpoint"].as_str().unwrap();
    assert!(shown.ends_with("/b\u{fffd}"), "{shown}");
    let metrics = run(&["stats", "--prometheus"], &[name]);
    assert!(metrics.contains("/b\u{fffd}\""), "{metrics}");
    run(&["sync"], &[name]);
    run(&["trim"], &[image]);
    run(&["umount"], &[name]);
    // The volume is closed: the command has waited for the file of this name.
    run(&["check"], &[image]);
}
