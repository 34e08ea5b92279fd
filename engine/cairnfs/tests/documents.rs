//! What the documents name exists: files, tests, commands, dependencies; and the example in
//! docs/languages.md is the one that the library's own documentation runs.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod rooms;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use rooms::{ROOMS, crates, root};

/// Directories that have documents.
const PLACES: [&str; 4] = ["", "docs", "docs/figures", "docs/internals"];

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The paths of all documents.
fn documents() -> Vec<String> {
    let mut found = Vec::new();
    for place in PLACES {
        for entry in fs::read_dir(root().join(place)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                found.push(Path::new(place).join(name).to_str().unwrap().to_owned());
            }
        }
    }
    assert!(found.len() > 20, "the documents were not found: {found:?}");
    found
}

/// What stands between a pair of backticks, outside of fenced blocks.
fn code_spans(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut spans = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            spans.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    spans
}

/// Targets of links, without those that lead out of the repository.
fn links(text: &str) -> Vec<String> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.to_owned())
        .filter(|target| !target.contains("://"))
        .collect()
}

/// Headings as the anchors that links use.
fn anchors(text: &str) -> Vec<String> {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            line.trim_start_matches('#')
                .trim()
                .to_lowercase()
                .chars()
                .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-')
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

#[test]
fn links_lead_somewhere() {
    for document in documents() {
        let text = read(&document);
        let dir = root().join(&document);
        let dir = dir.parent().unwrap();
        for link in links(&text) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => text.clone(),
                _ if dir.join(file).is_dir() => continue,
                _ => fs::read_to_string(dir.join(file))
                    .unwrap_or_else(|e| panic!("{document}: {link}: {e}")),
            };
            assert!(
                anchor.is_empty() || anchors(&target).iter().any(|a| a == anchor),
                "{document}: {link}: no such heading"
            );
        }
    }
}

#[test]
fn named_files_and_tests_exist() {
    let mut missing = Vec::new();
    let mut seen = 0;
    for document in documents() {
        for span in code_spans(&read(&document)) {
            let inside = ["contrib/", "docs/", "scripts/"]
                .iter()
                .chain(&ROOMS)
                .any(|d| span.starts_with(d));
            if !inside {
                continue;
            }
            seen += 1;
            let (path, test) = span.split_once("::").unwrap_or((&span, ""));
            // A script may have arguments.
            let (path, _) = path.split_once(' ').unwrap_or((path, ""));
            let full = root().join(path);
            let names_it = || {
                let text = fs::read_to_string(&full).unwrap_or_default();
                text.contains(&format!("fn {test}("))
            };
            if !full.exists() || !test.is_empty() && !names_it() {
                missing.push(format!("{document}: {span}"));
            }
        }
    }
    assert!(seen > 20, "only {seen} paths: were they not found?");
    assert!(missing.is_empty(), "{missing:#?}");
}

/// A mistake on purpose shows that some promise of the contract is tested: which, is told there.
/// That the promise exists, and that the page of tests has the mistake, is shown by `contract.rs`.
#[test]
fn every_mistake_on_purpose_has_its_claim() {
    for (source, few) in [
        ("engine/disk/src/fault.rs", 20),
        ("mount/front/src/fault.rs", 8),
    ] {
        has_claims(&read(source), few);
    }
}

/// Each variant of the faults in a source has its claim, and there are more than so many.
fn has_claims(source: &str, few: usize) {
    let list = source.split_once("pub enum InjectedFault {").unwrap().1;
    let list = list.split_once("\n}").unwrap().0;
    let lines: Vec<&str> = list.lines().map(str::trim).collect();
    let made = lines
        .iter()
        .filter(|l| l.ends_with(',') && !l.starts_with("///"));
    assert!(made.count() > few);
    for pair in lines.windows(2) {
        let named = pair[1].ends_with(',') && !pair[1].starts_with("///");
        assert!(
            !named || pair[0].starts_with("/// Contract: "),
            "{} breaks no promise",
            pair[1]
        );
    }
}

#[test]
fn every_command_is_in_its_document() {
    let commands = read("docs/commands.md");
    let listed: BTreeSet<String> = commands
        .lines()
        .filter_map(|line| line.strip_prefix("| `cairnfs "))
        .filter_map(|line| line.split(['`', ' ']).next())
        .map(str::to_owned)
        .collect();
    // A command has a module of its own.
    let known: BTreeSet<String> = fs::read_dir(root().join("cli/src/cmd"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .filter(|name| name != "mod")
        .collect();
    assert_eq!(listed, known);
}

/// Runs `scripts/figures` of a tree; what it complains about, if it fails.
fn figures(tree: &Path, arguments: &[&str]) -> Result<(), String> {
    let made = Command::new("python3")
        .args(["-B", "scripts/figures"])
        .args(arguments)
        .current_dir(tree)
        .output()
        .unwrap();
    let told = String::from_utf8(made.stderr).unwrap();
    made.status.success().then_some(()).ok_or(told)
}

#[test]
fn tables_of_figures_are_made_from_their_data() {
    figures(&root(), &["--check"]).unwrap();
}

#[test]
fn a_table_that_differs_from_its_data_is_found() {
    let made = tempfile::tempdir().unwrap();
    let tree = made.path();
    for dir in ["docs/figures", "docs/internals", "scripts"] {
        fs::create_dir_all(tree.join(dir)).unwrap();
    }
    for file in [
        "scripts/figures",
        "docs/figures/durable.json",
        "docs/figures/empty-files.json",
    ] {
        fs::copy(root().join(file), tree.join(file)).unwrap();
    }
    let document = tree.join("README.md");
    fs::write(&document, "<!-- figures: durable.latency -->\n<!-- end -->").unwrap();
    figures(tree, &[]).unwrap();
    figures(tree, &["--check"]).unwrap();
    let text = fs::read_to_string(&document).unwrap();
    assert!(text.contains("| append 4 KiB and fsync | 286 |"), "{text}");
    fs::write(&document, text.replace("| 286 |", "| 268 |")).unwrap();
    let told = figures(tree, &["--check"]).unwrap_err();
    assert!(told.starts_with("README.md: differs"), "{told}");
    fs::write(&document, "<!-- figures: durable.none -->\n<!-- end -->").unwrap();
    let told = figures(tree, &["--check"]).unwrap_err();
    assert!(told.contains("no table durable.none"), "{told}");
}

#[test]
fn the_example_is_the_one_that_runs() {
    let fenced = |text: &str, fence: &str| -> Vec<String> {
        text.lines()
            .skip_while(|line| *line != fence)
            .skip(1)
            .take_while(|line| *line != "```")
            .map(str::to_owned)
            .collect()
    };
    let docs: Vec<String> = read("engine/cairnfs/src/lib.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//!"))
        .map(|line| line.strip_prefix(' ').unwrap_or(line).to_owned())
        .collect();
    let run: Vec<String> = fenced(&docs.join("\n"), "```")
        .into_iter()
        .filter(|line| line != "#" && !line.starts_with("# "))
        .collect();
    assert!(!run.is_empty());
    assert_eq!(fenced(&read("docs/languages.md"), "```rust,no_run"), run);
}

/// What a program needs, without the engine's inside.
#[test]
fn few_modules_are_on_the_front_page() {
    let text = read("engine/cairnfs/src/lib.rs");
    let lines: Vec<&str> = text.lines().collect();
    let shown: Vec<&str> = lines
        .windows(2)
        .filter(|pair| pair[0] != "#[doc(hidden)]")
        .map(|pair| pair[1])
        .filter(|line| line.starts_with("pub mod ") || *line == "pub use cairnfs_core::fs;")
        .collect();
    assert_eq!(shown, ["pub use cairnfs_core::fs;", "pub mod device {"]);
    assert!(text.contains("#![deny(missing_docs)]"));
}

/// Names of the dependencies in a manifest's sections whose titles end so.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut inside = false;
    let mut names = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.trim_matches(['[', ']']).ends_with("dependencies");
        } else if inside && let Some(name) = line.split(['=', '.', ' ']).next() {
            names.insert(name.to_owned());
        }
    }
    names.retain(|name| !name.is_empty() && !name.starts_with("cairnfs") && name != "#");
    names
}

#[test]
fn every_dependency_is_told_and_used() {
    let mut used = BTreeSet::new();
    for dir in crates() {
        let manifest = dir.join("Cargo.toml");
        used.extend(dependencies(&fs::read_to_string(manifest).unwrap()));
    }
    let declared = dependencies(&read("Cargo.toml"));
    let unused: Vec<_> = declared.difference(&used).collect();
    assert!(unused.is_empty(), "declared, but used nowhere: {unused:?}");
    let told: BTreeSet<String> = read("docs/internals/dependencies.md")
        .lines()
        .skip_while(|line| !line.starts_with("| Crate |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .filter_map(|line| line.split('`').nth(1).map(str::to_owned))
        .collect();
    assert_eq!(told, used);
}

#[test]
fn licences_are_there() {
    let manifest = read("Cargo.toml");
    assert!(manifest.contains("license = \"MIT OR Apache-2.0\""));
    for dir in crates() {
        let manifest = dir.join("Cargo.toml");
        let text = fs::read_to_string(&manifest).unwrap();
        assert!(
            text.contains("license.workspace = true"),
            "{}",
            manifest.display()
        );
    }
    assert!(read("LICENSE-MIT").contains("Permission is hereby granted"));
    assert!(read("LICENSE-APACHE").contains("Version 2.0"));
}
