//! `cairnfs-bench compare` on a real loop device: it prints results, and leaves no image, loop
//! device, mount or directory behind: after success, after a failure, and after a signal.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{PoisonError, RwLockWriteGuard};
use std::time::{Duration, Instant};

use cairnfs_tier::size;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::place::{self, MOUNT_COPIES, able, may_drop_caches, nap, said};

/// Programs that the test machine needs.
const PROGRAMS: [&str; 4] = ["losetup", "mkfs.ext4", "mount", "fusermount3"];

/// Timeout for detaching a loop device: after a lazy unmount of a busy file system, writeback
/// continues.
const PATIENCE: Duration = Duration::from_secs(300);

/// A directory for the image, and a temporary directory that holds the mountpoint.
struct Bench {
    dir: TempDir,
    /// A comparison drops the caches, and needs the device unused at its end.
    _alone: [RwLockWriteGuard<'static, ()>; 2],
}

impl Bench {
    fn new() -> Self {
        let caches = may_drop_caches();
        let unused = MOUNT_COPIES.write().unwrap_or_else(PoisonError::into_inner);
        let bench = Self {
            dir: tempfile::tempdir().unwrap(),
            _alone: [caches, unused],
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
        self.start_on("128M", words)
    }

    /// Starts a comparison on an image of this size.
    fn start_on(&self, size: &str, words: &[&str]) -> Child {
        Command::new(place::bench())
            .args(["compare", "--size", size])
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

    /// Runs a comparison on an image of this size, which must succeed and leave nothing; returns
    /// its results.
    fn results(&self, size: &str, words: &[&str]) -> Value {
        let words = [words, &["--rounds", "1", "--json", "-"]].concat();
        let out = self.start_on(size, &words).wait_with_output().unwrap();
        assert!(out.status.success(), "{}", said(&out));
        self.assert_nothing_left(&out);
        serde_json::from_slice(&out.stdout).unwrap()
    }

    /// Lets all users reach the mountpoint.
    fn open_to_all(&self) {
        for dir in [self.dir.path(), &self.temporary()] {
            fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
        }
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
            nap(20);
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
    let out = bench.run(&[
        "--with",
        "cairnfs,cairnfs-mount,ext4",
        "--rounds",
        "1",
        "--json",
        "-",
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
    let json = bench.dir.path().join("figures.json");
    fs::write(&json, &out.stdout).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/plot");
    let plots = bench.dir.path().join("plots");
    let drawn = Command::new(script).args([&json, &plots]).status().unwrap();
    assert!(drawn.success());
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

/// Phases of a run, with its number of operations, except those that count none.
fn operations(run: &Value) -> Vec<(&str, u64)> {
    let phases = run["report"]["phases"].as_array().unwrap();
    let counted = phases.iter().map(|phase| {
        let name = phase["phase"].as_str().unwrap();
        (name, phase["operations"].as_u64().unwrap())
    });
    counted.filter(|(_, count)| *count > 0).collect()
}

#[test]
fn single_client_is_measured_beside_eight() {
    if !able(&[&PROGRAMS[..], &["tar", "git"]].concat()) {
        return;
    }
    let bench = Bench::new();
    let found = bench.results(
        "128M",
        &[
            "--single-client",
            "--client-files",
            "160",
            "--require-programs",
            "--with",
            "cairnfs-mount,noop,ext4",
        ],
    );
    let of = |task: usize, system: &str| {
        let mut runs = found["runs"].as_array().unwrap().iter();
        runs.find(|run| run["task"] == task && run["system"] == system)
    };
    for system in ["cairnfs-mount", "ext4"] {
        for one in [0, 1] {
            let calls = operations(of(one, system).unwrap());
            assert_eq!(
                calls[..3],
                [("create", 160), ("stat", 160), ("unlink", 160)]
            );
        }
        for one in [2, 3] {
            let read = operations(of(one, system).unwrap());
            assert!(read.contains(&("open + read + close", 80)), "{read:?}");
        }
        for one in [4, 5] {
            let archive = operations(of(one, system).unwrap());
            let expected = [("tar x", 80), ("tar x synced", 80), ("rm -rf", 80)];
            assert_eq!(archive, expected);
        }
        for (one, clients) in [(6, 1), (7, 8)] {
            let git = operations(of(one, system).unwrap());
            assert_eq!(git[0], ("git clone", clients));
            assert_eq!(git[2], ("git status", 10 * clients));
        }
        let neighbour = operations(of(8, system).unwrap());
        assert_eq!(neighbour.len(), 4, "{neighbour:?}");
    }
    assert_eq!(
        operations(of(0, "noop").unwrap()),
        [("create", 160), ("unlink", 160)]
    );
    assert_eq!(operations(of(4, "noop").unwrap())[0], ("tar x", 80));
    assert!(of(6, "noop").is_none(), "it stores nothing to clone");
    let summary = found["summary"].as_array().unwrap();
    for line in summary {
        assert_eq!(line["system"], "cairnfs-mount");
        assert_eq!(line["best"], "ext4");
        assert!(line["ratio_to_best"].as_f64() > Some(0.0), "{line}");
    }
    assert!(summary.len() > 20, "{summary:?}");
}

#[test]
fn everyday_programs_are_measured() {
    let programs = ["tar", "git", "cargo", "cc", "npm", "sqlite3"];
    let postgres = fs::read_dir("/usr/lib/postgresql").ok();
    let mut versions = postgres.into_iter().flatten().flatten();
    let pgbench = versions
        .next()
        .map(|entry| entry.path().join("bin/pgbench"));
    let pgbench = pgbench.unwrap_or_else(|| PathBuf::from("pgbench"));
    let needed = [&PROGRAMS[..], &programs, &[pgbench.to_str().unwrap()]].concat();
    if !able(&needed) {
        return;
    }
    crate::ran::build();
    let systems = size(
        &["cairnfs-mount", "cairnfs-run"][..],
        &["cairnfs-mount", "cairnfs-run", "ext4"],
    );
    let bench = Bench::new();
    bench.open_to_all();
    let found = bench.results(
        "1G",
        &[
            "--everyday",
            "--require-programs",
            "--tree-files=120",
            "--source-files=60",
            size("--crates=1", "--crates=2"),
            "--transactions=50",
            "--pgbench-seconds=1",
            "--messages=10",
            &format!("--with={}", systems.join(",")),
        ],
    );
    assert_eq!(found["missing"], serde_json::json!([]));
    let runs = found["runs"].as_array().unwrap();
    // Mail, in two rows, is delivered by the benchmark itself.
    assert_eq!(runs.len(), 8 * systems.len() - 2);
    for run in runs {
        let counted = operations(run);
        assert!(!counted.is_empty(), "{run}");
        let counters = &run["report"]["phases"][0]["counters"];
        assert!(counters["machine_cpu_us"].is_u64(), "{run}");
    }
    let lines = found["summary"].as_array().unwrap();
    let phases: Vec<_> = lines
        .iter()
        .map(|line| line["phase"].as_str().unwrap())
        .collect();
    for phase in [
        "git clone",
        "git status cold",
        "git status",
        "cargo build",
        "cargo build, no change",
        "npm ci",
        "tar x",
        "grep -r cold",
        "grep -r",
        "rm -rf",
        "1 insert a transaction",
        "1000 inserts a transaction",
        "pgbench",
        "deliver",
    ] {
        assert!(phases.contains(&phase), "{phase}: {phases:?}");
    }
}

#[test]
fn missing_program_is_named_in_results_or_refused() {
    if !able(&PROGRAMS) {
        return;
    }
    let bench = Bench::new();
    // A directory with all that the comparison itself needs, but without git.
    let path = bench.dir.path().join("bin");
    fs::create_dir(&path).unwrap();
    let all = [
        "losetup",
        "mkfs.ext4",
        "mount",
        "umount",
        "tar",
        "grep",
        "rm",
    ];
    for program in all {
        let dirs = std::env::var_os("PATH").unwrap();
        let mut found = std::env::split_paths(&dirs).map(|dir| dir.join(program));
        let found = found.find(|path| path.is_file()).unwrap();
        std::os::unix::fs::symlink(found, path.join(program)).unwrap();
    }
    let run = |words: &[&str]| {
        Command::new(place::bench())
            .args(["compare", "--size", "128M", "--with", "ext4"])
            .args(["--single-client", "--client-files", "8", "--rounds", "1"])
            .arg("--device")
            .arg(bench.image())
            .args(words)
            .env("TMPDIR", bench.temporary())
            .env("PATH", &path)
            .output()
            .unwrap()
    };
    let out = run(&[]);
    let text = said(&out);
    assert!(out.status.success(), "{text}");
    assert!(
        text.contains("not measured: git is missing: install the package git"),
        "{text}"
    );
    bench.assert_nothing_left(&out);
    let refused = run(&["--require-programs"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        said(&refused).contains("git is missing"),
        "{}",
        said(&refused)
    );
    bench.assert_nothing_left(&refused);
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
            nap(20);
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
