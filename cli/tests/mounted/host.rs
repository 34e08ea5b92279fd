//! The host below a volume: its file system becomes full, receives discarded space, and its image
//! is truncated.
//!
//! Contract: failure.host, failure.truncated

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cairnfs::{Error, Volume};
use cairnfs_fuse::mountinfo;
use serde_json::Value;

use crate::place::{CAIRNFS, Place, able, arg, nap, pattern, said};

const MIB: usize = 1 << 20;

/// Bytes that the image occupies on its file system.
fn taken(place: &Place) -> u64 {
    fs::metadata(place.volume()).unwrap().blocks() * 512
}

fn available(place: &Place) -> u64 {
    let stat = rustix::fs::statvfs(place.dir()).unwrap();
    stat.f_bavail * stat.f_frsize
}

/// Writes a file and makes it durable.
fn write_durable(place: &Place, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(place.at(name))?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Fills the rest of the file system that holds the image.
fn fill_host(place: &Place) {
    let mut ballast = File::create(place.beside("ballast")).unwrap();
    for piece in [64 << 10, 4096] {
        while ballast.write_all(&vec![1; piece]).is_ok() {}
    }
}

#[test]
fn oversized_image_refuses_writes_before_host_is_full() {
    if !able(&["mount"]) {
        return;
    }
    let mut place = Place::limited("48M", "256M");
    let report: Value = serde_json::from_str(&place.ok(&["info", "--json", "v.cairn"])).unwrap();
    assert!(report["host"]["holes"].as_u64() > report["host"]["free"].as_u64());
    assert!(
        place
            .ok(&["info", "v.cairn"])
            .contains("writes are refused")
    );
    let out = place.run(&["mount", "v.cairn", "m"]);
    assert!(out.status.success() && said(&out).contains("may grow by"));
    place.adopt();
    let before = available(&place);
    assert!(
        before > 16 * MIB as u64 && before < 48 * MIB as u64,
        "{before}"
    );
    let mut durable = Vec::new();
    for n in 0.. {
        let bytes = pattern(n, MIB);
        let name = format!("f{n}");
        match write_durable(&place, &name, &bytes) {
            Ok(()) => durable.push((name, bytes)),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::StorageFull);
                break;
            }
        }
    }
    assert!(
        durable.len() * MIB > before as usize / 4 * 3,
        "{}",
        durable.len()
    );
    // No changes are held in memory: all accepted data found space.
    let stats: Value = serde_json::from_str(&place.ok(&["stats", "--json", "m"])).unwrap();
    assert_eq!(stats["held_bytes"], 0);
    for (name, bytes) in &durable {
        assert!(fs::read(place.at(name)).unwrap() == *bytes, "{name}");
    }
    // Removing works, and the freed space can be written again.
    for (name, _) in durable.drain(..durable.len() / 2) {
        fs::remove_file(place.at(name)).unwrap();
    }
    place.ok(&["trim", "m"]);
    for n in 100..108 {
        let bytes = pattern(n, MIB);
        write_durable(&place, &format!("f{n}"), &bytes).unwrap();
        durable.push((format!("f{n}"), bytes));
    }
    // The kernel reports the refused write once more, to the next sync of the file system.
    place.run(&["sync", "m"]);
    place.remount("");
    for (name, bytes) in &durable {
        assert!(fs::read(place.at(name)).unwrap() == *bytes, "{name}");
    }
    place.finish();
}

#[test]
fn changes_wait_while_host_is_full() {
    if !able(&["mount"]) {
        return;
    }
    let place = Place::limited("48M", "256M");
    let volume = Volume::open(place.volume()).unwrap();
    volume.write("durable", pattern(1, MIB)).unwrap();
    volume.sync().unwrap();
    volume.write("accepted", pattern(2, 4 * MIB)).unwrap();
    fill_host(&place);
    for _ in 0..2 {
        let Err(Error::HostFull { path, missing }) = volume.sync() else {
            panic!("a sync was acknowledged");
        };
        assert_eq!(path, arg(&place.volume()));
        assert!(missing >= 4 * MIB as u64, "{missing}");
    }
    let refused = volume.write("refused", pattern(3, MIB)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::StorageFull);
    assert!(refused.to_string().contains("file system"), "{refused}");
    assert_eq!(volume.statfs().available, 0);
    assert!(volume.read("durable").unwrap() == pattern(1, MIB));
    assert!(volume.read("accepted").unwrap() == pattern(2, 4 * MIB));
    // Removing works, although it frees no space on the host before the host has space again.
    volume.remove_file("durable").unwrap();
    fs::remove_file(place.beside("ballast")).unwrap();
    volume.write("again", pattern(4, MIB)).unwrap();
    volume.sync().unwrap();
    volume.close().unwrap();
    place.check();
    let volume = Volume::open(place.volume()).unwrap();
    assert!(volume.read("accepted").unwrap() == pattern(2, 4 * MIB));
    assert!(volume.read("again").unwrap() == pattern(4, MIB));
    assert!(volume.metadata("durable").is_err());
    volume.write("lost", pattern(5, 4 * MIB)).unwrap();
    fill_host(&place);
    assert!(matches!(volume.close(), Err(Error::HostFull { .. })));
    fs::remove_file(place.beside("ballast")).unwrap();
    place.check();
    let volume = Volume::open(place.volume()).unwrap();
    assert!(volume.read("again").unwrap() == pattern(4, MIB));
}

#[test]
fn mount_continues_when_host_has_space_again() {
    if !able(&["mount"]) {
        return;
    }
    let mut place = Place::limited("48M", "256M");
    place.mount("");
    write_durable(&place, "durable", &pattern(1, MIB)).unwrap();
    // Accepted by the daemon, and not written yet.
    let mut file = File::create(place.at("accepted")).unwrap();
    file.write_all(&pattern(2, 4 * MIB)).unwrap();
    rustix::fs::syncfs(&file).unwrap();
    fill_host(&place);
    let refused = file.sync_all().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::StorageFull);
    place.fails(&["sync", "m"], 1, &["file system that holds", "is full"]);
    place.fails(
        &["umount", "m"],
        32,
        &["stays mounted", "is full", "--lazy"],
    );
    let refused = write_durable(&place, "refused", &pattern(3, MIB)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::StorageFull);
    assert!(fs::read(place.at("durable")).unwrap() == pattern(1, MIB));
    fs::remove_file(place.beside("ballast")).unwrap();
    file.sync_all().unwrap();
    write_durable(&place, "again", &pattern(4, MIB)).unwrap();
    drop(file);
    place.remount("");
    assert!(fs::read(place.at("accepted")).unwrap() == pattern(2, 4 * MIB));
    assert!(fs::read(place.at("again")).unwrap() == pattern(4, MIB));
    place.finish();
}

#[test]
fn freeing_as_much_on_host_as_error_names_is_enough() {
    if !able(&["mount"]) {
        return;
    }
    let place = Place::limited("48M", "256M");
    let out = place.run(&["mkfs", "--size", "64M", "other.cairn"]);
    assert!(
        out.status.success() && said(&out).contains("may grow by"),
        "{}",
        said(&out)
    );
    let quiet = place.run(&["mkfs", "--quiet", "--size", "64M", "quiet.cairn"]);
    assert!(quiet.status.success() && quiet.stderr.is_empty());
    fill_host(&place);
    let refused = said(&place.run(&["mkdir", "v.cairn:/d"]));
    let (_, told) = refused.split_once("is full: ").expect(&refused);
    let missing: u64 = told.split_once(" bytes").unwrap().0.parse().unwrap();
    let ballast = File::options().write(true).open(place.beside("ballast"));
    let ballast = ballast.unwrap();
    let kept = ballast.metadata().unwrap().len().checked_sub(missing);
    ballast.set_len(kept.unwrap()).unwrap();
    place.ok(&["mkdir", "v.cairn:/d"]);
    place.check();
}

#[test]
fn mount_ending_on_full_host_reports_lost_bytes() {
    if !able(&["mount"]) {
        return;
    }
    let place = Place::limited("48M", "256M");
    let child = Command::new(CAIRNFS)
        .args(["mount", "--foreground", "-o", "durability=0", "--"])
        .args([place.volume(), place.dir()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while mountinfo::at(&place.dir()).unwrap().is_none() {
        nap(20);
    }
    fs::write(place.at("accepted"), pattern(2, 4 * MIB)).unwrap();
    fill_host(&place);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(32), "{}", said(&out));
    let text = said(&out);
    let last = text.lines().last().unwrap();
    assert!(
        last.contains("is full") && last.ends_with("are lost"),
        "{text}"
    );
    fs::remove_file(place.beside("ballast")).unwrap();
    place.check();
}

#[test]
fn close_on_full_host_keeps_durable_data() {
    if !able(&["mount"]) {
        return;
    }
    let mut place = Place::limited("48M", "256M");
    place.mount_logged("durability=0");
    // The log has space of its own; the index that a merge writes needs more.
    for n in 0..2000 {
        fs::write(place.at(format!("f{n}")), b"").unwrap();
    }
    place.ok(&["sync", "m"]);
    fill_host(&place);
    let out = place.run(&["umount", "m"]);
    assert!(out.status.success(), "{}", said(&out));
    place.wait_for_end();
    let log = fs::read_to_string(place.beside("log")).unwrap();
    assert!(!log.contains("ERROR"), "{log}");
    assert!(log.contains("closed without a merge"), "{log}");
    fs::remove_file(place.beside("ballast")).unwrap();
    place.check();
    place.mount("");
    assert_eq!(fs::read_dir(place.dir()).unwrap().count(), 2000);
    place.finish();
}

#[test]
fn trim_returns_free_space_to_host() {
    if !able(&["setpriv"]) {
        return;
    }
    let mut place = Place::new("256M");
    place.mount("nodiscard,allow_other");
    let empty = taken(&place);
    for name in ["a", "b"] {
        write_durable(&place, name, &pattern(1, 32 * MIB)).unwrap();
    }
    fs::remove_file(place.at("a")).unwrap();
    place.ok(&["sync", "m"]);
    let full = taken(&place);
    assert!(full >= empty + 64 * MIB as u64);
    // A user who is neither root nor the owner of the mount may not trim.
    place.copy_command();
    for path in [place.beside(""), place.beside("cairnfs")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let stranger = Command::new("setpriv")
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "./cairnfs",
            "trim",
            "m",
        ])
        .current_dir(place.beside(""))
        .output()
        .unwrap();
    assert_eq!(stranger.status.code(), Some(1), "{}", said(&stranger));
    assert!(said(&stranger).contains("only root"), "{}", said(&stranger));
    assert_eq!(taken(&place), full);
    assert!(place.ok(&["trim", "m"]).contains("trimmed"));
    let trimmed = taken(&place);
    assert!(trimmed + 31 * MIB as u64 <= full, "{full} to {trimmed}");
    assert!(fs::read(place.at("b")).unwrap() == pattern(1, 32 * MIB));
    fs::remove_file(place.at("b")).unwrap();
    // By the volume's path, while it is mounted and afterwards.
    let report: Value = serde_json::from_str(&place.ok(&["trim", "--json", "v.cairn"])).unwrap();
    assert!(
        report["bytes"].as_u64().unwrap() > 200 * MIB as u64,
        "{report}"
    );
    assert!(taken(&place) + 63 * MIB as u64 <= full);
    write_durable(&place, "c", &pattern(2, 16 * MIB)).unwrap();
    fs::remove_file(place.at("c")).unwrap();
    place.umount();
    let full = taken(&place);
    place.ok(&["trim", "v.cairn"]);
    assert!(taken(&place) + 15 * MIB as u64 <= full);
    place.check();
    place.fails(&["trim", "m"], 1, &["not in a mounted volume"]);
    place.fails(&["trim", "none"], 1, &["none"]);
    place.mount("ro");
    place.fails(&["trim", "m"], 1, &["Read-only"]);
}

#[test]
fn mount_discards_freed_space_at_interval() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("512M", "durability=1");
    write_durable(&place, "large", &pattern(1, 100 * MIB)).unwrap();
    let full = taken(&place);
    fs::remove_file(place.at("large")).unwrap();
    // The daemon discards at a durability interval, without a request.
    while taken(&place) + 96 * MIB as u64 > full {
        nap(20);
    }
    place.finish();
}

#[test]
fn image_truncated_under_mount_is_reported() {
    if !able(&[]) {
        return;
    }
    for idle in [false, true] {
        let mut place = Place::mounted("64M", "durability=0");
        write_durable(&place, "early", &pattern(1, MIB)).unwrap();
        let image = File::options().write(true).open(place.volume()).unwrap();
        image.set_len(32 * MIB as u64).unwrap();
        if !idle {
            let lost = write_durable(&place, "late", &pattern(2, MIB)).unwrap_err();
            assert_eq!(lost.raw_os_error(), Some(5));
        }
        place.fails(&["sync", "m"], 1, &["has stopped", "was truncated"]);
        place.fails(&["umount", "m"], 32, &["could not be made durable"]);
        place.wait_for_end();
    }
}

#[test]
fn truncated_image_can_be_exported() {
    // Its files lie at the beginning: only a small or full volume also uses short gaps at its end.
    let place = Place::new("512M");
    let tree = place.beside("tree");
    fs::create_dir(&tree).unwrap();
    for n in 0..20 {
        fs::write(tree.join(format!("f{n}")), pattern(n, MIB)).unwrap();
    }
    place.ok(&["import", "tree", "v.cairn"]);
    let image = File::options().write(true).open(place.volume()).unwrap();
    image.set_len(511 * MIB as u64).unwrap();
    let says = ["cut off", "cairnfs export", "mount -o ro"];
    place.fails(&["mkdir", "v.cairn:/x"], 1, &says);
    place.fails(&["mount", "v.cairn", "m"], 32, &says);
    place.fails(&["info", "v.cairn"], 1, &says);
    place.ok(&["export", "v.cairn", "whole"]);
    for n in 0..20 {
        let bytes = fs::read(place.beside(format!("whole/f{n}"))).unwrap();
        assert!(bytes == pattern(n, MIB), "{n}");
    }
}

#[test]
fn full_host_gets_removed_data_back_within_interval() {
    if !able(&["mount"]) {
        return;
    }
    let mut place = Place::limited("40M", "200M");
    place.mount("durability=1");
    let mut n = 0;
    while write_durable(&place, &format!("f{n}"), &pattern(n, MIB)).is_ok() {
        n += 1;
    }
    assert!(n > 16, "{n}");
    let available = || rustix::fs::statvfs(place.dir()).unwrap();
    let available = || available().f_bavail * available().f_frsize;
    for n in 0..=n {
        fs::remove_file(place.at(format!("f{n}"))).unwrap();
    }
    // The kernel reports the refused write once more.
    place.run(&["sync", "m"]);
    let start = Instant::now();
    while available() < 16 * MIB as u64 {
        let waited = start.elapsed();
        assert!(waited < Duration::from_secs(60), "{}", available());
        nap(20);
    }
    place.ok(&["stats", "--check", "m"]);
    place.finish();
}
