//! The library as a program outside of this repository uses it: each example prints what its first
//! comment says and leaves nothing behind; and a new crate compiles what docs/languages.md shows.
//!
//! Cargo builds both, so what is run is never older than its source.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs cargo with the profile of this test.
fn cargo(args: &[&str], manifest: &Path) -> Output {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(args).arg("--manifest-path").arg(manifest);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let output = cargo.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {args:?}: {errors}");
    output
}

/// Names and programs of the examples.
fn built() -> Vec<(String, PathBuf)> {
    // With the features that this test has, so that the library need not be built again.
    let packages = if cfg!(feature = "fault-injection") {
        "--workspace"
    } else {
        "--package=cairnfs"
    };
    let args = [
        "build",
        packages,
        "--examples",
        "--message-format=json-render-diagnostics",
    ];
    let output = cargo(&args, &root().join("Cargo.toml"));
    let messages = String::from_utf8(output.stdout).unwrap();
    let programs = messages
        .lines()
        .filter_map(|line| line.split_once("\"executable\":\""))
        .filter_map(|(_, rest)| rest.split_once('"'))
        .map(|(program, _)| PathBuf::from(program));
    let mut built: Vec<(String, PathBuf)> = programs
        .map(|program| {
            (
                program.file_name().unwrap().to_str().unwrap().into(),
                program,
            )
        })
        .collect();
    built.sort();
    built
}

/// The sources of the examples, by name.
fn sources() -> Vec<(String, String)> {
    let listing = fs::read_dir(root().join("engine/cairnfs/examples")).unwrap();
    let mut sources: Vec<(String, String)> = listing
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap();
            (name.to_owned(), fs::read_to_string(&path).unwrap())
        })
        .collect();
    sources.sort();
    sources
}

/// What the first comment says that an example prints.
fn promised(source: &str) -> String {
    let comment = source.lines().take_while(|line| line.starts_with("//!"));
    let text = comment
        .skip_while(|line| *line != "//! ```text")
        .skip(1)
        .take_while(|line| *line != "//! ```");
    text.map(|line| format!("{}\n", line.strip_prefix("//! ").unwrap_or_default()))
        .collect()
}

#[test]
fn examples_print_what_they_say_and_leave_nothing() {
    let (sources, built) = (sources(), built());
    let names: Vec<&String> = sources.iter().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        built.iter().map(|(name, _)| name).collect::<Vec<_>>()
    );
    assert!(names.len() >= 5);
    for ((name, source), (_, program)) in sources.iter().zip(&built) {
        let dir = tempfile::tempdir().unwrap();
        let output = Command::new(program)
            .env("TMPDIR", dir.path())
            .current_dir(dir.path())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {errors}");
        let printed = String::from_utf8(output.stdout).unwrap();
        let promised = promised(source);
        assert!(promised.lines().count() > 2, "{name} says nothing");
        assert_eq!(printed, promised, "{name}");
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert!(left.is_empty(), "{name} left {left:?}");
    }
}

#[test]
fn every_example_is_in_its_document() {
    let document = fs::read_to_string(root().join("docs/languages.md")).unwrap();
    for (name, _) in sources() {
        let row = format!("| [`{name}`](../engine/cairnfs/examples/{name}.rs) |");
        assert!(document.contains(&row), "{name}");
    }
}

#[test]
fn a_new_crate_compiles_what_the_document_shows() {
    let document = fs::read_to_string(root().join("docs/languages.md")).unwrap();
    let (_, rest) = document.split_once("```rust,no_run\n").unwrap();
    let (snippet, _) = rest.split_once("```").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let library = root().canonicalize().unwrap().join("engine/cairnfs");
    let manifest = dir.path().join("Cargo.toml");
    let text = format!(
        "[package]\nname = \"of-a-user\"\nedition = \"2024\"\n\n\
         [dependencies]\ncairnfs = {{ path = {library:?} }}\n\n[workspace]\n"
    );
    fs::write(&manifest, text).unwrap();
    fs::create_dir(dir.path().join("src")).unwrap();
    fs::write(dir.path().join("src/main.rs"), snippet).unwrap();
    // The same versions, which are here already.
    fs::copy(root().join("Cargo.lock"), dir.path().join("Cargo.lock")).unwrap();
    let target = format!("--target-dir={}/of-a-user", env!("CARGO_TARGET_TMPDIR"));
    cargo(&["check", "--offline", &target], &manifest);
}
