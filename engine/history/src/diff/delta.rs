//! All changes between two trees by inode: what a report and a merge plan are made of.
//!
//! Uses the changes. Memory grows with the number of changed inodes, entries, ranges and attributes
//! (with their values), not with the size of files or trees. A name is a pair of directory and
//! name; a name that an inode has in both trees, under another index of the directory, is not
//! changed.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::diff::changes::{Change, Changes};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::item::RawInode;

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Inode number of the directory.
    pub dir: u64,
    /// The name.
    pub name: Vec<u8>,
}

/// The item of an inode in two trees; `None` where the inode does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// In the old tree.
    pub old: Option<RawInode>,
    /// In the new tree.
    pub new: Option<RawInode>,
}

/// The value of an attribute in two trees.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values {
    /// In the old tree.
    pub old: Option<Vec<u8>>,
    /// In the new tree.
    pub new: Option<Vec<u8>>,
}

/// How one inode changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InodeDelta {
    /// Its item; `None` if it is equal in both trees.
    pub item: Option<Item>,
    /// Names that it has in the old tree only, in order.
    pub lost: Vec<Name>,
    /// Names that it has in the new tree only, in order.
    pub gained: Vec<Name>,
    /// Whether entries of this directory changed.
    pub entries: bool,
    /// Attributes whose values changed, by name.
    pub xattrs: BTreeMap<Vec<u8>, Values>,
    /// Ranges of bytes that changed, ascending and disjoint.
    pub contents: Vec<Range<u64>>,
}

impl InodeDelta {
    /// Whether the inode is in the new tree only.
    pub fn is_added(&self) -> bool {
        matches!(self.item, Some(Item { old: None, .. }))
    }

    /// Whether the inode is in the old tree only.
    pub fn is_removed(&self) -> bool {
        matches!(self.item, Some(Item { new: None, .. }))
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// How a tree changed, by inode number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TreeDelta {
    /// The inodes that changed.
    pub inodes: BTreeMap<u64, InodeDelta>,
}

impl TreeDelta {
    /// Collects all changes.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn collect(mut changes: Changes<'_>) -> Result<Self> {
        let mut delta = Self::default();
        while let Some(change) = changes.next_change()? {
            delta.add(change);
        }
        for inode in delta.inodes.values_mut() {
            inode.lost.sort_unstable();
            inode.gained.sort_unstable();
            let lost = inode.lost.clone();
            inode
                .lost
                .retain(|name| inode.gained.binary_search(name).is_err());
            inode
                .gained
                .retain(|name| lost.binary_search(name).is_err());
        }
        delta.inodes.retain(|_, inode| !inode.is_empty());
        Ok(delta)
    }

    fn of(&mut self, ino: u64) -> &mut InodeDelta {
        self.inodes.entry(ino).or_default()
    }

    fn add(&mut self, change: Change) {
        match change {
            Change::Inode { ino, old, new } => self.of(ino).item = Some(Item { old, new }),
            Change::Contents { ino, range } => self.of(ino).contents.push(range),
            Change::Xattr {
                ino,
                name,
                old,
                new,
            } => {
                self.of(ino).xattrs.insert(name, Values { old, new });
            }
            Change::Entry { dir, old, new } => {
                self.of(dir).entries = true;
                if let Some(entry) = old {
                    let name = entry.name;
                    self.of(entry.ino).lost.push(Name { dir, name });
                }
                if let Some(entry) = new {
                    let name = entry.name;
                    self.of(entry.ino).gained.push(Name { dir, name });
                }
            }
        }
    }
}
