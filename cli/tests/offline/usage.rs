//! Messages and exit codes for invalid arguments. No volume is touched.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::process::{Command, Output, Stdio};

fn cairnfs(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cairnfs"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn refused(args: &[&str], code: i32, says: &str) {
    let out = cairnfs(args);
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {text}");
    assert!(text.contains(says), "{args:?}: {text}");
    assert!(out.stdout.is_empty(), "{args:?}");
}

/// A full disk below a log changes no exit code.
#[test]
fn standard_error_that_cannot_be_written_fails_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    for (args, code) in [
        (["umount", dir], 32),
        (["stats", dir], 3),
        (["sync", dir], 1),
        (["check", "no-volume"], 8),
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let mut command = Command::new(env!("CARGO_BIN_EXE_cairnfs"));
        command
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let status = command.stderr(full.unwrap()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{args:?}");
    }
}

#[test]
fn help_and_version_succeed() {
    let help = cairnfs(&["--help"]);
    assert!(help.status.success());
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    for word in ["Examples:", "mkfs", "mount", "check", "import", "export"] {
        assert!(text.contains(word), "{word}");
    }
    assert!(cairnfs(&["--version"]).status.success());
    let mkfs = cairnfs(&["mkfs", "--help"]);
    assert!(String::from_utf8_lossy(&mkfs.stdout).contains("--size"));
}

#[test]
fn version_names_the_commit() {
    let git = |args: &[&str]| {
        let out = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        out.status.success().then_some(text)
    };
    let version_text = cairnfs(&["-V"]).stdout;
    let version_text = String::from_utf8_lossy(&version_text);
    let version = concat!("cairnfs ", env!("CARGO_PKG_VERSION"));
    let top = std::path::Path::new("..").canonicalize().unwrap();
    let ours = git(&["rev-parse", "--show-toplevel"]).is_some_and(|dir| top == *dir);
    // In an unpacked archive only the version is known.
    match git(&["rev-parse", "--short=12", "HEAD"]).filter(|_| ours) {
        Some(commit) => assert_eq!(version_text, format!("{version} (commit {commit})\n")),
        None => assert_eq!(version_text, format!("{version}\n")),
    }
    // The long form adds what is optional.
    let long = cairnfs(&["--version"]).stdout;
    let long = String::from_utf8_lossy(&long);
    let parts = long.strip_prefix(&*version_text).unwrap();
    assert!(parts.contains("encryption (encrypted backups): built in\n"));
    assert!(parts.contains("cloud (backups in s3://, gs:// and az://): "));
}

#[test]
fn unknown_options_are_named() {
    refused(&["ls", "--nonsense", "x"], 2, "--nonsense");
    refused(&["mkfs", "--nonsense"], 1, "--nonsense");
    refused(&["check", "--nonsense"], 16, "--nonsense");
    refused(&["nonsense"], 2, "nonsense");
    refused(&[], 2, "Usage");
}

#[test]
fn sizes_and_labels_are_checked_first() {
    refused(&["mkfs", "--size", "12Q", "unused.img"], 1, "512M");
    let long = "x".repeat(65);
    refused(&["mkfs", "-L", &long, "unused.img"], 1, "64 bytes");
    refused(
        &["import", "--size", "1G", ".", "unused.img"],
        2,
        "--create",
    );
}

#[test]
fn crashtest_of_steps_is_repeatable_and_replays() {
    let steps = "create a; write a 0 5000; rename a b; fsync b";
    let tell = || cairnfs(&["crashtest", "--json", "--steps", steps]);
    let (first, second) = (tell(), tell());
    assert_eq!(first.status.code(), Some(0));
    assert_eq!(first.stdout, second.stdout);
    assert!(String::from_utf8_lossy(&first.stdout).contains("\"allowed\": true"));

    let table = |interval: &[&str]| {
        let out = cairnfs(&[&["crashtest", "--steps", steps], interval].concat());
        String::from_utf8(out.stdout).unwrap()
    };
    let both = table(&[]);
    assert_eq!(both.matches("keep the contract").count(), 2, "{both}");
    assert!(!both.contains("Not tried"), "{both}");
    for (tried, other) in [("0", "1"), ("1", "0")] {
        let one = table(&["--interval", tried]);
        assert_eq!(one.matches("keep the contract").count(), 1, "{one}");
        let missing = format!("Not tried: --interval {other},");
        assert!(one.contains(&missing), "{one}");
    }

    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk.img");
    let disk = disk.to_str().unwrap();
    let one = ["crashtest", "--steps", steps, "--replay", "3.0"];
    let out = cairnfs(&[&one[..], &["--image", disk]].concat());
    assert_eq!(out.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&out.stdout).contains("state 3.0: keeps"));
    assert!(cairnfs(&["check", "--data", disk]).status.success());
}

#[test]
fn crashtest_refuses_missing_or_invalid_steps() {
    refused(&["crashtest"], 16, "no COMMAND");
    refused(&["crashtest", "--nonsense"], 16, "--nonsense");
    refused(&["crashtest", "--steps", "creat a"], 16, "creat a");
    refused(&["crashtest", "--steps", "unlink a"], 8, "unlink a");
    refused(
        &["crashtest", "--file", "missing.steps"],
        8,
        "missing.steps",
    );
    refused(&["crashtest", "--steps", "sync", "ls"], 16, "--steps");
    let steps = ["crashtest", "--steps", "sync", "--replay"];
    refused(&[&steps[..], &["7"]].concat(), 16, "7");
    refused(&[&steps[..], &["9999.0"]].concat(), 16, "no such state");
    refused(&["crashtest", "--replay", "1.0", "ls"], 16, "--replay");
    refused(&["crashtest", "--replay", "1.0"], 16, "COMMAND");
}

#[test]
fn missing_volumes_are_reported_with_next_step() {
    refused(&["ls", "missing.img:/x"], 1, "cairnfs mkfs");
    refused(&["cat", "missing.img:/x"], 1, "no such volume");
    refused(&["import", ".", "missing.img"], 1, "--create");
    refused(&["ls", "."], 1, "is a directory");
}

#[test]
fn cp_needs_a_volume() {
    refused(&["cp", "a", "b"], 1, "VOLUME:PATH");
    refused(
        &["cp", "missing.img:/x", "."],
        1,
        "missing.img: no such volume",
    );
    refused(&["cp", "a"], 2, "DESTINATION");
}

#[test]
fn export_refuses_unsupported_compression() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("v.img");
    std::fs::write(&volume, b"x").unwrap();
    let volume = volume.to_str().unwrap();
    refused(&["export", volume, "out.tar.xz"], 1, "gzip");
}

#[test]
fn completions_are_written() {
    for shell in ["bash", "zsh", "fish"] {
        let out = cairnfs(&["completions", shell]);
        assert!(out.status.success());
        assert!(String::from_utf8_lossy(&out.stdout).contains("mkfs"));
    }
}

/// Each command has a page, with what its help says; examples keep their lines.
#[test]
fn manual_pages_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    assert!(cairnfs(&["man", pages.to_str().unwrap()]).status.success());
    let read = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    assert!(read("cairnfs.1").contains("cairnfs\\-mount(1)"));
    assert!(read("cairnfs-backup-prune.1").contains("cairnfs\\-backup\\-prune"));
    for page in std::fs::read_dir(&pages).unwrap() {
        let name = page.unwrap().file_name().into_string().unwrap();
        let (text, title) = (read(&name), name.strip_suffix(".1").unwrap());
        let head = text.lines().find(|line| line.starts_with(".TH")).unwrap();
        let [_, titled, "1", _, "\"cairnfs", version] = head.split(' ').collect::<Vec<_>>()[..6]
        else {
            panic!("{name}: {head}")
        };
        assert!(titled == title && version.len() > 1, "{name}: {head}");
    }
    let mount = read("cairnfs-mount.1");
    assert!(mount.contains(".SH NOTES\n.nf\n"), "{mount}");
    assert!(mount.contains("\n  write=back ") || mount.contains("\n  write\\=back "));
    let printed = cairnfs(&["man", "--page", "mount"]);
    assert_eq!(String::from_utf8_lossy(&printed.stdout), mount);
    refused(&["man"], 2, "DIR");
    refused(&["man", "--page", "nothing"], 1, "nothing");
}

#[test]
fn closed_output_pipe_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_cairnfs"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert!(
        out.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn help_shows_exit_code_of_usage_errors() {
    for command in [
        "ls", "cat", "cp", "mkdir", "rm", "import", "export", "info", "trim", "snapshot", "branch",
        "log", "diff", "restore", "publish", "rename", "drop", "send", "receive",
    ] {
        refused(&[command, "--nonsense"], 2, "--nonsense");
        let help = cairnfs(&[command, "--help"]).stdout;
        let help = String::from_utf8_lossy(&help).into_owned();
        assert!(help.contains("2 wrong arguments"), "{command}");
    }
}
