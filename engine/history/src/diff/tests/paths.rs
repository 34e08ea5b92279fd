//! Names of inodes in a large directory.

use std::collections::BTreeMap;

use crate::diff::Paths;
use crate::diff::tests::model::{Model, Random, node};
use crate::diff::tests::volume::ModelVolume;
use cairnfs_disk::format::item::S_IFREG;
use cairnfs_disk::format::{FIRST_USER_INO, ROOT_INO};

const FILES: u64 = 3000;

/// A root directory in which these inodes were created, in this order.
fn directory(order: &[u64]) -> Model {
    let mut model = Model::default();
    for ino in order {
        model.nodes.insert(*ino, node(S_IFREG | 0o644, ROOT_INO));
        model.link(ROOT_INO, format!("file{ino}").into_bytes(), *ino);
    }
    model
}

fn inodes() -> Vec<u64> {
    (FIRST_USER_INO..FIRST_USER_INO + FILES).collect()
}

/// Few inodes of a large directory are found whether or not their numbers ascend.
#[test]
fn names_are_found_in_any_order() {
    let ascending = inodes();
    let mut random = Random(7);
    let mut shuffled = inodes();
    (1..shuffled.len()).for_each(|i| shuffled.swap(i, random.below(i + 1)));
    let mut renamed = inodes();
    renamed.rotate_left(1000);
    let descending: Vec<u64> = inodes().into_iter().rev().collect();
    for order in [ascending, shuffled, renamed, descending] {
        let mut volume = ModelVolume::new();
        let tree = volume.write(&directory(&order), 8);
        let mut paths = Paths::new(volume.tree(tree));
        for count in [1, 3, 40] {
            let wanted: Vec<u64> = (0..count).filter_map(|_| random.of(&order)).collect();
            let found = paths.names(wanted.iter().copied()).unwrap();
            let found = found.into_iter().map(|(ino, name)| (ino, name.name));
            let expected = wanted
                .iter()
                .map(|ino| (*ino, format!("file{ino}").into_bytes()));
            assert_eq!(
                found.collect::<BTreeMap<_, _>>(),
                expected.collect::<BTreeMap<_, _>>()
            );
        }
    }
}

/// In a directory whose files were created in it and partly removed, no search reads all entries.
#[test]
fn ascending_numbers_are_found_by_halving() {
    let mut model = directory(&inodes());
    for ino in inodes().into_iter().filter(|ino| ino % 3 == 0) {
        model.unlink(ROOT_INO, format!("file{ino}").as_bytes(), false);
    }
    let mut volume = ModelVolume::new();
    let tree = volume.write(&model, 8);
    let paths = Paths::new(volume.tree(tree));
    let end = model.nodes[&ROOT_INO].next_index;
    for ino in inodes() {
        let found = paths.halve(ROOT_INO, ino, end).unwrap();
        let expected = (ino % 3 > 0).then(|| format!("file{ino}").into_bytes());
        assert_eq!(found, expected);
    }
}
