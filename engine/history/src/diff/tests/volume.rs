//! Index trees of model trees.

use std::collections::BTreeMap;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{I64, U32, U64};

use crate::diff::FileTree;
use crate::diff::tests::model::{Contents, Model, Node};
use cairnfs_core::index::Tree;
use cairnfs_core::index::testing::{Bench, Changes, Items};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::checksum::name_hash;
use cairnfs_disk::format::geometry::Geometry;
use cairnfs_disk::format::item::{
    DirEntryRef, EXTENT_UNWRITTEN, ORPHAN_REMOVE, RawExtent, RawInode, RawTime, S_IFDIR, S_IFMT,
    encode_dir_entry, encode_dir_name,
};
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::format::xattr::{
    SharedRef, StoredValue, encode_shared_value, encode_stored_xattr, is_apart, value_hash,
};
use cairnfs_disk::format::{BLOCK_SIZE, MAX_OWN_VALUE};

const SEED: u64 = 5;

/// A volume whose trees are model trees; nothing is ever freed.
pub struct ModelVolume {
    pub bench: Bench,
    pub geometry: Geometry,
}

/// Data blocks whose bytes follow from their number.
pub struct Numbered;

pub fn block_bytes(block: u64) -> Vec<u8> {
    let byte = |i: usize| (block as usize).wrapping_mul(31).wrapping_add(i / 3) as u8;
    (0..BLOCK_SIZE).map(byte).collect()
}

impl crate::diff::Blocks for Numbered {
    fn read(&self, block: u64, crcs: &[u32], each: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        for (i, crc) in crcs.iter().enumerate() {
            assert_eq!(*crc, crc_of(block + i as u64));
            each(i, &block_bytes(block + i as u64));
        }
        Ok(())
    }
}

fn crc_of(block: u64) -> u32 {
    block as u32 ^ 0x5a5a
}

impl ModelVolume {
    pub fn new() -> Self {
        Self {
            bench: Bench::new(64 << 20),
            geometry: Geometry::for_size(64 << 30, None).unwrap(),
        }
    }

    /// Makes the tree of a model from the tree made last.
    pub fn write(&mut self, model: &Model, most_blocks: usize) -> Tree {
        let items = items(model, most_blocks);
        let old = &self.bench.model;
        let mut changes: Changes = BTreeMap::new();
        for (key, value) in &items {
            if old.get(key) != Some(value) {
                changes.insert(*key, Some(value.clone()));
            }
        }
        let gone = old.keys().filter(|key| !items.contains_key(key));
        changes.extend(gone.map(|key| (*key, None)));
        self.bench.apply(changes);
        self.bench.tree
    }

    pub fn tree(&self, tree: Tree) -> FileTree<'_> {
        FileTree::new(&self.bench.index, tree, &self.geometry)
    }
}

pub fn raw_inode(model: &Model, ino: u64) -> RawInode {
    let node = &model.nodes[&ino];
    let dir = node.is(S_IFDIR);
    RawInode {
        mode: U32::new(node.mode),
        uid: U32::new(node.uid),
        nlink: U32::new(model.links(ino)),
        xattrs: U32::new(node.xattrs.len() as u32),
        size: U64::new(if dir {
            model.entries(ino) as u64
        } else {
            node.contents.size
        }),
        blocks: U64::new(node.contents.blocks.len() as u64),
        mtime: RawTime {
            secs: I64::new(node.mtime),
            nanos: U32::new(7),
        },
        next_index: U64::new(node.next_index),
        parent: U64::new(node.parent),
        ..RawInode::default()
    }
}

/// The items of a model; extents of at most `most_blocks` blocks.
fn items(model: &Model, most_blocks: usize) -> Items {
    let mut items = Items::new();
    let mut uses: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    for (ino, node) in &model.nodes {
        let inode = raw_inode(model, *ino);
        items.insert(Key::inode(*ino), inode.as_bytes().to_vec());
        if inode.nlink.get() == 0 {
            items.insert(Key::orphan(*ino), vec![ORPHAN_REMOVE]);
        }
        contents(&mut items, *ino, &node.contents, most_blocks);
        xattrs(&mut items, *ino, node, &mut uses);
    }
    for (value, uses) in uses {
        let place = place_of(&value);
        items.insert(place.key(), encode_shared_value(uses, &value));
        if is_apart(value.len()) {
            items.insert(place.bytes_key(), value);
        }
    }
    names(&mut items, model);
    items
}

fn names(items: &mut Items, model: &Model) {
    let mut hashed: BTreeMap<Key, Vec<u64>> = BTreeMap::new();
    for ((dir, name), (index, ino)) in &model.names {
        let entry = DirEntryRef {
            ino: *ino,
            kind: model.nodes[ino].mode & S_IFMT,
            name,
        };
        let key = Key::new(*dir, Kind::DirIndex, *index);
        let before = items.insert(key, encode_dir_entry(&entry).to_vec());
        assert!(before.is_none(), "an index used twice");
        let key = Key::new(*dir, Kind::DirName, name_hash(SEED, name));
        hashed.entry(key).or_default().push(*index);
    }
    items.extend(
        hashed
            .iter()
            .map(|(key, list)| (*key, encode_dir_name(list))),
    );
}

fn contents(items: &mut Items, ino: u64, contents: &Contents, most_blocks: usize) {
    if let Some(inline) = &contents.inline {
        items.insert(Key::new(ino, Kind::Inline, 0), inline.clone());
    }
    let mut run: Vec<(u64, u64, bool)> = Vec::new();
    let mut put = |run: &mut Vec<(u64, u64, bool)>| {
        let Some((first, block, written)) = run.first().copied() else {
            return;
        };
        let raw = RawExtent {
            block: U64::new(block),
            birth: U64::new(1),
            len: U32::new(run.len() as u32),
            flags: U32::new(if written { 0 } else { EXTENT_UNWRITTEN }),
        };
        let mut value = raw.as_bytes().to_vec();
        for (_, block, _) in run.drain(..).filter(|_| written) {
            value.extend_from_slice(&crc_of(block).to_le_bytes());
        }
        items.insert(Key::new(ino, Kind::Extent, first), value);
    };
    for (at, (block, written)) in &contents.blocks {
        let joins = run.last() == Some(&(at.wrapping_sub(1), block - 1, *written));
        if !joins || run.len() == most_blocks {
            put(&mut run);
        }
        run.push((*at, *block, *written));
    }
    put(&mut run);
}

fn place_of(value: &[u8]) -> SharedRef {
    SharedRef {
        hash: value_hash(SEED, value),
        slot: 0,
    }
}

fn xattrs(items: &mut Items, ino: u64, node: &Node, uses: &mut BTreeMap<Vec<u8>, u64>) {
    for (name, value) in &node.xattrs {
        // Two names of one hash share an item.
        let hash = name_hash(SEED, name) % 3;
        let item = items.entry(Key::new(ino, Kind::Xattr, hash)).or_default();
        let stored = if value.len() > MAX_OWN_VALUE {
            *uses.entry(value.clone()).or_default() += 1;
            StoredValue::Shared(place_of(value))
        } else {
            StoredValue::Own(value)
        };
        encode_stored_xattr(item, name, &stored);
    }
}
