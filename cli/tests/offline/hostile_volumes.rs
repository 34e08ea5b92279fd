//! Hostile volumes with valid checksums: every command ends, within limits of address space and
//! time, with the readable data or with an error.
//!
//! Contract: hostile

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use cairnfs_mutate::base::{merged, nested};
use cairnfs_mutate::graph::{crossed, tower};
use cairnfs_mutate::{Base, Image};

use cairnfs_disk::format::key::{Key, Kind};

/// Address space of a command, in KiB; the allocator alone reserves more than a GiB of it.
const ADDRESS_SPACE: u32 = 3 << 20;
/// Processor time of a command, in seconds, so that an endless command cannot hang the test.
const PROCESSOR_TIME: u32 = 60;

/// Commands run on each volume: all ways to read it, then changes.
const COMMANDS: [&[&str]; 12] = [
    &["check", "--data", "v.img"],
    &["info", "v.img"],
    &["ls", "-la", "v.img:/"],
    &["ls", "-lR", "v.img:/"],
    &["cat", "v.img:/a/blocks"],
    &["export", "v.img", "out"],
    &["export", "v.img", "out.tar"],
    &["cp", "-r", "v.img:/a", "copy"],
    &["mkdir", "v.img:/new"],
    &["cp", "host", "v.img:/host"],
    &["rm", "-r", "v.img:/a"],
    &["rm", "-rf", "v.img:/b"],
];

fn run(dir: &Path, args: &[&str]) -> Output {
    Command::new("sh")
        .args(["-c", "ulimit -v $0 && ulimit -t $1 && shift && exec \"$@\""])
        .args([ADDRESS_SPACE.to_string(), PROCESSOR_TIME.to_string()])
        .arg(env!("CARGO_BIN_EXE_cairnfs"))
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs each command on a fresh copy of the image, and returns those that failed.
fn run_all_commands(what: &str, image: &Image) -> Vec<String> {
    let bytes = image.read(0, image.blocks());
    let mut failed = Vec::new();
    for args in COMMANDS {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("v.img"), &bytes).unwrap();
        fs::write(place.path().join("host"), "contents").unwrap();
        let out = run(place.path(), args);
        let message = String::from_utf8_lossy(&out.stderr);
        let code = out.status.code();
        assert!(
            code.is_some_and(|code| code < 100) && !message.contains("panicked"),
            "{what}: {args:?}: {}: {message}",
            out.status
        );
        if code != Some(0) {
            failed.push(args.join(" "));
        }
    }
    failed
}

fn assert_shared_nodes_fail(base: &Base, key: Key, names: &[&str]) {
    for (height, fan) in [(6, 100), (12, 400)] {
        let failed = run_all_commands(&format!("{key:?}"), &tower(base, key, height, fan));
        for name in names {
            let has_failed = failed.iter().any(|command| command.starts_with(name));
            assert!(has_failed, "{key:?}: {name} found nothing: {failed:?}");
        }
    }
}

#[test]
fn index_nodes_with_shared_children_are_reported() {
    let base = merged();
    let nth = |kind, n| {
        let keys = base.layout.items.iter().map(|item| item.key);
        keys.filter(|key| key.kind == kind).nth(n).unwrap()
    };
    assert_shared_nodes_fail(&base, Key::orphan(16), &["check", "mkdir", "rm"]);
    assert_shared_nodes_fail(&base, nth(Kind::DirIndex, 1), &["check", "ls", "export"]);
    assert_shared_nodes_fail(&base, nth(Kind::Extent, 0), &["check"]);
}

#[test]
fn directories_with_several_entries_are_entered_once() {
    let failed = run_all_commands("crossed", &crossed(&nested(), false));
    assert!(failed.contains(&"export v.img out".into()), "{failed:?}");
    assert!(failed.contains(&"check --data v.img".into()), "{failed:?}");
}

#[test]
fn directories_that_contain_themselves_are_entered_once() {
    let failed = run_all_commands("circular", &crossed(&nested(), true));
    assert!(failed.contains(&"export v.img out".into()), "{failed:?}");
    assert!(failed.contains(&"check --data v.img".into()), "{failed:?}");
}
