//! The engine, addressed by inode number, for front ends such as a FUSE daemon. Programs use
//! [`Volume`].
//!
//! [`Volume`]: ../struct.Volume.html
//!
//! Floor 5: operations built from transactions (`txn`). Each mutating operation validates under
//! the locks of all inodes it touches, then commits; a commit cannot fail. Locks of several inodes
//! are taken in order of inode number; after that, results of earlier lookups are checked again.
//!
//! [`FileSystem`] is composed of owners. Each has its state in private fields of its own file, and
//! knows no other owner. The operations, a file for each kind, combine them.

mod access;
mod allocate;
mod attributes;
mod budget;
mod discard;
mod extents;
pub(crate) mod flags;
mod handle;
mod host_name;
mod info;
mod lifecycle;
mod listing;
mod locked;
mod make;
mod namespace;
mod observe;
mod open;
mod options;
mod orphans;
mod paths;
mod read;
mod reclaim;
mod remove;
mod rename;
mod room;
#[cfg(test)]
#[cfg(shuttle)]
#[path = "tests/schedules.rs"]
mod schedules;
mod sizes;
mod snapshots;
mod stats;
mod sync;
mod times;
mod tree;
mod truncate;
mod workers;
mod write;
mod writeback;
mod writeback_list;
mod xattr;

use std::sync::Arc;

pub use make::{MakeOptions, inspect, is_unmade, make, make_device};
pub use observe::{Call, Observer, Outcome};
pub use options::Options;
pub use stats::LEVELS;
pub use sync::Sequence;

pub use crate::txn::{FsyncRequest, Pressure};

#[doc(inline)]
pub use crate::types::{Attr, EntryRef, Fallocate, KillPrivileges, SeekTo, SetAttr, SetTime};

use crate::error::Result;
use crate::fs::host_name::HostNameNotice;
use crate::fs::lifecycle::Lifecycle;
use crate::fs::observe::Watch;
use crate::fs::reclaim::SpaceReclaimer;
use crate::fs::sync::Syncs;
use crate::fs::times::ContentTimes;
use crate::fs::tree::TreeShape;
use crate::fs::workers::Workers;
use crate::fs::writeback_list::WritebackList;
use crate::inode::Inode;
use crate::txn::{Commit, Core, ItemStore};

/// The file system of an open volume. `Send + Sync`.
///
/// Every call that returns the attributes of an inode found or created by name (`lookup`, `mknod`,
/// `mkdir`, `symlink`, `link`, `tmpfile`, `readdir_plus`) takes one use of that inode, to be
/// released by [`FileSystem::forget`]. An inode without links is removed with its last use.
pub struct FileSystem {
    /// Transactions and everything below them.
    core: Core,
    /// The tree of files.
    items: Arc<ItemStore>,
    lifecycle: Lifecycle,
    workers: Workers,
    /// Unwritten data of files.
    writeback: WritebackList,
    /// Space for refused reservations.
    reclaimer: SpaceReclaimer,
    /// Moves of directories.
    tree: TreeShape,
    times: ContentTimes,
    /// Syncs of the whole volume.
    syncs: Syncs,
    watch: Option<Watch>,
    host_name: HostNameNotice,
}

impl FileSystem {
    /// Whether changes are refused because the volume was opened read-only.
    pub fn is_read_only(&self) -> bool {
        self.core.read_only()
    }

    /// Returns [`Error::Stopped`](crate::Error::Stopped) if a failure stopped all changes.
    pub(crate) fn check_running(&self) -> Result<()> {
        self.core.storage().check()
    }

    /// The inode with this number; fails once the volume is closed.
    pub(crate) fn inode(&self, ino: u64) -> Result<Arc<Inode>> {
        self.lifecycle.check_open()?;
        self.items().inode(ino)
    }

    /// The tree of files.
    fn items(&self) -> &ItemStore {
        &self.items
    }

    /// Begins to commit changes of the tree.
    fn commit(&self) -> Commit<'_> {
        self.core.commit(&self.items)
    }

    /// The version of the tree's shape. A directory path that was walked at an older version must be
    /// walked again.
    pub(crate) fn shape(&self) -> u64 {
        self.tree.version()
    }
}
