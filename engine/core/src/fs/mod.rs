//! The engine, addressed by inode number, for front ends such as a FUSE daemon. Programs use
//! [`Volume`].
//!
//! [`Volume`]: ../struct.Volume.html
//!
//! Operations built from transactions (`txn`). Each mutating operation validates under
//! the locks of all inodes it touches, then commits; a commit cannot fail. Locks of several inodes
//! are taken in order of inode number; after that, results of earlier lookups are checked again.
//!
//! A volume has one `Engine`, shared by all its trees of files, and an `OpenRoot` for each root
//! that is open. [`FileSystem`] is a handle to both, and has all operations. Engine and open root are
//! composed of owners: each has its state in private fields of its own file, and knows no other
//! owner. The operations, a file for each kind, combine them.

mod access;
mod allocate;
mod aside;
mod attributes;
mod budget;
mod checkpoint;
mod discard;
mod drop;
mod extents;
pub(crate) mod flags;
mod forks;
mod gate;
mod handle;
mod host_name;
mod info;
mod lifecycle;
mod listing;
mod locked;
mod lost;
mod make;
mod namespace;
mod numbered;
mod observe;
mod open;
mod open_roots;
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
mod shares;
mod sizes;

mod stats;
mod sync;
mod times;
mod tree;
mod truncate;
mod turns;
mod uses;
mod waits;
mod workers;
mod write;
mod writeback;
mod writeback_list;
mod xattr;
mod yielding;

use std::sync::Arc;

#[doc(hidden)]
pub use aside::SetAside;
#[doc(hidden)]
pub use drop::ReaderEnds;
#[doc(hidden)]
pub use flags::may_open;
pub use lost::{Lost, LostItem};
pub use make::{MakeOptions, inspect, is_unmade, make, make_device};
pub use observe::{Call, Observer, Outcome};
pub use options::Options;
#[doc(hidden)]
pub use paths::MAX_ENTRIES;
pub use stats::LEVELS;
pub use sync::Sequence;

pub use crate::txn::{FsyncRequest, Pressure};

#[doc(inline)]
pub use cairnfs_disk::types::{
    Attr, EntryRef, Fallocate, KillPrivileges, SeekTo, SetAttr, SetTime,
};

use crate::fs::gate::Gate;
use crate::fs::host_name::HostNameNotice;
use crate::fs::lifecycle::Lifecycle;
use crate::fs::observe::Watch;
use crate::fs::open_roots::{Callers, HandleMode, OpenRoots};
use crate::fs::orphans::OrphanSettlement;
use crate::fs::reclaim::SpaceReclaimer;
use crate::fs::shares::Lender;
use crate::fs::sync::Syncs;
use crate::fs::times::ContentTimes;
use crate::fs::tree::TreeShape;
use crate::fs::turns::Turns;
use crate::fs::workers::Workers;
use crate::fs::writeback_list::{PageMemory, WritebackList};
use crate::fs::yielding::Yielding;
use crate::inode::Inode;
use crate::txn::{Commit, Core, ItemStore};
use cairnfs_disk::error::{Error, Result};

/// What the open roots of a volume share.
struct Engine {
    /// Transactions and everything below them.
    core: Core,
    lifecycle: Lifecycle,
    workers: Workers,
    roots: OpenRoots,
    /// Memory of unwritten data in all roots.
    pages: PageMemory,
    /// What cached data takes of memory that is idle.
    lender: Lender,
    /// Space for refused reservations.
    reclaimer: SpaceReclaimer,
    /// What is dropped when there is no space.
    yielding: Yielding,
    /// Whose turn it is to replace a branch.
    turns: Arc<Turns>,
    times: ContentTimes,
    /// Syncs of the whole volume.
    syncs: Syncs,
    watch: Option<Watch>,
    host_name: HostNameNotice,
}

/// An open root: the state of one tree of files, shared by its handles.
struct OpenRoot {
    items: Arc<ItemStore>,
    /// Handles that callers have.
    callers: Callers,
    /// Files with unwritten data.
    writeback: WritebackList,
    /// Where changes wait while the root is being replaced.
    gate: Gate,
    /// Moves of directories.
    shape: TreeShape,
    orphans: OrphanSettlement,
}

/// A handle to one tree of files of an open volume: the main root, a branch or a snapshot.
/// `Send + Sync`. The volume is closed with the last handle to any of its roots.
///
/// Every call that returns the attributes of an inode found or created by name (`lookup`, `mknod`,
/// `mkdir`, `symlink`, `link`, `tmpfile`, `readdir_plus`) takes one use of that inode, to be
/// released by [`FileSystem::forget`]. An inode without links is removed with its last use. Numbers
/// of inodes are those of this tree; a branch begins with the numbers of the tree that it was made
/// of.
pub struct FileSystem {
    engine: Arc<Engine>,
    root: Arc<OpenRoot>,
    mode: HandleMode,
}

impl FileSystem {
    /// Transactions and everything below them.
    #[doc(hidden)]
    pub fn core(&self) -> &Core {
        &self.engine.core
    }

    /// Whether changes are refused: the volume was opened read-only, or the root is a snapshot.
    pub fn is_read_only(&self) -> bool {
        self.core().read_only() || !self.mode.is_writable()
    }

    /// Returns an error if changes are refused: [`Error::Stale`] if this is a handle to a branch
    /// that was replaced or dropped since.
    pub(crate) fn check_changeable(&self) -> Result<()> {
        self.core().check_changeable()?;
        match (self.items().is_head(), self.mode.is_writable()) {
            (true, _) => Ok(()),
            (false, true) => Err(Error::Stale),
            (false, false) => Err(Error::ReadOnly),
        }
    }

    /// Returns [`Error::Stale`] if this is a handle to a branch that was replaced or dropped since.
    fn check_current(&self) -> Result<()> {
        if self.is_replaced() {
            Err(Error::Stale)
        } else {
            Ok(())
        }
    }

    /// Whether this is a handle to a branch that was replaced or dropped since: it refuses changes.
    pub fn is_replaced(&self) -> bool {
        self.mode.is_writable() && !self.items().is_head()
    }

    /// Returns [`Error::Stopped`](cairnfs_disk::Error::Stopped) if a failure stopped all changes.
    #[doc(hidden)]
    pub fn check_running(&self) -> Result<()> {
        self.core().storage().check()
    }

    /// The inode with this number; fails once the volume is closed.
    #[doc(hidden)]
    pub fn inode(&self, ino: u64) -> Result<Arc<Inode>> {
        self.engine.lifecycle.check_open()?;
        self.items().inode(ino)
    }

    /// The tree of files.
    fn items(&self) -> &Arc<ItemStore> {
        &self.root.items
    }

    /// Begins to commit changes of the tree.
    fn commit(&self) -> Result<Commit<'_>> {
        self.core().commit(&self.root.items)
    }

    /// The version of the tree's shape. A directory path that was walked at an older version must be
    /// walked again.
    #[doc(hidden)]
    pub fn shape(&self) -> u64 {
        self.root.shape.version()
    }
}
