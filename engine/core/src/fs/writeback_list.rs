//! Files of a root that await writeback, and the memory that the pages of all roots take.
//!
//! A file is on the list at most once: its `listed` flag, under the lock of its state, says so. It
//! is listed before its lock is released with unwritten data, so a sync that takes the list finds
//! all data of earlier writes.

use std::sync::Arc;

use crate::inode::{Inode, InodeState};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::shard::Sharded;
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// Runs of up to this many blocks stay in the cache: they are likely to be read or changed again.
const KEEP: usize = 16;

/// What writers write back when there is too much, at most: 1/`PART` of the limit, and this many
/// bytes. Much less would be a write for each small file, much more a long wait for one writer.
const PART: i64 = 8;
const AT_ONCE: i64 = 16 << 20;

/// The memory of unwritten pages, for all roots of a volume.
pub(super) struct PageMemory {
    bytes: AtomicI64,
    /// Bytes beyond which writers write back.
    limit: i64,
    keep_written: bool,
}

impl PageMemory {
    /// Memory that is full at `limit` bytes of pages. With `keep_written`, small runs of written
    /// pages stay in the cache.
    pub fn new(limit: i64, keep_written: bool) -> Self {
        Self {
            bytes: AtomicI64::new(0),
            limit,
            keep_written,
        }
    }

    /// Counts pages that became unwritten, or with a negative number were written or dropped.
    pub fn count(&self, change: i64) {
        self.bytes
            .fetch_add(change * BLOCK_SIZE as i64, Ordering::Relaxed);
    }

    /// Bytes of unwritten pages; changes of other threads may be counted late, so it may be
    /// negative.
    pub fn bytes(&self) -> i64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether there is so much unwritten data that writers must write it back.
    pub fn is_full(&self) -> bool {
        self.bytes() > self.limit
    }

    /// Whether there is so little unwritten data that writers need not write back more.
    pub fn has_room(&self) -> bool {
        self.bytes() <= self.limit - (self.limit / PART).min(AT_ONCE)
    }

    /// Whether a run of written pages stays in the cache.
    pub fn keeps(&self, pages: usize) -> bool {
        self.keep_written && pages <= KEEP
    }
}

/// Files of one root with unwritten data or attributes.
#[derive(Default)]
pub(super) struct WritebackList {
    files: Sharded<Arc<Inode>>,
    /// Held while the files of the list are written back, so that no sync overtakes another.
    draining: Mutex<()>,
    /// Whether the root is being frozen or was: a writer then checks, after it has listed its file,
    /// that the root is still a head. The locks of the shards order this with the list.
    closing: AtomicBool,
}

impl WritebackList {
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

    /// Takes all files from the list, and calls `write` for each until there are `enough`. An error of
    /// one file does not stop the others. One thread at a time. Also returns deleted files that were
    /// dropped from the list, for the inode table to evict.
    ///
    /// # Errors
    /// The first error of `write`.
    pub fn drain(
        &self,
        enough: impl Fn() -> bool,
        mut write: impl FnMut(&Arc<Inode>) -> Result<()>,
    ) -> (Result<()>, Vec<Arc<Inode>>) {
        let _turn = self.draining.lock();
        let mut result = Ok(());
        let mut files = self.files.take().into_iter();
        while !enough()
            && let Some(inode) = files.next()
        {
            inode.write().listed = false;
            result = result.and(write(&inode));
        }
        let prune = |file: &mut Arc<Inode>| file.unlist_if_gone();
        let gone = files.flat_map(|file| self.files.push_pruned(file, prune));
        (result, gone.collect())
    }

    /// Begins to freeze the root if no file is listed or being written back. From then on writers
    /// check the root again. Returns whether it did. The caller is in a change of roots, which no
    /// other one overtakes.
    pub fn close(&self) -> bool {
        self.closing.store(true, Ordering::Relaxed);
        let closed = self.draining.try_lock().is_some() && !self.has_any();
        if !closed {
            self.reopen();
        }
        closed
    }

    /// Ends [`Self::close`] if the root stays a head; in the same change of roots.
    pub fn reopen(&self) {
        self.closing.store(false, Ordering::Relaxed);
    }

    /// Whether the root is being frozen, or was.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Whether any file is listed.
    pub fn has_any(&self) -> bool {
        self.files.has_any()
    }
}
