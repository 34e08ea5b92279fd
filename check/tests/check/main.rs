//! The check on volumes made by hand: sound ones, and ones with exactly one damage, for which it
//! must report exactly one finding. The engine is not used.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

mod clean;
mod device;
mod hostile;
mod image;
mod index;
mod links;
mod log;
mod objects;
mod plan;
mod roots;
mod space;

use image::{Image, codes};
use plan::Plan;

/// The findings in the base volume after damaging its plan.
fn with_plan(damage: impl FnOnce(&mut Plan)) -> Vec<&'static str> {
    let mut plan = Plan::base();
    damage(&mut plan);
    codes(&plan.build())
}

/// The findings in the base volume after damaging its image.
fn with_image(damage: impl FnOnce(&mut Image)) -> Vec<&'static str> {
    let mut image = Plan::base().build();
    damage(&mut image);
    codes(&image)
}

/// Names and strings of the kinds of findings.
fn kinds() -> Vec<(&'static str, &'static str)> {
    let lines = include_str!("../../src/codes.rs").lines();
    let constants = lines.filter_map(|line| line.strip_prefix("pub const "));
    constants
        .map(|line| {
            let (name, rest) = line.split_once(": &str = \"").unwrap();
            (name, rest.strip_suffix("\";").unwrap())
        })
        .collect()
}

/// Each kind has a test with one damage that expects exactly that finding, except the kind that
/// replaces omitted findings, which cannot occur alone.
#[test]
fn every_kind_of_finding_has_a_test() {
    let tests = [
        include_str!("device.rs"),
        include_str!("hostile.rs"),
        include_str!("index.rs"),
        include_str!("links.rs"),
        include_str!("log.rs"),
        include_str!("objects.rs"),
        include_str!("roots.rs"),
        include_str!("space.rs"),
    ]
    .concat();
    let kinds = kinds();
    assert!(
        kinds.len() > 50,
        "only {}: were they not found?",
        kinds.len()
    );
    for (_, code) in kinds {
        let alone = [format!("[\"{code}\"]"), format!("[(\"{code}\", ")];
        let expected = match code {
            "too-many" => tests.contains("\"too-many\""),
            _ => alone.iter().any(|a| tests.contains(a)),
        };
        assert!(expected, "no test expects {code} alone");
    }
}

/// A kind that no check reports must not exist.
#[test]
fn every_kind_of_finding_is_used_by_the_check() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let sources: String = files.map(|f| std::fs::read_to_string(f).unwrap()).collect();
    for (name, _) in kinds() {
        let path = format!("codes::{name}");
        let used = sources.match_indices(&path);
        let whole = used.filter(|(at, found)| {
            let next = sources[at + found.len()..].chars().next();
            !next.is_some_and(|c| c == '_' || c.is_alphanumeric())
        });
        assert!(whole.count() > 0, "{name}");
    }
}
