//! Index trees whose nodes lead astray, with right checksums: each is opened, read, used and checked
//! by a process of its own, which may have little address space and little processor time.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::process::{Command, Stdio};

use cairnfs::Error;
use cairnfs::format::key::{Key, Kind};
use cairnfs::fs::{FileSystem, Options};
use cairnfs::types::FileKind;
use cairnfs_mutate::base::{Base, merged, one_of_everything, two_levels};
use cairnfs_mutate::graph::{SHAPES, Shape, shaped, tower};
use cairnfs_mutate::image::Bounded;
use cairnfs_mutate::random::Random;
use cairnfs_mutate::{Image, Outcome, Verdict, survives};

/// Address space of a child, in KiB. Its threads' stacks and heaps alone reserve a part of it.
const ADDRESS_SPACE: u32 = 512 << 10;
/// Processor time of a child, in seconds: a walk that never ends must not keep the test busy. A
/// tower takes some hundredths.
const PROCESSOR_TIME: u32 = 120;
/// Which tower a child is to climb.
const WHICH: &str = "CAIRNFS_TOWER";

fn outcome(image: &Image) -> Outcome {
    survives(image).unwrap_or_else(|broken| panic!("{broken}"))
}

/// Where towers begin: behind the root directory's first entries, among the items of a file, at the
/// orphans, which each mount looks for, and behind everything.
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

/// A tower's place, height and fan, by its number.
fn towers(base: &Base) -> Vec<(Key, u32, u64)> {
    let shapes = [(3, 400), (6, 100), (12, 2), (12, 400)];
    let of = |key| shapes.map(|(height, fan)| (key, height, fan));
    places(base).into_iter().flat_map(of).collect()
}

/// Lists all directories of a volume, whatever comes, as a program does that trusts it.
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

/// Not for itself: what a child of the test below runs.
#[test]
#[ignore = "runs within another test, under its limits"]
fn climb() {
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
fn towers_of_shared_nodes_are_climbed_in_bounded_space() {
    let base = merged();
    let mut failures = Vec::new();
    for (which, tower) in towers(&base).iter().enumerate() {
        let limited = "ulimit -v $0 && ulimit -t $1 && shift && exec \"$@\"";
        let child = Command::new("sh")
            .args(["-c", limited])
            .args([ADDRESS_SPACE.to_string(), PROCESSOR_TIME.to_string()])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "climb", "--ignored", "--nocapture"])
            .env(WHICH, which.to_string())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        if !child.status.success() {
            let text = String::from_utf8_lossy(&child.stderr);
            let last = text.lines().rev().take(4).collect::<Vec<_>>().join(" | ");
            failures.push(format!("{tower:?}: {}: {last}", child.status));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_shape_is_found_by_the_check() {
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
            // Of a chain of nodes only the bitmaps lack something.
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
