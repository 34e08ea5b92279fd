//! The contents of a test's volume, and how the codecs of the format alone make an image of it.
//!
//! The parts of a [`Plan`] that a test does not change are sound.

use std::collections::BTreeMap;

use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::checksum::{crc, name_hash};
use cairnfs_disk::format::item::*;
use cairnfs_disk::format::key::{Key, Kind, MAIN_ROOT};
use cairnfs_disk::format::node::{CellValue, MAX_CELL_VALUE, NodeBuilder, RawOverflow};
use cairnfs_disk::format::pointer::RawPtr;
use cairnfs_disk::format::record::{FLAG_LAST, FLAG_MOUNT};
use cairnfs_disk::format::root::{RawRoot, Root, RootState};
use cairnfs_disk::format::superblock::{ROOTS, Superblock};
use cairnfs_disk::format::xattr::*;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::image::{Image, MERGED, SEED, TAIL, UUID, contents, data_block};

const NONCE: u64 = 77;
const LEAF_CELLS: usize = 6;

/// A change in the log.
#[derive(Clone)]
pub struct Change {
    pub root: u32,
    pub key: Key,
    pub delete: bool,
    pub value: Vec<u8>,
}

/// A log record.
#[derive(Clone)]
pub struct Rec {
    pub seq: u64,
    pub part: u32,
    pub flags: u32,
    pub nonce: u64,
    pub durable: u64,
    pub generation: u64,
    pub changes: Vec<Change>,
}

pub type NodeHook = Box<dyn Fn(u8, usize, &mut Vec<u8>, &mut RawPtr)>;
pub type CellHook = fn(key: &Key, overflow: &mut RawOverflow);

/// Changes the items of the main root and of its snapshot, and the superblock.
pub type Fork = fn(&mut Root, &mut Root, &mut Superblock);

/// The contents of a volume.
pub struct Plan {
    pub items: BTreeMap<Key, Vec<u8>>,
    pub roots: BTreeMap<Key, Vec<u8>>,
    pub no_main_root: bool,
    /// Makes a snapshot of the files, root 2, at the given boundary; changes both root items.
    pub fork: Option<(u64, Fork)>,
    pub log: Vec<Rec>,
    /// Changes each node of the files' tree, by level and index within the level, before its
    /// checksum is computed.
    pub node_hook: Option<NodeHook>,
    /// Changes the address of each large value.
    pub cell_hook: Option<CellHook>,
}

pub fn put(key: Key, value: Vec<u8>) -> Change {
    Change {
        root: MAIN_ROOT,
        key,
        delete: false,
        value,
    }
}

pub fn delete(key: Key, value: Vec<u8>) -> Change {
    Change {
        delete: true,
        ..put(key, value)
    }
}

pub fn inode(mode: u32, nlink: u32, size: u64) -> RawInode {
    RawInode {
        mode: U32::new(mode | 0o644),
        nlink: U32::new(nlink),
        size: U64::new(size),
        parent: U64::new(ROOT_INO),
        next_index: U64::new(if mode == S_IFDIR { 10 } else { 0 }),
        ..Default::default()
    }
}

pub fn entry(ino: u64, kind: u32, name: &str) -> Vec<u8> {
    let name = name.as_bytes();
    encode_dir_entry(&DirEntryRef { ino, kind, name }).into_vec()
}

pub fn index_key(dir: u64, index: u64) -> Key {
    Key::new(dir, Kind::DirIndex, index)
}

pub fn name_key(dir: u64, name: &str) -> Key {
    Key::new(dir, Kind::DirName, name_hash(SEED, name.as_bytes()))
}

pub fn xattr_key(ino: u64, name: &str) -> Key {
    Key::new(ino, Kind::Xattr, name_hash(SEED, name.as_bytes()))
}

/// An attribute as it is stored in the log.
pub fn xattr(name: &str, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let name = name.as_bytes();
    encode_xattr(&mut out, &XattrRef { name, value });
    out
}

/// An attribute as it is stored in the index.
pub fn stored(name: &str, value: StoredValue<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    encode_stored_xattr(&mut out, name.as_bytes(), &value);
    out
}

/// An attribute as it is stored in the index, with its own value.
pub fn own(name: &str, value: &[u8]) -> Vec<u8> {
    stored(name, StoredValue::Own(value))
}

/// The attributes of an item of the index as they are stored in the log.
pub fn logged(item: &[u8]) -> Vec<u8> {
    let list = decode_stored_xattrs(item).unwrap();
    let logged = list.iter().map(|x| {
        let value = match x.value {
            StoredValue::Own(value) => value,
            StoredValue::Shared(_) => &BIG,
        };
        xattr(std::str::from_utf8(&x.name()).unwrap(), value)
    });
    logged.collect::<Vec<_>>().concat()
}

/// The value that attributes of the base volume share.
pub static BIG: [u8; 20_000] = [9; 20_000];

pub fn big() -> SharedRef {
    let hash = value_hash(SEED, &BIG);
    SharedRef { hash, slot: 0 }
}

/// A written extent of `len` blocks from the `i`-th data block.
pub fn extent(i: u64, len: u32, birth: u64) -> Vec<u8> {
    let raw = RawExtent {
        block: U64::new(data_block(i)),
        birth: U64::new(birth),
        len: U32::new(len),
        flags: U32::new(0),
    };
    let mut value = raw.as_bytes().to_vec();
    for k in 0..u64::from(len) {
        value.extend_from_slice(&crc(&contents(i + k)).to_le_bytes());
    }
    value
}

pub fn unwritten(i: u64, len: u32) -> Vec<u8> {
    let mut value = extent(i, len, 1);
    value.truncate(size_of::<RawExtent>());
    value[20] = EXTENT_UNWRITTEN as u8;
    value
}

pub fn extent_key(ino: u64, at: u64) -> Key {
    Key::new(ino, Kind::Extent, at)
}

impl Plan {
    /// A small volume with all kinds of items, and a log that creates, changes and removes:
    ///
    /// ```text
    /// /file   16  two written blocks, three unwritten behind the end, small and shared attributes
    /// /dir    17  /dir/link 18 -> "target", /dir/hard 19
    /// /small  19  inline, an attribute with the value that /file has
    /// /pipe   20  removed by the log
    ///         21  orphan to be removed
    /// /new    22  made by the log, one block
    /// ```
    pub fn base() -> Self {
        let mut plan = Plan {
            items: BTreeMap::new(),
            roots: BTreeMap::new(),
            no_main_root: false,
            fork: None,
            log: Vec::new(),
            node_hook: None,
            cell_hook: None,
        };
        plan.inode(1, inode(S_IFDIR, 3, 4));
        plan.inode(
            16,
            RawInode {
                blocks: U64::new(5),
                xattrs: U32::new(2),
                ..inode(S_IFREG, 1, 5000)
            },
        );
        plan.items
            .insert(xattr_key(16, "user.a"), own("user.a", b"1"));
        for (ino, name) in [(16, "user.big"), (19, "user.same")] {
            let item = stored(name, StoredValue::Shared(big()));
            plan.items.insert(xattr_key(ino, name), item);
        }
        plan.items.insert(big().key(), encode_shared_value(2, &BIG));
        plan.items.insert(big().bytes_key(), BIG.to_vec());
        plan.items.insert(extent_key(16, 0), extent(0, 2, 3));
        plan.items.insert(extent_key(16, 2), unwritten(10, 3));
        plan.inode(17, inode(S_IFDIR, 2, 2));
        plan.inode(18, inode(S_IFLNK, 1, 6));
        plan.items
            .insert(Key::new(18, Kind::Inline, 0), b"target".to_vec());
        plan.inode(
            19,
            RawInode {
                xattrs: U32::new(1),
                ..inode(S_IFREG, 2, 5)
            },
        );
        plan.items
            .insert(Key::new(19, Kind::Inline, 0), b"hello".to_vec());
        plan.inode(20, inode(S_IFIFO, 1, 0));
        plan.inode(21, inode(S_IFREG, 0, 0));
        plan.items.insert(Key::orphan(21), vec![ORPHAN_REMOVE]);
        plan.entry(1, 3, "file", 16, S_IFREG);
        plan.entry(1, 4, "dir", 17, S_IFDIR);
        plan.entry(1, 5, "small", 19, S_IFREG);
        plan.entry(1, 6, "pipe", 20, S_IFIFO);
        plan.entry(17, 3, "link", 18, S_IFLNK);
        plan.entry(17, 4, "hard", 19, S_IFREG);
        plan.base_log();
        plan
    }

    fn base_log(&mut self) {
        let mount = Rec {
            seq: 5,
            part: 0,
            flags: FLAG_MOUNT | FLAG_LAST,
            nonce: NONCE,
            durable: TAIL,
            generation: 8,
            changes: Vec::new(),
        };
        let first = Rec {
            seq: 6,
            flags: 0,
            changes: vec![
                delete(
                    index_key(1, 6),
                    name_hash(SEED, b"pipe").to_le_bytes().to_vec(),
                ),
                delete(Key::inode(20), vec![]),
                put(index_key(1, 7), entry(22, S_IFREG, "new")),
            ],
            ..mount.clone()
        };
        let new = RawInode {
            blocks: U64::new(1),
            ..inode(S_IFREG, 1, 100)
        };
        let second = Rec {
            part: 1,
            flags: FLAG_LAST,
            changes: vec![
                put(Key::inode(22), new.as_bytes().to_vec()),
                put(extent_key(22, 0), extent(20, 1, 6)),
                put(Key::inode(1), inode(S_IFDIR, 3, 4).as_bytes().to_vec()),
                put(Key::new(19, Kind::Inline, 0), b"HELLO".to_vec()),
            ],
            ..first.clone()
        };
        self.log = vec![mount, first, second];
    }

    pub fn inode(&mut self, ino: u64, raw: RawInode) {
        self.items.insert(Key::inode(ino), raw.as_bytes().to_vec());
    }

    /// Changes an inode of the index.
    pub fn edit(&mut self, ino: u64, change: impl FnOnce(&mut RawInode)) {
        let mut raw = decode_inode(&self.items[&Key::inode(ino)]).unwrap();
        change(&mut raw);
        self.inode(ino, raw);
    }

    /// Adds an entry and its name item.
    pub fn entry(&mut self, dir: u64, index: u64, name: &str, ino: u64, kind: u32) {
        self.items
            .insert(index_key(dir, index), entry(ino, kind, name));
        let names = self.items.entry(name_key(dir, name)).or_default();
        names.extend_from_slice(&index.to_le_bytes());
    }

    /// Adds a record that is a context of its own.
    pub fn context(&mut self, changes: Vec<Change>) {
        let last = self.log.last().unwrap().clone();
        self.log.push(Rec {
            seq: last.seq + 1,
            part: 0,
            flags: FLAG_LAST,
            changes,
            ..last
        });
    }

    pub fn build(&self) -> Image {
        let mut image = Image::empty();
        for i in 0..30 {
            image.write(data_block(i), &contents(i));
        }
        for (key, value) in &self.items {
            if let (Kind::Extent, Ok((raw, _))) = (key.kind, decode_extent(value)) {
                image.mark(raw.block.get(), raw.len.get().into());
            }
        }
        let (ptr, height) = self.tree(&self.items, &mut image);
        let root = RawRoot {
            ptr,
            height: U32::new(height),
            birth: U64::new(1),
        };
        let mut roots = self.roots.clone();
        if let Some((boundary, change)) = self.fork {
            let nodes = image.nodes.len() as u64;
            let mut main = Root {
                parent: 2,
                nodes,
                ..Root::main(root)
            };
            let mut frozen = Root {
                tree: root,
                state: RootState::Frozen,
                boundary,
                origin: MAIN_ROOT,
                nodes,
                name: "frozen".into(),
                ..Root::default()
            };
            image.superblock.incompatible = U64::new(ROOTS);
            image.superblock.next_root = U32::new(3);
            change(&mut main, &mut frozen, &mut image.superblock);
            for (id, root) in [(1, main), (2, frozen)] {
                roots.insert(Key::new(id, Kind::Root, 0), root.encode());
            }
        }
        if !self.no_main_root {
            roots
                .entry(Key::new(u64::from(MAIN_ROOT), Kind::Root, 0))
                .or_insert_with(|| root.as_bytes().to_vec());
        }
        let volume_plan = Plan {
            node_hook: None,
            ..Plan::base()
        };
        image.nodes_done = true;
        let (ptr, height) = volume_plan.tree(&roots, &mut image);
        image.superblock.root = ptr;
        image.superblock.root_height = U32::new(height);
        image.write_log(&self.log);
        image.write_bitmaps();
        image.write_superblock();
        image
    }

    /// Writes a tree, leaves first.
    fn tree(&self, items: &BTreeMap<Key, Vec<u8>>, image: &mut Image) -> (RawPtr, u32) {
        let mut children: Vec<(Key, RawPtr)> = Vec::new();
        let mut builder = NodeBuilder::new();
        for (key, value) in items {
            if builder.len() == LEAF_CELLS {
                children.push(self.node(&mut builder, 0, children.len(), image));
            }
            let pushed = if value.len() > MAX_CELL_VALUE {
                let mut at = image.overflow(value);
                if let Some(hook) = self.cell_hook {
                    hook(key, &mut at);
                }
                builder.push(key, CellValue::Overflow(at))
            } else {
                builder.push(key, CellValue::Inline(value))
            };
            assert!(pushed, "a test's leaf is full");
        }
        if !builder.is_empty() {
            children.push(self.node(&mut builder, 0, children.len(), image));
        }
        let mut height = u32::from(!children.is_empty());
        while children.len() > 1 {
            let mut parents = Vec::new();
            for group in children.chunks(3) {
                for (key, ptr) in group {
                    assert!(builder.push_child(key, ptr));
                }
                parents.push(self.node(&mut builder, height as u8, parents.len(), image));
            }
            children = parents;
            height += 1;
        }
        (children.first().map_or(RawPtr::default(), |c| c.1), height)
    }

    fn node(
        &self,
        builder: &mut NodeBuilder,
        level: u8,
        nth: usize,
        image: &mut Image,
    ) -> (Key, RawPtr) {
        let key = builder.first_key().unwrap();
        let block = image.allocate_node();
        let volume = u64::from_le_bytes(UUID[..8].try_into().unwrap());
        let (mut bytes, mut ptr) = builder.finish(level, block, MERGED, volume);
        if let Some(hook) = &self.node_hook {
            hook(level, nth, &mut bytes, &mut ptr);
            ptr.crc = U32::new(crc(&bytes));
        }
        image.write(block, &bytes);
        if !image.nodes_done {
            image.nodes.push((level, block));
        }
        (key, ptr)
    }
}
