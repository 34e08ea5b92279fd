//! Mounts that ship to a backup: the last moment at their end, waits for it, what is shown of it, and
//! options that cannot be meant.

use std::fs;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use serde_json::Value;

use crate::place::{Place, able, said};

/// Ships to `b` when it is told to, or ends, and once at its beginning.
fn shipping(place: &mut Place, options: &str) {
    let url = place.beside("b");
    place.mount_logged(&format!("backup={},interval=30d,{options}", url.display()));
}

/// The contents of `f` in the newest moment.
fn newest(place: &Place) -> String {
    place.ok(&["restore-from", "b", "newest"]);
    let text = place.ok(&["cat", "newest:/f"]);
    fs::remove_file(place.beside("newest")).unwrap();
    text
}

/// A store of which the first read gets no answer.
fn silent_store(dir: &Path) {
    fs::create_dir(dir).unwrap();
    let root = dir.join("cairnfs-backup.json");
    mknodat(CWD, root, FileType::Fifo, Mode::RUSR, 0).unwrap();
}

fn log(place: &Place) -> String {
    fs::read_to_string(place.beside("log")).unwrap()
}

fn stats(place: &Place) -> Value {
    serde_json::from_str(&place.ok(&["stats", "--json", "m"])).unwrap()
}

#[test]
fn what_was_written_before_an_unmount_or_a_signal_is_in_the_backup() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    shipping(&mut place, "");
    place.ok(&["sync", "--backup", "m"]);
    fs::write(place.at("f"), "at the unmount").unwrap();
    place.umount();
    assert_eq!(newest(&place), "at the unmount");

    shipping(&mut place, "write=back");
    place.ok(&["sync", "--backup", "m"]);
    fs::write(place.at("f"), "at the signal").unwrap();
    place.signal(Signal::TERM);
    place.wait_for_end();
    assert_eq!(newest(&place), "at the signal");

    shipping(&mut place, "backup-wait=0");
    place.ok(&["sync", "--backup", "m"]);
    fs::write(place.at("f"), "not wanted").unwrap();
    place.umount();
    assert_eq!(newest(&place), "at the signal");
    place.check();
}

#[test]
fn a_store_that_does_not_answer_is_told_and_holds_up_neither_an_unmount_nor_a_signal() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    silent_store(&place.beside("b"));
    shipping(&mut place, "backup-wait=0.5");
    fs::write(place.at("f"), "kept").unwrap();
    let out = place.run(&["umount", "m"]);
    assert!(out.status.success(), "{}", said(&out));
    place.wait_for_end();
    for word in [
        "the last moment of",
        "longer than backup-wait=0.5",
        "to do: cairnfs backup",
    ] {
        assert!(said(&out).contains(word), "{}", said(&out));
        assert!(log(&place).contains(word), "{}", log(&place));
    }
    fs::remove_file(place.beside("log")).unwrap();
    shipping(&mut place, "backup-wait=0.5");
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "kept");
    place.signal(Signal::TERM);
    place.wait_for_end();
    assert!(log(&place).contains("backup-wait=0.5"), "{}", log(&place));
    place.check();
}

#[test]
fn what_waits_for_the_store_is_shown_and_becomes_a_problem() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    silent_store(&place.beside("b"));
    let url = place.beside("b");
    place.mount_logged(&format!(
        "backup={},interval=1s,backup-wait=0",
        url.display()
    ));
    let in_flight = |name: &str| stats(&place)["backup"]["in_flight"][name].clone();
    while in_flight("overdue") != true {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(in_flight("what"), "read cairnfs-backup.json");
    assert!(in_flight("seconds").as_u64() >= Some(10));
    let shown = stats(&place);
    assert_eq!(shown["health"], "degraded", "{shown}");
    assert!(shown["backup"]["attempt"].as_u64() >= Some(10), "{shown}");
    assert_eq!(shown["backup"]["failures"], 0);
    let told = ["has waited for ", "an answer to: read cairnfs-backup.json"];
    place.fails(&["stats", "--check", "m"], 1, &told);
    let table = place.ok(&["stats", "m"]);
    assert!(
        table.contains("in flight") && table.contains("attempt"),
        "{table}"
    );
    let metrics = place.ok(&["stats", "--prometheus", "m"]);
    for wanted in ["backup_overdue{", "backup_requests_in_flight{"] {
        let mut lines = metrics.lines().filter(|line| line.contains(wanted));
        assert!(lines.any(|line| line.ends_with(" 1")), "{metrics}");
    }
    place.umount();
}

#[test]
fn a_wait_for_the_backup_ends_when_everything_is_in_it_or_says_why_not() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    place.mount("");
    place.fails(
        &["sync", "--backup", "m"],
        1,
        &["not shipped", "-o backup=URL"],
    );
    place.umount();
    for write in ["write=through", "write=back"] {
        shipping(&mut place, write);
        for number in 0..3 {
            let text = format!("{write} {number}");
            fs::write(place.at("f"), &text).unwrap();
            place.ok(&["sync", "--backup", "m/f"]);
            assert_eq!(newest(&place), text);
        }
        place.umount();
    }
    shipping(&mut place, "");
    place.ok(&["sync", "--backup", "m"]);
    // What fails is tried again at once by the next one.
    fs::rename(place.beside("b/heads"), place.beside("heads")).unwrap();
    fs::write(place.beside("b/heads"), "no directory").unwrap();
    fs::write(place.at("f"), "later").unwrap();
    place.fails(
        &["sync", "--backup", "m"],
        1,
        &["durable on this machine, but not"],
    );
    let failing = stats(&place);
    assert_eq!(failing["health"], "degraded");
    assert_eq!(failing["backup"]["failing"], true);
    let text = failing["backup"]["last_error"]["text"].as_str().unwrap();
    place.fails(&["stats", "--check", "m"], 1, &["the backup in", text]);
    fs::remove_file(place.beside("b/heads")).unwrap();
    fs::rename(place.beside("heads"), place.beside("b/heads")).unwrap();
    place.ok(&["sync", "--backup", "m"]);
    assert_eq!(newest(&place), "later");
    let sound = stats(&place);
    assert_eq!(sound["health"], "healthy");
    assert!(sound["backup"]["failures"].as_u64() >= Some(1));

    // Another writer ends it.
    fs::copy(place.beside("v.cairn"), place.beside("other")).unwrap();
    place.ok(&["restore-from", "b", "moved"]);
    place.ok(&["cp", "log", "moved:/g"]);
    place.ok(&["backup", "--take-over", "moved", "b"]);
    fs::write(place.at("f"), "too late").unwrap();
    for _ in 0..2 {
        place.fails(&["sync", "--backup", "m"], 1, &["taken this backup over"]);
    }
    assert_eq!(stats(&place)["backup"]["ended"], true);
    let out = place.run(&["umount", "m"]);
    assert!(
        out.status.success() && said(&out).contains("the backup has ended"),
        "{}",
        said(&out)
    );
    place.wait_for_end();
}

#[test]
fn the_state_of_the_backup_is_shown_without_credentials() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    place.mount("");
    assert_eq!(stats(&place)["backup"], Value::Null);
    place.umount();
    let shown = format!("file://{}", place.beside("b").display());
    let url = format!("{shown}?token=secret");
    place.mount(&format!("backup={url},interval=30d"));
    fs::write(place.at("f"), "x").unwrap();
    place.ok(&["sync", "--backup", "m"]);
    let backup = &stats(&place)["backup"];
    assert_eq!(backup["url"], shown);
    let list: Value = serde_json::from_str(&place.ok(&["backup", "list", "--json", "b"])).unwrap();
    let last = list["moments"].as_array().unwrap().last().unwrap();
    assert_eq!(backup["moment"], last["number"]);
    assert_eq!(backup["bytes"].as_u64(), list["bytes"].as_u64());
    assert!(
        backup["age"].is_u64() && backup["last_error"].is_null(),
        "{backup}"
    );
    let info = place.ok(&["info", "v.cairn"]);
    assert!(
        info.contains(&shown) && info.contains("newest moment ") && !info.contains("secret"),
        "{info}"
    );
    let info: Value = serde_json::from_str(&place.ok(&["info", "--json", "v.cairn"])).unwrap();
    assert_eq!(info["backup"]["moment"], last["number"]);
    assert_eq!(info["backup"]["url"], shown);
    let table = place.ok(&["stats", "m"]);
    assert!(
        table.contains("complete ") && !table.contains("secret"),
        "{table}"
    );
    let metrics = place.ok(&["stats", "--prometheus", "m"]);
    assert!(
        metrics.contains("cairnfs_backup_failures_total{"),
        "{metrics}"
    );
    place.finish();
}

#[test]
fn words_about_a_backup_that_cannot_be_meant_are_refused() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    let backup = format!("backup={}", place.beside("b").display());
    for (words, says) in [
        (format!("ro,{backup}"), "nothing does with ro"),
        ("interval=9s".to_owned(), "add backup=URL"),
        ("backup=ftp://user:secret@host/x".to_owned(), "ftp://host/x"),
        (
            format!("{backup},backup-recipient=age1x"),
            "backup-recipient",
        ),
    ] {
        let said = place.fails(&["mount", "-o", &words, "v.cairn", "m"], 1, &[says]);
        assert!(!said.contains("secret"), "{said}");
    }
    place.mount(&backup);
    place.ok(&["branch", "v.cairn", "side"]);
    fs::create_dir(place.beside("s")).unwrap();
    let other = format!("branch=side,backup={}", place.beside("c").display());
    place.fails(
        &["mount", "-o", &other, "v.cairn", "s"],
        32,
        &["mounted already, and backup"],
    );
    place.mount_beside(&format!("branch=side,{backup}"), "s");
    place.umount_beside("s");
    place.finish();
}

#[test]
fn a_mount_makes_a_backup_for_a_recipient_and_refuses_any_other() {
    if !able(&[]) {
        return;
    }
    let recipient = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p";
    let mut place = Place::new("64M");
    shipping(&mut place, &format!("backup-recipient={recipient}"));
    place.ok(&["sync", "--backup", "m"]);
    place.umount();
    assert!(place.ok(&["backup", "list", "b"]).contains("encrypted"));
    fs::remove_dir_all(place.beside("b")).unwrap();
    place.ok(&["backup", "v.cairn", "b"]);
    shipping(&mut place, &format!("backup-recipient={recipient}"));
    place.fails(&["sync", "--backup", "m"], 1, &["is not encrypted"]);
    assert_eq!(stats(&place)["backup"]["ended"], true);
    let out = place.run(&["umount", "m"]);
    assert!(said(&out).contains("is not encrypted"), "{}", said(&out));
    place.wait_for_end();
    place.check();
}
