//! The mount that does nothing, the baseline for other mounts.
//!
//! This target has the name of the command's tests of mounts, some of which run `cairnfs-bench`: a
//! test of the workspace by that name builds both programs.
#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cairnfs_fuse::mountinfo;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, geteuid, kill_process};

/// Whether this machine can run these tests. Prints the reason if not.
fn able() -> bool {
    let able = geteuid().is_root() && Path::new("/dev/fuse").exists();
    let required = std::env::var_os("CAIRNFS_REQUIRE_FUSE").is_some_and(|v| v == "1");
    assert!(able || !required, "this test needs root and /dev/fuse");
    if !able {
        // Not `eprintln!`, which the test harness hides for a passing test.
        let text = b"SKIPPED a mount that does nothing: it needs root and /dev/fuse\n";
        std::io::stderr().write_all(text).unwrap();
    }
    able
}

/// Starts the server and waits until the mount is live.
fn serve(dir: &Path) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_cairnfs-bench"))
        .arg("noop")
        .arg(dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let output = child.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert!(line.starts_with("serving "), "{line}");
    child
}

fn is_mounted(dir: &Path) -> bool {
    mountinfo::at(dir).unwrap().is_some()
}

#[test]
fn noop_mount_accepts_all_calls_and_ends_on_signal() {
    if !able() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().canonicalize().unwrap();
    let mut child = serve(&dir);
    assert!(is_mounted(&dir));
    fs::create_dir(dir.join("d")).unwrap();
    for i in 0..20 {
        let file = dir.join(format!("d/f{i}"));
        fs::write(&file, b"swallowed").unwrap();
        fs::File::open(&file).unwrap().sync_all().unwrap();
        assert!(fs::metadata(&file).unwrap().is_file());
        fs::rename(&file, dir.join("d/g")).unwrap();
        fs::remove_file(dir.join("d/g")).unwrap();
    }
    fs::remove_dir(dir.join("d")).unwrap();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!is_mounted(&dir));
}

#[test]
fn noop_mount_ends_when_unmounted() {
    if !able() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().canonicalize().unwrap();
    let mut child = serve(&dir);
    unmount(&dir, UnmountFlags::empty()).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!is_mounted(&dir));
}
