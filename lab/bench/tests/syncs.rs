//! The workloads that sync, with small settings: directories, files, mail, and syncs during other
//! work.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails where it stands"
)]

use crate::common::{everywhere, files_in, kept_in, kept_on_a_volume, phases};
use serde_json::Value;

/// Checks that each of these operations was timed, and that the percentiles are in order.
fn timed(phase: &Value, count: u64) {
    let latency = &phase["latency_ns"];
    assert_eq!(latency["count"], count, "{phase}");
    let figures = ["p50", "p90", "p99", "p99_9", "max"].map(|name| latency[name].as_u64().unwrap());
    assert!(figures[0] > 0 && figures.is_sorted(), "{phase}");
}

#[test]
fn directory_is_synced_after_adds_and_after_deletes() {
    let small = ["dirfsync", "--adds", "50", "--deletes", "7"];
    for figures in everywhere(&small) {
        assert_eq!(
            phases(&figures),
            [
                ("add", 50),
                ("fsync after adds", 1),
                ("adds synced", 50),
                ("sync", 0),
                ("delete", 7),
                ("fsync after deletes", 1),
                ("deletes synced", 7),
            ]
        );
        timed(&figures["phases"][1], 1);
        timed(&figures["phases"][5], 1);
        if figures["interface"] != "system calls" {
            for fsync in [1, 5] {
                let counters = &figures["phases"][fsync]["counters"];
                assert!(counters["device_flushes"].as_u64() > Some(0), "{counters}");
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let left = files_in(&kept_in(dir.path(), &small).join("t0"));
    let deleted: Vec<u64> = (0..7).map(|n| n * 7).collect();
    let expected = (0..50).filter(|file| !deleted.contains(file));
    let expected: Vec<_> = expected.map(|file| (format!("file{file:08}"), 0)).collect();
    assert_eq!(left, expected);
    assert_eq!(kept_on_a_volume(&small).len(), 43);
}

#[test]
fn files_are_synced_after_given_number_of_blocks() {
    let small = "fsync --jobs 3 --total 40K --block 4K --every 4";
    for (how, name) in [
        (&[][..], "write + fsync"),
        (&["--random"], "random write + fsync"),
    ] {
        let words: Vec<&str> = small.split(' ').chain(how.iter().copied()).collect();
        for figures in everywhere(&words) {
            // Each job writes ten blocks, and syncs after four, after eight, and after the last.
            assert_eq!(phases(&figures), [(name, 9), ("sync", 0)]);
            assert_eq!(figures["phases"][0]["bytes"], 3 * 40960);
            timed(&figures["phases"][0], 9);
        }
        let dir = tempfile::tempdir().unwrap();
        let top = kept_in(dir.path(), &words);
        for job in ["t0", "t1", "t2"] {
            assert_eq!(files_in(&top.join(job)), [("file00000000".into(), 40960)]);
        }
        let lengths: Vec<_> = kept_on_a_volume(&words).into_iter().map(|f| f.1).collect();
        assert_eq!(lengths, [40960; 3]);
    }
}

#[test]
fn files_of_job_are_synced_in_turn_with_nothing_in_memory() {
    let words = "fsync --random --files 4 --cold --total 64K --block 4K";
    let words: Vec<&str> = words.split(' ').collect();
    let found = crate::common::figures(&[&words[..], &["--volume-size", "64M"]].concat());
    let name = "random write + fsync";
    assert_eq!(phases(&found), [("reopen", 0), (name, 16), ("sync", 0)]);
    timed(&found["phases"][1], 16);
    let lengths: Vec<_> = kept_on_a_volume(&words).into_iter().map(|f| f.1).collect();
    assert_eq!(lengths, [16384; 4]);
    for wrong in ["--files 4", "--cold", "--random --files 3"] {
        let words: Vec<&str> = "fsync --total 64K --block 4K".split(' ').collect();
        let words = [words, wrong.split(' ').collect()].concat();
        assert!(crate::common::run(&words).is_err(), "{wrong}");
    }
}

/// The absence of a mechanism shows in the counters of what it saves.
#[test]
fn mechanisms_can_be_left_out() {
    for (words, mechanism, phase, counter, times) in [
        (
            "fsync --total 64K --block 4K",
            "one-flush",
            0,
            "device_flushes",
            2.0,
        ),
        (
            "mixed --load 1 --appends 9",
            "fsync-closure",
            0,
            "fsync_whole_contexts",
            9.0,
        ),
        (
            "dirfsync --adds 500 --deletes 9",
            "entries-once",
            1,
            "log_bytes",
            1.2,
        ),
        (
            "fsync --total 64K --block 4K",
            "attributes-known",
            0,
            "node_cache_hits",
            2.0,
        ),
        (
            "fsmark --threads 1 --files 500 --sync-create",
            "relogging",
            1,
            "log_bytes",
            1.2,
        ),
        (
            "xattr --threads 1 --files 200 --values 1",
            "values-once",
            0,
            "xattr_value_bytes",
            50.0,
        ),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let with = crate::common::figures(&[&words[..], &["--volume-size", "64M"]].concat());
        let lacking = ["--volume-size", "64M", "--without", mechanism];
        let without = crate::common::figures(&[&words[..], &lacking].concat());
        let count = |figures: &Value| {
            let phase = &figures["phases"][phase];
            phase["counters"][counter].as_f64().unwrap()
        };
        let (least, found) = (count(&with).max(1.0) * times, count(&without));
        assert!(found >= least, "{mechanism}: {found}, not {least}");
        let target = without["target"].as_str().unwrap();
        assert!(
            target.ends_with(&format!("without {mechanism}")),
            "{target}"
        );
    }
}

#[test]
fn appends_are_synced_alone_and_beside_a_load() {
    let small = "mixed --load 2 --appends 20 --size 1K";
    let words: Vec<&str> = small.split(' ').collect();
    for figures in everywhere(&words) {
        let found = phases(&figures);
        assert_eq!(found[0], ("append + fsync, alone", 20));
        assert_eq!(found[1], ("sync", 0));
        assert_eq!(found[2], ("append + fsync, beside load", 20));
        assert_eq!(found[3].0, "the load: create, write, delete");
        assert!(found[3].1 >= 2, "{found:?}");
        timed(&figures["phases"][0], 20);
        timed(&figures["phases"][2], 20);
        for (name, percentile) in [("p50", "p50"), ("p99", "p99")] {
            let of = |phase: usize| figures["phases"][phase]["latency_ns"][percentile].as_f64();
            let expected = of(2).unwrap() / of(0).unwrap();
            let found = figures["ratios"][format!("{name}_beside_load_to_alone")].as_f64();
            assert!((found.unwrap() - expected).abs() < 1e-9 * expected);
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let top = kept_in(dir.path(), &words);
    assert_eq!(files_in(&top.join("t0")), [("appended".into(), 40 << 10)]);
    for load in ["t1", "t2"] {
        assert_eq!(files_in(&top.join(load)), []);
    }
    let kept = kept_on_a_volume(&words);
    assert_eq!(kept, [("t0/appended".into(), 40 << 10)]);
    for figures in everywhere(&[&words[..], &["--alone"]].concat()) {
        let expected = [("append + fsync, alone", 20), ("sync", 0)];
        assert_eq!(phases(&figures), expected);
        assert_eq!(figures["ratios"], serde_json::json!({}));
    }
}

#[test]
fn every_message_is_delivered() {
    let small = "maildir --jobs 2 --messages 15 --size 3000";
    let words: Vec<&str> = small.split(' ').collect();
    for figures in everywhere(&words) {
        assert_eq!(phases(&figures), [("deliver", 30), ("sync", 0)]);
        assert_eq!(figures["phases"][0]["bytes"], 90_000);
        timed(&figures["phases"][0], 30);
    }
    let dir = tempfile::tempdir().unwrap();
    let top = kept_in(dir.path(), &words);
    for job in 0..2 {
        let mailbox = top.join(format!("t{job}"));
        assert_eq!(files_in(&mailbox.join("tmp")), []);
        let messages = (0..15).map(|n| (format!("{n:08}.{job}"), 3000));
        assert_eq!(files_in(&mailbox.join("new")), messages.collect::<Vec<_>>());
    }
    let kept = kept_on_a_volume(&words);
    assert_eq!(kept.len(), 30);
    assert!(kept.iter().all(|(path, _)| path.contains("/new/")));
}
