//! Cache of directories by path: a program that accesses many files of one directory walks its path
//! once.
//!
//! Only paths without symbolic links are cached. Such a path leads elsewhere only after a directory
//! is moved or removed. The engine counts these events; a path that was cached under another count
//! is walked again. A cached directory is held in memory without a use: it may be removed, and then
//! has no names.

use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use xxhash_rust::xxh3::xxh3_64;

use cairnfs_core::Inode;
use cairnfs_disk::sync::Mutex;

/// Cached paths; a new path replaces the one in its slot.
const SLOTS: usize = 256;

/// Longest cached path, in bytes.
const LONGEST: usize = 512;

struct Prefix {
    path: Box<[u8]>,
    shape: u64,
    dir: Arc<Inode>,
}

type Slots = Box<[CachePadded<Mutex<Option<Prefix>>>]>;

/// A direct-mapped cache of directories by path.
#[derive(Default)]
pub(super) struct Prefixes {
    /// Allocated for the first path, so that an idle branch takes little memory.
    slots: OnceLock<Slots>,
}

/// The slot of a path; `None` if it is too long.
fn slot<'s>(slots: &'s Slots, path: &[u8]) -> Option<&'s Mutex<Option<Prefix>>> {
    if path.len() > LONGEST {
        return None;
    }
    let slot = slots.get(xxh3_64(path) as usize % SLOTS)?;
    Some(slot)
}

impl Prefixes {
    /// The directory that `path` led to at this count of directory changes.
    pub(super) fn find(&self, path: &[u8], shape: u64) -> Option<Arc<Inode>> {
        let slot = slot(self.slots.get()?, path)?.lock();
        let known = slot.as_ref()?;
        (known.shape == shape && *known.path == *path).then(|| Arc::clone(&known.dir))
    }

    /// Caches the directory of `path`. `shape` was read before the walk began.
    pub(super) fn remember(&self, path: &[u8], shape: u64, dir: &Arc<Inode>) {
        let new = || (0..SLOTS).map(|_| CachePadded::default()).collect();
        let Some(slot) = slot(self.slots.get_or_init(new), path) else {
            return;
        };
        let prefix = Prefix {
            path: path.into(),
            shape,
            dir: Arc::clone(dir),
        };
        let replaced = slot.lock().replace(prefix);
        drop(replaced);
    }
}
