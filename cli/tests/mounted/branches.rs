//! `-o branch=`: mounts of a branch or snapshot, and how they begin and end. `together` has those of
//! several at once.
//!
//! Contract: branch.mount

use std::fs::{self, File};
use std::io;
use std::process::Command;

use cairnfs::fs::{FileSystem, Options};
use cairnfs_fuse::mountinfo::{self, MountEntry};
use rustix::io::Errno;

use crate::place::{Place, able, arg, succeed};

/// An unmounted volume whose `main` has the file `f`, with the snapshot `monday` and the branch
/// `trial` of that state.
pub fn forked() -> Place {
    let mut place = Place::mounted("64M", "");
    fs::write(place.at("f"), b"monday").unwrap();
    place.umount();
    place.ok(&["snapshot", "v.cairn", "monday"]);
    place.ok(&["branch", "v.cairn", "trial"]);
    place
}

/// The same, with a synced change of `trial`, after the daemon of its mount was killed.
fn killed_on_trial() -> Place {
    let mut place = forked();
    place.mount("branch=trial,durability=0");
    fs::write(place.at("f"), b"tried").unwrap();
    place.ok(&["sync", "m"]);
    place.kill();
    place
}

fn entry(place: &Place) -> MountEntry {
    mountinfo::at(&place.dir()).unwrap().expect("mounted")
}

/// The entry has the source `VOLUME@NAME`, or that of the volume.
fn assert_source(place: &Place, branch: Option<&str>) {
    let volume = place.volume();
    let source = match branch {
        Some(name) => format!("{}@{name}", arg(&volume)),
        None => arg(&volume).to_owned(),
    };
    assert_eq!(arg(&entry(place).source), source);
}

fn f(place: &Place) -> Vec<u8> {
    fs::read(place.at("f")).unwrap()
}

fn assert_read_only<T>(done: io::Result<T>) {
    let refused = done.map(drop).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
}

#[test]
fn mounted_branch_diverges_from_main() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    place.mount("branch=trial");
    assert_source(&place, Some("trial"));
    assert!(!entry(&place).has("ro"));
    assert_eq!(f(&place), b"monday");
    fs::write(place.at("f"), b"tried").unwrap();
    fs::write(place.at("new"), b"only here").unwrap();
    place.umount();

    place.mount("");
    assert_source(&place, None);
    assert_eq!(f(&place), b"monday");
    assert!(!place.at("new").exists());
    fs::write(place.at("f"), b"tuesday").unwrap();
    place.remount("branch=trial");
    assert_eq!(f(&place), b"tried");
    assert_eq!(fs::read(place.at("new")).unwrap(), b"only here");
    place.remount("branch=main");
    assert_source(&place, Some("main"));
    assert_eq!(f(&place), b"tuesday");
    place.finish();
}

#[test]
fn mounted_snapshot_is_read_only() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    place.mount("");
    fs::write(place.at("f"), b"tuesday").unwrap();
    place.umount();
    for reference in ["monday", "main@monday"] {
        place.mount(&format!("branch={reference}"));
        assert_source(&place, Some("monday"));
        assert!(entry(&place).has("ro"));
        assert_eq!(f(&place), b"monday");
        assert_read_only(File::create(place.at("x")));
        assert_read_only(fs::write(place.at("f"), b"x"));
        assert_read_only(fs::remove_file(place.at("f")));
        // A remount does not make it writable.
        place.fails(&["mount", "-o", "remount,rw", "m"], 32, &["read-only"]);
        assert!(entry(&place).has("ro"));
        place.umount();
    }
    place.mount("");
    assert_eq!(f(&place), b"tuesday");
    place.finish();
}

#[test]
fn mount_of_unknown_branch_is_refused_with_list() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    let says = ["nothing", "main", "monday", "trial"];
    for options in ["branch=nothing", "ro,branch=nothing"] {
        place.fails(&["mount", "-o", options, "v.cairn", "m"], 32, &says);
        assert!(mountinfo::at(&place.dir()).unwrap().is_none());
    }
    place.fails(&["mount", "-o", "branch=", "v.cairn", "m"], 1, &["branch="]);
    // The volume is closed: it can be opened for writing.
    place.ok(&["mkdir", "v.cairn:/new"]);
    place.mount("branch=trial");
    place.finish();
}

#[test]
fn offline_commands_name_mountpoint_of_branch() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    place.mount("branch=trial");
    let dir = place.dir();
    let step = format!("cairnfs umount {}", arg(&dir));
    let says = ["v.cairn", "in use: mounted on", arg(&dir), &step];
    place.fails(&["ls", "v.cairn"], 1, &says);
    place.fails(&["rm", "v.cairn:/f"], 1, &says);
    place.fails(&["check", "v.cairn"], 8, &says);
    place.finish();
}

#[test]
fn umount_of_branch_waits_until_the_volume_is_closed() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    // By the directory, and by the volume.
    for (n, name) in ["m", "v.cairn"].into_iter().enumerate() {
        place.mount("branch=trial,durability=0");
        let kept = format!("kept{n}");
        fs::write(place.at(&kept), vec![7; 8 << 20]).unwrap();
        place.ok(&["umount", name]);
        place.ok(&["mkdir", &format!("v.cairn:/new{n}")]);
        place.wait_for_end();
        assert!(mountinfo::at(&place.dir()).unwrap().is_none());
        place.check();
        place.mount("branch=trial");
        assert!(fs::read(place.at(&kept)).unwrap() == vec![7; 8 << 20]);
        place.umount();
    }
    place.fails(&["umount", "v.cairn"], 32, &["is not mounted"]);
}

#[test]
fn umount_by_volume_finds_mount_of_main() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    fs::write(place.at("f"), b"x").unwrap();
    place.ok(&["umount", "v.cairn"]);
    place.ok(&["mkdir", "v.cairn:/new"]);
    place.wait_for_end();
    place.check();
}

#[test]
fn branch_survives_kill_of_daemon() {
    if !able(&[]) {
        return;
    }
    let mut place = killed_on_trial();
    // The dead mount on the directory is replaced.
    place.mount("branch=trial");
    assert_source(&place, Some("trial"));
    assert_eq!(f(&place), b"tried");
    place.kill();
    place.mount("");
    assert_eq!(f(&place), b"monday");
    place.finish();
}

#[test]
fn branch_can_be_mounted_read_only_after_kill() {
    if !able(&[]) {
        return;
    }
    let mut place = killed_on_trial();
    let before = fs::read(place.volume()).unwrap();
    place.mount("ro,branch=trial");
    assert!(entry(&place).has("ro"));
    assert_eq!(f(&place), b"tried");
    assert_read_only(File::create(place.at("x")));
    place.umount();
    place.mount("ro,branch=monday");
    assert_eq!(f(&place), b"monday");
    place.umount();
    assert!(fs::read(place.volume()).unwrap() == before);
    place.check();
}

#[test]
fn branch_that_only_the_log_has_can_be_mounted_read_only() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    let used = place.beside("used.cairn");
    fs::rename(place.volume(), &used).unwrap();
    let options = Options {
        workers: false,
        durability_interval: None,
        ..Options::default()
    };
    let engine = FileSystem::open(&used, &options).unwrap();
    engine.branch("logged").unwrap();
    assert!(engine.info().log_used > 0);
    // The copy is the state after a kill.
    succeed(Command::new("cp").args(["--sparse=always", arg(&used), arg(&place.volume())]));
    drop(engine);
    for options in ["ro,branch=logged", "branch=logged"] {
        place.mount(options);
        assert_source(&place, Some("logged"));
        assert_eq!(f(&place), b"monday");
        place.umount();
    }
    place.check();
}

#[test]
fn remount_keeps_branch() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    place.mount("branch=trial");
    fs::write(place.at("f"), b"tried").unwrap();
    for (options, read_only) in [("remount,ro", true), ("remount,rw,branch=monday", false)] {
        let out = place.run(&["mount", "-o", options, "m"]);
        assert!(out.status.success(), "{}", crate::place::said(&out));
        let note = String::from_utf8_lossy(&out.stderr).contains("does not change branch=monday");
        assert_eq!(note, !read_only);
        assert_eq!(entry(&place).has("ro"), read_only);
        assert_source(&place, Some("trial"));
        assert_eq!(f(&place), b"tried");
    }
    fs::write(place.at("f"), b"again").unwrap();
    place.remount("branch=trial");
    assert_eq!(f(&place), b"again");
    place.finish();
}

/// What dropping each branch and snapshot would free, by name.
fn own(place: &Place, name: &str) -> u64 {
    let log = place.ok(&["log", "--json", "m"]);
    let log: serde_json::Value = serde_json::from_str(&log).unwrap();
    let roots = log["roots"].as_array().unwrap();
    let root = roots.iter().find(|root| root["name"] == name).unwrap();
    root["own_bytes"].as_u64().unwrap()
}

#[test]
fn log_counts_what_was_changed_before_it() {
    if !able(&[]) {
        return;
    }
    const SIZE: u64 = 20 << 20;
    const MARGIN: u64 = 1 << 20;
    let place = Place::mounted("128M", "");
    place.ok(&["branch", "m", "other"]);
    place.mount_beside("branch=other", "t");
    let large = place.beside("t/large");
    fs::write(&large, vec![7; SIZE as usize]).unwrap();
    place.ok(&["sync", "t"]);
    let wrote = own(&place, "other");
    assert!((SIZE..SIZE + MARGIN).contains(&wrote), "{wrote}");
    place.umount_beside("t");
    assert!(own(&place, "other") >= SIZE && own(&place, "main") < MARGIN);
    fs::write(place.at("large"), vec![8; SIZE as usize]).unwrap();
    place.ok(&["drop", "m", "other"]);
    place.ok(&["drop", "--wait", "m"]);
    assert!(own(&place, "main") >= SIZE);
    fs::remove_file(place.at("large")).unwrap();
    place.ok(&["sync", "m"]);
    let left = own(&place, "main");
    assert!(left < MARGIN, "{left}");
    place.finish();
}
