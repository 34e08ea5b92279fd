//! Files that were replaced by others of the same path, and the bytes that a report counts.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::compare::history;
use super::model::{Counters, Model, node};
use super::volume::{ModelVolume, Numbered};
use crate::diff::{FileChange, Report, Status};
use cairnfs_core::index::Tree;
use cairnfs_disk::format::item::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use cairnfs_disk::format::{BLOCK_SIZE, ROOT_INO};

const BLOCK: u64 = BLOCK_SIZE as u64;

fn report(volume: &ModelVolume, old: Tree, new: Tree) -> Report {
    Report::new(volume.tree(old), volume.tree(new), &Numbered).unwrap()
}

fn bytes(volume: &ModelVolume, tree: Tree, ino: u64, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    let tree = volume.tree(tree);
    tree.read(&Numbered, ino, 0, &mut bytes).unwrap();
    bytes
}

fn told(report: &Report) -> Vec<(Status, &str)> {
    let files = report.files.iter();
    files.map(|f| (f.status, &*f.path.path)).collect()
}

/// A file with a name and contents below the root directory.
fn file(model: &mut Model, counters: &mut Counters, ino: u64, name: &str, text: &[u8]) {
    model.nodes.insert(ino, node(S_IFREG | 0o644, ROOT_INO));
    model.link(ROOT_INO, name.into(), ino);
    model.write(counters, ino, 0, text);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Of each path with one name and another inode of the same type there is one change, and what
    /// it tells of the contents is exact by blocks.
    #[test]
    fn replaced_files_are_paired_and_compared(seed in any::<u64>(), changes in 100usize..400) {
        let (volume, states) = history(seed, 3, changes);
        for (old, new) in [(0, 2), (2, 0)] {
            let ((old, old_tree), (new, new_tree)) = (&states[old], &states[new]);
            let report = report(&volume, *old_tree, *new_tree);
            let mut removed: BTreeMap<_, &FileChange> = BTreeMap::new();
            for file in &report.files {
                if file.status == Status::Removed {
                    removed.insert(&file.path, file);
                }
            }
            for file in &report.files {
                if let Some(before) = removed.get(&file.path)
                    && file.status == Status::Added
                {
                    let kinds = old.nodes[&before.ino].mode ^ new.nodes[&file.ino].mode;
                    let several = before.old_paths.len() > 1 || file.new_paths.len() > 1;
                    let dir = new.nodes[&file.ino].is(S_IFDIR);
                    prop_assert!(kinds & S_IFMT != 0 || several || dir, "{file:?}");
                }
                let Some(old_ino) = file.old_ino else { continue };
                prop_assert!(!new.nodes.contains_key(&old_ino) || new.names_of(old_ino).is_empty());
                prop_assert!(!old.nodes.contains_key(&file.ino) || old.names_of(file.ino).is_empty());
                let (was, is) = (&old.nodes[&old_ino], &new.nodes[&file.ino]);
                prop_assert_eq!(was.mode & S_IFMT, is.mode & S_IFMT);
                let told_xattrs = file.xattrs.len();
                let both = was.xattrs.keys().chain(is.xattrs.keys());
                let names: std::collections::BTreeSet<_> = both.collect();
                let differ = names.iter().filter(|n| was.xattrs.get(**n) != is.xattrs.get(**n));
                prop_assert_eq!(told_xattrs, differ.count());
                let (old_size, new_size) = (was.contents.size, is.contents.size);
                let left = bytes(&volume, *old_tree, old_ino, old_size);
                let right = bytes(&volume, *new_tree, file.ino, new_size);
                let mut expected = Vec::new();
                for at in 0..old_size.max(new_size) {
                    let start = at / BLOCK * BLOCK;
                    let end = (start + BLOCK).min(old_size.min(new_size));
                    let (start, end) = (start as usize, end as usize);
                    expected.push(at >= end as u64 || left[start..end] != right[start..end]);
                }
                let mut found = vec![false; expected.len()];
                for range in &file.contents {
                    found[range.start as usize..range.end as usize].fill(true);
                }
                prop_assert!(found == expected, "{file:?}");
            }
        }
    }
}

#[test]
fn another_file_of_the_same_path_is_a_change() {
    let (mut model, mut counters) = (Model::default(), Counters::default());
    let mut volume = ModelVolume::new();
    file(&mut model, &mut counters, 20, "edited", b"one\ntwo\n");
    file(&mut model, &mut counters, 21, "log", b"first\n");
    file(&mut model, &mut counters, 22, "kind", b"text");
    model.nodes.insert(23, node(S_IFDIR | 0o755, ROOT_INO));
    model.link(ROOT_INO, b"dir".to_vec(), 23);
    let old = volume.write(&model, 256);
    // As editors save.
    model.unlink(ROOT_INO, b"edited", false);
    file(&mut model, &mut counters, 30, "edited", b"one\n2\n");
    model.nodes.get_mut(&30).unwrap().mode = S_IFREG | 0o755;
    let xattrs = &mut model.nodes.get_mut(&30).unwrap().xattrs;
    xattrs.insert(b"user.note".to_vec(), b"x".to_vec());
    // As log files are rotated: the same inode has another name, so the new one is added.
    model.names.remove(&(ROOT_INO, b"log".to_vec()));
    model.link(ROOT_INO, b"log.1".to_vec(), 21);
    file(&mut model, &mut counters, 31, "log", b"second\n");
    model.unlink(ROOT_INO, b"kind", false);
    model.nodes.insert(32, node(S_IFLNK | 0o777, ROOT_INO));
    model.link(ROOT_INO, b"kind".to_vec(), 32);
    model.write(&mut counters, 32, 0, b"log");
    model.unlink(ROOT_INO, b"dir", false);
    model.nodes.insert(33, node(S_IFDIR | 0o700, ROOT_INO));
    model.link(ROOT_INO, b"dir".to_vec(), 33);
    let new = volume.write(&model, 256);
    let report = report(&volume, old, new);
    assert_eq!(
        told(&report),
        [
            (Status::Removed, "dir"),
            (Status::Added, "dir"),
            (Status::Changed, "edited"),
            (Status::Removed, "kind"),
            (Status::Added, "kind"),
            (Status::Added, "log"),
            (Status::Renamed, "log.1"),
        ]
    );
    let edited = &report.files[2];
    assert_eq!((edited.old_ino, edited.ino), (Some(20), 30));
    assert!(edited.old_paths.is_empty() && edited.new_paths.is_empty());
    let names: Vec<_> = edited.attributes.iter().map(|a| a.name).collect();
    assert_eq!(names, ["mode", "size"]);
    assert_eq!(edited.xattrs[0].status, Status::Added);
    assert_eq!(edited.contents.first(), Some(&(0..8)));
    assert_eq!((edited.contents.len(), edited.written), (1, 6));
}

/// What is a hole, or was cut off, is a difference and not bytes that were written.
#[test]
fn holes_and_what_was_cut_off_count_no_bytes() {
    let (mut model, mut counters) = (Model::default(), Counters::default());
    let mut volume = ModelVolume::new();
    file(&mut model, &mut counters, 20, "cut", &[1; 40_000]);
    file(&mut model, &mut counters, 21, "punched", &[1; 40_960]);
    file(&mut model, &mut counters, 22, "replaced", &[1; 40_960]);
    let old = volume.write(&model, 256);
    model.truncate(20, BLOCK);
    let punched = &mut model.nodes.get_mut(&21).unwrap().contents.blocks;
    punched.retain(|block, _| *block < 2);
    let same = model.nodes[&22].contents.clone();
    model.unlink(ROOT_INO, b"replaced", false);
    file(&mut model, &mut counters, 30, "replaced", b"");
    model.nodes.get_mut(&30).unwrap().contents = same;
    file(&mut model, &mut counters, 31, "sparse", b"");
    model.nodes.get_mut(&31).unwrap().contents.inline = None;
    model.truncate(31, 1 << 40);
    model.write(&mut counters, 31, 1 << 30, &[2; BLOCK_SIZE]);
    let new = volume.write(&model, 256);
    let report = report(&volume, old, new);
    let written = report.files.iter().map(|f| (&*f.path.path, f.written));
    let written: Vec<_> = written.collect();
    assert_eq!(
        written,
        [
            ("cut", 0),
            ("punched", 0),
            ("replaced", 0),
            ("sparse", BLOCK)
        ]
    );
    assert!(!report.files[0].contents.is_empty() && !report.files[1].contents.is_empty());
    assert!(report.files[2].contents.is_empty(), "the same blocks");
    assert_eq!(report.summary().bytes, BLOCK);
}
