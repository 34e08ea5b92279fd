//! How much space is left, and whether a merge would give more.
//!
//! Reads the sums of the reservations, of the allocator and of the merges; changes none of them.
//! Each is exact by itself, and they are read one after another, so the results are estimates while
//! other threads commit.

use crate::txn::Core;
use cairnfs_disk::error::Result;
use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS};

/// Number of freed blocks (64 MiB) from which a merge is due although the log is not full.
const MUCH_FREED: i64 = 1 << 14;
/// A merge is due when deleted items take at least the free blocks divided by this, or freed blocks
/// those that the host has left.
const MUCH_REMOVED: u64 = 16;

impl Core {
    /// Free blocks, and the part that ordinary requests may have, once all delayed data is placed and
    /// all freed blocks are merged.
    pub fn space_left(&self) -> (u64, u64) {
        self.reservations.sweep();
        let space = &self.space;
        let pending = self.merger.backlog().pending_free().max(0) as u64;
        let (waiting, committed) = space.delayed_growth();
        let growth = waiting + committed + self.reservations.growth();
        let taken = space.reserved().0 + growth.div_ceil(BLOCK_SIZE as u64);
        let given = pending + space.trimming() + self.shrinkage() / BLOCK_SIZE as u64;
        let all = self.geometry.data_blocks();
        let free = (space.free_blocks() + given).saturating_sub(taken).min(all);
        let copies = self.merger.copies().kept() * NODE_BLOCKS;
        let kept = space.kept_blocks() + copies;
        // Partial units may be free, but no file can be created without a whole one.
        let whole = given > 0 || growth > 0 || space.can_grow().unwrap_or(false);
        let available = free.saturating_sub(kept);
        (free, if whole { available } else { 0 })
    }

    /// Merges if that can free space. Returns whether it merged.
    pub fn merge_for_space(&self) -> Result<bool> {
        let backlog = self.merger.backlog();
        let yields = backlog.pending_free() > 0
            || self.shrinkage() > 0
            || self.reservations.growth() > 0
            || self.space.delayed_growth().1 > 0
            || self.merger.copies().charged() > 0
            || backlog.sealed_bytes() > 0;
        if yields {
            self.merge()?;
        }
        Ok(yields)
    }

    /// Whether so much was freed since the last merge, by itself or compared with what the host has
    /// left, that the storage below should get it back soon: a merge discards it.
    pub fn has_much_to_discard(&self) -> bool {
        let freed = self.merger.backlog().pending_free();
        let left = || (self.space.host_left() / MUCH_REMOVED) as i64;
        self.discard && freed > 0 && (freed >= MUCH_FREED || freed >= left())
    }

    /// Approximate bytes by which the index shrinks with the next merge.
    fn shrinkage(&self) -> u64 {
        self.reservations.shrinkage() + self.merger.backlog().shrinking()
    }

    /// Whether so many items were deleted since the last merge, or so many copies of inherited nodes
    /// are kept for changes since then, compared with the free blocks, that a merge should soon
    /// determine what exactly they free or need.
    pub fn has_much_removed(&self) -> bool {
        let removed = self.shrinkage();
        let much = |blocks| blocks >= self.space.free_blocks() / MUCH_REMOVED;
        let charged = self.merger.copies().charged();
        (removed > 0 && (much(removed / BLOCK_SIZE as u64) || self.space.is_short()))
            || (charged > 0 && much(charged * NODE_BLOCKS))
    }
}
