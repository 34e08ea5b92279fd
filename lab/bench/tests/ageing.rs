//! The ageing workload, with small settings.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails where it stands"
)]

use crate::common::{everywhere, figures, phases, run};

const SMALL: [&str; 7] = ["ageing", "--threads", "2", "--bytes", "8M", "--rounds", "2"];

#[test]
fn every_round_writes_what_the_files_have() {
    let all = everywhere(&SMALL);
    for figures in &all {
        let found = phases(figures);
        let names: Vec<_> = found.iter().map(|(name, _)| *name).collect();
        let expected = [
            "fill",
            "sync",
            "read",
            "round 1",
            "round 2",
            "sync",
            "read aged",
            "remove",
            "sync",
        ];
        assert_eq!(names, expected);
        let bytes = |phase: usize| figures["phases"][phase]["bytes"].as_u64().unwrap();
        assert!(bytes(0) <= 8 << 20 && bytes(0) > 4 << 20, "{}", bytes(0));
        for round in [3, 4] {
            assert!((8 << 20..12 << 20).contains(&bytes(round)));
        }
        // What was filled is read; what is left is read, and removed.
        assert_eq!(found[0].1, found[2].1);
        assert_eq!(found[6].1, found[7].1);
        assert!(figures["ratios"]["last_round_to_first"].as_f64().unwrap() > 0.0);
        // The same operations everywhere.
        assert_eq!(phases(&all[0]), found);
    }
}

#[test]
fn files_are_as_large_after_many_rounds_as_before() {
    let args = [
        "ageing",
        "--threads",
        "1",
        "--bytes",
        "32M",
        "--rounds",
        "10",
    ];
    let library = ["--target", "lib:", "--volume-size", "64M"];
    let figures = figures(&[&args[..], &library].concat());
    let found = phases(&figures);
    let files = |name: &str| found.iter().find(|(phase, _)| *phase == name).unwrap().1;
    let (fresh, aged) = (files("read"), files("read aged"));
    let about_as_many = fresh * 2 / 3..fresh * 3 / 2;
    assert!(about_as_many.contains(&aged), "{fresh}, then {aged}");
}

#[test]
fn settings_that_cannot_be_are_refused() {
    for (args, says) in [
        (["--rounds", "21"], "--rounds"),
        (["--rounds", "0"], "--rounds"),
        (["--bytes", "1M"], "2M for each thread"),
        (["--threads", "0"], "--threads"),
    ] {
        let said = run(&[&["ageing"][..], &args].concat()).unwrap_err();
        assert!(said.contains(says), "{said}");
    }
}
