//! The branches workload, with small settings.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails where it stands"
)]

use crate::common::{everywhere, phases};

const SMALL: [&str; 15] = [
    "branches",
    "--files",
    "50",
    "--size",
    "1K",
    "--forks",
    "3",
    "--creates",
    "100",
    "--changes",
    "5",
    "--many",
    "4",
    "--rewrite",
    "--read",
];

#[test]
fn forks_are_made_changed_compared_and_removed() {
    for figures in everywhere(&SMALL) {
        let found = phases(&figures);
        let count = |name: &str| {
            let phase = found.iter().find(|(found, _)| *found == name);
            phase.map(|(_, operations)| *operations)
        };
        for (name, operations) in [
            ("fill", 50),
            ("create", 100),
            ("read", 50),
            ("fork", 3),
            ("first overwrite in a fork", 3),
            ("read in forks", 150),
            ("remove fork", 3),
            ("forks beside create", 3),
            ("overwrite all in a fork", 50),
            ("blocks freed beside create", 50),
        ] {
            assert_eq!(count(name), Some(operations), "{name}: {found:?}");
        }
        let in_process = figures["interface"].as_str().unwrap().contains("library");
        let of_library = |operations: u64| in_process.then_some(operations);
        for (name, operations) in [
            ("change", 5),
            ("diff", 10),
            ("publish", 3),
            ("fork many", 4),
            ("create beside many", 100),
            ("remove many", 4),
        ] {
            assert_eq!(count(name), of_library(operations), "{name}: {found:?}");
        }
        let ratios = &figures["ratios"];
        assert!(ratios["p50_fork_to_fsync"].as_f64().unwrap() > 0.0);
        assert_eq!(ratios["create_beside_many_to_alone"].is_f64(), in_process);
    }
}
