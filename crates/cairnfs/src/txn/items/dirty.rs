//! The inodes of a tree of files that have a dirty set, for the next merge.
//!
//! An inode is listed when the first item is put into its empty current set. It may be listed
//! twice, if all its changes died and it was changed again.

use std::sync::Arc;

use crate::inode::Inode;
use crate::shard::Sharded;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Inodes with their numbers.
pub(in crate::txn) type DirtyInodes = Vec<(u64, Arc<Inode>)>;

/// The inodes whose current set is not empty.
#[derive(Default)]
pub(in crate::txn) struct DirtyList {
    inodes: Sharded<(u64, Arc<Inode>)>,
    /// Whether some of them may have changed orphan items.
    orphaned: AtomicBool,
    /// The newest context in which an inode was listed since the opening, or that replay has read.
    newest: AtomicU64,
}

impl DirtyList {
    /// Adds an inode. If many of the inodes may be useless, removes and returns those whose changes
    /// all died in the open context `seq`. The caller holds no list of log dependencies.
    pub fn add(&self, inode: &Arc<Inode>, seq: u64) -> DirtyInodes {
        self.note_change(seq);
        let listed = (inode.ino, inode.clone());
        self.inodes
            .push_pruned(listed, |(_, i)| i.is_cancelled(seq))
    }

    /// Adds inodes that were taken, or that replay has filled.
    pub fn put_back(&self, inodes: impl IntoIterator<Item = (u64, Arc<Inode>)>) {
        inodes.into_iter().for_each(|inode| self.inodes.push(inode));
    }

    /// Records that something changes in the context `seq`. Written once for each context, because
    /// all threads read it.
    pub fn note_change(&self, seq: u64) {
        if self.newest.load(Ordering::Relaxed) < seq {
            self.newest.fetch_max(seq, Ordering::Relaxed);
        }
    }

    /// Whether something has changed in a context after `boundary`, which closed with a change of
    /// roots, also if a merge has taken it. What was merged before the opening is not known. No
    /// thread commits.
    pub fn changed_after(&self, boundary: u64) -> bool {
        self.newest.load(Ordering::Relaxed) > boundary
    }

    /// Records that an orphan item changes. Nearly every removal of a file in use does that, so the
    /// flag is read before it is written.
    pub fn note_orphan(&self) {
        if !self.orphaned.load(Ordering::Relaxed) {
            self.orphaned.store(true, Ordering::Relaxed);
        }
    }

    /// Whether any inode is listed.
    pub fn has_any(&self) -> bool {
        self.inodes.has_any()
    }

    /// Takes all inodes, in several lists.
    pub fn take(&self) -> Vec<DirtyInodes> {
        self.inodes.take_lists()
    }

    /// Takes and resets whether an orphan item may have changed.
    pub fn take_orphaned(&self) -> bool {
        self.orphaned.swap(false, Ordering::Relaxed)
    }
}
