//! No crate has files that import each other in a circle, no file is long, and no file of tests is left
//! out of all programs.
//!
//! Reads the sources as text: comments, strings and test modules are left out, and paths that begin
//! with `crate` or `super` are resolved. Walls between crates need no test: the compiler keeps them.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod rooms;
#[path = "circles/source.rs"]
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rooms::crates;
use source::{paths_from, without_tests};

/// Most lines of a file.
const LINES: usize = 700;

/// All Rust files below a directory, in order.
fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The module that a file of `src` is, as the names that lead to it.
fn module_of(src: &Path, file: &Path) -> Vec<String> {
    let inside = file.strip_prefix(src).unwrap().with_extension("");
    let mut names: Vec<String> = inside
        .iter()
        .map(|n| n.to_str().unwrap().to_owned())
        .collect();
    if names.last().is_some_and(|n| n == "mod" || n == "lib") {
        names.pop();
    }
    names
}

/// All paths of a file that begin with `crate` or `super`, from the crate's root.
fn paths_from_root(module: &[String], text: &str) -> Vec<Vec<String>> {
    let code = without_tests(text);
    let mut found = paths_from(&code, "crate");
    for path in paths_from(&code, "super") {
        let ups = path.iter().take_while(|n| *n == "super").count();
        let mut from_root = module
            .get(..module.len().saturating_sub(ups))
            .unwrap_or_default()
            .to_vec();
        from_root.extend(path.into_iter().skip(ups));
        let mut with_crate = vec!["crate".to_owned()];
        with_crate.extend(from_root);
        found.push(with_crate);
    }
    let rest = |path: Vec<String>| path.into_iter().skip(1).collect();
    found.into_iter().map(rest).collect()
}

/// A file of the library as the names that lead to it, and the files that it uses. A file may name
/// the types of the modules it is in, so those uses do not count.
type Uses = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

fn uses_between_files(files: &BTreeMap<Vec<String>, String>) -> Uses {
    let file_of = |path: &[String]| {
        let prefixes = (1..=path.len()).rev().map(|len| path[..len].to_vec());
        prefixes.into_iter().find(|p| files.contains_key(p))
    };
    let used = |module: &Vec<String>, text: &String| {
        let paths = paths_from_root(module, text).into_iter();
        let files = paths.filter_map(|path| file_of(&path));
        let others = files.filter(|file| !module.starts_with(file));
        (module.clone(), others.collect())
    };
    files.iter().map(|(m, t)| used(m, t)).collect()
}

/// Files that use each other in a circle, if there are any: no file of it can be understood, or
/// tested, before the others.
fn circle(uses: &Uses) -> Vec<Vec<String>> {
    let mut left: Uses = uses.clone();
    loop {
        let ends = |used: &BTreeSet<Vec<String>>| !used.iter().any(|u| left.contains_key(u));
        let leaves: Vec<_> = left.iter().filter(|(_, used)| ends(used)).collect();
        let leaves: Vec<_> = leaves.into_iter().map(|(m, _)| m.clone()).collect();
        if leaves.is_empty() {
            return left.into_keys().collect();
        }
        left.retain(|module, _| !leaves.contains(module));
    }
}

#[test]
fn files_do_not_import_in_circles() {
    let mut seen = 0;
    let mut circles = BTreeMap::new();
    for dir in crates() {
        let src = dir.join("src");
        let inside = |file: &Path| {
            let module = module_of(&src, file);
            let tests = module.iter().any(|n| n == "tests") || module.is_empty();
            (!tests).then(|| (module, fs::read_to_string(file).unwrap()))
        };
        let files = rust_files(&src);
        let files = files.iter().filter_map(|f| inside(f)).collect();
        let uses = uses_between_files(&files);
        seen += uses.values().map(BTreeSet::len).sum::<usize>();
        let circle = circle(&uses);
        if !circle.is_empty() {
            let files: Vec<String> = circle.iter().map(|file| file.join("::")).collect();
            circles.insert(dir, files);
        }
    }
    assert!(seen > 300, "only {seen} uses: were they not found?");
    assert!(circles.is_empty(), "in circles, or using one: {circles:#?}");
}

#[test]
fn files_are_short() {
    let files = crates().flat_map(|dir| rust_files(&dir));
    let long: Vec<String> = files
        .filter_map(|file| {
            let lines = fs::read_to_string(&file).unwrap().lines().count();
            (lines > LINES).then(|| format!("{}: {lines} lines", file.display()))
        })
        .collect();
    assert!(long.is_empty(), "more than {LINES} lines: {long:#?}");
}

/// Where a crate lists its programs of tests, a file that none of them has as a module runs nothing.
#[test]
fn all_files_of_tests_are_in_a_program() {
    let mut left_out = Vec::new();
    let mut seen = 0;
    for dir in crates() {
        let manifest = fs::read_to_string(dir.join("Cargo.toml")).unwrap();
        if !manifest.contains("autotests = false") {
            continue;
        }
        let files = rust_files(&dir.join("tests"));
        let texts: Vec<String> = files
            .iter()
            .map(|file| fs::read_to_string(file).unwrap())
            .collect();
        for file in files {
            let name = match file.file_stem().unwrap().to_str().unwrap() {
                "mod" | "main" => file.parent().unwrap().file_name().unwrap(),
                _ => file.file_stem().unwrap(),
            };
            let module = format!("mod {};", name.to_str().unwrap());
            let inside = file.strip_prefix(&dir).unwrap().display().to_string();
            let is_program = manifest.contains(&format!("path = \"{inside}\""));
            seen += 1;
            if !is_program && !texts.iter().any(|text| text.contains(&module)) {
                left_out.push(file);
            }
        }
    }
    assert!(
        seen > 50,
        "only {seen} files of tests: were they not found?"
    );
    assert!(left_out.is_empty(), "in no program: {left_out:#?}");
}

#[test]
fn circles_of_files_are_found() {
    let file = |path: &str, text: &str| {
        let module = path.split("::").map(str::to_owned).collect::<Vec<_>>();
        (module, text.to_owned())
    };
    let of = |files: &[(Vec<String>, String)]| {
        circle(&uses_between_files(&files.iter().cloned().collect())).len()
    };
    let fine = [
        file("fs", "use self::read::Reader;"),
        file(
            "fs::read",
            "use crate::fs::FileSystem; use super::room::Room;",
        ),
        file("fs::room", "use crate::fs::FileSystem;"),
    ];
    assert_eq!(of(&fine), 0);
    let mut wrong = fine.clone();
    wrong[2].1 = "use crate::fs::read::{Reader, Other};".to_owned();
    assert_eq!(of(&wrong), 2);
}
