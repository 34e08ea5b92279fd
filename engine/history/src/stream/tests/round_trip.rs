//! What is sent is received.

use proptest::prelude::*;

use super::target::MemoryTree;
use crate::diff::tests::compare::history;
use crate::diff::tests::model::{Counters, Model, node};
use crate::diff::tests::volume::{ModelVolume, Numbered};
use crate::diff::{Blocks, FileTree};
use crate::stream::{StreamReader, StreamWriter, send};
use cairnfs_core::index::Tree;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::item::S_IFREG;
use cairnfs_disk::format::stream::{MAX_DATA, RawBegin};

fn begin() -> RawBegin {
    RawBegin {
        uuid: [7; 16],
        root: 3.into(),
        mark: 99.into(),
        ..RawBegin::default()
    }
}

pub fn sent(old: FileTree<'_>, new: FileTree<'_>) -> Vec<u8> {
    let mut writer = StreamWriter::new(Vec::new(), begin(), &[]).unwrap();
    send(&mut writer, (old, new), &Numbered).unwrap();
    writer.finish().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn received_tree_is_the_sent_one(seed in any::<u64>(), changes in 1usize..120) {
        let (volume, states) = history(seed, 4, changes);
        let empty = volume.tree(Tree::default());
        let whole: Vec<MemoryTree> = states
            .iter()
            .map(|(_, tree)| {
                let stream = sent(empty, volume.tree(*tree));
                MemoryTree::received(&stream, &MemoryTree::default()).unwrap()
            })
            .collect();
        for ((model, tree), received) in states.iter().zip(&whole) {
            prop_assert!(*received == MemoryTree::of(model, volume.tree(*tree)));
        }
        for ((_, old), base) in states.iter().zip(&whole) {
            for ((_, new), expected) in states.iter().zip(&whole) {
                let stream = sent(volume.tree(*old), volume.tree(*new));
                let received = MemoryTree::received(&stream, base).unwrap();
                prop_assert!(received == *expected);
                if old == new {
                    prop_assert_eq!(stream.len(), sent(empty, empty).len());
                }
            }
        }
    }
}

#[test]
fn stream_tells_what_it_is_about() {
    let volume = ModelVolume::new();
    let empty = volume.tree(Tree::default());
    let stream = sent(empty, empty);
    let mut reader = StreamReader::new(&stream[..]).unwrap();
    assert_eq!(*reader.begin(), begin());
    assert!(reader.next_record().unwrap().is_none() && reader.next_record().unwrap().is_none());
}

/// Holes are not sent, and data is cut into frames.
#[test]
fn sparse_files_are_sent_sparse() {
    let (mut model, mut counters) = (Model::default(), Counters::default());
    let mut volume = ModelVolume::new();
    model.nodes.insert(20, node(S_IFREG | 0o600, ROOT_INO));
    model.link(ROOT_INO, b"sparse".to_vec(), 20);
    model.write(&mut counters, 20, 0, &[1; 3 * MAX_DATA]);
    model.write(&mut counters, 20, 50 << 20, &[1; 100]);
    let one = volume.write(&model, 2);
    let contents = &mut model.nodes.get_mut(&20).unwrap().contents;
    contents.blocks.remove(&3);
    contents.size = 1 << 50;
    let two = volume.write(&model, 2);
    let empty = volume.tree(Tree::default());
    let whole = sent(empty, volume.tree(one));
    assert!(
        whole.len() > 3 * MAX_DATA && whole.len() < 4 * MAX_DATA,
        "{}",
        whole.len()
    );
    let change = sent(volume.tree(one), volume.tree(two));
    // The block that the old size ended in, and no more of the new size.
    assert!(change.len() < 5000, "{}", change.len());
}

struct Failing;

impl Blocks for Failing {
    fn read(&self, block: u64, _: &[u32], _: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        Err(Error::corrupt(block, "data checksum", 1, 2))
    }
}

/// A stream whose sender failed has no end.
#[test]
fn failed_send_leaves_an_incomplete_stream() {
    let (volume, states) = history(5, 3, 100);
    let (old, new) = (volume.tree(Tree::default()), volume.tree(states[2].1));
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::new(&mut bytes, begin(), &[]).unwrap();
    let failed = send(&mut writer, (old, new), &Failing);
    assert!(matches!(failed, Err(Error::Corrupt(_))));
    let refused = MemoryTree::received(&bytes, &MemoryTree::default());
    assert!(matches!(refused, Err(Error::Stream(_))));
}
