//! `cairnfs crashtest`: programs under simulated power failures, and the reported results.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use cairnfs_tier::size;
use rustix::process::{Pid, Signal, kill_process};

use crate::place::{CAIRNFS, Place, able, arg, said};

/// Runs a crash test with this script, and returns its JSON report.
fn tested(options: &[&str], script: &str, code: i32) -> serde_json::Value {
    let out = Command::new(CAIRNFS)
        .args(["crashtest", "--json"])
        .args(options)
        .args(["--", "bash", "-euc", script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(code), "{script}: {}", said(&out));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// A number of the first run.
fn number(result: &serde_json::Value, what: &str) -> u64 {
    result["runs"][0][what].as_u64().unwrap()
}

#[test]
fn crashtest_of_rename_keeps_the_contract() {
    if !able(&[]) {
        return;
    }
    let result = tested(&[], "echo a > f; sync f; mv f g", 0);
    assert_eq!(result["allowed"], true);
    assert!(number(&result, "calls") >= 5, "{result}");
    assert!(number(&result, "distinct_disks") > 20, "{result}");
}

#[test]
fn crashtest_of_sqlite_keeps_the_contract() {
    if !able(&["sqlite3"]) {
        return;
    }
    for journal in ["wal", "delete"] {
        let script = format!(
            "sqlite3 db 'pragma journal_mode={journal}; create table t(x); insert into t values(1);
             begin; insert into t values(2); insert into t values(3); commit;' >&2"
        );
        // Both rows of a transaction exist or neither, whenever the power fails.
        let check = "test ! -e db || sqlite3 db 'pragma integrity_check; select count(*) from t' \
                     | tr '\\n' ' ' | grep -Eqx '(ok (0|1|3) |ok )'";
        let states = size("60", "120");
        let result = tested(&["--states", states, "--check", check], &script, 0);
        assert!(
            number(&result, "states") > size(25, 50),
            "{journal}: {result}"
        );
    }
}

#[test]
fn crashtest_of_git_commits_keeps_the_contract() {
    if !able(&["git"]) {
        return;
    }
    let script = "git init -q .; echo a > a; git add a
                  git -c user.name=a -c user.email=a@b -c core.fsync=all commit -qm a";
    let result = tested(&["--states", size("100", "300")], script, 0);
    assert!(number(&result, "calls") > 50, "{result}");
}

#[test]
fn crashtest_finds_torn_file_after_write_in_place() {
    if !able(&["grep"]) {
        return;
    }
    let check = "test ! -e done || grep -qx -e old -e new f";
    let place = Place::new("16M");
    let keep = place.beside("kept here");
    let options = ["--check", check, "--keep", arg(&keep)];
    let torn = "echo old > f; sync f; mkdir done; echo new > f";
    let result = tested(&options, torn, 4);
    let failures = result["runs"][0]["failures"].as_array().unwrap();
    assert!(!failures.is_empty());
    assert!(
        failures[0]["message"]
            .as_str()
            .unwrap()
            .contains("own check")
    );
    // The disk of a failing state is an ordinary volume; `f` is empty in it.
    let disk = Path::new(result["runs"][0]["kept"][0].as_str().unwrap()).to_owned();
    place.ok(&["check", "--data", arg(&disk)]);
    assert_eq!(place.ok(&["cat", &format!("{}:/f", arg(&disk))]), "");

    // The command that is named for it is as a shell reads it.
    let told = Command::new(CAIRNFS)
        .args(["crashtest", "--interval", "1"])
        .args(options)
        .args(["--", "bash", "-euc", torn])
        .stdin(Stdio::null())
        .output();
    let told = said(&told.unwrap());
    let look = format!("Look at it: cairnfs check '{}/", arg(&keep));
    assert!(told.contains(&look), "{told}");

    let renamed = "echo old > f; sync f; mkdir done; echo new > f.tmp; mv f.tmp f";
    tested(&["--check", check], renamed, 0);
}

#[test]
fn crashtest_check_receives_number_of_syncs() {
    if !able(&[]) {
        return;
    }
    let check = "test $CAIRNFS_CRASHTEST_SYNCS = 0 || test -s f";
    tested(
        &["--interval", "0", "--check", check],
        "echo a > f; sync f",
        0,
    );
    // After the first sync `g` may still be missing or empty, so this check must fail.
    let early = "test $CAIRNFS_CRASHTEST_SYNCS = 0 || test -s g";
    let script = "echo a > f; sync f; echo b > g; sync g";
    tested(&["--interval", "0", "--check", early], script, 4);
}

/// A program that syncs the wrong file shows only if nothing but its syncs makes data durable; one
/// that needs no sync between two calls shows only if everything may be durable there.
#[test]
fn crashtest_tries_both_intervals() {
    if !able(&[]) {
        return;
    }
    let check = "test $CAIRNFS_CRASHTEST_SYNCS = 0 || test -s f";
    let script = "echo a > f; echo b > g; sync g";
    tested(&["--interval", "1", "--check", check], script, 0);
    tested(&["--interval", "0", "--check", check], script, 4);
    let result = tested(&["--check", check], script, 4);
    let failures = |n: usize| result["runs"][n]["failures"].as_array().unwrap().len();
    assert_eq!((failures(0), failures(1) > 0), (0, true), "{result}");
    let intervals = [0, 1].map(|n| result["runs"][n]["interval"].as_u64());
    assert_eq!(intervals, [Some(1), Some(0)]);
}

#[test]
fn interrupted_crashtest_has_no_verdict() {
    if !able(&["sleep"]) {
        return;
    }
    let place = Place::new("16M");
    let check = "kill -TERM $PPID; exec sleep 1000";
    let test = ["crashtest", "--check", check, "--", "true"];
    let text = place.fails(&test, 8, &["interrupted", "incomplete"]);
    assert!(!text.contains("keep the contract"), "{text}");
    let json = Command::new(CAIRNFS)
        .args([&["crashtest", "--json"], &test[1..]].concat())
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(report["complete"], false);
    assert_eq!(report["allowed"], false);
}

#[test]
fn crashtest_reports_failing_command() {
    if !able(&[]) {
        return;
    }
    let result = tested(&[], "echo a > f; exit 3", 0);
    let status = result["runs"][0]["command_failed"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(status.contains('3'), "{status}");
    let place = Place::new("16M");
    let strict = ["crashtest", "--strict", "--", "sh", "-c", "exit 3"];
    place.fails(&strict, 8, &["command failed", "3"]);
    let missing = ["crashtest", "--", "no-such-program"];
    place.fails(&missing, 8, &["no-such-program", "No such file"]);
}

#[test]
fn crashtest_does_not_change_initial_volume() {
    if !able(&[]) {
        return;
    }
    let place = Place::new("64M");
    fs::write(place.beside("old"), b"kept").unwrap();
    place.ok(&["cp", "old", "v.cairn:/f"]);
    let before = fs::read(place.volume()).unwrap();
    let volume = place.volume();
    let script = "test $(cat f) = kept; mv f g; mkdir d";
    let result = tested(&["--volume", arg(&volume)], script, 0);
    assert!(number(&result, "calls") >= 3);
    assert!(fs::read(&volume).unwrap() == before);
}

#[test]
fn signal_ends_crashtest_command_and_mount() {
    if !able(&["sleep"]) {
        return;
    }
    let mut child = Command::new(CAIRNFS)
        .args(["crashtest", "--", "sh", "-c", "pwd; exec sleep 1000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut dir = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut dir).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(8));
    let mounts = fs::read("/proc/self/mountinfo").unwrap();
    let mounts = String::from_utf8_lossy(&mounts);
    assert!(dir.contains("cairnfs-crashtest-"), "{dir}");
    assert!(!mounts.contains(dir.trim()), "{mounts}");
    assert!(!Path::new(dir.trim()).exists());
}
