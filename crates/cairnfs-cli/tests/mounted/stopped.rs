//! A volume that has stopped says so, wherever an operator looks, with the reason and the next step.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::place::{CAIRNFS, Place, able, arg, pattern, said, shell};

const MIB: u64 = 1 << 20;

/// What each message about an image that was truncated under its mount has.
const SAYS: [&str; 3] = ["stopped", "was truncated", "cairnfs export"];

/// Cuts the image off under its mount, and has the daemon notice.
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
fn every_command_says_that_a_volume_has_stopped() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    place.mount_logged("durability=0");
    place.ok(&["stats", "--check", "m"]);
    stop(&place);
    place.fails(&["sync", "m"], 1, &SAYS);
    let told: Value = serde_json::from_str(&place.ok(&["stats", "--json", "m"])).unwrap();
    assert_eq!(told["state"], "stopped");
    assert!(told["reason"].as_str().unwrap().contains("was truncated"));
    assert_eq!(told["errors"]["flush"], 1, "{told}");
    let table = place.ok(&["stats", "m"]);
    for word in SAYS {
        assert!(table.contains(word), "{table}");
    }
    place.fails(&["stats", "--check", "m"], 2, &SAYS);
    // What was there can still be read.
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
}

#[test]
fn a_mount_in_the_foreground_ends_with_the_reason() {
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
fn plain_umount_says_it_through_the_helper() {
    if !able(&["umount", "unshare"]) {
        return;
    }
    let place = Place::new("64M");
    let script = "
        $COMMAND mount -o durability=0 v.cairn m
        echo early > m/early; $COMMAND sync m; truncate -s 32M v.cairn
        ! umount m 2>told
        for word in stopped 'was truncated' 'cairnfs export'; do grep -q \"$word\" told || { cat told; false; }; done
        flock -s v.cairn true";
    crate::options::with_helpers(&place, "umount.fuse.cairnfs", script);
}

#[test]
fn a_daemon_that_is_gone_or_hangs_is_told() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    place.signal(Signal::STOP);
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
        let out = match forced {
            false => place.run(&["umount", "m"]),
            true => {
                place.ok(&["mount", "v.cairn", "m"]);
                place.adopt();
                place.kill();
                Command::new(CAIRNFS)
                    .args(["umount", "-f", arg(&place.dir())])
                    .output()
                    .unwrap()
            }
        };
        assert!(out.status.success(), "{}", said(&out));
        place.fails(&["stats", "m"], 3, &["not in a mounted volume"]);
    }
}

#[test]
fn a_daemon_at_its_limit_of_file_size_stops_with_words() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    // In blocks of 1 KiB: the log is below that, the end of the volume beyond.
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
fn damage_is_counted_and_told() {
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
    let told: Value = serde_json::from_str(&place.ok(&["stats", "--json", "m"])).unwrap();
    assert_eq!(
        (&told["state"], &told["health"]),
        (&"running".into(), &"degraded".into())
    );
    assert!(told["errors"]["damage"].as_u64() > Some(0), "{told}");
    assert_eq!(told["last_error"]["kind"], "damage");
    assert!(told["last_error"]["time"].as_u64() > Some(1_700_000_000));
    place.umount();
    place.mount("ro");
    let line = place.ok(&["stats", "--check", "m"]);
    assert!(
        line.starts_with("OK") && line.contains("read-only"),
        "{line}"
    );
}

#[test]
fn a_nearly_full_volume_and_a_full_host_are_degraded() {
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
    let told = place.ok(&["stats", "--prometheus", "m"]);
    for metric in [
        "health",
        "host_free_bytes",
        "available_bytes",
        "errors_total",
    ] {
        assert!(
            told.contains(&format!("\ncairnfs_{metric}{{volume=")),
            "{told}"
        );
    }
    place.umount();
}

#[test]
fn a_forced_umount_gives_up_on_a_daemon_that_hangs() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    place.signal(Signal::STOP);
    place.ok(&["umount", "-f", "m"]);
    place.fails(&["stats", "m"], 3, &["not in a mounted volume"]);
    place.signal(Signal::CONT);
    place.wait_for_end();
    place.check();
}

#[test]
fn a_limit_of_file_sizes_stops_the_volume_and_is_told() {
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
