//! The fsmark workload with small settings, and properties common to all workloads.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails where it stands"
)]

use crate::common::{everywhere, kept_in, kept_on_a_volume, phases, run};
use cairnfs_bench::{Fsmark, Place, Xattr, measure, parse};

const SMALL: [&str; 9] = [
    "fsmark",
    "--threads",
    "3",
    "--files",
    "20",
    "--dirs",
    "4",
    "--size",
    "100",
];

#[test]
fn every_file_is_made_walked_and_removed() {
    for figures in everywhere(&[&SMALL[..], &["--sync"]].concat()) {
        let mut expected = vec![("create", 60), ("walk", 60), ("unlink", 60), ("sync", 0)];
        if figures["interface"] != "system calls" {
            expected.push(("close", 0));
            assert!(figures["phases"][5]["counters"]["log_bytes"].as_u64() > Some(0));
        }
        expected.push(("all, until synced", 60));
        assert_eq!(phases(&figures), expected);
        assert_eq!(figures["phases"][0]["bytes"], 6000);
        assert_eq!(figures["settings"]["files_per_thread"], 20);
    }
}

#[test]
fn cold_walk_follows_reopen() {
    let options = [
        "--cold",
        "--sync-create",
        "--walk-again",
        "--volume-size",
        "64M",
    ];
    let figures = crate::common::figures(&[&SMALL[..], &options].concat());
    let expected = [
        ("create", 60),
        ("sync created", 0),
        ("create synced", 60),
        ("walk", 60),
        ("walk again", 60),
        ("reopen", 0),
        ("walk cold", 60),
        ("unlink", 60),
        ("sync", 0),
        ("close", 0),
        ("all, until synced", 60),
    ];
    assert_eq!(phases(&figures), expected);
    let log = |phase: usize| figures["phases"][phase]["counters"]["log_bytes"].as_u64();
    let parts = [0, 1, 3, 4, 5, 6, 7, 8, 9].map(|phase| log(phase).unwrap());
    assert_eq!(log(2), Some(parts[0] + parts[1]));
    assert_eq!(log(10), Some(parts.iter().sum()));
}

#[test]
fn walks_are_left_out_on_request() {
    for figures in everywhere(&[&SMALL[..], &["--no-walk"]].concat()) {
        let names: Vec<_> = phases(&figures).into_iter().map(|(name, _)| name).collect();
        assert!(
            names.starts_with(&["create", "unlink", "sync"]),
            "{names:?}"
        );
    }
}

#[test]
fn every_file_is_stated_and_read_on_request() {
    for figures in everywhere(&[&SMALL[..], &["--no-walk", "--stat", "--read"]].concat()) {
        let expected = [
            ("create", 60),
            ("stat", 60),
            ("open + read + close", 60),
            ("unlink", 60),
        ];
        assert_eq!(phases(&figures)[..4], expected);
        assert_eq!(figures["settings"]["read_each"], 1);
    }
}

#[test]
fn table_has_columns_of_its_target() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let table = run(&[&SMALL[..], &["--target", path, "--sync-phases"]].concat()).unwrap();
    assert!(table.contains("system calls"), "{table}");
    assert!(!table.contains("log B/op"), "{table}");
    let table = run(&[&SMALL[..], &["--volume-size", "64M"]].concat()).unwrap();
    assert!(table.contains("in-process"), "{table}");
    assert!(table.contains("log B/op"), "{table}");
}

#[test]
fn files_are_kept_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let first = kept_in(dir.path(), &SMALL).join("t2/d3/file00000015");
    assert_eq!(first.metadata().unwrap().len(), 100);
    let files = kept_on_a_volume(&SMALL);
    assert_eq!(files.len(), 60);
    assert_eq!(files[0], ("t0/d0/file00000000".into(), 100));
}

#[test]
fn measure_returns_figures_as_values() {
    let place: Place = parse(&["--volume-size", "64M"]).unwrap();
    let fsmark: Fsmark = parse(&["--files", "30", "--threads", "2"]).unwrap();
    let report = measure(&fsmark, &place).unwrap();
    assert_eq!((report.workload, report.unit), ("fsmark", "files"));
    let create = &report.phases[0];
    assert_eq!((create.name, create.operations), ("create", 60));
    assert!(create.rate() > 0.0 && create.counter("commits") >= Some(60));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["phases"][0]["operations"], 60);
    assert!(parse::<Xattr>(&["--dirs", "3"]).is_err());
}

#[test]
fn invalid_arguments_are_refused_with_their_name() {
    for (args, named) in [
        (&["fsmark", "--threads", "0"][..], "--threads"),
        (&["fsmark", "--files", "0"], "--files"),
        (&["fsmark", "--size", "many"], "--size"),
        (&["fsmark", "--size", "2G"], "1G"),
        (&["fsmark", "--target", "/", "--by-inode"], "--by-inode"),
        (
            &["maildir", "--target", "no/such/directory"],
            "no/such/directory",
        ),
        (&["xattr", "--values", "0"], "--values"),
        (&["xattr", "--value-size", "65K"], "64K"),
        (&["xattr", "--value-size", "1", "--values", "300"], "values"),
        (
            &["dirfsync", "--adds", "10", "--deletes", "11"],
            "--deletes",
        ),
        (&["dirfsync", "--deletes", "0"], "--deletes"),
        (&["fsync", "--total", "10K", "--block", "4K"], "--total"),
        (&["fsync", "--block", "0"], "--block"),
        (&["fsync", "--every", "0"], "--every"),
        (&["mixed", "--load", "0"], "--load"),
        (&["mixed", "--appends", "0"], "--appends"),
        (&["maildir", "--jobs", "0"], "--jobs"),
        (&["maildir", "--messages", "0"], "--messages"),
        (&["neighbour", "--files", "0"], "--files"),
        (&["neighbour", "--alone", "0"], "--alone"),
        (&["fsmark", "--cold", "--target", "/tmp"], "--cold"),
        (&["fsmark", "--cold", "--no-walk"], "--no-walk"),
        (&["fsmark", "--walk-again", "--no-walk"], "--no-walk"),
        (&["compare", "--device", "x", "--cache", "much"], "--cache"),
        (&["fsync", "--without", "speed"], "one-flush"),
        (
            &["fsync", "--without", "one-flush", "--target", "/tmp"],
            "--without",
        ),
        (&["compare", "juggling", "--device", "x"], "juggling"),
        (&["compare"], "--device"),
        (&["juggling"], "juggling"),
        (&[], "WORKLOAD"),
    ] {
        let refused = run(args).unwrap_err();
        assert!(refused.contains(named), "{args:?}: {refused}");
    }
}

#[test]
fn every_workload_has_help_with_examples() {
    let mut command = <crate::common::Command as clap::CommandFactory>::command();
    command.build();
    let shown = |c: &&clap::Command| c.get_name() != "help" && !c.is_hide_set();
    assert_eq!(command.get_subcommands().filter(shown).count(), 12);
    for workload in command.get_subcommands().filter(shown) {
        let examples = workload.get_after_help().unwrap().to_string();
        let own = format!("cairnfs-bench {}", workload.get_name());
        assert!(examples.contains(&own), "{examples}");
        let about = workload.get_about().unwrap().to_string();
        assert!(!about.contains("run of a workload"), "{about}");
    }
}
