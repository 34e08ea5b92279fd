//! What of an inode the log does not hold yet, and what must be logged together with it.
//!
//! Inodes are the nodes of a graph of dependencies: an entry of a directory belongs to the inode that it
//! names, so making a file joins nothing and takes no lock of the volume. All of it belongs to one
//! context; what an earlier one left here is in the log and counts for nothing. A commit adds to it
//! while it holds the context; it is followed and taken while nobody does. The lock around it is
//! a leaf.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::device::{DataStamp, Stamps};
use crate::journal::vector::LogVector;
use crate::shard::IntHash;

/// An entry that began or ceased to name the inode.
pub struct NameChange {
    /// The directory.
    pub dir: u64,
    /// The entry's item; none if it was made and deleted within the context.
    pub vector: Option<Arc<LogVector>>,
    /// By how many the directory's entries grow.
    pub size: i8,
    /// By how many its links do.
    pub links: i8,
}

/// Changes of a directory's entries, which belong to the inodes that they name.
#[derive(Default)]
pub struct Children {
    /// Those inodes; some may have been logged since.
    pub inodes: Vec<u64>,
    /// Changes that are not logged.
    pub pending: usize,
    /// By how many entries the unlogged changes let it grow.
    pub size: i64,
    /// By how many links they do.
    pub links: i64,
    /// Hashes of names that were taken away, and which inodes had them last.
    pub vacated: HashMap<u64, u64, IntHash>,
    /// The directory itself was removed.
    pub removed: bool,
}

/// As many that have been logged may be listed, beside one for each that has not.
const KEPT: usize = 64;

impl Children {
    /// Whether most of those listed have been logged.
    pub fn is_stale(&self) -> bool {
        self.inodes.len() > 2 * self.pending + KEPT
    }

    /// A change that this directory counted has been logged.
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

/// Most blocks of new data that a group is checked for; more must be durable before it is written.
pub const MOST_CHECKED: usize = 1024;

/// Data that was written, to blocks that held none before.
pub struct Written {
    /// The first block on the device.
    pub block: u64,
    /// What each of them holds.
    pub crcs: Vec<u32>,
    /// The stamp that its write got, or a later one.
    pub stamp: DataStamp,
}

/// Changes of an inode that are not in the log, and what they depend on.
#[derive(Default)]
pub struct LogDeps {
    seq: u64,
    /// The inode item.
    pub inode: Option<Arc<LogVector>>,
    /// Of a file: it differs in nothing but times from what the log holds, or the index.
    pub times_only: bool,
    /// Entries that name it.
    pub names: SmallVec<[NameChange; 1]>,
    /// The first of its other items; most have no more.
    other: Option<Arc<LogVector>>,
    /// What a file that was just made, or got an attribute, has not.
    more: Option<Box<More>>,
    /// Of a directory: its entries.
    pub children: Option<Box<Children>>,
}

/// What of an inode's changes is not about the inode item and its names.
#[derive(Default)]
pub struct More {
    /// Its further items, but no directory entries.
    others: Vec<Arc<LogVector>>,
    /// Inodes without whose changes these must not survive.
    pub joined: Vec<u64>,
    /// Data that these changes refer to.
    pub written: Vec<Written>,
    /// Stamps of such data that is not listed: it was too much.
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

    /// Whether nothing is noted: nobody misses it then.
    pub fn is_empty(&self) -> bool {
        self.inode.is_none()
            && self.names.is_empty()
            && self.other.is_none()
            && self.more.is_none()
            && self.children.is_none()
    }

    /// Notes an item that is neither the inode item nor a directory entry.
    pub fn add_other(&mut self, vector: &Arc<LogVector>) {
        match &self.other {
            None => self.other = Some(vector.clone()),
            Some(_) => self.more_mut().others.push(vector.clone()),
        }
    }

    /// Takes such items.
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

    /// What else there is.
    pub fn more(&self) -> Option<&More> {
        self.more.as_deref()
    }

    /// The same, to be added to.
    pub fn more_mut(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    /// Takes it.
    pub fn take_more(&mut self) -> More {
        self.more.take().map_or_else(More::default, |more| *more)
    }

    /// Notes data that was written up to `stamp`.
    pub fn wrote(&mut self, stamp: &DataStamp, runs: impl Iterator<Item = (u64, Vec<u32>)>) {
        let more = self.more_mut();
        more.written.extend(runs.map(|(block, crcs)| Written {
            block,
            crcs,
            stamp: stamp.clone(),
        }));
        let blocks: usize = more.written.iter().map(|w| w.crcs.len()).sum();
        if blocks > MOST_CHECKED {
            // All of it must be durable before the record, also what is not written yet.
            let written = more.written.drain(..);
            written.for_each(|w| more.unlisted.add(w.stamp.get()));
        }
    }

    /// The entries' changes.
    pub fn children(&mut self) -> &mut Children {
        self.children.get_or_insert_default()
    }

    /// Whether nothing of it will ever be logged, nor leads on to other inodes; `seq` is the open
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

    /// Lets go what contexts up to `seq` left.
    pub fn forget(&mut self, seq: u64) {
        if self.seq <= seq {
            *self = Self::default();
        }
    }

    /// The same; the vectors of the inode item and of names go to `vectors`, to be dropped together. If
    /// there was more, gives it back, to be dropped under no lock.
    pub fn let_go(&mut self, seq: u64, vectors: &mut Vec<Arc<LogVector>>) -> Option<Self> {
        if self.seq > seq {
            return None;
        }
        vectors.extend(self.inode.take());
        vectors.extend(self.names.iter_mut().filter_map(|n| n.vector.take()));
        let alike = self.other.is_none() && self.more.is_none() && self.children.is_none();
        if alike && !self.names.spilled() {
            self.names.clear();
            self.times_only = false;
            return None;
        }
        Some(std::mem::take(self))
    }
}
