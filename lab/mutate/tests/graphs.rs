//! Invalid index trees with valid checksums: each is opened, read, used and checked, some by a
//! process of its own with limited address space and processor time.
//!
//! Contract: hostile

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::process::{Command, Stdio};

use cairnfs::Error;
use cairnfs::fs::{FileSystem, Options};
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::types::FileKind;
use cairnfs_mutate::base::{Base, merged, one_of_everything, two_levels};
use cairnfs_mutate::graph::{SHAPES, Shape, shaped, tower};
use cairnfs_mutate::image::Bounded;
use cairnfs_mutate::random::Random;
use cairnfs_mutate::{Image, Outcome, Verdict, survives};

/// Address space of a child in KiB. The stacks and heaps of its threads alone reserve a part of it.
const ADDRESS_SPACE: u32 = 512 << 10;
/// Processor time of a child in seconds, so that an endless walk does not block the test. A tower
/// takes some hundredths of a second.
const PROCESSOR_TIME: u32 = 120;
/// Environment variable with the number of the child's tower.
const WHICH: &str = "CAIRNFS_TOWER";

fn outcome(image: &Image) -> Outcome {
    survives(image).unwrap_or_else(|broken| panic!("{broken}"))
}

/// Where towers begin: behind the first entries of the root directory, among the items of a file,
/// at the orphans, which each mount looks for, and behind all items.
fn places(base: &Base) -> Vec<Key> {
    let first = |kind: Kind, nth: usize| {
        let mut keys = base.layout.items.iter().map(|item| item.key);
        keys.by_ref()
            .filter(|key| key.kind == kind)
            .nth(nth)
            .unwrap()
    };
    vec![
        first(Kind::DirIndex, 1),
        first(Kind::DirName, 0),
        first(Kind::Xattr, 0),
        first(Kind::Extent, 0),
        Key::orphan(16),
        Key::inode(1 << 40),
    ]
}

/// The place, height and fan of all towers.
fn towers(base: &Base) -> Vec<(Key, u32, u64)> {
    let shapes = [(3, 400), (6, 100), (12, 2), (12, 400)];
    let of = |key| shapes.map(|(height, fan)| (key, height, fan));
    places(base).into_iter().flat_map(of).collect()
}

/// Lists all directories of a volume in spite of errors, as a program that trusts it does.
fn list_everything(image: &Image) {
    let options = Options {
        read_only: true,
        workers: false,
        ..Options::default()
    };
    let Ok(fs) = FileSystem::open_device(Bounded::new(image), &options) else {
        return;
    };
    let mut todo = vec![1];
    let mut names = Vec::new();
    while let Some(dir) = todo.pop() {
        let listed = fs.readdir(dir, 2, &mut |entry| {
            names.push(entry.name.to_vec());
            if entry.kind == FileKind::Directory {
                todo.push(entry.ino);
            }
            true
        });
        let damage = matches!(&listed, Err(Error::Corrupt(_) | Error::NotFound));
        assert!(listed.is_ok() || damage, "{listed:?}");
    }
}

/// Not a test of its own: the child process of the test below runs it.
#[test]
#[ignore = "runs within another test, under its limits"]
fn read_one_tower() {
    let which: usize = std::env::var(WHICH).unwrap().parse().unwrap();
    let base = merged();
    let (key, height, fan) = towers(&base)[which];
    let image = tower(&base, key, height, fan);
    list_everything(&image);
    let outcome = outcome(&image);
    assert_ne!(outcome.verdict, Verdict::Harmless);
    let codes = outcome.codes.unwrap();
    assert!(codes.contains(&"block-shared"), "{codes:?}");
}

#[test]
fn towers_of_shared_nodes_are_read_in_bounded_memory() {
    let base = merged();
    let mut failures = Vec::new();
    for (which, tower) in towers(&base).iter().enumerate() {
        let limited = "ulimit -v $0 && ulimit -t $1 && shift && exec \"$@\"";
        let child = Command::new("sh")
            .args(["-c", limited])
            .args([ADDRESS_SPACE.to_string(), PROCESSOR_TIME.to_string()])
            .arg(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "graphs::read_one_tower",
                "--ignored",
                "--nocapture",
            ])
            .env(WHICH, which.to_string())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let ran = String::from_utf8_lossy(&child.stdout).contains("1 passed");
        if !child.status.success() || !ran {
            let text = String::from_utf8_lossy(&child.stderr);
            let last = text.lines().rev().take(4).collect::<Vec<_>>().join(" | ");
            failures.push(format!("{tower:?}: {}: {last}", child.status));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn check_finds_every_invalid_shape() {
    let bases = [one_of_everything(), two_levels()];
    for shape in SHAPES {
        let mut found = 0;
        for seed in 0..20 {
            let base = &bases[(seed % 2) as usize];
            let Some((how, image)) = shaped(base, shape, &mut Random::new(seed)) else {
                continue;
            };
            if !image.differs_from(&base.image) {
                continue;
            }
            let outcome = outcome(&image);
            let harmless = outcome.verdict == Verdict::Harmless;
            assert!(!harmless, "{shape:?}: {how}");
            // A chain of nodes has only missing blocks in the bitmaps.
            let codes = outcome.codes.unwrap_or_default();
            let astray = codes.iter().any(|c| !c.starts_with("bitmap"));
            assert!(
                astray || shape == Shape::Chain,
                "{shape:?}: {how}: {codes:?}"
            );
            found += 1;
        }
        assert!(found > 0, "{shape:?}");
    }
}
