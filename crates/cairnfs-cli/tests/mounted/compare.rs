//! `cairnfs bench compare` on a real loop device: it prints results, and leaves no image, loop
//! device, mount or directory behind: after success, after a failure, and after a signal.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{PoisonError, RwLockWriteGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::place::{CAIRNFS, MOUNT_COPIES, able, said};

/// Programs that the test machine needs.
const PROGRAMS: [&str; 4] = ["losetup", "mkfs.ext4", "mount", "fusermount3"];

/// Timeout for detaching a loop device: after a lazy unmount of a busy file system, writeback
/// continues.
const PATIENCE: Duration = Duration::from_secs(300);

/// A directory for the image, and a temporary directory that holds the mountpoint.
struct Bench {
    dir: TempDir,
    _unused: RwLockWriteGuard<'static, ()>,
}

impl Bench {
    fn new() -> Self {
        let unused = MOUNT_COPIES.write().unwrap_or_else(PoisonError::into_inner);
        let bench = Self {
            dir: tempfile::tempdir().unwrap(),
            _unused: unused,
        };
        fs::create_dir(bench.temporary()).unwrap();
        bench
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn temporary(&self) -> PathBuf {
        self.dir.path().join("tmp")
    }

    fn start(&self, words: &[&str]) -> Child {
        Command::new(CAIRNFS)
            .args(["bench", "compare", "--size", "128M"])
            .arg("--device")
            .arg(self.image())
            .args(words)
            .env("TMPDIR", self.temporary())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn run(&self, words: &[&str]) -> Output {
        self.start(words).wait_with_output().unwrap()
    }

    fn is_attached(&self) -> bool {
        let image = fs::canonicalize(self.dir.path()).unwrap().join("image");
        fs::read_dir("/sys/block").unwrap().any(|device| {
            let file = device.unwrap().path().join("loop/backing_file");
            let backing = fs::read_to_string(file).unwrap_or_default();
            Path::new(backing.trim().trim_end_matches(" (deleted)")) == image
        })
    }

    fn is_mounted(&self) -> bool {
        let mounts = fs::read("/proc/self/mountinfo").unwrap();
        String::from_utf8_lossy(&mounts).contains(self.temporary().to_str().unwrap())
    }

    /// Asserts that nothing made by the comparison is left; prints its output on failure.
    fn assert_nothing_left(&self, out: &Output) {
        assert!(!self.image().exists(), "{}", said(out));
        // The kernel detaches a loop device when its last user closes it; a program that lists
        // loop devices is a user for a moment.
        let start = Instant::now();
        while self.is_attached() {
            assert!(start.elapsed() < PATIENCE, "{}", said(out));
            std::thread::yield_now();
        }
        assert!(!self.is_mounted(), "{}", said(out));
        let left = fs::read_dir(self.temporary()).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, Vec::<PathBuf>::new(), "{}", said(out));
    }
}

#[test]
fn comparison_of_file_systems_leaves_nothing() {
    if !able(&PROGRAMS) {
        return;
    }
    let bench = Bench::new();
    let workload = "fsmark --threads 2 --files 50 --dirs 2 --sync-create --walk-again --cold";
    let plots = bench.dir.path().join("plots");
    let out = bench.run(&[
        "--with",
        "cairnfs,cairnfs-mount,ext4",
        "--rounds",
        "1",
        "--json",
        "-",
        "--plot",
        plots.to_str().unwrap(),
        workload,
    ]);
    assert!(out.status.success(), "{}", said(&out));
    bench.assert_nothing_left(&out);
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    for run in runs {
        let phases = run["report"]["phases"].as_array().unwrap();
        let names: Vec<_> = phases
            .iter()
            .map(|p| p["phase"].as_str().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "create",
                "sync created",
                "create synced",
                "walk",
                "walk again",
                "reopen",
                "walk cold",
                "unlink",
                "sync",
                "close",
                "all, until synced"
            ]
        );
        for counter in ["device_writes", "device_write_bytes", "device_flushes"] {
            let rose = phases[2]["counters"][counter].as_u64();
            assert!(rose > Some(0), "{counter}: {run}");
        }
        let read = phases[10]["counters"]["device_read_bytes"].as_u64();
        assert!(read > Some(0), "what was forgotten is read: {run}");
    }
    assert_eq!(fs::read_dir(&plots).unwrap().count(), 1);
}

#[test]
fn comparison_measures_bare_device_and_file_systems() {
    if !able(&PROGRAMS) {
        return;
    }
    let bench = Bench::new();
    let out = bench.run(&[
        "--with",
        "raw,cairnfs,cairnfs-without-one-flush,cairnfs-mount,ext4",
        "--rounds",
        "1",
        "--cache",
        "8M",
        "--json",
        "-",
        "fsync --jobs 3 --total 64K --block 4K",
        "fsync --jobs 2 --total 64K --block 4K --random",
        "mixed --load 1 --appends 10",
        "maildir --messages 3",
    ]);
    assert!(out.status.success(), "{}", said(&out));
    bench.assert_nothing_left(&out);
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 4 * 4 + 3);
    let mut figures = Vec::new();
    for run in runs.iter().filter(|run| run["system"] == "raw") {
        let phases = run["report"]["phases"].as_array().unwrap();
        assert_eq!(phases.len(), 2, "what syncs, and a sync: {run}");
        let counters = &phases[0]["counters"];
        assert!(counters["machine_cpu_us"].is_u64(), "{counters}");
        let wrote = counters["device_write_bytes"].as_u64().unwrap();
        figures.push((phases[0]["operations"].as_u64().unwrap(), wrote));
    }
    let flushes = |system: &str| {
        let mut mixed = runs.iter().filter(|run| run["task"] == 2);
        let run = mixed.find(|run| run["system"] == system).unwrap();
        run["report"]["phases"][0]["counters"]["device_flushes"].as_u64()
    };
    assert!(flushes("cairnfs") < Some(20));
    assert!(flushes("cairnfs-without-one-flush") >= Some(20));
    // The device receives exactly the requested writes.
    let kib = 1024;
    assert_eq!(figures, [(48, 192 * kib), (32, 128 * kib), (10, 40 * kib)]);
}

#[test]
fn failed_comparison_leaves_nothing() {
    if !able(&PROGRAMS) {
        return;
    }
    for system in ["cairnfs", "cairnfs-mount", "ext4"] {
        let bench = Bench::new();
        let out = bench.run(&["--with", system, "fsmark --files 300 --size 1M"]);
        let text = said(&out);
        assert_eq!(out.status.code(), Some(1), "{text}");
        assert!(text.contains(system), "{text}");
        bench.assert_nothing_left(&out);
    }
}

#[test]
fn interrupted_comparison_leaves_nothing() {
    if !able(&PROGRAMS) {
        return;
    }
    for (system, mounts) in [("cairnfs", false), ("cairnfs-mount", true), ("ext4", true)] {
        let bench = Bench::new();
        // More rounds than can end before the signal.
        let mut child = bench.start(&["--rounds", "1000", "--with", system, "fsmark"]);
        while !(bench.is_attached() && (bench.is_mounted() || !mounts)) {
            let ended = child.try_wait().unwrap();
            assert_eq!(ended, None, "{system}");
            std::thread::yield_now();
        }
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(143), "{}", said(&out));
        assert_eq!(out.status.signal(), None);
        bench.assert_nothing_left(&out);
    }
}

#[test]
fn comparison_keeps_existing_file_at_image_path() {
    if !able(&PROGRAMS) {
        return;
    }
    let bench = Bench::new();
    fs::write(bench.image(), "precious").unwrap();
    let out = bench.run(&["--with", "ext4"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(said(&out).contains("--force"), "{}", said(&out));
    assert_eq!(fs::read(bench.image()).unwrap(), b"precious");
}
