//! Packing the index when units are short.
//!
//! The space that transactions reserve for index growth suffices on average, but leaves that split
//! after small additions may take more. The permanent reserve pays for that, and packing restores
//! the reserve: it rewrites the same items into as few leaves as possible. Packing runs in steps
//! like a merge, under the lock of merges, and changes no item.

use std::cell::Cell;

use crate::error::{Error, Result};
use crate::format::key::Key;
use crate::index::NodeSpace;
use crate::sync::atomic::Ordering;
use crate::txn::Core;
use crate::txn::edits::ImageChange;
use crate::txn::step_space::StepSpace;

/// Minimum number of new nodes before packing is tried again.
const WORTH: u64 = 16;

impl Core {
    /// Packs the index if that can free units. Returns whether blocks were freed.
    ///
    /// # Errors
    /// The device's failure, or damage found in the index: both stop the volume.
    pub fn compact(&self) -> Result<bool> {
        let unfinished = self.merging.lock();
        self.storage.check()?;
        self.storage.retry_held()?;
        if unfinished.is_some() {
            return Ok(false);
        }
        let before = self.space.free_blocks();
        let result = self.pack(&|| false);
        if let Err(e) = &result {
            self.storage.fail(e.clone());
        }
        result.map(|()| self.space.free_blocks() > before)
    }

    /// Called between the steps of a merge and after it: packs the index if the reserve for
    /// deletions and merges was used.
    pub(super) fn restore_reserve(&self) -> Result<()> {
        let whole = || self.space.is_reserve_whole();
        match whole() {
            true => Ok(()),
            false => self.pack(&whole),
        }
    }

    /// Goes once around the index from the key where packing ended before, until `enough` returns
    /// true. Does nothing until enough new nodes exist that may be packed.
    fn pack(&self, enough: &dyn Fn() -> bool) -> Result<()> {
        if self.made.load(Ordering::Relaxed) < self.pack_after.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut from = self.packed_to.lock();
        let mut leaves = 0;
        let mut ends = 0;
        while ends < 2 {
            let (next, looked_at) = self.pack_step(*from)?;
            *from = next;
            leaves += looked_at;
            ends += u32::from(next.is_none());
            if enough() {
                return Ok(());
            }
        }
        let after = self.made.load(Ordering::Relaxed) + WORTH + leaves / 128;
        self.pack_after.store(after, Ordering::Relaxed);
        Ok(())
    }

    fn pack_step(&self, from: Option<Key>) -> Result<(Option<Key>, u64)> {
        let (count, promised) = (Cell::new(0), Cell::new(0));
        let space = StepSpace::new(self, &count, &promised);
        let birth = self.superblocks.newest().merged_seq.get();
        let main = self.items.tree();
        let full = || !space.has_room();
        let packed = match self.index.compact(&main, from, birth, &space, &full) {
            // There are too few units to pack with. Items that wait for a merge are not affected.
            Err(Error::NoSpace) => return Ok((None, 0)),
            other => other?,
        };
        if packed.tree != main {
            let done = self.finish_step(space, packed.tree, birth, &ImageChange::default(), |_| {});
            match done {
                // The leaves took the last unit, so there was none for the volume's root.
                Err(Error::NoSpace) => return Ok((None, 0)),
                done => done?,
            }
        }
        Ok((packed.next, packed.leaves))
    }
}
