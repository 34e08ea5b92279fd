//! Files shipped for system integration: a systemd unit, fstab lines, magic entries for file(1).

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cairnfs_fuse::mountinfo;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::options::with_helpers;
use crate::place::{CAIRNFS, Place, able, arg, no_fork_is_tried, said, succeed};

/// A file of the repository.
fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn unit() -> String {
    fs::read_to_string(shipped("contrib/systemd/cairnfs@.service")).unwrap()
}

#[test]
fn systemd_verifies_unit_without_errors() {
    if !able(&["systemd-analyze"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cairnfs@mnt-disk.service");
    let started = format!("ExecStart={CAIRNFS}");
    fs::write(&path, unit().replace("ExecStart=cairnfs", &started)).unwrap();
    let out = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&path)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", said(&out));
    // It also warns about unknown directives.
    assert!(!said(&out).contains("mnt-disk"), "{}", said(&out));
    let unknown = unit().replace("KillMode", "KillNode");
    fs::write(&path, unknown.replace("ExecStart=cairnfs", &started)).unwrap();
    let out = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&path)
        .output()
        .unwrap();
    assert!(said(&out).contains("KillNode"), "{}", said(&out));
}

/// Runs the unit's command, with the environment that systemd provides.
#[test]
fn unit_notifies_readiness_and_stops_cleanly() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    let unit = unit();
    assert!(unit.contains("\nType=notify\n") && unit.contains("\nEnvironment=OPTIONS=rw\n"));
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="))
        .unwrap();
    let words: Vec<String> = line
        .split(' ')
        .map(|word| match word {
            "${OPTIONS}" => "rw".into(),
            "${VOLUME}" => arg(&place.volume()).to_owned(),
            "%f" => arg(&place.dir()).to_owned(),
            word => word.to_owned(),
        })
        .collect();
    // By its name: where it is, is the business of who installs it.
    assert_eq!(words[0], "cairnfs");
    let manager = UnixDatagram::bind(place.beside("notify")).unwrap();
    let mut child = Command::new(CAIRNFS)
        .args(&words[1..])
        .env("NOTIFY_SOCKET", place.beside("notify"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut message = [0; 100];
    let len = manager.recv(&mut message).unwrap();
    assert_eq!(&message[..len], b"READY=1\n");
    assert!(mountinfo::at(&place.dir()).unwrap().is_some());
    fs::write(place.at("f"), b"x").unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(mountinfo::at(&place.dir()).unwrap().is_none());
    place.check();
    place.mount("ro");
    assert_eq!(fs::read(place.at("f")).unwrap(), b"x");
    place.finish();
}

#[test]
fn fstab_lines_mount_and_plain_umount_waits() {
    if !able(&["mount", "umount", "unshare", "flock"]) {
        return;
    }
    let _copies = no_fork_is_tried();
    let document = fs::read_to_string(shipped("docs/operating.md")).unwrap();
    let block = document.split_once("```fstab\n").unwrap().1;
    let lines: Vec<&str> = block.split_once("```").unwrap().0.lines().collect();
    assert_eq!(lines.len(), 2);
    for line in lines {
        let place = Place::new("64M");
        let line = line.replace("/srv/disk.img", arg(&place.volume()));
        let line = line.replace("/mnt/disk", arg(&place.dir()));
        fs::write(place.beside("fstab"), line + "\n").unwrap();
        let script = "
            if grep -q noauto fstab; then mount -T fstab $PWD/m; else mount -a -T fstab; fi
            has rw; echo x > m/f; umount m
            flock -n v.cairn true; test $($COMMAND cat v.cairn:/f) = x";
        with_helpers(&place, "mount.cairnfs umount.fuse.cairnfs", script);
        place.check();
    }
}

#[test]
fn file_command_identifies_volume() {
    if !able(&["file"]) {
        return;
    }
    let place = Place::new("64M");
    place.ok(&[
        "mkfs", "-q", "--size", "100M", "--label", "my disk", "w.cairn",
    ]);
    let magic = shipped("contrib/magic/cairnfs");
    let file_output = |flag: &str| {
        let volume = place.beside("w.cairn");
        succeed(Command::new("file").args(["-b", flag, "-m", arg(&magic), arg(&volume)]))
    };
    let info: Value = serde_json::from_str(&place.ok(&["info", "--json", "w.cairn"])).unwrap();
    let expected = format!(
        "CairnFS volume, format 3, {} bytes, label \"my disk\", UUID {}, made ",
        info["size"],
        info["uuid"].as_str().unwrap()
    );
    assert!(
        file_output("-k").starts_with(&expected),
        "{}",
        file_output("-k")
    );
    assert_eq!(
        file_output("--mime-type").trim(),
        "application/x-cairnfs-volume"
    );
    // Either superblock slot is enough.
    let mut bytes = fs::read(place.beside("w.cairn")).unwrap();
    bytes[..4096].fill(0);
    fs::write(place.beside("w.cairn"), bytes).unwrap();
    assert!(
        file_output("-b").starts_with(&expected),
        "{}",
        file_output("-b")
    );
}
