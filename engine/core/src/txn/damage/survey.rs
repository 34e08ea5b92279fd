//! What the readable items of a tree need to be sound without those that are hidden.
//!
//! Two scans over all items that can be read. The first finds the inodes, the missing parts of
//! their contents, and the shared values. The second sees for each entry whether its inode is there, for
//! each attribute whether its value is, and counts. What follows is a list of edits. Memory: about
//! 40 bytes for each inode, and what is damaged.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::index::{Edits, Found, Tree, Unread};
use crate::inode::attrs::Attrs;
use crate::txn::Core;
use crate::txn::damage::parted::{Contents, Parted};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::item::{
    DirEntryRef, ORPHAN_REMOVE, RawInode, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, decode_dir_entry,
    decode_dir_name, decode_extent_at, decode_inode, encode_dir_entry, encode_dir_name,
};
use cairnfs_disk::format::key::{Key, Kind, ORPHANS, SHARED_BYTES, SHARED_VALUES};
use cairnfs_disk::format::xattr::{
    StoredValue, bytes_key, decode_shared_bytes, decode_shared_value, decode_stored_xattrs,
    encode_shared_value, encode_stored_xattr, shared_key,
};
use cairnfs_disk::format::{MAX_COUNTER, MAX_INLINE, ROOT_INO};
use cairnfs_disk::types::Loss;

/// The directory for what has lost its name.
const LOST_FOUND: &[u8] = b"lost+found";
/// Inodes have numbers from here on, except the root directory.
const FIRST_INO: u64 = 16;

/// The edits of a tree: new values, `None` for items that go. Keys of damaged nodes are among them.
#[derive(Default)]
pub(super) struct Changes(BTreeMap<Key, Option<Vec<u8>>>);

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Edits for Changes {
    fn peek(&mut self) -> Result<Option<Key>> {
        Ok(self.0.first_key_value().map(|(key, _)| *key))
    }

    fn take(&mut self, _: &Key, _: Option<&[u8]>) -> Result<Option<Cow<'_, [u8]>>> {
        Ok(self
            .0
            .pop_first()
            .and_then(|(_, value)| value)
            .map(Cow::Owned))
    }
}

/// What a survey of a head has found.
#[derive(Default)]
pub(super) struct Repair {
    pub edits: Changes,
    /// The first block of each damaged node and large value.
    pub nodes: Vec<u64>,
    pub losses: Vec<Loss>,
}

/// An inode.
struct Node {
    ino: u64,
    /// The directory that it records as its parent, and then the one that holds its entry.
    parent: u64,
    nlink: u32,
    kind: u32,
    /// Entries that lead to it.
    links: u32,
    /// Entries of it that are directories.
    subdirs: u32,
    /// Whether contents are missing.
    torn: bool,
    /// Whether its inode item is missing, and is made anew.
    made: bool,
}

/// A shared value.
#[derive(Default)]
struct Shared {
    stored: u64,
    counted: u64,
    /// Whether there is the item with the count.
    item: bool,
    /// Whether the value is in an item of its own.
    apart: bool,
    bytes: bool,
}

impl Shared {
    fn is_whole(&self) -> bool {
        self.bytes || (self.item && !self.apart)
    }
}

/// Indexes of the entries of a directory, by the hashes of their names.
type Names = BTreeMap<u64, Vec<u64>>;

/// A survey of a tree.
pub(super) struct Survey<'a> {
    core: &'a Core,
    tree: Tree,
    /// Ascending.
    nodes: Vec<Node>,
    shared: HashMap<u64, Shared>,
    orphans: BTreeMap<u64, u8>,
    /// The names of the root directory and of the one for what was found.
    names: HashMap<u64, Names>,
    lost_found: Option<u64>,
    found: Repair,
}

impl<'a> Survey<'a> {
    /// Scans all inodes of the tree, of which some may have been cut out as that of the head `root`.
    ///
    /// # Errors
    /// Damage of the root node; the device's failure.
    pub fn of(core: &'a Core, (root, tree): (u32, Tree)) -> Result<Self> {
        let mut survey = Self {
            core,
            tree,
            nodes: Vec::new(),
            shared: HashMap::new(),
            orphans: BTreeMap::new(),
            names: HashMap::new(),
            lost_found: None,
            found: Repair::default(),
        };
        let mut parted = Parted::cut(root, &core.cuts);
        let mut at: Option<Contents> = None;
        let whole = (&Key::first_of(0), &Key::last_of(u64::MAX));
        core.index.scan_readable(&tree, whole, &mut |found| {
            match found {
                Found::Unread(unread) => survey.note_unread(unread, &mut parted)?,
                Found::Item(key, value) if is_inode(key.object) => {
                    if at.as_ref().is_none_or(|at| at.ino != key.object) {
                        survey.end_contents(at.take(), &parted);
                    }
                    let contents = at.get_or_insert_with(|| Contents::new(key.object));
                    contents.note(key, value, &core.geometry);
                }
                Found::Item(key, value) => survey.note_shared(key, value),
            }
            Ok(true)
        })?;
        survey.end_contents(at, &parted);
        if parted.is_whole() {
            survey.found.losses.push(Loss::Tree);
        }
        Ok(survey)
    }

    /// The edits, and what they remove.
    pub fn end(self) -> Repair {
        self.found
    }

    fn edit(&mut self, key: Key, value: Option<Vec<u8>>) {
        self.found.edits.0.insert(key, value);
    }

    fn note_unread(&mut self, unread: Unread, parted: &mut Parted) -> Result<()> {
        let Error::Corrupt(damage) = &unread.error else {
            return Err(unread.error);
        };
        if unread.node.is_some_and(|ptr| ptr == self.tree.ptr) {
            return Err(unread.error);
        }
        self.found.nodes.push(damage.block);
        // The edits lead to the node, or remove the cell of the value.
        self.edit(unread.first, None);
        parted.hide(&unread);
        Ok(())
    }

    fn note_shared(&mut self, key: &Key, value: &[u8]) {
        match (key.object, key.kind) {
            (ORPHANS, Kind::Orphan) => {
                let mark = value.first().copied().unwrap_or_default();
                self.orphans.insert(key.offset, mark);
            }
            (SHARED_VALUES, Kind::SharedValue) => {
                if let Ok((uses, bytes)) = decode_shared_value(value) {
                    let shared = self.shared.entry(key.offset).or_default();
                    (shared.stored, shared.item) = (uses, true);
                    shared.apart = bytes.is_none();
                }
            }
            (SHARED_BYTES, Kind::SharedValue) => {
                let shared = self.shared.entry(key.offset).or_default();
                shared.bytes = decode_shared_bytes(value).is_ok();
                shared.apart = true;
            }
            _ => {}
        }
    }

    /// Decides what becomes of an inode.
    fn end_contents(&mut self, contents: Option<Contents>, parted: &Parted) {
        let Some(contents) = contents else { return };
        let ino = contents.ino;
        let (raw, made) = match contents.raw {
            Some(raw) => (raw, false),
            None if contents.entries => (RawInode::default(), true),
            None => return self.remove_inode(contents.keys),
        };
        let kind = if made {
            S_IFDIR
        } else {
            raw.mode.get() & S_IFMT
        };
        let hidden = parted.hides(&Key::new(ino, Kind::Inline, 0));
        let small = (1..=MAX_INLINE as u64).contains(&raw.size.get());
        let torn = match kind {
            S_IFLNK if !contents.inline => return self.remove_inode(contents.keys),
            S_IFREG => {
                let no_inline = !contents.inline && raw.blocks.get() == 0 && small && hidden;
                no_inline || contents.blocks != raw.blocks.get()
            }
            _ => false,
        };
        for key in contents.bad {
            self.edit(key, None);
        }
        self.nodes.push(Node {
            ino,
            parent: raw.parent.get(),
            nlink: if made { 2 } else { raw.nlink.get() },
            kind,
            links: 0,
            subdirs: 0,
            torn,
            made,
        });
    }

    fn remove_inode(&mut self, keys: Vec<Key>) {
        for key in keys {
            self.edit(key, None);
        }
    }

    fn position(&self, ino: u64) -> Option<usize> {
        self.nodes.binary_search_by_key(&ino, |node| node.ino).ok()
    }

    fn node(&mut self, ino: u64) -> Option<&mut Node> {
        let at = self.position(ino)?;
        self.nodes.get_mut(at)
    }

    /// Finds all edits.
    ///
    /// # Errors
    /// The root directory and everything else is lost; the device's failure.
    pub fn repair(&mut self) -> Result<()> {
        if self.position(ROOT_INO).is_none() {
            let root = Node {
                ino: ROOT_INO,
                parent: ROOT_INO,
                nlink: 2,
                kind: S_IFDIR,
                links: 0,
                subdirs: 0,
                torn: false,
                made: true,
            };
            self.nodes.insert(0, root);
            self.found.losses.push(Loss::Directory { ino: ROOT_INO });
            let bare = self.bare_directory(ROOT_INO, ROOT_INO);
            self.edit(Key::inode(ROOT_INO), Some(bare));
        }
        let core = self.core;
        let tree = self.tree;
        let mut at: Option<Inner> = None;
        let whole = (&Key::first_of(0), &Key::last_of(u64::MAX));
        core.index.scan_readable(&tree, whole, &mut |found| {
            let Found::Item(key, value) = found else {
                return Ok(true);
            };
            if !is_inode(key.object) || self.position(key.object).is_none() {
                return Ok(true);
            }
            if at.as_ref().is_none_or(|at| at.ino != key.object) {
                self.end_inner(at.take());
            }
            let inner = at.get_or_insert_with(|| Inner {
                ino: key.object,
                ..Inner::default()
            });
            self.note_inner(inner, key, value);
            Ok(true)
        })?;
        self.end_inner(at);
        self.save_nameless()?;
        self.set_links()?;
        self.set_orphans();
        self.set_shared()
    }

    fn note_inner(&mut self, inner: &mut Inner, key: &Key, value: &[u8]) {
        match key.kind {
            Kind::Inode => inner.raw = decode_inode(value).ok(),
            Kind::DirIndex => self.note_entry(inner, key, value),
            Kind::DirName => {
                self.keep_names(inner);
                let stored: Option<Vec<u64>> = decode_dir_name(value).map(Iterator::collect).ok();
                let mut sorted = stored.unwrap_or_default();
                sorted.sort_unstable();
                let names = inner.names.remove(&key.offset);
                if names.as_ref() != Some(&sorted) {
                    self.edit(*key, names.map(|names| encode_dir_name(&names)));
                }
            }
            Kind::Xattr => self.note_attributes(inner, key, value),
            Kind::Extent => {
                if let Ok((raw, _)) = decode_extent_at(key.offset, value, &self.core.geometry) {
                    inner.blocks += u64::from(raw.len.get());
                }
            }
            _ => {}
        }
    }

    fn note_entry(&mut self, inner: &mut Inner, key: &Key, value: &[u8]) {
        inner.seen += 1;
        inner.last = inner.last.max(key.offset);
        let dir = key.object;
        let Ok(entry) = decode_dir_entry(value) else {
            return self.edit(*key, None);
        };
        let held = self.node(entry.ino).filter(|node| {
            let twice = node.kind == S_IFDIR && node.links > 0;
            node.kind == entry.kind && !node.torn && !twice && node.ino != ROOT_INO
        });
        let Some(node) = held else {
            let (ino, name) = (entry.ino, entry.name.to_vec());
            let torn = self.node(ino).is_some_and(|node| node.torn);
            let loss = if torn {
                Loss::Contents { dir, name, ino }
            } else {
                Loss::Inode { dir, name, ino }
            };
            self.found.losses.push(loss);
            return self.edit(*key, None);
        };
        node.links = node.links.saturating_add(1);
        if node.kind == S_IFDIR {
            node.parent = dir;
            if let Some(above) = self.node(dir) {
                above.subdirs = above.subdirs.saturating_add(1);
            }
        }
        inner.kept += 1;
        let hash = self.core.hash_of_name(entry.name);
        inner.names.entry(hash).or_default().push(key.offset);
        if dir == ROOT_INO && entry.name == LOST_FOUND && entry.kind == S_IFDIR {
            self.lost_found = Some(entry.ino);
        }
    }

    /// Remembers the names of a directory to which entries may be added.
    fn keep_names(&mut self, inner: &mut Inner) {
        let kept = inner.ino == ROOT_INO || Some(inner.ino) == self.lost_found;
        if kept && !std::mem::replace(&mut inner.names_kept, true) {
            self.names.insert(inner.ino, inner.names.clone());
        }
    }

    /// Removes the attributes whose values are missing, and counts the uses of the others.
    fn note_attributes(&mut self, inner: &mut Inner, key: &Key, value: &[u8]) {
        let mut stored = Vec::new();
        for xattr in decode_stored_xattrs(value).unwrap_or_default() {
            if let StoredValue::Shared(place) = &xattr.value {
                match self.shared.get_mut(&place.offset()) {
                    Some(shared) if shared.is_whole() => shared.counted += 1,
                    _ => continue,
                }
            }
            inner.xattrs += 1;
            encode_stored_xattr(&mut stored, &xattr.name(), &xattr.value);
        }
        if stored != value {
            self.edit(*key, (!stored.is_empty()).then_some(stored));
        }
    }

    /// Corrects the counts of an inode, and adds names that are missing.
    fn end_inner(&mut self, inner: Option<Inner>) {
        let Some(mut inner) = inner else { return };
        self.keep_names(&mut inner);
        let ino = inner.ino;
        for (hash, indexes) in std::mem::take(&mut inner.names) {
            let key = Key::new(ino, Kind::DirName, hash);
            self.edit(key, Some(encode_dir_name(&indexes)));
        }
        let before = inner.raw;
        let is_dir = self.node(ino).is_some_and(|node| node.kind == S_IFDIR);
        let mut raw = match before {
            Some(raw) => raw,
            None => {
                self.found.losses.push(Loss::Directory { ino });
                let bare = self.bare_directory(ino, ROOT_INO);
                RawInode::read_from_bytes(&bare).unwrap_or_default()
            }
        };
        if is_dir {
            let hidden = raw.size.get().saturating_sub(inner.seen);
            if before.is_some() && hidden > 0 {
                self.found.losses.push(Loss::Names {
                    dir: ino,
                    count: hidden,
                });
            }
            raw.size = U64::new(inner.kept);
            raw.next_index = U64::new(raw.next_index.get().max(inner.last.saturating_add(1)));
        }
        if raw.xattrs.get() > inner.xattrs {
            let count = u64::from(raw.xattrs.get() - inner.xattrs);
            self.found.losses.push(Loss::Attributes { ino, count });
        }
        raw.xattrs = U32::new(inner.xattrs);
        raw.blocks = U64::new(inner.blocks);
        if before != Some(raw) {
            self.edit(Key::inode(ino), Some(raw.as_bytes().to_vec()));
        }
    }

    /// The item of a directory of which only the entries are known: it belongs to the owner of the
    /// root directory, and is closed to others.
    fn bare_directory(&mut self, ino: u64, parent: u64) -> Vec<u8> {
        let root = match ino {
            ROOT_INO => RawInode::default(),
            _ => self.raw(ROOT_INO).ok().flatten().unwrap_or_default(),
        };
        let owner = (root.uid.get(), root.gid.get());
        let mode = S_IFDIR | 0o700;
        Attrs::new(mode, owner, 0, parent, self.core.now())
            .encode()
            .to_vec()
    }

    /// An inode as the edits so far leave it.
    fn raw(&self, ino: u64) -> Result<Option<RawInode>> {
        let key = Key::inode(ino);
        let value = match self.found.edits.0.get(&key) {
            Some(value) => value.clone(),
            None => self.core.index.get(&self.tree, &key)?,
        };
        Ok(value.and_then(|value| decode_inode(&value).ok()))
    }

    /// Gives inodes without an entry a name in the directory for them.
    fn save_nameless(&mut self) -> Result<()> {
        let nameless = |node: &&Node| {
            let removed = node.nlink == 0 && !node.made;
            node.ino != ROOT_INO && node.links == 0 && !removed
        };
        let saved: Vec<(u64, u32)> = self
            .nodes
            .iter()
            .filter(nameless)
            .map(|node| (node.ino, node.kind))
            .collect();
        if saved.is_empty() {
            return Ok(());
        }
        let dir = match self.lost_found {
            Some(dir) => dir,
            None => self.make_lost_found()?,
        };
        for (ino, kind) in saved {
            let name = self.free_name(dir, format!("#{ino}").as_bytes());
            self.add_entry(dir, &name, ino, kind)?;
            if let Some(node) = self.node(ino) {
                (node.links, node.parent) = (1, dir);
            }
            self.found.losses.push(Loss::Saved { dir, name, ino });
        }
        Ok(())
    }

    fn make_lost_found(&mut self) -> Result<u64> {
        let ino = self.core.superblocks.new_ino(&mut (0, 0));
        let bare = self.bare_directory(ino, ROOT_INO);
        self.edit(Key::inode(ino), Some(bare));
        let name = self.free_name(ROOT_INO, LOST_FOUND);
        self.add_entry(ROOT_INO, &name, ino, S_IFDIR)?;
        let at = self.nodes.partition_point(|node| node.ino < ino);
        let node = Node {
            ino,
            parent: ROOT_INO,
            nlink: 2,
            kind: S_IFDIR,
            links: 1,
            subdirs: 0,
            torn: false,
            made: true,
        };
        self.nodes.insert(at, node);
        Ok(ino)
    }

    /// A name that is free in a directory. One whose hash another one has counts as taken.
    fn free_name(&self, dir: u64, name: &[u8]) -> Vec<u8> {
        let taken = |name: &[u8]| {
            let hash = self.core.hash_of_name(name);
            let names = self.names.get(&dir);
            names.is_some_and(|names| names.contains_key(&hash))
        };
        let further = (1_u64..).map(|n| [name, format!("-{n}").as_bytes()].concat());
        let mut all = std::iter::once(name.to_vec()).chain(further);
        all.find(|name| !taken(name)).unwrap_or_default()
    }

    fn add_entry(&mut self, dir: u64, name: &[u8], ino: u64, kind: u32) -> Result<()> {
        let mut raw = self.raw(dir)?.ok_or(Error::NotFound)?;
        let index = raw.next_index.get();
        if index + 1 >= MAX_COUNTER {
            return Err(Error::Invalid(
                "a directory without an index for another entry",
            ));
        }
        raw.next_index = U64::new(index + 1);
        raw.size = U64::new(raw.size.get() + 1);
        self.edit(Key::inode(dir), Some(raw.as_bytes().to_vec()));
        let entry = encode_dir_entry(&DirEntryRef { ino, kind, name });
        self.edit(Key::new(dir, Kind::DirIndex, index), Some(entry.to_vec()));
        let hash = self.core.hash_of_name(name);
        let indexes = self.names.entry(dir).or_default().entry(hash).or_default();
        indexes.push(index);
        let names = encode_dir_name(indexes);
        self.edit(Key::new(dir, Kind::DirName, hash), Some(names));
        if kind == S_IFDIR
            && let Some(above) = self.node(dir)
        {
            above.subdirs = above.subdirs.saturating_add(1);
        }
        Ok(())
    }

    /// Corrects the numbers of links, and the parents of directories.
    fn set_links(&mut self) -> Result<()> {
        for at in 0..self.nodes.len() {
            let Some(node) = self.nodes.get(at) else {
                break;
            };
            let removed = node.nlink == 0 && !node.made && node.links == 0;
            let (ino, parent, kind) = (node.ino, node.parent, node.kind);
            let nlink = match node.kind {
                _ if removed => 0,
                S_IFDIR => node.subdirs.saturating_add(2),
                _ => node.links,
            };
            // The parent of a directory that was found by its entry may differ from what it records.
            if !node.made && nlink == node.nlink && (kind != S_IFDIR || removed) {
                continue;
            }
            let Some(mut raw) = self.raw(ino)? else {
                continue;
            };
            let before = raw;
            raw.nlink = U32::new(nlink);
            if !removed {
                raw.parent = U64::new(parent);
            }
            if raw != before {
                self.edit(Key::inode(ino), Some(raw.as_bytes().to_vec()));
            }
        }
        Ok(())
    }

    /// Corrects the list of inodes that wait for their removal.
    fn set_orphans(&mut self) {
        let missing = self.nodes.iter().filter(|node| {
            let removed = node.nlink == 0 && !node.made && node.links == 0;
            removed && self.orphans.get(&node.ino) != Some(&ORPHAN_REMOVE)
        });
        let missing: Vec<u64> = missing.map(|node| node.ino).collect();
        for ino in missing {
            self.edit(Key::orphan(ino), Some(vec![ORPHAN_REMOVE]));
        }
        let orphans = std::mem::take(&mut self.orphans);
        for ino in orphans.into_keys() {
            if self.position(ino).is_none() {
                self.edit(Key::orphan(ino), None);
            }
        }
    }

    /// Corrects the counts of shared values, and removes those that nothing uses.
    fn set_shared(&mut self) -> Result<()> {
        for (offset, shared) in std::mem::take(&mut self.shared) {
            let (key, bytes) = (shared_key(offset), bytes_key(offset));
            let keeps = shared.is_whole() && shared.counted > 0;
            if !keeps {
                if shared.item {
                    self.edit(key, None);
                }
                if shared.apart {
                    self.edit(bytes, None);
                }
            } else if !shared.item {
                self.edit(key, Some(shared.counted.to_le_bytes().to_vec()));
            } else if shared.counted != shared.stored {
                let old = self.core.index.get(&self.tree, &key)?.unwrap_or_default();
                let value = decode_shared_value(&old).ok().and_then(|(_, value)| value);
                let item = match value {
                    Some(value) => encode_shared_value(shared.counted, value),
                    None => shared.counted.to_le_bytes().to_vec(),
                };
                self.edit(key, Some(item));
            }
        }
        Ok(())
    }
}

/// What the second scan has seen of an inode.
#[derive(Default)]
struct Inner {
    ino: u64,
    raw: Option<RawInode>,
    /// Entries that can be read, and the entries that stay.
    seen: u64,
    kept: u64,
    /// The greatest index of an entry.
    last: u64,
    /// Names of entries that stay, without those whose items were seen.
    names: Names,
    names_kept: bool,
    xattrs: u32,
    blocks: u64,
}

fn is_inode(object: u64) -> bool {
    object == ROOT_INO || object >= FIRST_INO
}
