//! A model of a tree of files, and random changes of it.
//!
//! A model knows files, names, attributes and the places of data blocks, so that two models can be
//! compared in the plainest way. Model files are small; their blocks have places that are never
//! used again, as those of a copy-on-write volume with snapshots.

use std::collections::{BTreeMap, BTreeSet};

use cairnfs_disk::format::item::{FIRST_DIR_INDEX, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use cairnfs_disk::format::{BLOCK_SIZE, FIRST_USER_INO, MAX_INLINE, ROOT_INO};

/// Random numbers that depend on a seed only.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end.max(1)
    }

    pub fn of<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        let at = self.below(list.len());
        list.get(at).copied()
    }
}

/// Contents of a file or a symbolic link.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Contents {
    pub size: u64,
    /// Bytes of a small file or a symbolic link.
    pub inline: Option<Vec<u8>>,
    /// File block to place; `false` in the second field for an unwritten block.
    pub blocks: BTreeMap<u64, (u64, bool)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub mode: u32,
    pub uid: u32,
    pub mtime: i64,
    pub parent: u64,
    pub contents: Contents,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub next_index: u64,
}

impl Node {
    pub fn is(&self, kind: u32) -> bool {
        self.mode & S_IFMT == kind
    }
}

/// A tree of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    pub nodes: BTreeMap<u64, Node>,
    /// Directory and name to index and inode.
    pub names: BTreeMap<(u64, Vec<u8>), (u64, u64)>,
}

/// Numbers that all models of one volume share.
pub struct Counters {
    pub next_ino: u64,
    pub next_block: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            next_ino: FIRST_USER_INO,
            next_block: 1 << 18,
        }
    }
}

impl Default for Model {
    fn default() -> Self {
        Self {
            nodes: BTreeMap::from([(ROOT_INO, node(S_IFDIR | 0o755, ROOT_INO))]),
            names: BTreeMap::new(),
        }
    }
}

pub fn node(mode: u32, parent: u64) -> Node {
    Node {
        mode,
        uid: 0,
        mtime: 0,
        parent,
        contents: Contents::default(),
        xattrs: BTreeMap::new(),
        next_index: if mode & S_IFMT == S_IFDIR {
            FIRST_DIR_INDEX
        } else {
            0
        },
    }
}

impl Model {
    pub fn inodes(&self, kind: u32) -> Vec<u64> {
        let of_kind = self.nodes.iter().filter(|(_, n)| n.is(kind));
        of_kind.map(|(ino, _)| *ino).collect()
    }

    pub fn links(&self, ino: u64) -> u32 {
        if self.nodes[&ino].is(S_IFDIR) {
            let below = self.names.iter().filter(|((dir, _), _)| *dir == ino);
            let dirs = below.filter(|(_, (_, child))| self.nodes[child].is(S_IFDIR));
            return 2 + dirs.count() as u32;
        }
        self.names.values().filter(|(_, i)| *i == ino).count() as u32
    }

    pub fn entries(&self, dir: u64) -> usize {
        self.names.keys().filter(|(d, _)| *d == dir).count()
    }

    /// Whether `dir` is `ino` or below it.
    pub fn is_below(&self, dir: u64, ino: u64) -> bool {
        let mut at = dir;
        while at != ino && at != ROOT_INO {
            at = self.nodes[&at].parent;
        }
        at == ino
    }

    pub fn link(&mut self, dir: u64, name: Vec<u8>, ino: u64) {
        let node = self.nodes.get_mut(&dir).unwrap();
        let index = node.next_index;
        node.next_index += 1;
        self.names.insert((dir, name), (index, ino));
        self.nodes.get_mut(&ino).unwrap().parent = dir;
    }

    /// Removes a name, and the inode with its last name unless it stays open.
    pub fn unlink(&mut self, dir: u64, name: &[u8], open: bool) {
        let (_, ino) = self.names.remove(&(dir, name.to_vec())).unwrap();
        let named = self.names.values().any(|(_, i)| *i == ino);
        let stays = open && !self.nodes[&ino].is(S_IFDIR);
        if !named && !stays {
            self.nodes.remove(&ino);
        }
    }

    pub fn write(&mut self, counters: &mut Counters, ino: u64, offset: u64, bytes: &[u8]) {
        let contents = &mut self.nodes.get_mut(&ino).unwrap().contents;
        let end = offset + bytes.len() as u64;
        contents.size = contents.size.max(end);
        if contents.blocks.is_empty() && contents.size <= MAX_INLINE as u64 {
            let inline = contents.inline.get_or_insert_default();
            inline.resize(contents.size as usize, 0);
            inline[offset as usize..end as usize].copy_from_slice(bytes);
            return;
        }
        if contents.inline.take().is_some() {
            contents.blocks.insert(0, (counters.take(), true));
        }
        for block in offset / BLOCK_SIZE as u64..end.div_ceil(BLOCK_SIZE as u64) {
            contents.blocks.insert(block, (counters.take(), true));
        }
    }

    pub fn truncate(&mut self, ino: u64, size: u64) {
        let contents = &mut self.nodes.get_mut(&ino).unwrap().contents;
        if let Some(inline) = &mut contents.inline {
            inline.resize(size.min(MAX_INLINE as u64) as usize, 0);
            contents.size = inline.len() as u64;
            return;
        }
        contents.size = size;
        contents
            .blocks
            .retain(|block, _| block * (BLOCK_SIZE as u64) < size);
    }

    /// One random change.
    pub fn change(&mut self, counters: &mut Counters, random: &mut Random) {
        let dirs = self.inodes(S_IFDIR);
        let files = self.inodes(S_IFREG);
        let dir = random.of(&dirs).unwrap();
        let name = format!("n{}", random.below(12)).into_bytes();
        let names: Vec<(u64, Vec<u8>)> = self.names.keys().cloned().collect();
        let named = names.get(random.below(names.len())).cloned();
        let file = random.of(&files);
        let any = *self
            .nodes
            .keys()
            .nth(random.below(self.nodes.len()))
            .unwrap();
        match (random.below(16), file, named) {
            (0..=3, _, _) if !self.names.contains_key(&(dir, name.clone())) => {
                let kind = [S_IFREG, S_IFREG, S_IFDIR, S_IFLNK][random.below(4)];
                let ino = counters.ino();
                self.nodes.insert(ino, node(kind | 0o644, dir));
                if kind == S_IFLNK {
                    let target = format!("to{ino}").into_bytes();
                    let contents = &mut self.nodes.get_mut(&ino).unwrap().contents;
                    contents.size = target.len() as u64;
                    contents.inline = Some(target);
                }
                // Some files have no name: open ones that were never linked.
                if kind != S_IFREG || random.below(12) > 0 {
                    self.link(dir, name, ino);
                }
            }
            (4, _, Some((dir, name))) => {
                let ino = self.names[&(dir, name.clone())].1;
                if self.entries(ino) == 0 {
                    self.unlink(dir, &name, random.below(3) == 0);
                }
            }
            (5 | 6, _, Some(from)) => self.rename(&from, (dir, name)),
            (7, Some(file), _) if !self.names.contains_key(&(dir, name.clone())) => {
                self.link(dir, name, file);
            }
            (8 | 9, Some(file), _) => {
                let offset = [0, 10, 5000, 20_000][random.below(4)];
                let len = [5, 1000, 4096, 9000][random.below(4)];
                let bytes = vec![random.below(256) as u8; len];
                self.write(counters, file, offset, &bytes);
            }
            (10, Some(file), _) => self.truncate(file, random.below(30_000) as u64),
            (11, _, _) => self.nodes.get_mut(&any).unwrap().mode ^= 1 << random.below(9),
            (12, _, _) => self.nodes.get_mut(&any).unwrap().uid = random.below(5) as u32,
            (13, _, _) => self.nodes.get_mut(&any).unwrap().mtime = random.below(1000) as i64,
            (14, _, _) => {
                let len = [0, 3, 64, 65, 400, 5000][random.below(6)];
                let value = vec![random.below(3) as u8; len];
                let name = format!("user.{}", random.below(4)).into_bytes();
                self.nodes.get_mut(&any).unwrap().xattrs.insert(name, value);
            }
            (15, _, _) => {
                let name = format!("user.{}", random.below(4)).into_bytes();
                self.nodes.get_mut(&any).unwrap().xattrs.remove(&name);
            }
            _ => {}
        }
    }

    fn rename(&mut self, from: &(u64, Vec<u8>), to: (u64, Vec<u8>)) {
        let (index, ino) = self.names[from];
        let is_dir = self.nodes[&ino].is(S_IFDIR);
        let over = self.names.get(&to).copied();
        let fits = over
            .is_none_or(|(_, other)| other != ino && !is_dir && !self.nodes[&other].is(S_IFDIR));
        if is_dir && self.is_below(to.0, ino) || !fits {
            return;
        }
        if let Some((index, _)) = over {
            self.unlink(to.0, &to.1, false);
            self.names.remove(from);
            self.names.insert(to.clone(), (index, ino));
        } else if from.0 == to.0 {
            self.names.remove(from);
            self.names.insert(to.clone(), (index, ino));
        } else {
            self.names.remove(from);
            self.link(to.0, to.1.clone(), ino);
        }
        // The hint of a file with several names may name another directory than its own.
        self.nodes.get_mut(&ino).unwrap().parent = to.0;
    }

    /// The path of a name.
    pub fn path(&self, dir: u64, name: &[u8]) -> Vec<u8> {
        let mut parts = vec![name.to_vec()];
        let mut at = dir;
        while at != ROOT_INO {
            let ((above, name), _) = self.names.iter().find(|(_, (_, i))| *i == at).unwrap();
            parts.push(name.clone());
            at = *above;
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// All names of an inode.
    pub fn names_of(&self, ino: u64) -> BTreeSet<(u64, Vec<u8>)> {
        let named = self.names.iter().filter(|(_, (_, i))| *i == ino);
        named.map(|(name, _)| name.clone()).collect()
    }
}

impl Counters {
    pub fn take(&mut self) -> u64 {
        // Some neighbours, so that extents have more than one block.
        self.next_block += if self.next_block % 5 == 4 { 2 } else { 1 };
        self.next_block
    }

    pub fn ino(&mut self) -> u64 {
        self.next_ino += 1;
        self.next_ino
    }
}
