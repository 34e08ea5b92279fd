//! Space for operations: the reservation of dirty data, and the ways to reclaim space before a call
//! fails with ENOSPC.
//!
//! Dirty pages reserve a block each, or none if they will become an inline item, and the bytes of
//! the items that writeback may create. Writeback uses this reservation, so it never fails with
//! ENOSPC. A call that finds too little space first merges, which frees deleted space, and writes back
//! dirty data, which releases unused reservations.

use crate::fs::FileSystem;
use crate::fs::locked::attrs;
use crate::fs::reclaim::{Way, is_short};
use crate::inode::pages::PageReservation;
use crate::inode::{Inode, InodeState};
use crate::journal::vector::ITEM;
use crate::space::{Class, Delayed};
use crate::txn::{Need, Reservation};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::MAX_INLINE;
use cairnfs_disk::format::item::RawExtent;
use cairnfs_disk::sync::RwLockWriteGuard;

/// Bytes of an extent item without checksums.
const PIECE: u64 = size_of::<RawExtent>() as u64 + ITEM;
/// Index growth for one page, at most: its own extent, in the middle of another extent.
const PAGE: u64 = 3 * PIECE + 4;

/// Leaves of the index that the writeback of a file touches besides those of its pages: of the inode
/// item, of an inline item, at both ends of what it replaces.
const AROUND: u64 = 4;

/// Index growth of an inline item of `size` bytes.
pub(super) fn inline_growth(size: u64) -> u64 {
    size + ITEM
}

/// Bytes of an extent item with `crcs` checksums, as counted for index growth.
pub(super) fn extent_growth(crcs: usize) -> u64 {
    PIECE + 4 * crcs as u64
}

/// Leaves that the writeback of so many pages may touch: each its own.
fn leaves(pages: u64) -> u64 {
    pages + if pages > 0 { AROUND } else { 0 }
}

/// The most that `blocks` pages may need, including an inline item with the file's contents.
pub(super) fn most(blocks: u64) -> Delayed {
    Delayed {
        blocks,
        growth: blocks * PAGE + inline_growth(MAX_INLINE as u64),
        // An inline item is one more page.
        leaves: leaves(blocks + 1),
    }
}

/// Whether a file's contents fit into an inline item, and the file has no extents.
fn is_small(state: &InodeState) -> bool {
    let attrs = state.attrs.as_ref();
    attrs.is_some_and(|a| a.blocks == 0 && a.size <= MAX_INLINE as u64)
}

/// Whether writeback will put a file's contents into an inline item.
pub(super) fn becomes_inline(state: &InodeState) -> bool {
    is_small(state) && state.pages.blocks() == 0
}

/// The most that a file's pages need: none of them is assumed to have preallocated space.
fn needs(state: &InodeState, inline: bool) -> Delayed {
    let pages = state.pages.dirty.len() as u64;
    match &state.attrs {
        Some(attrs) if pages > 0 && inline => Delayed {
            blocks: 0,
            growth: inline_growth(attrs.size),
            leaves: leaves(pages),
        },
        _ => Delayed {
            blocks: pages,
            growth: pages * PAGE,
            leaves: leaves(pages),
        },
    }
}

/// The reservation held by a file that had `pages` pages.
fn held(state: &InodeState, pages: u64) -> Delayed {
    match state.pages.held() {
        PageReservation::Blocks(blocks) => Delayed {
            blocks,
            growth: pages * PAGE,
            leaves: leaves(pages),
        },
        PageReservation::Inline(growth) => Delayed {
            blocks: 0,
            growth,
            leaves: leaves(pages),
        },
    }
}

impl FileSystem {
    /// Adds `more` to the reservation of a file's pages, keeps what the pages need, and releases
    /// the rest. Called whenever pages or size have changed; `change` is the change in the number
    /// of pages.
    pub(super) fn adjust_delayed(&self, state: &mut InodeState, more: Delayed, change: i64) {
        let all = self.all_held(state, more, change);
        let inline = becomes_inline(state) && all.growth >= needs(state, true).growth;
        self.keep_needed(state, all, inline);
    }

    /// Like [`Self::adjust_delayed`], for a file that is about to get extents and leave the inline
    /// item.
    pub(super) fn adjust_delayed_for_blocks(
        &self,
        state: &mut InodeState,
        more: Delayed,
        change: i64,
    ) {
        let all = self.all_held(state, more, change);
        self.keep_needed(state, all, false);
    }

    /// Like [`Self::adjust_delayed`], for pages that were written back; returns the growth reserved
    /// for them and the leaves that they were counted for, which are not released.
    pub(super) fn take_delayed_of_written(&self, state: &mut InodeState, written: u64) -> Delayed {
        let all = self.all_held(state, Delayed::default(), -(written as i64));
        let inline = matches!(state.pages.held(), PageReservation::Inline(_));
        let kept = all.at_most(needs(state, inline));
        let moved = Delayed {
            blocks: 0,
            ..all.beyond(kept)
        };
        self.keep_needed(state, all.beyond(moved), inline);
        moved
    }

    fn all_held(&self, state: &InodeState, more: Delayed, change: i64) -> Delayed {
        self.engine.pages.count(change);
        let pages = state.pages.dirty.len() as u64;
        held(state, pages.saturating_add_signed(-change)).and(more)
    }

    fn keep_needed(&self, state: &mut InodeState, all: Delayed, inline: bool) {
        let kept = all.at_most(needs(state, inline));
        state.pages.hold(if inline && kept.growth > 0 {
            PageReservation::Inline(kept.growth)
        } else {
            PageReservation::Blocks(kept.blocks)
        });
        if state.pages.dirty.is_empty() {
            state.pages.sub_unplaced(u64::MAX);
        }
        self.core().release_delayed(self.items(), all.beyond(kept));
    }

    /// Reserves the space that a transaction may need.
    ///
    /// # Errors
    /// No space even after making room; a read-only or failed volume.
    pub(super) fn reserve(&self, need: Need) -> Result<Reservation<'_>> {
        self.check_changeable()?;
        self.with_room(|| self.core().reserve(self.items(), need))
    }

    /// Reserves data blocks.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(super) fn reserve_blocks(&self, blocks: u64, class: Class) -> Result<()> {
        self.with_room(|| self.core().reserve_space(blocks, 0, class))
    }

    /// Reserves space for data that will be dirty in memory.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(super) fn reserve_delayed(&self, want: Delayed, class: Class) -> Result<()> {
        self.with_room(|| self.core().reserve_delayed(self.items(), want, class))
    }

    /// Reserves space as [`Self::reserve_delayed`], and locks the state of its inode.
    ///
    /// # Errors
    /// As [`Self::reserve`]; the inode was removed meanwhile. Nothing is reserved then.
    pub(super) fn reserve_and_lock<'i>(
        &self,
        inode: &'i Inode,
        want: Delayed,
        class: Class,
    ) -> Result<RwLockWriteGuard<'i, InodeState>> {
        self.reserve_delayed(want, class)?;
        let state = inode.write();
        match attrs(&state).map(|_| ()) {
            Ok(()) => Ok(state),
            Err(removed) => {
                drop(state);
                self.core().release_delayed(self.items(), want);
                Err(removed)
            }
        }
    }

    /// Calls `reserve` until it finds space; between calls makes room, until none can be made, and then
    /// drops what gives way. The caller holds no inode state lock.
    pub(super) fn with_room<T>(&self, reserve: impl Fn() -> Result<T>) -> Result<T> {
        let result = reserve();
        if !is_short(&result) {
            return result;
        }
        let write = || self.write_waiting();
        let merge = || self.core().merge_for_space();
        let drop = || self.drop_for_space();
        let compact = || self.core().compact();
        // A merge frees what was overwritten and removed, and is much sooner done than all data is
        // written. Then twice, because one may have begun before the latest deletions.
        let ways: [Way<'_>; 6] = [&merge, &write, &merge, &merge, &drop, &compact];
        let space = self.core().space();
        loop {
            return match self.engine.reclaimer.retry(space, &reserve, &ways) {
                Err(Error::NoSpace) if self.give_way()? => continue,
                Err(Error::NoSpace) if self.core().roots().are_several() => Err(Error::HeldByRoots),
                other => other,
            };
        }
    }

    /// Writes back dirty data, which releases the unused part of its reservation.
    fn write_waiting(&self) -> Result<bool> {
        let waits = self.core().space().delayed_growth().0 > 0;
        if waits && let Err(error) = self.write_back_roots() {
            // An error of one file does not concern the caller; a failed device does.
            self.core().storage().check()?;
            tracing::debug!(%error, "writeback to make room was incomplete");
        }
        Ok(waits)
    }
}
