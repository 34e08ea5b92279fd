//! Volumes made to mislead, with right checksums: every command ends, in little address space and
//! little time, with what can be had or with an error.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use cairnfs_mutate::base::{merged, nested};
use cairnfs_mutate::graph::{crossed, tower};
use cairnfs_mutate::{Base, Image};

use cairnfs::format::key::{Key, Kind};

/// Address space of a command, in KiB; the allocator alone reserves more than a GiB of it.
const ADDRESS_SPACE: u32 = 3 << 20;
/// Processor time of a command, in seconds: one that never ends must not keep the test busy.
const PROCESSOR_TIME: u32 = 60;

/// What is tried with each volume: every way to read it all, then changes.
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

/// Runs all commands, each on the image as it was made; those that failed.
fn survive(what: &str, image: &Image) -> Vec<String> {
    let bytes = image.read(0, image.blocks());
    let mut failed = Vec::new();
    for args in COMMANDS {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("v.img"), &bytes).unwrap();
        fs::write(place.path().join("host"), "contents").unwrap();
        let out = run(place.path(), args);
        let told = String::from_utf8_lossy(&out.stderr);
        let code = out.status.code();
        assert!(
            code.is_some_and(|code| code < 100) && !told.contains("panicked"),
            "{what}: {args:?}: {}: {told}",
            out.status
        );
        if code != Some(0) {
            failed.push(args.join(" "));
        }
    }
    failed
}

fn misled(base: &Base, key: Key, names: &[&str]) {
    for (height, fan) in [(6, 100), (12, 400)] {
        let failed = survive(&format!("{key:?}"), &tower(base, key, height, fan));
        for name in names {
            let told = failed.iter().any(|command| command.starts_with(name));
            assert!(told, "{key:?}: {name} found nothing: {failed:?}");
        }
    }
}

#[test]
fn index_nodes_that_share_children_are_told() {
    let base = merged();
    let nth = |kind, n| {
        let keys = base.layout.items.iter().map(|item| item.key);
        keys.filter(|key| key.kind == kind).nth(n).unwrap()
    };
    misled(&base, Key::orphan(16), &["check", "mkdir", "rm"]);
    misled(&base, nth(Kind::DirIndex, 1), &["check", "ls", "export"]);
    misled(&base, nth(Kind::Extent, 0), &["check"]);
}

#[test]
fn directories_with_several_entries_are_entered_once() {
    let failed = survive("crossed", &crossed(&nested(), false));
    assert!(failed.contains(&"export v.img out".into()), "{failed:?}");
    assert!(failed.contains(&"check --data v.img".into()), "{failed:?}");
}

#[test]
fn directories_that_contain_themselves_are_entered_once() {
    let failed = survive("circular", &crossed(&nested(), true));
    assert!(failed.contains(&"export v.img out".into()), "{failed:?}");
    assert!(failed.contains(&"check --data v.img".into()), "{failed:?}");
}
