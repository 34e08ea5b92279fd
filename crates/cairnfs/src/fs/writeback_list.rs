//! Files that await writeback, and the memory that their pages take.
//!
//! A file is on the list at most once: its `listed` flag, under the lock of its state, says so. It
//! is listed before its lock is released with unwritten data, so a sync that takes the list finds
//! all data of earlier writes.

use std::sync::Arc;

use crate::error::Result;
use crate::format::BLOCK_SIZE;
use crate::inode::{Inode, InodeState};
use crate::shard::Sharded;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicI64, Ordering};

/// Runs of up to this many blocks stay in the cache: they are likely to be read or changed again.
const KEEP: usize = 16;

/// Files with unwritten data or attributes.
pub(super) struct WritebackList {
    files: Sharded<Arc<Inode>>,
    /// Held while the files of the list are written back, so that no sync overtakes another.
    draining: Mutex<()>,
    /// Bytes of unwritten pages.
    page_bytes: AtomicI64,
    /// Bytes of unwritten pages beyond which writers write back.
    limit: i64,
    keep_written: bool,
}

impl WritebackList {
    /// A list that is full at `limit` bytes of pages. With `keep_written`, small runs of written
    /// pages stay in the cache.
    pub fn new(limit: i64, keep_written: bool) -> Self {
        Self {
            files: Sharded::default(),
            draining: Mutex::default(),
            page_bytes: AtomicI64::new(0),
            limit,
            keep_written,
        }
    }

    /// Adds a file, unless it is listed. Returns deleted files that were dropped from the list, for
    /// the inode table to evict.
    pub fn add(&self, inode: &Arc<Inode>, state: &mut InodeState) -> Vec<Arc<Inode>> {
        if state.listed {
            return Vec::new();
        }
        state.listed = true;
        self.files
            .push_pruned(inode.clone(), |file| file.unlist_if_gone())
    }

    /// Takes all files from the list and calls `write` for each. An error of one file does not stop
    /// the others. One thread at a time.
    ///
    /// # Errors
    /// The first error of `write`.
    pub fn drain(&self, mut write: impl FnMut(&Arc<Inode>) -> Result<()>) -> Result<()> {
        let _turn = self.draining.lock();
        let mut result = Ok(());
        for inode in self.files.take() {
            inode.write().listed = false;
            result = result.and(write(&inode));
        }
        result
    }

    /// Counts pages that became unwritten, or with a negative number were written or dropped.
    pub fn count_pages(&self, change: i64) {
        self.page_bytes
            .fetch_add(change * BLOCK_SIZE as i64, Ordering::Relaxed);
    }

    /// Bytes of unwritten pages; changes of other threads may be counted late, so it may be
    /// negative.
    pub fn page_bytes(&self) -> i64 {
        self.page_bytes.load(Ordering::Relaxed)
    }

    /// Whether there is so much unwritten data that writers must write it back.
    pub fn is_full(&self) -> bool {
        self.page_bytes() > self.limit
    }

    /// Whether a run of written pages stays in the cache.
    pub fn keeps(&self, pages: usize) -> bool {
        self.keep_written && pages <= KEEP
    }
}
