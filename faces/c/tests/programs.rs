//! Programs in C, compiled with all warnings as errors, linked to the static library, and run: as
//! they are, and with the sanitizers of addresses and undefined behaviour. Without a C compiler
//! they fail.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const FLAGS: &[&str] = &[
    "-std=c11",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-pedantic",
    "-g",
    "-pthread",
];
const SANITIZERS: &[&str] = &[
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
];

/// What the static library needs of the system: `rustc --print native-static-libs`.
const LIBRARIES: &[&str] = &[
    "-lgcc_s",
    "-lutil",
    "-lrt",
    "-lpthread",
    "-lm",
    "-ldl",
    "-lc",
];

const STATIC: &str = "libcairnfs_capi.a";
const SHARED: &str = "libcairnfs_capi.so";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A library of this crate, which cargo builds beside this test.
fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.with_file_name(name)
}

#[track_caller]
fn succeeds(command: &mut Command) -> Output {
    let output = match command.output() {
        Ok(output) => output,
        Err(e) => panic!("{command:?}: {e}; install a C compiler (package gcc)"),
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}",
        output.status
    );
    output
}

/// Compiles a program with the static library, and runs it; returns what it printed.
#[track_caller]
fn run(source: &str, flags: &[&str]) -> String {
    run_with(STATIC, source, flags)
}

/// Compiles a program with a library, and runs it in a directory of its own.
#[track_caller]
fn run_with(name: &str, source: &str, flags: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    run_in(dir.path(), name, &root().join(source), flags)
}

/// Compiles a program with a library, and runs it in a directory.
#[track_caller]
fn run_in(dir: &Path, name: &str, source: &Path, flags: &[&str]) -> String {
    let (program, library) = (dir.join("program"), library(name));
    let mut compile = Command::new(std::env::var_os("CC").unwrap_or("cc".into()));
    compile.args(FLAGS).args(flags);
    compile.arg("-I").arg(root().join("include"));
    compile.arg("-o").arg(&program).arg(source);
    succeeds(compile.arg(&library).args(LIBRARIES));
    let mut command = Command::new(&program);
    command.current_dir(dir);
    command.env("LD_LIBRARY_PATH", library.parent().unwrap());
    String::from_utf8(succeeds(&mut command).stdout).unwrap()
}

/// As it is, and with the sanitizers.
#[track_caller]
fn run_both(source: &str) {
    run(source, &["-O2"]);
    run(source, SANITIZERS);
}

#[test]
fn every_call_does_what_the_header_says() {
    run_both("tests/c/calls.c");
}

#[test]
fn branches_are_compared_published_sent_and_dropped() {
    run_both("tests/c/history.c");
}

#[test]
fn threads_share_handles_and_close_them_under_one_another() {
    run_both("tests/c/threads.c");
}

#[test]
fn forked_child_neither_uses_nor_keeps_the_volume() {
    // The child has the memory of threads that it does not have, so all of that is a leak there.
    run("tests/c/forked.c", &["-O2"]);
    run("tests/c/forked.c", &[SANITIZERS, &["-DNO_LEAKS"]].concat());
}

#[test]
fn random_calls_return() {
    run_both("tests/c/wild.c");
}

#[test]
fn example_prints_its_notes() {
    let expected = "todo: 17 bytes\ndone: 15 bytes\n";
    assert_eq!(run("examples/notes.c", &["-O2"]), expected);
    assert_eq!(run("examples/notes.c", SANITIZERS), expected);
    assert_eq!(run_with(SHARED, "examples/notes.c", &["-O2"]), expected);
}

/// The program in docs/languages.md runs, and leaves what it says.
#[test]
fn document_has_a_program_that_runs() {
    let document = std::fs::read_to_string(root().join("../../docs/languages.md")).unwrap();
    let (_, rest) = document.split_once("```c\n").unwrap();
    let (program, _) = rest.split_once("```").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("notes.c");
    std::fs::write(&source, program).unwrap();
    run_in(dir.path(), STATIC, &source, SANITIZERS);
    let volume = cairnfs::Volume::open(dir.path().join("notes.cairn")).unwrap();
    let todo = volume.read_to_string("2024/march/todo").unwrap();
    assert_eq!(todo, "water the plants");
}

/// The library exports the functions of the header, and the header has all of them.
#[test]
fn functions_of_the_header_are_those_of_the_library() {
    let listed = succeeds(
        Command::new("nm")
            .args(["--defined-only", "--extern-only"])
            .arg(library(STATIC)),
    );
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut exported: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split_once(" T ").map(|(_, name)| name))
        .filter(|name| name.starts_with("cairnfs_"))
        .collect();
    let header = std::fs::read_to_string(root().join("include/cairnfs.h")).unwrap();
    let mut declared: Vec<&str> = header
        .lines()
        .filter(|line| !line.starts_with(['/', ' ']))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("cairnfs_"))
        .collect();
    exported.sort_unstable();
    declared.sort_unstable();
    assert!(declared.len() > 50, "{declared:?}");
    assert_eq!(exported, declared);
}
