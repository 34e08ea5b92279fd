//! What comes with the program for the system around it: a unit for systemd, lines for fstab, entries
//! for file(1).

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cairnfs_fuse::mountinfo;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::options::with_helpers;
use crate::place::{CAIRNFS, Place, able, arg, said, succeed};

/// A file of the repository.
fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

fn unit() -> String {
    fs::read_to_string(shipped("contrib/systemd/cairnfs@.service")).unwrap()
}

#[test]
fn systemd_finds_no_mistake_in_the_unit() {
    if !able(&["systemd-analyze"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cairnfs@mnt-disk.service");
    fs::write(&path, unit().replace("/usr/bin/cairnfs", CAIRNFS)).unwrap();
    let out = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&path)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", said(&out));
    // It also warns, about words that it does not know.
    assert!(!said(&out).contains("mnt-disk"), "{}", said(&out));
    let unknown = unit().replace("KillMode", "KillNode");
    fs::write(&path, unknown.replace("/usr/bin/cairnfs", CAIRNFS)).unwrap();
    let out = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&path)
        .output()
        .unwrap();
    assert!(said(&out).contains("KillNode"), "{}", said(&out));
}

/// Runs what the unit starts, as systemd would.
#[test]
fn the_unit_tells_when_it_is_live_and_ends_cleanly() {
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
    assert_eq!(words[0], "/usr/bin/cairnfs");
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
fn the_lines_for_fstab_mount_and_a_plain_umount_waits() {
    if !able(&["mount", "umount", "unshare", "flock"]) {
        return;
    }
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
fn file_tells_what_a_volume_is() {
    if !able(&["file"]) {
        return;
    }
    let place = Place::new("64M");
    place.ok(&[
        "mkfs", "-q", "--size", "100M", "--label", "my disk", "w.cairn",
    ]);
    let magic = shipped("contrib/magic/cairnfs");
    let told = |flag: &str| {
        let volume = place.beside("w.cairn");
        succeed(Command::new("file").args(["-b", flag, "-m", arg(&magic), arg(&volume)]))
    };
    let info: Value = serde_json::from_str(&place.ok(&["info", "--json", "w.cairn"])).unwrap();
    let expected = format!(
        "CairnFS volume, format 3, {} bytes, label \"my disk\", UUID {}, made ",
        info["size"],
        info["uuid"].as_str().unwrap()
    );
    assert!(told("-k").starts_with(&expected), "{}", told("-k"));
    assert_eq!(told("--mime-type").trim(), "application/x-cairnfs-volume");
    // Either slot of the superblock will do.
    let mut bytes = fs::read(place.beside("w.cairn")).unwrap();
    bytes[..4096].fill(0);
    fs::write(place.beside("w.cairn"), bytes).unwrap();
    assert!(told("-b").starts_with(&expected), "{}", told("-b"));
}
