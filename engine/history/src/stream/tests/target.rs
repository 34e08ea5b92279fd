//! A tree in memory that receives streams.

use std::collections::{BTreeMap, BTreeSet};

use crate::diff::FileTree;
use crate::diff::tests::model::Model;
use crate::diff::tests::volume::Numbered;
use crate::stream::{Target, receive};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::item::{S_IFDIR, S_IFLNK, S_IFREG};
use cairnfs_disk::format::stream::{RawBegin, RawStreamInode, Record};
use cairnfs_disk::types::FileKind;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    pub raw: RawStreamInode,
    pub contents: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryTree {
    pub nodes: BTreeMap<u64, Node>,
    pub names: BTreeMap<(u64, Vec<u8>), u64>,
}

impl Default for MemoryTree {
    fn default() -> Self {
        let mut root = Node::default();
        root.raw.ino = ROOT_INO.into();
        root.raw.mode = (S_IFDIR | 0o755).into();
        Self {
            nodes: BTreeMap::from([(ROOT_INO, root)]),
            names: BTreeMap::new(),
        }
    }
}

impl MemoryTree {
    pub fn received(bytes: &[u8], base: &Self) -> Result<Self> {
        let mut tree = base.clone();
        receive(bytes, &mut tree)?;
        Ok(tree)
    }

    /// What receiving `tree`, the tree of `model`, must make.
    pub fn of(model: &Model, tree: FileTree<'_>) -> Self {
        let mut made = Self {
            nodes: BTreeMap::new(),
            names: BTreeMap::new(),
        };
        for ((dir, name), (_, ino)) in &model.names {
            made.names.insert((*dir, name.clone()), *ino);
        }
        let named: BTreeSet<u64> = made.names.values().copied().chain([ROOT_INO]).collect();
        for ino in named {
            let raw = RawStreamInode::of(ino, &tree.inode(ino).unwrap().unwrap());
            let mut contents = vec![0; raw.size.get() as usize];
            tree.read(&Numbered, ino, 0, &mut contents).unwrap();
            let xattrs = model.nodes[&ino].xattrs.clone();
            let node = Node {
                raw,
                contents,
                xattrs,
            };
            made.nodes.insert(ino, node);
        }
        made
    }

    fn node(&mut self, ino: u64) -> &mut Node {
        self.nodes.get_mut(&ino).unwrap()
    }
}

impl Target for MemoryTree {
    fn kind(&self, ino: u64) -> Result<Option<FileKind>> {
        let mode = self.nodes.get(&ino).map(|n| n.raw.mode.get());
        Ok(mode.and_then(FileKind::from_mode))
    }

    fn size(&self, ino: u64) -> Result<u64> {
        Ok(self.nodes[&ino].raw.size.get())
    }

    fn names(&self, ino: u64) -> Result<u64> {
        Ok(self.names.values().filter(|i| **i == ino).count() as u64)
    }

    fn parent(&self, dir: u64) -> Result<Option<u64>> {
        let mut names = self.names.iter().filter(|(_, ino)| **ino == dir);
        Ok(names.next().map(|((above, _), _)| *above))
    }

    fn holder(&self, dir: u64, name: &[u8]) -> Result<Option<u64>> {
        Ok(self.names.get(&(dir, name.to_vec())).copied())
    }

    fn is_empty(&self, dir: u64) -> Result<bool> {
        Ok(!self.names.keys().any(|(d, _)| *d == dir))
    }

    fn begin(&mut self, _: &RawBegin) -> Result<()> {
        Ok(())
    }

    fn apply(&mut self, record: &Record<'_>) -> Result<()> {
        match *record {
            Record::Begin(_) | Record::Origin(_) | Record::End(_) => {}
            Record::Create(raw) => {
                let contents = vec![0; raw.size.get().min(1 << 20) as usize];
                let node = Node {
                    raw,
                    contents,
                    xattrs: BTreeMap::new(),
                };
                self.nodes.insert(raw.ino.get(), node);
            }
            Record::Change(raw) => {
                let node = self.node(raw.ino.get());
                node.raw = raw;
                node.contents.resize(raw.size.get() as usize, 0);
            }
            Record::Xattr { ino, name, value } => {
                let xattrs = &mut self.node(ino).xattrs;
                match value {
                    Some(value) => xattrs.insert(name.to_vec(), value.to_vec()),
                    None => xattrs.remove(name),
                };
            }
            Record::Data { ino, offset, bytes } => {
                let range = offset as usize..offset as usize + bytes.len();
                self.node(ino).contents[range].copy_from_slice(bytes);
            }
            Record::Zero { ino, offset, len } => {
                self.node(ino).contents[offset as usize..(offset + len) as usize].fill(0);
            }
            Record::Unlink { dir, name, .. } => {
                self.names.remove(&(dir, name.to_vec()));
            }
            Record::Link { dir, ino, name } => {
                self.names.insert((dir, name.to_vec()), ino);
            }
            Record::Remove { ino } => {
                self.nodes.remove(&ino);
            }
        }
        Ok(())
    }
}

pub fn inode(ino: u64, mode: u32, size: u64) -> RawStreamInode {
    RawStreamInode {
        ino: ino.into(),
        mode: mode.into(),
        size: size.into(),
        ..RawStreamInode::default()
    }
}

/// A small valid stream's records: a directory with a file, a link to it, and a symbolic link.
pub fn sound() -> Vec<Record<'static>> {
    let name = |dir, ino, name| Record::Link { dir, ino, name };
    vec![
        Record::Change(inode(ROOT_INO, S_IFDIR | 0o700, 0)),
        Record::Create(inode(20, S_IFDIR | 0o755, 0)),
        Record::Create(inode(21, S_IFREG | 0o644, 9)),
        Record::Xattr {
            ino: 21,
            name: b"user.a",
            value: Some(b"value"),
        },
        Record::Data {
            ino: 21,
            offset: 0,
            bytes: b"four",
        },
        Record::Zero {
            ino: 21,
            offset: 4,
            len: 5,
        },
        Record::Create(inode(22, S_IFLNK | 0o777, 4)),
        Record::Data {
            ino: 22,
            offset: 0,
            bytes: b"file",
        },
        name(ROOT_INO, 20, b"dir"),
        name(20, 21, b"file"),
        name(20, 21, b"again"),
        name(20, 22, b"link"),
    ]
}
