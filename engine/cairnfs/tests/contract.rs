//! docs/contract-tests.md is the one that the tags at tests and faults make.
//!
//! A promise is a line of docs/contract.md that begins with an id in bold code style, and a section
//! backticks. A tag is a doc comment that begins with `Contract:` and names ids, at a test
//! function, in the head of a test file, or at an injected fault.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod rooms;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use rooms::{crates, root};

const CONTRACT: &str = "docs/contract.md";
const PAGE: &str = "docs/contract-tests.md";
const FAULTS: [&str; 2] = ["engine/disk/src/fault.rs", "mount/front/src/fault.rs"];

const HEAD: &str = "# Tests of the contract

Which tests fail if a promise of [the contract](contract.md) is broken; then the injected faults \
                    (`engine/disk/src/fault.rs`, `mount/front/src/fault.rs`) that break it and must be \
                    detected by `lab/sim/tests/bites` and `mount/front/tests/bites.rs`. This page is made from the `Contract:` lines at the \
                    tests and faults: `UPDATE_CONTRACT=1 cargo test -p cairnfs --test contract`. \
                    A path without a test name stands for all tests of the file; a `main.rs`, for \
                    all tests beside it. Where no fault is named, the tests create the wrong state \
                    themselves.

";

/// A promise: its id, and the anchor of its section.
struct Promise {
    id: String,
    anchor: String,
}

/// The promises in the order of the document.
fn promises() -> Vec<Promise> {
    let text = fs::read_to_string(root().join(CONTRACT)).unwrap();
    let mut anchor = String::new();
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            anchor = heading.to_lowercase().replace(' ', "-");
        } else if let Some((id, _)) = line.strip_prefix("**`").and_then(|l| l.split_once("`**")) {
            let (id, anchor) = (id.to_owned(), anchor.clone());
            found.push(Promise { id, anchor });
        }
    }
    let ids: BTreeSet<&str> = found.iter().map(|promise| promise.id.as_str()).collect();
    assert_eq!(ids.len(), found.len(), "an id is given twice");
    assert!(found.len() > 20, "the promises were not found");
    found
}

/// Paths of all source files, relative to the repository, in order.
fn sources() -> Vec<String> {
    let relative = |dir: PathBuf| {
        dir.strip_prefix(root())
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    };
    let mut waiting: Vec<String> = crates().map(relative).collect();
    let mut found = Vec::new();
    while let Some(path) = waiting.pop() {
        let full = root().join(&path);
        if full.is_dir() && !path.ends_with("/target") {
            let entries = fs::read_dir(full).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            waiting.extend(names.map(|name| format!("{path}/{name}")));
        } else if Path::new(&path).extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found.dedup();
    assert!(found.len() > 100, "the sources were not found");
    found
}

/// The ids that a line of a doc comment names, if it is a tag.
fn tag<'a>(line: &'a str, comment: &str) -> Option<Vec<&'a str>> {
    let ids = line
        .trim_start()
        .strip_prefix(comment)?
        .strip_prefix(" Contract: ")?;
    Some(ids.split(", ").collect())
}

/// The name of the function or of the fault that a tag stands at.
fn tagged(after: &[&str]) -> Option<String> {
    let lines = after.iter().map(|line| line.trim());
    for line in lines {
        let function = line.split_once("fn ").and_then(|(_, rest)| {
            let (name, _) = rest.split_once(['(', '<'])?;
            Some(name)
        });
        if let Some(name) = function.or_else(|| variant(line)) {
            return Some(name.to_owned());
        }
    }
    None
}

/// The name of an enum's variant without fields.
fn variant(line: &str) -> Option<&str> {
    let name = line.strip_suffix(',')?;
    let named = name.starts_with(char::is_uppercase) && name.chars().all(char::is_alphanumeric);
    named.then_some(name)
}

/// Places of tags by the id that they name, and the number of places.
fn tags() -> (BTreeMap<String, Vec<String>>, usize) {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut places = BTreeSet::new();
    for path in sources() {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let (ids, place) = if let Some(ids) = tag(line, "//!") {
                (ids, path.clone())
            } else if let Some(ids) = tag(line, "///") {
                let name = tagged(lines.get(number + 1..).unwrap_or_default())
                    .unwrap_or_else(|| panic!("{path}: a tag at nothing: {line}"));
                let place = if FAULTS.contains(&path.as_str()) {
                    name
                } else {
                    format!("{path}::{name}")
                };
                (ids, place)
            } else {
                continue;
            };
            places.insert(place.clone());
            for id in ids {
                found.entry(id.to_owned()).or_default().push(place.clone());
            }
        }
    }
    (found, places.len())
}

/// The page that belongs to the promises and the tags.
fn page(promises: &[Promise], tags: &BTreeMap<String, Vec<String>>) -> String {
    let mut page = HEAD.to_owned();
    let list = |places: Vec<&String>| {
        let quoted = places.into_iter().map(|place| format!("`{place}`"));
        quoted.collect::<Vec<_>>().join(", ")
    };
    for Promise { id, anchor } in promises {
        let places = tags.get(id).into_iter().flatten();
        let (tests, faults): (Vec<_>, Vec<_>) = places.partition(|place| place.contains('/'));
        write!(page, "- [`{id}`](contract.md#{anchor}): {}", list(tests)).unwrap();
        if !faults.is_empty() {
            write!(page, "; faults: {}", list(faults)).unwrap();
        }
        page.push('\n');
    }
    page
}

/// With `UPDATE_CONTRACT=1` in the environment, writes the page instead of comparing it.
#[test]
fn promises_have_their_tests() {
    let promises = promises();
    let (tags, places) = tags();
    println!("{} promises, {places} places with a tag", promises.len());
    let known: BTreeSet<&String> = promises.iter().map(|promise| &promise.id).collect();
    for (id, places) in &tags {
        assert!(known.contains(id), "unknown promise {id}: {places:?}");
    }
    for Promise { id, .. } in &promises {
        let tested = tags.get(id).into_iter().flatten().any(|p| p.contains('/'));
        assert!(tested, "no test has a tag of the promise {id}");
    }
    let made = page(&promises, &tags);
    let path = root().join(PAGE);
    if std::env::var_os("UPDATE_CONTRACT").is_some() {
        fs::write(path, made).unwrap();
        return;
    }
    let stored = fs::read_to_string(path).unwrap_or_default();
    let first = stored.lines().zip(made.lines()).find(|(a, b)| a != b);
    assert!(
        stored == made,
        "{PAGE} differs from the tags, first in {first:?}; make it again with \
         `UPDATE_CONTRACT=1 cargo test -p cairnfs --test contract`"
    );
}
