//! Directories that paths lead to, remembered by the path: a program that names many files of one
//! directory walks there once.
//!
//! Only paths on which no symbolic link was met are remembered. What such a path leads to changes only
//! when a directory is moved or removed. The engine counts those events; a path that was walked under
//! another count is walked again. A remembered directory is held in memory, but not used: it may go,
//! and then has no names.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use xxhash_rust::xxh3::xxh3_64;

use crate::inode::Inode;
use crate::sync::Mutex;

/// Paths remembered; one takes the place of another.
const SLOTS: usize = 256;

/// Longest path remembered, in bytes.
const LONGEST: usize = 512;

struct Prefix {
    path: Box<[u8]>,
    shape: u64,
    dir: Arc<Inode>,
}

/// Directories by path.
pub(super) struct Prefixes {
    slots: Box<[CachePadded<Mutex<Option<Prefix>>>]>,
}

impl Default for Prefixes {
    fn default() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| CachePadded::default()).collect(),
        }
    }
}

impl Prefixes {
    fn slot(&self, path: &[u8]) -> Option<&Mutex<Option<Prefix>>> {
        if path.len() > LONGEST {
            return None;
        }
        let slot = self.slots.get(xxh3_64(path) as usize % SLOTS)?;
        Some(slot)
    }

    /// The directory that `path` led to while the tree had this shape.
    pub(super) fn find(&self, path: &[u8], shape: u64) -> Option<Arc<Inode>> {
        let slot = self.slot(path)?.lock();
        let known = slot.as_ref()?;
        (known.shape == shape && *known.path == *path).then(|| Arc::clone(&known.dir))
    }

    /// Remembers where `path` leads. The shape was read before the walk began.
    pub(super) fn remember(&self, path: &[u8], shape: u64, dir: &Arc<Inode>) {
        let Some(slot) = self.slot(path) else { return };
        let prefix = Prefix {
            path: path.into(),
            shape,
            dir: Arc::clone(dir),
        };
        let replaced = slot.lock().replace(prefix);
        drop(replaced);
    }
}
