//! Metadata reservations of delayed allocation: the index growth that dirty data will cause.
//!
//! Dirty data stays in memory until its writeback allocates blocks. The index space for it is
//! reserved at write time, so writeback never runs out of space. A reservation counts bytes of
//! items, and units are held for the sum of all reservations, so a small file reserves the size of
//! its item and not a whole unit. Writeback turns waiting bytes into committed ones, which the next
//! merge takes over.
//!
//! The lock is a leaf: no other lock is taken under it.

use super::{Class, Space};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::NODE_SIZE;
use cairnfs_disk::sync::Mutex;

/// Index units for `bytes` of new items in the worst case: half-full leaves, and their parents.
pub fn growth_units(bytes: i64) -> u64 {
    (bytes.max(0) as u64 * 5 / 2).div_ceil(NODE_SIZE as u64)
}

/// The reservation for the dirty data of one file, or a change of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delayed {
    /// Blocks for data.
    pub blocks: u64,
    /// Bytes of items.
    pub growth: u64,
    /// Leaves of the index that these items may touch. A tree that inherits leaves needs space for
    /// copies of them; none is reserved here.
    pub leaves: u64,
}

impl Delayed {
    /// The part that exceeds `kept`.
    pub fn beyond(self, kept: Self) -> Self {
        Self {
            blocks: self.blocks.saturating_sub(kept.blocks),
            growth: self.growth.saturating_sub(kept.growth),
            leaves: self.leaves.saturating_sub(kept.leaves),
        }
    }

    /// The sum.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            blocks: self.blocks + other.blocks,
            growth: self.growth + other.growth,
            leaves: self.leaves + other.leaves,
        }
    }

    /// The minimum of each field.
    #[must_use]
    pub fn at_most(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.min(other.blocks),
            growth: self.growth.min(other.growth),
            leaves: self.leaves.min(other.leaves),
        }
    }
}

/// The sums over all files.
#[derive(Debug, Default)]
struct Sums {
    /// Bytes of items that writeback has not created yet.
    waiting: u64,
    /// Bytes of items that writeback has committed since the last merge began.
    committed: u64,
    /// Units reserved for both.
    units: u64,
}

impl Sums {
    /// Units that are missing if `more` bytes are added.
    fn short(&self, more: u64) -> u64 {
        let bytes = self.waiting + self.committed + more;
        growth_units(bytes as i64).saturating_sub(self.units)
    }

    /// Removes the units that are not needed, and returns their number.
    fn surplus(&mut self) -> u64 {
        let needed = growth_units((self.waiting + self.committed) as i64);
        let surplus = self.units.saturating_sub(needed);
        self.units -= surplus;
        surplus
    }
}

/// Growth reserved by all waiting data.
#[derive(Default)]
pub(super) struct DelayedGrowth(Mutex<Sums>);

impl Space {
    /// Reserves space for dirty data; false if there is not enough.
    ///
    /// # Errors
    /// A damaged or unreadable bitmap, as in [`Space::reserve`].
    pub fn reserve_delayed(&self, want: Delayed, class: Class) -> Result<bool> {
        loop {
            let units = self.delayed.0.lock().short(want.growth);
            if !self.reserve(want.blocks, units, class)? {
                return Ok(false);
            }
            let mut sums = self.delayed.0.lock();
            let short = sums.short(want.growth);
            if short <= units {
                sums.waiting += want.growth;
                sums.units += short;
                drop(sums);
                self.unreserve(0, units - short);
                return Ok(true);
            }
            drop(sums);
            self.unreserve(want.blocks, units);
        }
    }

    /// Returns a reservation, or the unused part of it.
    pub fn release_delayed(&self, rest: Delayed) {
        if rest == Delayed::default() {
            return;
        }
        let mut sums = self.delayed.0.lock();
        debug_assert!(sums.waiting >= rest.growth, "more released than reserved");
        sums.waiting = sums.waiting.saturating_sub(rest.growth);
        let surplus = sums.surplus();
        drop(sums);
        self.unreserve(rest.blocks, surplus);
    }

    /// Writeback has committed items of `grown` bytes, for which `reserved` bytes were reserved.
    pub fn commit_delayed(&self, reserved: u64, grown: u64) {
        debug_assert!(
            grown <= reserved,
            "{grown} bytes of items, {reserved} reserved"
        );
        let mut sums = self.delayed.0.lock();
        sums.waiting = sums.waiting.saturating_sub(reserved);
        sums.committed += grown;
        let surplus = sums.surplus();
        drop(sums);
        self.unreserve(0, surplus);
    }

    /// Recovery: reserves units for replayed items of `bytes` bytes, for which space was reserved
    /// before the crash. Reserves fewer units if there are not enough.
    ///
    /// # Errors
    /// A damaged or unreadable bitmap, as in [`Space::reserve`].
    pub fn adopt_growth(&self, bytes: u64) -> Result<()> {
        let short = self.delayed.0.lock().short(bytes);
        let mut units = short;
        while units > 0 && !self.reserve(0, units, Class::Merge)? {
            units /= 2;
        }
        let mut sums = self.delayed.0.lock();
        sums.committed += bytes;
        sums.units += units;
        Ok(())
    }

    /// Hands all committed bytes over to a merge; returns the number of units reserved for them,
    /// which the caller then owns.
    pub fn take_committed_growth(&self) -> u64 {
        let mut sums = self.delayed.0.lock();
        sums.committed = 0;
        sums.surplus()
    }

    /// Bytes of items that wait for writeback, and bytes committed since the last merge began.
    pub fn delayed_growth(&self) -> (u64, u64) {
        let sums = self.delayed.0.lock();
        (sums.waiting, sums.committed)
    }
}
