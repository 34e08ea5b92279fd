//! What was dropped and still holds space: `log` and `info` show it, `drop --wait` frees it.

use std::fs;

use cairnfs::Volume;
use cairnfs::fs::{FileSystem, Options};

use crate::place::{Place, pattern};

const LENGTH: usize = 20 << 20;

/// A volume of which the snapshots `a` and `b`, each with a large file, were dropped, and nothing was
/// freed yet.
fn with_dropped() -> Place {
    let p = Place::with_volume();
    let volume = Volume::open(p.path("v.img")).unwrap();
    for name in ["a", "b"] {
        volume.write("large", pattern(LENGTH / 2)).unwrap();
        volume.snapshot(name).unwrap();
        volume.remove_file("large").unwrap();
    }
    volume.close().unwrap();
    let options = Options {
        workers: false,
        ..Options::default()
    };
    let fs = FileSystem::open(&p.path("v.img"), &options).unwrap();
    fs.drop_root("a").unwrap();
    fs.drop_root("b").unwrap();
    fs.close().unwrap();
    p
}

#[test]
fn log_and_info_show_what_is_left_to_free() {
    let p = with_dropped();
    let log = p.ok(&["log", "v.img"]);
    let dropped = log.lines().filter(|line| line.contains(" being dropped "));
    let dropped: Vec<&str> = dropped.collect();
    assert_eq!(dropped.len(), 1, "{log}");
    assert!(log.ends_with("  20.0 MiB\n"), "{log}");
    assert!(dropped[0].contains("  2 being dropped "), "{log}");
    let json = p.json(&["log", "--json", "v.img"]);
    let roots = json["roots"].as_array().unwrap().iter();
    let roots: Vec<_> = roots.filter(|r| r["kind"] == "being dropped").collect();
    assert_eq!(roots.len(), 2);
    assert!(roots.iter().all(|r| r["name"].is_null()));
    assert!(roots[0]["own_bytes"].as_u64().unwrap() >= LENGTH as u64 / 2);
    let info = p.ok(&["info", "v.img"]);
    assert!(info.contains("2 snapshots and branches hold 20."), "{info}");
    let next = "; to free it now: cairnfs drop --wait v.img\n";
    assert!(info.contains(next), "{info}");
    fs::copy(p.path("v.img"), p.path("v\t.img")).unwrap();
    let info = p.ok(&["info", "v\t.img"]);
    assert!(info.contains(r"cairnfs drop --wait $'v\x09.img'"), "{info}");
    let json = p.json(&["info", "--json", "v.img"]);
    assert_eq!(json["being_dropped"]["roots"], 2);
    assert!(json["being_dropped"]["bytes"].as_u64().unwrap() >= LENGTH as u64);
}

#[test]
fn waiting_ends_when_the_space_is_free() {
    let p = with_dropped();
    let free = |p: &Place| {
        let info = p.json(&["info", "--json", "v.img"]);
        info["space"]["free"].as_u64().unwrap()
    };
    let before = free(&p);
    p.fails(
        &["drop", "v.img"],
        2,
        "v.img: no snapshot or branch is named",
    );
    p.fails(&["drop", "v.img"], 2, "cairnfs drop v.img NAME");
    let said = p.ok(&["drop", "--wait", "v.img"]);
    assert!(said.starts_with("Freed 20."), "{said}");
    assert!(free(&p) >= before + LENGTH as u64);
    assert!(!p.ok(&["log", "v.img"]).contains("being dropped"));
    assert!(!p.ok(&["info", "v.img"]).contains("Being dropped"));
    p.ok(&["snapshot", "v.img", "c"]);
    let json = p.json(&["drop", "-w", "--json", "v.img", "c"]);
    assert_eq!(json["dropped"], serde_json::json!(["c"]));
    assert_eq!(json["being_dropped"], 0);
    let out = p.run(&["drop", "-w", "--json", "v.img", "c"]);
    assert_eq!(out.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(json["failed"][0]["reference"], "c");
    assert!(p.ok(&["check", "--data", "v.img"]).contains("clean"));
}

/// A snapshot from which two branches were forked is what both share: it is no drop that waits.
#[test]
fn what_others_were_forked_from_is_a_fork_point() {
    let p = Place::with_volume();
    p.ok(&["snapshot", "v.img", "a"]);
    for name in ["one", "two"] {
        p.ok(&["branch", "v.img", name, "--from", "a"]);
    }
    let said = p.ok(&["drop", "--wait", "v.img", "a"]);
    let why = "Dropped a\nFreed 0 B: its blocks are shared with main, one, two\n";
    assert_eq!(said, why);
    let json = p.json(&["drop", "--wait", "--json", "v.img", "one"]);
    assert_eq!(json["shared_with"], serde_json::json!(["main", "two"]));
    p.ok(&["branch", "v.img", "one", "--from", "two"]);
    let log = p.ok(&["log", "v.img"]);
    let first = log.lines().next().unwrap();
    assert!(
        first.starts_with("- ") && first.contains(" fork point "),
        "{log}"
    );
    assert!(!log.contains("being dropped"), "{log}");
    assert_eq!(
        p.json(&["info", "--json", "v.img"])["being_dropped"]["roots"],
        0
    );
    let help = p.ok(&["log", "--help"]);
    for word in ["fork point ", "being dropped ", "unfinished "] {
        let lines = help.lines().filter(|line| line.starts_with(word));
        assert_eq!(lines.count(), 1, "{word}: {help}");
    }
}

#[test]
fn waiting_can_be_ended() {
    let p = with_dropped();
    let options = Options {
        workers: false,
        ..Options::default()
    };
    let fs = FileSystem::open(&p.path("v.img"), &options).unwrap();
    let mut seen = Vec::new();
    fs.free_drops(|progress| {
        seen.push(progress);
        progress.left == 2
    })
    .unwrap();
    assert_eq!((seen[0].left, seen[0].part), (2, 0.0));
    assert_eq!(seen.last().unwrap().left, 1);
    let left = fs.roots().into_iter().filter(|root| root.being_dropped);
    assert_eq!(left.count(), 1);
    fs.free_drops(|_| true).unwrap();
    assert_eq!(fs.roots().len(), 1);
    fs.close().unwrap();
}
