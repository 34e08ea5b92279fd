//! Growth of the index that waiting data has reserved: delayed allocation's share of the metadata.
//!
//! Data waits in memory until its writeback decides where it goes; what the index will need for it is
//! reserved when it is written, so writeback never asks for space. A reservation counts bytes of
//! items, and units are held for the sum of all, so a small file reserves what its item takes and no
//! whole unit. Writeback turns waiting bytes into committed ones, which the next merge takes over.
//!
//! The lock is a leaf; under it only counters change.

use super::{Class, Space};
use crate::error::Result;
use crate::format::NODE_SIZE;
use crate::sync::Mutex;

/// Index units that `bytes` of new items may take in the end: leaves half full, and their parents.
pub fn growth_units(bytes: i64) -> u64 {
    (bytes.max(0) as u64 * 5 / 2).div_ceil(NODE_SIZE as u64)
}

/// What one file's waiting data has reserved, or a change of that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delayed {
    /// Blocks for data.
    pub blocks: u64,
    /// Bytes of items.
    pub growth: u64,
}

impl Delayed {
    /// The part of it that is not in `kept`.
    pub fn beyond(self, kept: Self) -> Self {
        Self {
            blocks: self.blocks.saturating_sub(kept.blocks),
            growth: self.growth.saturating_sub(kept.growth),
        }
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            blocks: self.blocks + other.blocks,
            growth: self.growth + other.growth,
        }
    }

    /// At most as much as `other` has.
    #[must_use]
    pub fn at_most(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.min(other.blocks),
            growth: self.growth.min(other.growth),
        }
    }
}

/// The sums over all files.
#[derive(Debug, Default)]
struct Sums {
    /// Bytes of items that writeback has still to make.
    waiting: u64,
    /// Bytes of items that writeback has committed since a merge began.
    committed: u64,
    /// Units held for both.
    units: u64,
}

impl Sums {
    /// Units that are needed with `more` bytes, beyond those held.
    fn short(&self, more: u64) -> u64 {
        let bytes = self.waiting + self.committed + more;
        growth_units(bytes as i64).saturating_sub(self.units)
    }

    /// Units held that are not needed; they are not held afterwards.
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
    /// Reserves for data that will wait in memory; false if there is not enough.
    ///
    /// # Errors
    /// Near the limit bitmaps may have to be read, and can be damaged.
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

    /// Gives back what no data waits for any more.
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

    /// Writeback commits items of `grown` bytes, for which `reserved` bytes had waited.
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

    /// Recovery: items of `bytes` bytes are in memory for which space was reserved before the crash.
    /// Takes what is left of it, so that nothing else can.
    ///
    /// # Errors
    /// Bitmaps may have to be read, and can be damaged.
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

    /// A merge takes all that was committed, and the units held for it.
    pub fn take_committed_growth(&self) -> u64 {
        let mut sums = self.delayed.0.lock();
        sums.committed = 0;
        sums.surplus()
    }

    /// Bytes of items that wait, and those committed since a merge began.
    pub fn delayed_growth(&self) -> (u64, u64) {
        let sums = self.delayed.0.lock();
        (sums.waiting, sums.committed)
    }
}
