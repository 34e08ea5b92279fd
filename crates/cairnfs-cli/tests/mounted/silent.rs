//! Requests to a daemon: one that does not answer is given up and named, one that works is waited
//! for, and answers hold paths of any bytes.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::yield_now;

use cairnfs_fuse::mountinfo;
use rustix::process::Signal;
use serde_json::Value;

use crate::gate::{Held, Mount};
use crate::place::{CAIRNFS, Place, able, arg, said};

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
