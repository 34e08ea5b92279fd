//! A stopped volume reports its state, the reason and the next step in every command and message.
//!
//! Contract: failure.write

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::place::{CAIRNFS, Place, able, arg, no_fork_is_tried, pattern, said, shell};

const MIB: u64 = 1 << 20;

/// Texts in every message about an image that was truncated under its mount.
const SAYS: [&str; 3] = ["stopped", "was truncated", "cairnfs info"];

/// Truncates the image under its mount, and makes the daemon notice it.
fn stop(place: &Place) {
    fs::write(place.at("early"), pattern(1, 1000)).unwrap();
    place.ok(&["sync", "m"]);
    let image = File::options().write(true).open(place.volume()).unwrap();
    image.set_len(32 * MIB).unwrap();
    let mut late = File::create(place.at("late")).unwrap();
    late.write_all(b"lost").unwrap();
    assert_eq!(late.sync_all().unwrap_err().raw_os_error(), Some(5));
}

#[test]
fn every_command_reports_stopped_volume() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    place.mount_logged("durability=0");
    place.ok(&["stats", "--check", "m"]);
    stop(&place);
    place.fails(&["sync", "m"], 1, &SAYS);
    let report: Value = serde_json::from_str(&place.ok(&["stats", "--json", "m"])).unwrap();
    assert_eq!(report["state"], "stopped");
    assert!(report["reason"].as_str().unwrap().contains("was truncated"));
    assert_eq!(report["errors"]["flush"], 1, "{report}");
    let table = place.ok(&["stats", "m"]);
    for word in SAYS {
        assert!(table.contains(word), "{table}");
    }
    place.fails(&["stats", "--check", "m"], 2, &SAYS);
    // Existing data can still be read.
    assert_eq!(fs::read(place.at("early")).unwrap(), pattern(1, 1000));
    let text = place.fails(&["umount", "m"], 32, &SAYS);
    assert!(text.contains("could not be made durable"), "{text}");
    place.wait_for_end();
    let log = fs::read_to_string(place.beside("log")).unwrap();
    let stops = log.matches("the volume has stopped").count();
    assert!(
        stops >= 1 && SAYS.iter().all(|word| log.contains(word)),
        "{log}"
    );
    // What the next step says depends on what is left.
    let image = File::options().write(true).open(place.volume()).unwrap();
    for (left, next) in [(32 * MIB, "`cairnfs export`"), (MIB, "too little to find")] {
        image.set_len(left).unwrap();
        let info = place.run(&["info", "v.cairn"]);
        let info = String::from_utf8_lossy(&info.stdout).into_owned();
        assert!(info.contains(next), "{info}");
    }
}

#[test]
fn foreground_mount_ends_with_reason_of_stop() {
    if !able(&[]) {
        return;
    }
    let place = Place::new("64M");
    let mut child = Command::new(CAIRNFS)
        .args(["mount", "--foreground", "-o", "durability=0", "--"])
        .args([place.volume(), place.dir()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut messages = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    messages.read_line(&mut line).unwrap();
    assert!(line.contains("mounted"), "{line}");
    stop(&place);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    let mut rest = String::new();
    messages.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(32), "{rest}");
    assert!(
        !rest.contains('\x1b'),
        "colours in what is no terminal: {rest:?}"
    );
    let last = rest.lines().last().unwrap();
    for word in SAYS {
        assert!(last.contains(word), "{rest}");
    }
    let again = rest.matches("cairnfs mount:").count();
    assert_eq!(again, 1, "{rest}");
}

#[test]
fn plain_umount_reports_stopped_volume_through_helper() {
    if !able(&["umount", "unshare"]) {
        return;
    }
    let _copies = no_fork_is_tried();
    let place = Place::new("64M");
    let script = "
        $COMMAND mount -o durability=0 v.cairn m
        echo early > m/early; $COMMAND sync m; truncate -s 32M v.cairn
        ! umount m 2>report
        for word in stopped 'was truncated' 'cairnfs info'; do grep -q \"$word\" report || { cat report; false; }; done
        flock -s v.cairn true";
    crate::options::with_helpers(&place, "umount.fuse.cairnfs", script);
}

#[test]
fn umount_reports_cause_if_image_cannot_be_opened() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "durability=0");
    stop(&place);
    fs::rename(place.volume(), place.beside("moved")).unwrap();
    // The path leads to a directory, and fails as it does on a host that has shut down.
    fs::create_dir(place.volume()).unwrap();
    let says = [SAYS[0], SAYS[1], SAYS[2], "cannot tell when"];
    place.fails(&["umount", "m"], 32, &says);
    place.wait_for_end();
}

#[test]
fn missing_or_hanging_daemon_is_reported() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    place.stop();
    let says = ["does not answer"];
    place.fails(&["stats", "--timeout", "0.1", "m"], 3, &says);
    place.fails(&["stats", "--check", "--timeout", "0.1", "m"], 3, &says);
    place.signal(Signal::CONT);
    place.ok(&["stats", "--check", "m"]);
    place.kill();
    let says = ["daemon", "is gone", "cairnfs umount"];
    for args in [&["stats", "m"][..], &["stats", "--check", "m"]] {
        place.fails(args, 3, &says);
    }
    place.fails(&["sync", "m"], 1, &says);
    let up = place.fails(&["stats", "--prometheus", "m"], 3, &says);
    assert!(up.contains("cairnfs_up{mountpoint="), "{up}");
    for forced in [false, true] {
        let out = if forced {
            place.ok(&["mount", "v.cairn", "m"]);
            place.adopt();
            place.kill();
            Command::new(CAIRNFS)
                .args(["umount", "-f", arg(&place.dir())])
                .output()
                .unwrap()
        } else {
            place.run(&["umount", "m"])
        };
        assert!(out.status.success(), "{}", said(&out));
        place.fails(&["stats", "m"], 3, &["not in a mounted volume"]);
    }
}

#[test]
fn daemon_at_file_size_limit_stops_with_message() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    // In blocks of 1 KiB: the log is below this limit, the end of the volume beyond it.
    let script = format!("ulimit -f 20000; {CAIRNFS} mount -o durability=0 v.cairn m");
    shell(&place.beside(""), &script);
    place.adopt();
    let mut large = File::create(place.at("large")).unwrap();
    let written = large.write_all(&pattern(1, 30 << 20));
    assert!(written.and_then(|()| large.sync_all()).is_err());
    drop(large);
    place.fails(&["stats", "--check", "m"], 2, &["stopped", "ulimit -f"]);
    place.fails(&["umount", "m"], 32, &["stopped", "ulimit -f"]);
    place.wait_for_end();
    place.check();
}

#[test]
fn damage_is_counted_and_reported() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    let text = pattern(7, 40_000);
    fs::write(place.at("f"), &text).unwrap();
    place.umount();
    let mut bytes = fs::read(place.volume()).unwrap();
    let at = bytes
        .windows(4096)
        .position(|window| window == &text[4096..8192])
        .unwrap();
    bytes[at] ^= 1;
    fs::write(place.volume(), &bytes).unwrap();
    place.mount("");
    place.ok(&["stats", "--check", "m"]);
    assert!(fs::read(place.at("f")).is_err());
    let says = ["DEGRADED", " damage", "data checksum at block"];
    place.fails(&["stats", "--check", "m"], 1, &says);
    let report: Value = serde_json::from_str(&place.ok(&["stats", "--json", "m"])).unwrap();
    assert_eq!(
        (&report["state"], &report["health"]),
        (&"running".into(), &"degraded".into())
    );
    assert!(report["errors"]["damage"].as_u64() > Some(0), "{report}");
    assert_eq!(report["last_error"]["kind"], "damage");
    assert!(report["last_error"]["time"].as_u64() > Some(1_700_000_000));
    place.umount();
    place.mount("ro");
    let line = place.ok(&["stats", "--check", "m"]);
    assert!(
        line.starts_with("OK") && line.contains("read-only"),
        "{line}"
    );
}

#[test]
fn health_is_degraded_for_nearly_full_volume_or_full_host() {
    if !able(&["mount"]) {
        return;
    }
    let mut place = Place::limited("64M", "256M");
    place.run(&["mount", "-o", "durability=0", "v.cairn", "m"]);
    place.adopt();
    place.fails(&["stats", "--check", "--full", "1", "m"], 1, &["DEGRADED"]);
    place.ok(&["stats", "--check", "m"]);
    let mut n = 0;
    while fs::write(place.at(format!("f{n}")), pattern(n, MIB as usize)).is_ok() {
        n += 1;
    }
    let says = [
        "DEGRADED",
        "file system that holds the volume has",
        "can be written",
    ];
    place.fails(&["stats", "--check", "m"], 1, &says);
    let table = place.ok(&["stats", "m"]);
    assert!(
        table.contains("\nwarning ") && table.contains("can be written"),
        "{table}"
    );
    let report = place.ok(&["stats", "--prometheus", "m"]);
    for metric in [
        "health",
        "host_free_bytes",
        "available_bytes",
        "errors_total",
    ] {
        assert!(
            report.contains(&format!("\ncairnfs_{metric}{{volume=")),
            "{report}"
        );
    }
    place.umount();
}

#[test]
fn forced_umount_aborts_requests_of_hanging_daemon() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    place.stop();
    place.ok(&["umount", "-f", "m"]);
    place.fails(&["stats", "m"], 3, &["not in a mounted volume"]);
    place.signal(Signal::CONT);
    place.wait_for_end();
    place.check();
}

#[test]
fn file_size_limit_stops_volume_and_is_reported() {
    if !able(&["prlimit"]) {
        return;
    }
    let mut place = Place::new("64M");
    place.mount_logged("durability=0");
    fs::write(place.at("early"), pattern(1, 1000)).unwrap();
    place.ok(&["sync", "m"]);
    let pid = place.daemon_pid().to_string();
    shell(&place.dir(), &format!("prlimit --fsize=65536 --pid {pid}"));
    let says = ["stopped", "File too large"];
    fs::write(place.at("late"), pattern(2, 100)).unwrap();
    place.fails(&["sync", "m"], 1, &says);
    let early = File::open(place.at("early")).unwrap();
    assert_eq!(early.sync_all().unwrap_err().raw_os_error(), Some(5));
    drop(early);
    assert_eq!(fs::read(place.at("early")).unwrap(), pattern(1, 1000));
    place.fails(&["umount", "m"], 32, &says);
    place.wait_for_end();
    let log = fs::read_to_string(place.beside("log")).unwrap();
    assert!(says.iter().all(|word| log.contains(word)), "{log}");
}
