//! Cache of directories by path: a program that accesses many files of one directory walks its path
//! once.
//!
//! Only paths without symbolic links are cached. Such a path leads elsewhere only after a directory
//! is moved or removed. The engine counts these events; a path that was cached under another count
//! is walked again. A cached directory is held in memory without a use: it may be removed, and then
//! has no names.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use xxhash_rust::xxh3::xxh3_64;

use crate::inode::Inode;
use crate::sync::Mutex;

/// Cached paths; a new path replaces the one in its slot.
const SLOTS: usize = 256;

/// Longest cached path, in bytes.
const LONGEST: usize = 512;

struct Prefix {
    path: Box<[u8]>,
    shape: u64,
    dir: Arc<Inode>,
}

/// A direct-mapped cache of directories by path.
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

    /// The directory that `path` led to at this count of directory changes.
    pub(super) fn find(&self, path: &[u8], shape: u64) -> Option<Arc<Inode>> {
        let slot = self.slot(path)?.lock();
        let known = slot.as_ref()?;
        (known.shape == shape && *known.path == *path).then(|| Arc::clone(&known.dir))
    }

    /// Caches the directory of `path`. `shape` was read before the walk began.
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
