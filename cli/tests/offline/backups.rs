//! Backups of volumes that are not mounted: stored, listed, restored, checked, pruned.

use std::fs;

use cairnfs::Volume;

use crate::place::{Place, pattern};

/// A volume with three moments in the directory `b`; each has the file `f` with its number.
fn with_moments() -> Place {
    let p = Place::with_volume();
    for number in ["one", "two", "three"] {
        let volume = Volume::open(p.path("v.img")).unwrap();
        volume.write("f", number).unwrap();
        volume.write(number, pattern(300_000)).unwrap();
        volume.snapshot(number).unwrap();
        volume.close().unwrap();
        let stored = p.json(&["backup", "--json", "v.img", "b"]);
        assert_eq!(stored["whole"], number == "one", "{stored}");
        assert_eq!(stored["stored"], true);
    }
    p
}

fn contents(p: &Place, image: &str) -> String {
    let volume = Volume::open(p.path(image)).unwrap();
    let read = volume.read_to_string("f").unwrap();
    volume.close().unwrap();
    read
}

#[test]
fn every_moment_is_restored_as_a_clean_volume_that_goes_on() {
    let p = with_moments();
    let again = p.ok(&["backup", "v.img", "b"]);
    assert!(again.contains("Nothing has changed"), "{again}");
    let list = p.json(&["backup", "list", "--json", "b"]);
    let moments = list["moments"].as_array().unwrap();
    assert_eq!(moments.len(), 3);
    assert!(p.ok(&["backup", "list", "b"]).contains("3 moments in "));
    for (moment, number) in moments.iter().zip(["one", "two", "three"]) {
        let time = moment["time"].as_str().unwrap();
        p.ok(&["restore-from", "b", number, "--at", time]);
        let report = p.json(&["check", "--data", "--json", number]);
        assert_eq!(report["clean"], true, "{report}");
        assert_eq!(report["notes"], serde_json::json!([]));
        assert_eq!(contents(&p, number), number);
        let log = p.ok(&["log", number]);
        assert!(log.contains(number), "{log}");
    }
    let whole = p.path("v.img").metadata().unwrap().len();
    assert_eq!(p.path("one").metadata().unwrap().len(), whole);
    assert_eq!(contents(&p, "v.img"), "three");

    // The newest one is a volume that is backed up from there on, by another writer.
    fs::copy(p.path("three"), p.path("moved.img")).unwrap();
    p.fails(&["backup", "moved.img", "b"], 1, "--take-over");
    let volume = Volume::open(p.path("moved.img")).unwrap();
    volume.write("f", "four").unwrap();
    volume.close().unwrap();
    let stored = p.json(&["backup", "--json", "--take-over", "moved.img", "b"]);
    assert_eq!(stored["whole"], false, "{stored}");
    p.ok(&["restore-from", "b", "four"]);
    assert_eq!(contents(&p, "four"), "four");
    p.fails(&["backup", "v.img", "b"], 1, "moved.img writes this backup");
    p.fails(&["restore-from", "b", "four"], 1, "exists");
}

#[test]
fn check_finds_damage_and_prune_leaves_what_the_rules_keep() {
    let p = with_moments();
    let clean = p.ok(&["backup", "check", "--drill", "b"]);
    assert!(
        clean.contains("clean") && clean.contains("as a volume"),
        "{clean}"
    );
    let told = p.ok(&["backup", "prune", "b", "--keep-last", "1", "--dry-run"]);
    assert_eq!(told.matches("would go").count(), 2, "{told}");
    let pruned = p.json(&["backup", "prune", "b", "--keep-last", "2", "--json"]);
    assert_eq!(
        (&pruned["kept"], pruned["removed"].as_array().unwrap().len()),
        (&2.into(), 1)
    );
    // Somebody may be reading what went.
    assert_eq!(pruned["objects"], 0, "{pruned}");
    let told = p.ok(&["backup", "prune", "b", "--grace", "90m"]);
    assert!(told.contains("stay for 1h 30m for programs"), "{told}");
    assert!(told.contains("--grace 0: at once"), "{told}");
    p.fails(&["backup", "prune", "b", "--grace", "soon"], 2, "90s");
    let told = p.ok(&["backup", "prune", "b", "--grace", "0"]);
    assert!(!told.contains("stay for"), "{told}");
    assert!(!told.contains("in 0 objects"), "{told}");
    assert!(p.ok(&["backup", "check", "b"]).contains("2 moments"));
    p.ok(&["restore-from", "b", "kept"]);
    assert_eq!(contents(&p, "kept"), "three");

    let layers = fs::read_dir(p.path("b/layers")).unwrap();
    let largest = layers
        .map(|entry| entry.unwrap())
        .max_by_key(|e| e.metadata().unwrap().len());
    let largest = largest.unwrap().path();
    let mut bytes = fs::read(&largest).unwrap();
    bytes[5000] ^= 1;
    fs::write(&largest, bytes).unwrap();
    // What can be read of it is restored: `rotten` looks into that.
    p.fails(&["restore-from", "b", "damaged"], 1, "is damaged");
    let report = p.run(&["backup", "check", "--json", "b"]);
    assert_eq!(report.status.code(), Some(4));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["clean"], false);
    fs::remove_file(&largest).unwrap();
    p.fails(&["restore-from", "b", "missing"], 1, "is missing");
}

/// The file of a damaged object has one other bit.
fn flip(p: &Place, name: &str) {
    let mut bytes = fs::read(p.path(name)).unwrap();
    let last = bytes.last_mut().unwrap();
    *last ^= 1;
    fs::write(p.path(name), bytes).unwrap();
}

#[test]
fn damaged_heads_are_put_back_or_cost_the_moments_that_they_had() {
    let p = with_moments();
    let list = p.json(&["backup", "list", "--json", "b"]);
    let newest = list["head"].as_u64().unwrap();
    assert_eq!(list["unreachable"], serde_json::Value::Null);
    let (head, copy) = (
        format!("heads/{newest:020}"),
        format!("copies/{newest:020}"),
    );

    flip(&p, &format!("b/{head}"));
    let out = p.run(&["restore-from", "b", "covered"]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains(&head), "{text}");
    assert_eq!(contents(&p, "covered"), "three");
    p.fails(&["backup", "v.img", "b"], 1, "cairnfs backup repair URL");
    let repaired = p.run(&["backup", "repair", "b"]);
    // It has not read contents.
    assert_eq!(repaired.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&repaired.stdout).contains(&head));
    assert!(p.ok(&["backup", "check", "b"]).contains("clean"));

    flip(&p, &format!("b/{head}"));
    flip(&p, &format!("b/{copy}"));
    let list = p.json(&["backup", "list", "--json", "b"]);
    assert_eq!(list["unreachable"], serde_json::json!([newest, newest]));
    assert_eq!(list["damaged"].as_array().unwrap().len(), 2);
    assert_eq!(list["moments"].as_array().unwrap().len(), 2);
    let report = p.run(&["backup", "check", "--json", "b"]);
    assert_eq!(report.status.code(), Some(4));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["problems"].as_array().unwrap().len(), 2, "{report}");
    assert_eq!(report["unreachable"], serde_json::json!([newest, newest]));
    let out = p.run(&["restore-from", "b", "older"]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(text.contains("cannot be read; older moments can"), "{text}");
    assert_eq!(contents(&p, "older"), "two");

    let repaired = p.run(&["backup", "repair", "--json", "b"]);
    assert_eq!(repaired.status.code(), Some(4));
    let repaired: serde_json::Value = serde_json::from_slice(&repaired.stdout).unwrap();
    assert_eq!(repaired["head"], newest + 1);
    assert_eq!(repaired["moments"], 2);
    p.ok(&["backup", "v.img", "b"]);
    p.ok(&["restore-from", "b", "again"]);
    assert_eq!(contents(&p, "again"), "three");
    assert!(p.ok(&["backup", "check", "b"]).contains("clean"));
    let repaired = p.run(&["backup", "repair", "b"]);
    assert_eq!(repaired.status.code(), Some(3));
}

#[test]
fn encrypted_backup_needs_its_passphrase() {
    let p = Place::with_volume();
    fs::write(p.path("right"), "stone by stone\n").unwrap();
    fs::write(p.path("wrong"), "pebble\n").unwrap();
    let volume = Volume::open(p.path("v.img")).unwrap();
    volume.write("f", "secret").unwrap();
    volume.close().unwrap();
    let recipient = ["backup", "v.img", "b", "--recipient", "age1stone"];
    p.fails(&recipient, 1, "no age recipient");
    assert!(!p.path("b").exists());
    p.ok(&["backup", "v.img", "b", "--encrypt", "right"]);
    assert!(p.ok(&["backup", "list", "b"]).contains("encrypted"));
    p.fails(&["restore-from", "b", "new"], 1, "--identity FILE");
    p.fails(
        &["restore-from", "b", "new", "--passphrase-file", "wrong"],
        1,
        "the passphrase is wrong",
    );
    p.ok(&["restore-from", "b", "new", "--passphrase-file", "right"]);
    assert_eq!(contents(&p, "new"), "secret");
    // Without the key a check says what it leaves out, and is refused where that was asked for.
    let out = p.run(&["backup", "check", "b"]);
    assert!(out.status.success());
    let warning = String::from_utf8_lossy(&out.stderr);
    assert!(warning.contains("no moment was checked"), "{warning}");
    for asked in [&["--drill"][..], &["--at", "now"]] {
        let check = [&["backup", "check", "b"], asked].concat();
        p.fails(&check, 8, "--identity FILE");
        p.ok(&[&check[..], &["--passphrase-file", "right"]].concat());
    }
}

#[test]
fn wrong_places_and_words_are_told() {
    let p = Place::with_volume();
    p.fails(&["backup", "list", "nowhere"], 1, "there is no backup here");
    p.fails(
        &["restore-from", "nowhere", "new"],
        1,
        "there is no backup here",
    );
    p.fails(&["backup", "list", "ftp://host/x"], 1, "ftp://host/x: this");
    p.fails(&["backup", "v.img", "v.img"], 1, "v.img is a file");
    p.fails(&["backup", "v.img", ""], 1, "give a directory or a URL");
    p.fails(&["backup"], 2, "URL");
    p.fails(&["backup", "prune", "b", "--keep-within", "soon"], 2, "12h");
    p.ok(&["backup", "v.img", "b"]);
    p.fails(
        &["restore-from", "b", "new", "--at", "soon"],
        2,
        "not a time",
    );
    p.fails(
        &["restore-from", "b", "new", "--at", "1999-01-01"],
        1,
        "no moment is kept",
    );
    p.fails(
        &["backup", "check", "b", "--at", "-100d"],
        1,
        "no moment is kept",
    );
    for (name, at) in [("now", "now"), ("back", "-0s")] {
        p.ok(&["restore-from", "b", name, "--at", at]);
        p.ok(&["backup", "check", "b", "--at", at]);
    }
    let list = p.json(&["backup", "list", "--json", "b"]);
    let number = list["moments"][0]["number"].to_string();
    let restored = p.json(&["restore-from", "--json", "b", "newest", "--at", &number]);
    assert_eq!(restored["moment"].to_string(), number);
    let checked = p.json(&["backup", "check", "--json", "b", "--at", &number]);
    assert_eq!(checked["checked_moment"].to_string(), number);
    for command in [&["restore-from", "b", "new"][..], &["backup", "check", "b"]] {
        p.fails(
            &[command, &["--at", "999"]].concat(),
            1,
            "with the number 999",
        );
        p.fails(&[command, &["--at", "soon"]].concat(), 2, "or now");
    }
    fs::remove_file(p.path("v.img")).unwrap();
    p.ok(&["mkfs", "--size", "64M", "v.img"]);
    p.fails(&["backup", "v.img", "b"], 1, "give another prefix");
}

#[test]
fn the_volume_tells_which_moment_was_stored_last() {
    let p = Place::with_volume();
    assert!(p.json(&["info", "--json", "v.img"])["backup"].is_null());
    assert!(!p.ok(&["info", "v.img"]).contains("Backup"));
    for number in ["one", "two"] {
        let volume = Volume::open(p.path("v.img")).unwrap();
        volume.write("f", number).unwrap();
        volume.close().unwrap();
        p.ok(&["backup", "v.img", "b"]);
        let list = p.json(&["backup", "list", "--json", "b"]);
        let newest = list["moments"].as_array().unwrap().last().unwrap();
        let told = &p.json(&["info", "--json", "v.img"])["backup"];
        assert_eq!(told["checkpoint"], newest["checkpoint"]);
        assert!(told["url"].is_null());
        let table = p.ok(&["info", "v.img"]);
        let checkpoint = newest["checkpoint"].as_str().unwrap();
        assert!(table.contains(checkpoint), "{table}");
    }
}
