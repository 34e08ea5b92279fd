//! Space for operations: what data that waits in memory has reserved, and what is tried before a
//! call is refused for want of space.
//!
//! Waiting pages hold a block each, or none if they will become an inline item, and the bytes of the
//! items that writeback may make. Writeback spends exactly that, so it is never refused. A call that
//! finds too little first turns what waits into what it really takes, and merges what was freed.

use crate::error::{Error, Result};
use crate::format::item::RawExtent;
use crate::format::{BLOCK_SIZE, MAX_INLINE};
use crate::fs::FileSystem;
use crate::inode::InodeState;
use crate::inode::pages::PageReservation;
use crate::journal::vector::ITEM;
use crate::space::{Class, Delayed};
use crate::sync::atomic::Ordering;
use crate::txn::{Need, Reservation};

/// How often room is made for one call: others may take it.
const ROUNDS: usize = 8;

/// An extent item without checksums.
const PIECE: u64 = size_of::<RawExtent>() as u64 + ITEM;
/// Growth of the index for one page: an extent of its own, in the middle of another.
const PAGE: u64 = 3 * PIECE + 4;

/// Index growth of an inline item of `size` bytes.
pub(super) fn inline_growth(size: u64) -> u64 {
    size + ITEM
}

/// Bytes of an extent item with `crcs` checksums, as growth counts them.
pub(super) fn extent_growth(crcs: usize) -> u64 {
    PIECE + 4 * crcs as u64
}

/// The most that `blocks` pages may need, of which the file's contents may become inline.
pub(super) fn most(blocks: u64) -> Delayed {
    Delayed {
        blocks,
        growth: blocks * PAGE + inline_growth(MAX_INLINE as u64),
    }
}

/// Whether a file's contents fit into an inline item, and no extent holds any of them.
fn is_small(state: &InodeState) -> bool {
    let attrs = state.attrs.as_ref();
    attrs.is_some_and(|a| a.blocks == 0 && a.size <= MAX_INLINE as u64)
}

/// Whether writeback will make an inline item of a file's contents.
pub(super) fn becomes_inline(state: &InodeState) -> bool {
    is_small(state) && state.pages.blocks() == 0
}

/// What the pages of a file need, as far as they have no space allocated before.
fn needs(state: &InodeState, inline: bool) -> Delayed {
    let pages = state.pages.dirty.len() as u64;
    match &state.attrs {
        Some(attrs) if pages > 0 && inline => Delayed {
            blocks: 0,
            growth: inline_growth(attrs.size),
        },
        _ => Delayed {
            blocks: pages,
            growth: pages * PAGE,
        },
    }
}

/// What is held for a file that had so many pages.
fn held(state: &InodeState, pages: u64) -> Delayed {
    match state.pages.held() {
        PageReservation::Blocks(blocks) => Delayed {
            blocks,
            growth: pages * PAGE,
        },
        PageReservation::Inline(growth) => Delayed { blocks: 0, growth },
    }
}

impl FileSystem {
    /// Of what a file's pages hold, and `more`, keeps what they need and gives back the rest. Called
    /// whenever pages or size have changed; `change` is that of the number of pages.
    pub(super) fn adjust_delayed(&self, state: &mut InodeState, more: Delayed, change: i64) {
        let all = self.all_held(state, more, change);
        let inline = becomes_inline(state) && all.growth >= needs(state, true).growth;
        self.keep_needed(state, all, inline);
    }

    /// The same for a file that is about to get extents: its contents leave the inline item.
    pub(super) fn adjust_delayed_for_blocks(
        &self,
        state: &mut InodeState,
        more: Delayed,
        change: i64,
    ) {
        let all = self.all_held(state, more, change);
        self.keep_needed(state, all, false);
    }

    /// The same for pages that were written and left; returns the growth that was held for them,
    /// which is not given back.
    pub(super) fn take_delayed_of_written(&self, state: &mut InodeState, written: u64) -> u64 {
        let all = self.all_held(state, Delayed::default(), -(written as i64));
        let inline = matches!(state.pages.held(), PageReservation::Inline(_));
        let moved = all.growth - all.at_most(needs(state, inline)).growth;
        let growth = all.growth - moved;
        self.keep_needed(state, Delayed { growth, ..all }, inline);
        moved
    }

    fn all_held(&self, state: &InodeState, more: Delayed, change: i64) -> Delayed {
        self.page_bytes
            .fetch_add(change * BLOCK_SIZE as i64, Ordering::Relaxed);
        let pages = state.pages.dirty.len() as u64;
        held(state, pages.saturating_add_signed(-change)).and(more)
    }

    fn keep_needed(&self, state: &mut InodeState, all: Delayed, inline: bool) {
        let kept = all.at_most(needs(state, inline));
        state.pages.hold(match inline && kept.growth > 0 {
            true => PageReservation::Inline(kept.growth),
            false => PageReservation::Blocks(kept.blocks),
        });
        if state.pages.dirty.is_empty() {
            state.pages.sub_unplaced(u64::MAX);
        }
        self.core.space().release_delayed(all.beyond(kept));
    }

    /// Sets aside what a transaction may need.
    ///
    /// # Errors
    /// No space, after all that can make some; a read-only or failed volume.
    pub(super) fn reserve(&self, need: Need) -> Result<Reservation<'_>> {
        self.with_room(|| self.core.reserve(need))
    }

    /// Sets aside data blocks.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(super) fn reserve_blocks(&self, blocks: u64, class: Class) -> Result<()> {
        self.with_room(|| self.core.reserve_space(blocks, 0, class))
    }

    /// Sets aside what data that will wait in memory needs.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(super) fn reserve_delayed(&self, want: Delayed, class: Class) -> Result<()> {
        self.with_room(|| self.core.reserve_delayed(want, class))
    }

    /// Runs `reserve`, which finds space or not; in between makes room, until none can be made. No lock
    /// of an inode's state is held.
    pub(super) fn with_room<T>(&self, reserve: impl Fn() -> Result<T>) -> Result<T> {
        // A merge may have begun before what the second one takes.
        let makers = [
            Self::write_waiting,
            Self::merge_freed,
            Self::merge_freed,
            Self::compact_index,
        ];
        let short =
            |result: &Result<T>| matches!(result, Err(Error::NoSpace | Error::HostFull { .. }));
        let mut result = reserve();
        if !short(&result) {
            return result;
        }
        // One at a time, so that nobody takes at once what another has made room for.
        let _turn = self.making_room.lock();
        let _whole = self.core.space().hold_trimming();
        for _ in 0..ROUNDS {
            let mut made = false;
            for make_room in makers {
                result = reserve();
                if !short(&result) {
                    return result;
                }
                made |= match make_room(self) {
                    // A merge that found none is not the last word.
                    Err(Error::NoSpace) => false,
                    other => other?,
                };
            }
            if !made {
                break;
            }
        }
        reserve()
    }

    /// Waiting data takes its place, and gives back what it had reserved beyond that.
    fn write_waiting(&self) -> Result<bool> {
        let waits = self.core.space().delayed_growth().0 > 0;
        if waits && let Err(error) = self.write_back_all() {
            // A file that cannot be written back does not concern the caller; a failed device does.
            self.core.storage().check()?;
            tracing::debug!(%error, "writeback to make room was incomplete");
        }
        Ok(waits)
    }

    fn merge_freed(&self) -> Result<bool> {
        self.core.merge_for_space()
    }

    fn compact_index(&self) -> Result<bool> {
        self.core.compact()
    }
}
