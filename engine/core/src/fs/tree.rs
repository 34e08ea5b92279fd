//! The shape of the directory tree: which directory is below which.
//!
//! The shape changes when a directory is moved or removed. Moves to another parent are serialized,
//! as by the kernel's `s_vfs_rename_mutex`, so a check of all ancestors stays true until the move
//! is committed. A version counts the changes, so a cached directory path can be validated.

use crossbeam_utils::CachePadded;

use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};
use cairnfs_disk::sync::{Mutex, MutexGuard};

/// Orders and counts changes of the tree's shape.
#[derive(Default)]
pub(super) struct TreeShape {
    moving: Mutex<()>,
    /// Read by each path lookup, so it shares its cache line with nothing that changes.
    version: CachePadded<AtomicU64>,
}

/// Proof that no other thread moves a directory to another parent.
pub(super) struct MoveLock<'a> {
    _held: MutexGuard<'a, ()>,
}

impl TreeShape {
    /// Excludes other moves of directories between parents. Taken before reservations and inode
    /// locks.
    pub fn lock_moves(&self) -> MoveLock<'_> {
        MoveLock {
            _held: self.moving.lock(),
        }
    }

    /// The version of the shape. A path that was walked at an older version must be walked again.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Records that a directory is moved or removed; called under the lock of its parent, before
    /// the entry changes.
    pub fn change(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }
}
