//! Two million files with the default memory budget. Takes minutes, so it runs only on request:
//! `cargo test --release -p cairnfs-cli --test mounted -- --ignored --nocapture two_million`.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::place::{Place, able, arg, bench, peak_memory};

/// Number of threads, and files per thread.
const WORK: [&str; 6] = ["--threads", "4", "--files", "500000", "--dirs", "50"];

/// Maximum memory of a process, in bytes.
const MEMORY: u64 = 1 << 30;

/// Creates, walks and deletes two million files in `target`. Returns the peak memory of the
/// command.
fn two_million(target: &[&str]) -> u64 {
    let mut child = Command::new(bench())
        .args(["fsmark", "--target"])
        .args(target)
        .args(WORK)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let mut peak = 0;
    let status = loop {
        peak = peak_memory(pid).unwrap_or(0).max(peak);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(status.success(), "bench: {status}");
    peak
}

fn within_budget(what: &str, peak: u64) {
    println!("{what}: at most {} MiB of memory", peak >> 20);
    assert!(peak > 0 && peak < MEMORY, "{what} took {peak} bytes");
}

#[test]
#[ignore = "deep: takes minutes"]
fn two_million_files_in_process() {
    let place = Place::new("16G");
    let peak = two_million(&[&format!("lib:{}", arg(&place.volume())), "--cache", "256M"]);
    within_budget("the library", peak);
    place.check();
}

#[test]
#[ignore = "deep: takes minutes"]
fn two_million_files_on_a_mount() {
    assert!(able(&[]), "needs root and /dev/fuse");
    let place = Place::mounted("16G", "cache=256M");
    two_million(&[arg(&place.dir())]);
    within_budget("the daemon", place.daemon_memory());
    place.finish();
}
