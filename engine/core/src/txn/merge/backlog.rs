//! What waits for a merge, and what the running merge has taken but not finished.
//!
//! Commits add to the freed blocks; the rest moves here from the reservations when a merge takes
//! it. All sums are estimates for other threads; no space is reserved from them.

use crossbeam_utils::CachePadded;

use crate::space::BlockRun;
use cairnfs_disk::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Sums of what merges have to do.
#[derive(Default)]
pub(in crate::txn) struct Backlog {
    /// Blocks freed by commits that no merge has made usable yet.
    pending_free: CachePadded<AtomicI64>,
    /// Memory in bytes of the sealed sets that the running merge has not released.
    sealed_bytes: AtomicI64,
    /// Bytes of deleted items that the running merge, or the first merge after replay, removes from
    /// the index.
    shrinking: AtomicU64,
}

impl Backlog {
    /// Adds blocks that are usable once a merge has taken the open context.
    pub fn add_pending_free(&self, runs: &[BlockRun]) {
        let blocks: u64 = runs.iter().map(|run| run.len).sum();
        self.pending_free.fetch_add(blocks as i64, Ordering::AcqRel);
    }

    /// Blocks that become usable with the next merge.
    pub fn pending_free(&self) -> i64 {
        self.pending_free.load(Ordering::Acquire)
    }

    /// Memory of the sealed sets, in bytes.
    pub fn sealed_bytes(&self) -> i64 {
        self.sealed_bytes.load(Ordering::Acquire)
    }

    /// Bytes of deleted items that a merge has taken and not removed yet.
    pub fn shrinking(&self) -> u64 {
        self.shrinking.load(Ordering::Acquire)
    }

    /// Adds `bytes` of deleted items that replay found.
    pub fn add_shrinking(&self, bytes: u64) {
        self.shrinking.fetch_add(bytes, Ordering::AcqRel);
    }

    /// A merge takes dirty sets of `memory` bytes that shrink the index by `shrinkage` bytes.
    pub(super) fn take_over(&self, memory: i64, shrinkage: u64) {
        self.sealed_bytes.fetch_add(memory, Ordering::AcqRel);
        self.add_shrinking(shrinkage);
    }

    /// Sets the memory of the sealed sets that are left.
    pub(super) fn set_sealed_bytes(&self, bytes: i64) {
        self.sealed_bytes.store(bytes, Ordering::Release);
    }

    /// Lowers the memory of the sealed sets that are left to `bytes`, if it is more.
    pub(super) fn lower_sealed_bytes(&self, bytes: i64) {
        self.sealed_bytes.fetch_min(bytes, Ordering::AcqRel);
    }

    /// A merge has removed all deleted items.
    pub(super) fn shrunk(&self) {
        self.shrinking.store(0, Ordering::Release);
    }

    /// A merge has made `pending` blocks usable.
    pub(super) fn freed(&self, pending: u64) {
        self.pending_free
            .fetch_sub(pending as i64, Ordering::AcqRel);
    }
}
