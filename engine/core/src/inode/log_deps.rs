//! Log dependencies of an inode: its changes that the log does not hold yet, and the changes that
//! must be logged together with them.
//!
//! Inodes are the nodes of a dependency graph. An entry of a directory belongs to the inode that it
//! refers to, so creating a file joins no inodes and takes no lock of the volume. All changes here
//! belong to one context; those of an earlier context are in the log and are ignored. A commit adds
//! changes while it holds the context; an fsync follows and takes them while no thread holds it.
//! The lock around this state is a leaf lock.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::journal::vector::LogVector;
use cairnfs_disk::device::{DataStamp, Stamps};
use cairnfs_disk::hash::IntHash;

/// An entry to the inode that was added or removed.
pub struct NameChange {
    /// Inode number of the directory.
    pub dir: u64,
    /// The entry's item; `None` if it was made and deleted within the context.
    pub vector: Option<Arc<LogVector>>,
    /// Change of the directory's number of entries.
    pub size: i8,
    /// Change of the directory's number of links.
    pub links: i8,
}

/// Changes of a directory's entries, which belong to the inodes that they refer to.
#[derive(Default)]
pub struct Children {
    /// Numbers of these inodes; the changes of some may be logged already.
    pub inodes: Vec<u64>,
    /// Number of changes that are not logged.
    pub pending: usize,
    /// Change of the number of entries by the changes that are not logged.
    pub size: i64,
    /// Change of the number of links by them.
    pub links: i64,
    /// Hashes of names that were removed, and the inodes that had them last.
    pub vacated: HashMap<u64, u64, IntHash>,
    /// Whether the directory itself was removed.
    pub removed: bool,
}

/// Inodes whose changes are logged that the list may hold besides one for each pending change.
const KEPT: usize = 64;

impl Children {
    /// Whether most of the listed inodes have been logged.
    pub fn is_stale(&self) -> bool {
        self.inodes.len() > 2 * self.pending + KEPT
    }

    /// Records that a change which this directory counted was logged.
    pub fn logged(&mut self, change: &NameChange) {
        self.pending = self.pending.saturating_sub(1);
        self.size -= i64::from(change.size);
        self.links -= i64::from(change.links);
        if self.pending == 0 {
            self.inodes.clear();
            self.vacated.clear();
        }
    }
}

/// Largest number of blocks of new data that an fsync record has checksums for. More data must be
/// durable before the record is written.
pub const MOST_CHECKED: usize = 1024;

/// Data that was written to newly allocated blocks.
pub struct Written {
    /// The first block on the device.
    pub block: u64,
    /// The checksums of the blocks.
    pub crcs: Vec<u32>,
    /// The stamp of its write, or a later one.
    pub stamp: DataStamp,
}

/// Changes of an inode that are not in the log, and what they depend on.
#[derive(Default)]
pub struct LogDeps {
    seq: u64,
    /// The inode item.
    pub inode: Option<Arc<LogVector>>,
    /// Of a file: its inode item differs only in times from that in the log or the index.
    pub times_only: bool,
    /// Changes of entries that refer to it.
    pub names: SmallVec<[NameChange; 1]>,
    /// The first of its other items; most inodes have no more.
    other: Option<Arc<LogVector>>,
    /// Changes that a file which was just created, or got one attribute, does not have.
    more: Option<Box<More>>,
    /// Of a directory: its entries.
    pub children: Option<Box<Children>>,
}

/// Changes of an inode other than the inode item and its names.
#[derive(Default)]
pub struct More {
    /// Its further items, except directory entries.
    others: Vec<Arc<LogVector>>,
    /// Inodes whose changes must be logged together with these.
    pub joined: Vec<u64>,
    /// Data that these changes refer to.
    pub written: Vec<Written>,
    /// Stamps of such data that is not listed, because it was too much.
    pub unlisted: Stamps,
}

impl LogDeps {
    /// Prepares it for a change of the context `seq`.
    pub fn enter(&mut self, seq: u64) -> &mut Self {
        if self.seq != seq {
            *self = Self {
                seq,
                ..Self::default()
            };
        }
        self
    }

    /// Whether it holds changes of the context `seq`.
    pub fn is_of(&self, seq: u64) -> bool {
        self.seq == seq
    }

    /// Whether it holds no changes.
    pub fn is_empty(&self) -> bool {
        self.inode.is_none()
            && self.names.is_empty()
            && self.other.is_none()
            && self.more.is_none()
            && self.children.is_none()
    }

    /// Adds an item that is neither the inode item nor a directory entry.
    pub fn add_other(&mut self, vector: &Arc<LogVector>) {
        match &self.other {
            None => self.other = Some(vector.clone()),
            Some(_) => self.more_mut().others.push(vector.clone()),
        }
    }

    /// Takes the items added with [`Self::add_other`].
    pub fn take_others(&mut self) -> impl Iterator<Item = Arc<LogVector>> {
        let further = self
            .more
            .as_mut()
            .map(|more| std::mem::take(&mut more.others));
        self.other
            .take()
            .into_iter()
            .chain(further.into_iter().flatten())
    }

    /// The other changes, if there are any.
    pub fn more(&self) -> Option<&More> {
        self.more.as_deref()
    }

    /// The other changes, for additions.
    pub fn more_mut(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    /// Takes the other changes.
    pub fn take_more(&mut self) -> More {
        self.more.take().map_or_else(More::default, |more| *more)
    }

    /// Records data that was written with `stamp`: `runs` of blocks with their checksums.
    pub fn wrote(&mut self, stamp: &DataStamp, runs: impl Iterator<Item = (u64, Vec<u32>)>) {
        let more = self.more_mut();
        more.written.extend(runs.map(|(block, crcs)| Written {
            block,
            crcs,
            stamp: stamp.clone(),
        }));
        let blocks: usize = more.written.iter().map(|w| w.crcs.len()).sum();
        if blocks > MOST_CHECKED {
            // All of it must be durable before the record, including data that is not written yet.
            let written = more.written.drain(..);
            written.for_each(|w| more.unlisted.add(w.stamp.get()));
        }
    }

    /// The changes of the directory's entries.
    pub fn children(&mut self) -> &mut Children {
        self.children.get_or_insert_default()
    }

    /// Whether no change here will ever be logged or leads to other inodes. `seq` is the open
    /// context.
    pub fn is_vain(&self, seq: u64) -> bool {
        let live = |vector: &Arc<LogVector>| vector.is_live();
        let leads_on = |more: &More| more.others.iter().any(live) || !more.joined.is_empty();
        !self.is_of(seq)
            || !(self.inode.as_ref().is_some_and(live)
                || self
                    .names
                    .iter()
                    .any(|n| n.vector.as_ref().is_some_and(live))
                || self.other.as_ref().is_some_and(live)
                || self.more().is_some_and(leads_on)
                || self.children.is_some())
    }

    /// Releases the changes of contexts up to `seq`.
    pub fn forget(&mut self, seq: u64) {
        if self.seq <= seq {
            *self = Self::default();
        }
    }

    /// The same, but moves the vectors of the inode item and of names to `vectors`, to be dropped
    /// together. Returns the other changes, if there were any, to be dropped under no lock.
    pub fn let_go(&mut self, seq: u64, vectors: &mut Vec<Arc<LogVector>>) -> Option<Self> {
        if self.seq > seq {
            return None;
        }
        vectors.extend(self.inode.take());
        vectors.extend(self.names.iter_mut().filter_map(|n| n.vector.take()));
        let only_common = self.other.is_none() && self.more.is_none() && self.children.is_none();
        if only_common && !self.names.spilled() {
            self.names.clear();
            self.times_only = false;
            return None;
        }
        Some(std::mem::take(self))
    }
}
