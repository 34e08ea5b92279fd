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
use crate::space::{Class, Delayed};
use crate::sync::atomic::Ordering;
use crate::txn::{Need, Reservation};

/// Bytes of an item beside its value, about.
const ITEM: u64 = 32;
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
    is_small(state) && state.pages.reserved == 0
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

fn held(state: &InodeState) -> Delayed {
    Delayed {
        blocks: state.pages.reserved.into(),
        growth: state.pages.growth.into(),
    }
}

impl FileSystem {
    /// Of what a file's pages hold, and `more`, keeps what they need and gives back the rest. Called
    /// whenever pages or size have changed; `pages` is the change of their number.
    pub(super) fn settle_pages(&self, state: &mut InodeState, more: Delayed, pages: i64) {
        let all = held(state).and(more);
        let inline = becomes_inline(state) && all.growth >= needs(state, true).growth;
        self.keep_needed(state, all, inline);
        self.page_bytes
            .fetch_add(pages * BLOCK_SIZE as i64, Ordering::Relaxed);
    }

    /// The same for a file that is about to get extents: its contents leave the inline item.
    pub(super) fn settle_in_blocks(&self, state: &mut InodeState, more: Delayed, pages: i64) {
        self.keep_needed(state, held(state).and(more), false);
        self.page_bytes
            .fetch_add(pages * BLOCK_SIZE as i64, Ordering::Relaxed);
    }

    fn keep_needed(&self, state: &mut InodeState, all: Delayed, inline: bool) {
        let kept = all.at_most(needs(state, inline));
        state.pages.reserved = kept.blocks as u32;
        state.pages.growth = kept.growth as u32;
        self.core.space().release_delayed(all.beyond(kept));
    }

    /// Takes from a file the growth that its remaining pages do not need, to be committed.
    pub(super) fn take_growth(&self, state: &mut InodeState) -> u64 {
        let kept = held(state).at_most(needs(state, false)).growth as u32;
        u64::from(std::mem::replace(&mut state.pages.growth, kept) - kept)
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

    /// Runs `reserve`, which finds space or not; in between makes room. No lock of an inode's state is
    /// held.
    pub(super) fn with_room<T>(&self, reserve: impl Fn() -> Result<T>) -> Result<T> {
        // A merge may have begun before what the second one takes.
        let makers = [
            Self::write_waiting,
            Self::merge_freed,
            Self::merge_freed,
            Self::compact_index,
        ];
        let mut result = reserve();
        for make_room in makers {
            if !matches!(result, Err(Error::NoSpace | Error::HostFull { .. })) {
                return result;
            }
            if make_room(self)? {
                result = reserve();
            }
        }
        result
    }

    /// Waiting data takes its place, and gives back what it had reserved beyond that.
    fn write_waiting(&self) -> Result<bool> {
        let waits = self.core.space().delayed_growth().0 > 0;
        if waits {
            self.write_back_all()?;
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
