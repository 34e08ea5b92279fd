//! What differs between a tree that was replaced and the one that has its name now, for those who
//! have looked at the old one by inode number: a mount, whose kernel remembers names, attributes and
//! contents.
//!
//! Uses the comparison of trees. The new tree may be changed already: it is compared as it is at the
//! beginning. Memory grows with the number of changed inodes and entries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::diff::{Change, Changes, Entry, FileTree, Name, Paths};
use crate::operations::frozen::Frozen;
use cairnfs_core::fs::FileSystem;
use cairnfs_disk::acl;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::item::RawInode;
use cairnfs_disk::types::{FileKind, RootInfo};

/// How an inode of the old tree differs in the new one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChangedInode {
    /// Whether the new tree does not have it.
    pub is_gone: bool,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Whether its contents differ.
    pub contents: bool,
    /// Whether it has got an access control list.
    pub list_added: bool,
    /// Whether it has lost its access control list.
    pub list_removed: bool,
}

/// The differences between a tree that was replaced and its successor.
pub struct Succession {
    fs: Arc<FileSystem>,
    old: Frozen,
    inodes: BTreeMap<u64, ChangedInode>,
    /// The inodes to which a name leads in the old and in the new tree; 0 for none.
    entries: BTreeMap<Name, (u64, u64)>,
    /// The inode of the last changes, if the old tree does not have it.
    added: Option<u64>,
}

impl Succession {
    /// Compares the tree of `old`, a branch that was replaced, with that of `new`.
    ///
    /// # Errors
    /// One of the roots is gone; no space for a snapshot; a damaged volume, the device's failure.
    pub fn new(old: &Arc<FileSystem>, new: &FileSystem) -> Result<Self> {
        let info = |fs: &FileSystem| -> Result<RootInfo> { fs.root_info().ok_or(Error::Stale) };
        let frozen = Frozen::of(old, info(old)?)?;
        let successor = Frozen::of(old, info(new)?)?;
        let mut succession = Self {
            fs: old.clone(),
            old: frozen.clone(),
            inodes: BTreeMap::new(),
            entries: BTreeMap::new(),
            added: None,
        };
        let files = frozen.files(old);
        let mut changes = Changes::new(files, successor.files(old))?;
        while let Some(change) = changes.next_change()? {
            succession.add(&files, change)?;
        }
        // An entry may have got another place in its directory.
        succession.entries.retain(|_, (old, new)| old != new);
        Ok(succession)
    }

    /// Whether both trees have the same files under the same names: only attributes of directories
    /// differ.
    pub fn keeps_files(&self) -> bool {
        let mut inodes = self.inodes.values();
        self.entries.is_empty() && inodes.all(|changed| changed.is_dir && !changed.is_gone)
    }

    /// Whether an inode is a regular file in the old tree.
    pub fn is_file(&self, ino: u64) -> Result<bool> {
        let inode = self.old.files(&self.fs).inode(ino)?;
        let kind = inode.and_then(|inode| FileKind::from_mode(inode.mode.get()));
        Ok(kind == Some(FileKind::File))
    }

    /// How an inode of the old tree that has a name there differs; `None` if it does not.
    pub fn of(&self, ino: u64) -> Option<&ChangedInode> {
        self.inodes.get(&ino)
    }

    /// The inodes of the old tree that differ or are gone, by number.
    pub fn inodes(&self) -> impl Iterator<Item = (u64, &ChangedInode)> {
        self.inodes.iter().map(|(ino, changed)| (*ino, changed))
    }

    /// Directory and name of each entry that was removed, added, or leads to another inode.
    pub fn entries(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let names = self.entries.keys();
        names.map(|name| (name.dir, name.name.as_slice()))
    }

    /// Directory and name of all names of the given inodes in the old tree. None of the inodes is a
    /// directory. If an inode has several names, only the directories in `known` are searched for them.
    pub fn names(&self, inodes: BTreeSet<u64>, known: &[u64]) -> Result<Vec<(u64, Vec<u8>)>> {
        let names = Paths::new(self.old.files(&self.fs)).all_names(inodes, known)?;
        Ok(names
            .into_iter()
            .map(|(_, name)| (name.dir, name.name))
            .collect())
    }

    fn add(&mut self, old: &FileTree<'_>, change: Change) -> Result<()> {
        match change {
            Change::Inode { ino, old, new } => self.add_inode(ino, old, new),
            // Nobody has looked at an inode that the old tree does not have. The change of the inode
            // itself comes first.
            Change::Entry { dir: ino, .. }
            | Change::Xattr { ino, .. }
            | Change::Contents { ino, .. }
                if self.added == Some(ino) => {}
            Change::Entry { dir, old, new } => {
                self.inodes.entry(dir).or_default().is_dir = true;
                if let Some(Entry { name, ino, .. }) = old {
                    self.entries.entry(Name { dir, name }).or_default().0 = ino;
                }
                if let Some(Entry { name, ino, .. }) = new {
                    self.entries.entry(Name { dir, name }).or_default().1 = ino;
                }
            }
            Change::Xattr {
                ino,
                name,
                old: before,
                new,
            } => {
                let changed = self.entry(old, ino)?;
                if name == acl::ACCESS {
                    changed.list_added = before.is_none();
                    changed.list_removed = new.is_none();
                }
            }
            Change::Contents { ino, .. } => self.entry(old, ino)?.contents = true,
        }
        Ok(())
    }

    fn add_inode(&mut self, ino: u64, old: Option<RawInode>, new: Option<RawInode>) {
        let Some(old) = old else {
            self.added = Some(ino);
            return;
        };
        let changed = self.inodes.entry(ino).or_default();
        changed.is_dir = is_dir(&old);
        match new {
            None => changed.is_gone = true,
            Some(new) => {
                changed.contents = !changed.is_dir && old.size != new.size;
            }
        }
    }

    /// The record of an inode whose item may be the same in both trees.
    fn entry(&mut self, old: &FileTree<'_>, ino: u64) -> Result<&mut ChangedInode> {
        let is_dir = match self.inodes.get(&ino) {
            Some(changed) => changed.is_dir,
            None => old.inode(ino)?.is_some_and(|inode| is_dir(&inode)),
        };
        let changed = self.inodes.entry(ino).or_default();
        changed.is_dir = is_dir;
        Ok(changed)
    }
}

fn is_dir(inode: &RawInode) -> bool {
    FileKind::from_mode(inode.mode.get()) == Some(FileKind::Directory)
}
