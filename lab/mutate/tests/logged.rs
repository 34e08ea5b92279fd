//! Damaged nodes that a log changes which has changes of roots: its replay must merge, and the changes
//! find no place there. Everything else is read, and a removal of the damage keeps the changes.
//!
//! Contract: rot.salvage

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::collections::BTreeMap;

use cairnfs::Error;
use cairnfs::fs::FileSystem;
use cairnfs_check::{CheckOptions, check};
use cairnfs_disk::types::FileKind;
use cairnfs_mutate::base::{Base, roots_in_log};
use cairnfs_mutate::image::{Bounded, Image};
use cairnfs_mutate::layout::Link;
use cairnfs_mutate::random::Random;
use cairnfs_tier::size;

use crate::options;

/// What a volume shows: contents by name of the tree and path, or none if they cannot be read; and
/// whether each directory was listed to its end.
#[derive(Default, PartialEq, Debug)]
struct Shown {
    files: BTreeMap<String, Option<Vec<u8>>>,
    cut_off: usize,
    /// Items of the log that are not shown.
    left_out: u64,
}

fn checked<T>(found: Result<T, Error>, of: &str) -> Option<T> {
    match found {
        Err(Error::Corrupt(_)) => None,
        found => Some(found.unwrap_or_else(|e| panic!("{of}: {e}"))),
    }
}

fn shown(image: &Image, of: &str) -> Shown {
    let fs = FileSystem::open_device(Bounded::new(image), &options(true))
        .unwrap_or_else(|e| panic!("{of}: {e}"));
    let mut shown = Shown {
        left_out: fs.info().left_out,
        ..Shown::default()
    };
    for root in fs.roots().into_iter().filter_map(|root| root.name) {
        let tree = fs.open_named(&root).unwrap();
        let mut todo = vec![(root, 1)];
        while let Some((path, ino)) = todo.pop() {
            let mut entries = Vec::new();
            let mut cookie = 0;
            loop {
                let before = entries.len();
                let listed = tree.readdir(ino, cookie, &mut |entry| {
                    cookie = entry.cookie;
                    if !entry.is_dots() {
                        entries.push((String::from_utf8_lossy(entry.name).into_owned(), entry.ino));
                    }
                    true
                });
                let ended = checked(listed, of);
                if entries.len() == before {
                    shown.cut_off += usize::from(ended.is_none());
                    break;
                }
            }
            for (name, ino) in entries {
                let path = format!("{path}/{name}");
                let Some(attr) = checked(tree.getattr(ino), of) else {
                    shown.files.insert(path, None);
                    continue;
                };
                if attr.kind == FileKind::Directory {
                    shown.files.insert(path.clone(), Some(Vec::new()));
                    todo.push((path, ino));
                    continue;
                }
                let mut bytes = vec![0; attr.size as usize];
                let read = checked(tree.read(ino, 0, &mut bytes), of);
                let whole = format!("{:o} {}", attr.mode, attr.nlink).into_bytes();
                let whole = read.map(|_| [whole, bytes].concat());
                shown.files.insert(path, whole);
            }
        }
    }
    shown
}

/// The nodes of the trees of files.
fn nodes(base: &Base) -> Vec<u64> {
    let nodes = base.layout.nodes.iter();
    let nodes = nodes.filter(|(_, links)| !links.contains(&Link::Superblock));
    nodes.map(|(node, _)| *node).collect()
}

#[test]
fn what_is_beside_damaged_nodes_is_read_though_the_log_changes_them() {
    let mut refused = 0;
    for seed in 0..size(2, 120) {
        let base = roots_in_log(seed);
        let (sound, nodes) = (shown(&base.image, "sound"), nodes(&base));
        assert!(sound.cut_off == 0 && sound.files.values().all(Option::is_some));
        for node in &nodes {
            let of = format!("seed {seed}, node {node}");
            let mut image = base.image.clone();
            let mut random = Random::new(seed ^ node);
            image.patch(*node, random.below(16_000), &random.number().to_le_bytes());
            let found = shown(&image, &of);
            let damaged = found.cut_off > 0 || found.files.values().any(Option::is_none);
            assert!(found == sound || damaged, "{of}: a silent loss");
            for (path, contents) in &found.files {
                let expected = sound.files.get(path);
                assert!(expected.is_some(), "{of}: {path} was there");
                let same = contents.is_none() || contents.as_ref() == expected.unwrap().as_ref();
                assert!(same, "{of}: {path}");
            }
            let closed = removed(&image, &of);
            assert!(closed.is_some() || found.left_out == 0, "{of}");
            refused += usize::from(found.left_out > 0);
        }
    }
    assert!(refused > 0, "no log changes a damaged node");
}

/// Removes the damage. Returns why the volume could not be opened for changes before, if so.
fn removed(image: &Image, of: &str) -> Option<Error> {
    let opened = FileSystem::open_device(Bounded::new(image), &options(false));
    let refused = opened.err();
    let device = Bounded::new(image);
    let removed = FileSystem::remove_damage(device.clone(), &options(false));
    let removed = removed.unwrap_or_else(|e| panic!("{of}: {e}"));
    let image = device.image();
    if removed.still_damaged.is_empty() {
        let options = CheckOptions { data: true };
        let report = check(&*Bounded::new(&image), &options, &mut |_| {}).unwrap();
        assert!(report.findings.is_empty(), "{of}: {:#?}", report.findings);
    }
    refused
}
