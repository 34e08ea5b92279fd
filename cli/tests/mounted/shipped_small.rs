//! Mounts that keep their backup small: which moments they remove, and what is shown if they cannot.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::place::{Place, able, arg, nap, pattern, said, tell};

/// How long it may take until something is done that nobody waits for.
const SOON: Duration = Duration::from_secs(60);

fn mount(place: &mut Place, options: &str) {
    let url = place.beside("b");
    place.mount_logged(&format!("backup={},interval=30d,{options}", url.display()));
}

fn stats(place: &Place) -> Value {
    serde_json::from_str(&place.ok(&["stats", "--json", "m"])).unwrap()
}

fn moments(place: &Place) -> Vec<u64> {
    let list: Value = serde_json::from_str(&place.ok(&["backup", "list", "--json", "b"])).unwrap();
    let moments = list["moments"].as_array().unwrap().iter();
    moments.map(|row| row["number"].as_u64().unwrap()).collect()
}

fn store(place: &Place, text: &str) {
    fs::write(place.at("f"), text).unwrap();
    place.ok(&["sync", "--backup", "m"]);
}

fn until(place: &Place, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let stats = stats(place);
        if is_so(&stats) {
            return stats;
        }
        assert!(begun.elapsed() < SOON, "{what}: {stats}");
        nap(50);
    }
}

#[test]
fn a_mount_removes_the_moments_that_its_rules_do_not_keep_and_no_others() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    mount(&mut place, "backup-keep-all");
    for number in 0..6 {
        store(&place, &number.to_string());
    }
    let all = moments(&place);
    assert!(all.len() >= 6, "{all:?}");
    place.umount();

    // Few moments are thinned out by nothing but rules.
    mount(&mut place, "");
    store(&place, "thinned");
    place.umount();
    let before = moments(&place);
    assert!(before.starts_with(&all), "{before:?} had {all:?}");

    mount(&mut place, "backup-keep-last=3,backup-grace=0");
    store(&place, "newest");
    let stats = until(&place, "nothing is removed", |stats| {
        stats["backup"]["removed"].as_u64() > Some(0)
    });
    assert_eq!(stats["backup"]["care_failing"], false);
    let left = moments(&place);
    // One more may have been stored since.
    assert!((3..=4).contains(&left.len()), "{left:?} of {before:?}");
    assert!(!left.contains(&all[0]), "{left:?}");
    let metrics = place.ok(&["stats", "--prometheus", "m"]);
    assert!(metrics.contains("cairnfs_backup_removed_moments_total{"));
    // A person's prune beside it disturbs neither.
    place.ok(&["backup", "prune", "b", "--keep-last", "1"]);
    store(&place, "after the prune");
    place.ok(&["restore-from", "b", "newest"]);
    assert_eq!(place.ok(&["cat", "newest:/f"]), "after the prune");
    place.ok(&["backup", "check", "b"]);
    assert_eq!(self::stats(&place)["health"], "healthy");
    place.finish();
}

#[test]
fn what_cannot_be_deleted_is_told_and_moments_are_stored_all_the_same() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    mount(&mut place, "");
    store(&place, "one");
    place.umount();
    // As an interrupted backup leaves it; nobody may delete it.
    let name = format!("b/layers/{:020}-{:032}-{:08}", 1, 7, 0);
    let left = place.beside(name);
    fs::write(&left, "left").unwrap();
    let change = |flag: &str| Command::new("chattr").args([flag, arg(&left)]).output();
    if !change("+i").is_ok_and(|out| out.status.success()) {
        return tell("no file can be made immutable here");
    }
    mount(&mut place, "backup-grace=0");
    store(&place, "two");
    until(&place, "no failure is shown", |stats| {
        stats["backup"]["care_failing"] == true
    });
    place.fails(&["stats", "--check", "m"], 1, &["is not kept small"]);
    let table = place.ok(&["stats", "m"]);
    assert!(table.contains("last failure"), "{table}");
    store(&place, "three");
    let shown = stats(&place);
    assert_eq!(shown["backup"]["failing"], false);
    assert!(shown["backup"]["care_failures"].as_u64() > Some(0));
    place.umount();
    change("-i").unwrap();

    mount(&mut place, "backup-grace=0");
    store(&place, "four");
    let begun = Instant::now();
    while left.exists() {
        assert!(begun.elapsed() < SOON, "{} is left", left.display());
        nap(20);
    }
    place.ok(&["backup", "check", "b"]);
    place.finish();
}

#[test]
fn rules_that_cannot_be_meant_are_refused() {
    if !able(&[]) {
        return;
    }
    let place = Place::new("64M");
    let backup = format!("backup={}", place.beside("b").display());
    for (words, says) in [
        ("backup-keep-daily=7".to_owned(), "add backup=URL"),
        (
            format!("{backup},backup-keep-all,backup-keep-last=2"),
            "keeps all moments",
        ),
        (
            format!("{backup},backup-keep-last=0"),
            "not a number from 1",
        ),
        (
            format!("{backup},backup-keep-often=1"),
            "the rules are all, last",
        ),
    ] {
        place.fails(&["mount", "-o", &words, "v.cairn", "m"], 1, &[says]);
    }
}

#[test]
fn a_mount_warns_of_a_directory_in_which_nothing_can_be_stored() {
    if !able(&[]) {
        return;
    }
    let place = Place::new("64M");
    fs::write(place.beside("file"), "").unwrap();
    let url = place.beside("file/b");
    let words = format!("backup={},backup-wait=0", url.display());
    let out = place.run(&["mount", "-o", &words, "v.cairn", "m"]);
    let text = said(&out);
    assert!(out.status.success(), "{text}");
    assert!(
        text.contains("warning") && text.contains("give a directory"),
        "{text}"
    );
    place.finish();
}

/// A small file system of its own for the backup.
struct Small<'a>(&'a Place, &'static str);

impl<'a> Small<'a> {
    /// Makes a directory with this name for it.
    fn new(place: &'a Place, name: &'static str) -> Self {
        fs::create_dir(place.beside(name)).unwrap();
        place.sh(&format!("mount -t tmpfs -o size=4M none ../{name}"));
        Self(place, name)
    }

    /// Takes all space that is left.
    fn fill(&self) {
        let mut filler = File::create(self.0.beside(self.1).join("filler")).unwrap();
        let full = (0..).find_map(|_| filler.write_all(&[1; 4096]).err());
        assert_eq!(full.map(|e| e.kind()), Some(ErrorKind::StorageFull));
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        self.0.sh(&format!("umount ../{}", self.1));
    }
}

#[test]
fn a_prune_makes_space_in_a_store_that_has_none() {
    if !able(&[]) {
        return;
    }
    let place = Place::new("64M");
    let small = Small::new(&place, "b");
    let change = |number: usize, len: usize| {
        fs::write(place.beside("f"), pattern(number as u64, len)).unwrap();
        place.ok(&["rm", "-f", "v.cairn:/f"]);
        place.ok(&["cp", "f", "v.cairn:/f"]);
    };
    change(0, 100);
    place.ok(&["backup", "v.cairn", "b"]);
    small.fill();
    // There is one moment, which needs all that is there.
    let says = ["no space for the ", "removing something else"];
    place.fails(&["backup", "prune", "b"], 1, &says);
    place.ok(&["backup", "check", "b"]);
    fs::remove_file(place.beside("b/filler")).unwrap();
    place.ok(&["backup", "prune", "b"]);

    for number in 1..4 {
        change(number, 300_000);
        place.ok(&["backup", "v.cairn", "b"]);
    }
    // Here all layers are needed by the newest moment, and there is no space to merge them.
    small.fill();
    let out = place.run(&["backup", "prune", "b", "--keep-last", "2"]);
    assert!(out.status.success(), "{}", said(&out));
    let warning = "no space to merge layers";
    assert!(said(&out).contains(warning), "{}", said(&out));
    assert_eq!(moments(&place).len(), 2);
    place.ok(&["backup", "check", "b"]);
    fs::remove_file(place.beside("b/filler")).unwrap();
    let out = place.run(&["backup", "prune", "b", "--keep-last", "2"]);
    assert!(!said(&out).contains(warning), "{}", said(&out));
    // Then some are needed by older moments only.
    for number in 6..36 {
        change(number, 5_000);
        place.ok(&["backup", "v.cairn", "b"]);
    }
    // What does not fit is not left there.
    change(8, 8 << 20);
    place.fails(&["backup", "v.cairn", "b"], 1, &["make space"]);
    change(9, 100);
    small.fill();
    let other = Small::new(&place, "n");
    other.fill();
    let says = ["n/new: ", "nothing is left of it", "where there is so much"];
    place.fails(&["restore-from", "b", "n/new"], 1, &says);
    assert!(!place.beside("n/new").exists());
    place.fails(&["backup", "v.cairn", "b"], 1, &[]);
    place.ok(&["backup", "prune", "b", "--keep-last", "1"]);
    assert_eq!(moments(&place).len(), 1);
    place.ok(&["backup", "check", "b"]);
    place.ok(&["backup", "v.cairn", "b"]);
    place.ok(&["restore-from", "b", "newest"]);
    let restored = place.ok(&["ls", "-l", "newest:/"]);
    assert!(restored.contains(" 100 "), "{restored}");
    place.ok(&["backup", "check", "b"]);
    // Copies that went are put back.
    let repaired = place.run(&["backup", "repair", "b"]);
    assert_eq!(repaired.status.code(), Some(3), "contents were not read");
    place.ok(&["backup", "check", "b"]);
}
