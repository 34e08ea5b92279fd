//! Promises of space: never more than there is.
//!
//! Counters only, no lock. A promise is added first and taken back if it was too much, so two
//! callers can refuse each other near the limit, but never both get the same block.

use std::sync::atomic::{AtomicI64, Ordering};

use crossbeam_utils::CachePadded;

use crate::format::NODE_BLOCKS;
use crate::format::geometry::Geometry;
use crate::space::Space;

/// Units held for merges: 1/64 of the volume, within bounds.
const STANDING: std::ops::RangeInclusive<i64> = 64..=4096;

/// Who asks for space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Whoever adds something.
    Ordinary,
    /// Whoever takes something away, and so makes space.
    Delete,
    /// What must not fail: writing back what was promised, merges.
    Merge,
}

/// Free space and promises.
pub struct Counters {
    free: CachePadded<AtomicI64>,
    units: CachePadded<AtomicI64>,
    reserved: CachePadded<AtomicI64>,
    reserved_units: CachePadded<AtomicI64>,
    standing: i64,
}

impl Counters {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let standing = geometry.total_blocks as i64 / 64 / NODE_BLOCKS as i64;
        Self {
            free: CachePadded::default(),
            units: CachePadded::default(),
            reserved: CachePadded::default(),
            reserved_units: CachePadded::default(),
            standing: standing.clamp(*STANDING.start(), *STANDING.end()),
        }
    }

    pub(super) fn add_free(&self, blocks: u64, units: u64) {
        self.free.fetch_add(blocks as i64, Ordering::AcqRel);
        self.units.fetch_add(units as i64, Ordering::AcqRel);
    }

    pub(super) fn change_free(&self, blocks: i64, units: i64) {
        self.free.fetch_add(blocks, Ordering::AcqRel);
        self.units.fetch_add(units, Ordering::AcqRel);
    }

    pub(super) fn sub_free(&self, blocks: u64, units: u64) {
        self.free.fetch_sub(blocks as i64, Ordering::AcqRel);
        self.units.fetch_sub(units as i64, Ordering::AcqRel);
    }

    pub(super) fn consume(&self, blocks: u64) {
        self.reserved.fetch_sub(blocks as i64, Ordering::AcqRel);
    }

    /// Whole units that are free.
    pub(super) fn units(&self) -> u64 {
        self.units.load(Ordering::Acquire).max(0) as u64
    }

    /// Whole units that data must leave.
    pub(super) fn held(&self) -> u64 {
        let held = self.reserved_units.load(Ordering::Acquire) + self.reserve_of(Class::Ordinary);
        held.max(0) as u64
    }

    /// Units that requests of a class must leave.
    fn reserve_of(&self, class: Class) -> i64 {
        match class {
            Class::Ordinary => self.standing + self.standing / 4,
            Class::Delete => self.standing,
            Class::Merge => 0,
        }
    }

    fn try_reserve(&self, blocks: i64, units: i64, class: Class) -> bool {
        let all = self.reserved.fetch_add(blocks, Ordering::AcqRel) + blocks;
        let all_units = self.reserved_units.fetch_add(units, Ordering::AcqRel) + units;
        let held = all_units + self.reserve_of(class);
        let fits = held <= self.units.load(Ordering::Acquire)
            && all + held * NODE_BLOCKS as i64 <= self.free.load(Ordering::Acquire);
        if !fits {
            self.reserved.fetch_sub(blocks, Ordering::AcqRel);
            self.reserved_units.fetch_sub(units, Ordering::AcqRel);
        }
        fits
    }
}

impl Space {
    /// Promises blocks for data and units for the index; `false` if there is not enough.
    pub fn reserve(&self, blocks: u64, units: u64, class: Class) -> bool {
        let (blocks, units) = (blocks as i64, units as i64);
        if self.counters.try_reserve(blocks, units, class) {
            return true;
        }
        // Of groups not looked at yet only a lower bound of whole units is known.
        for number in 0..self.groups.len() as u64 {
            let unknown = self
                .groups
                .get(number as usize)
                .is_some_and(|g| !g.lock().is_loaded());
            if unknown
                && self.group(number).is_ok()
                && self.counters.try_reserve(blocks, units, class)
            {
                return true;
            }
        }
        false
    }

    /// Takes a promise back.
    pub fn unreserve(&self, blocks: u64, units: u64) {
        self.counters
            .reserved
            .fetch_sub(blocks as i64, Ordering::AcqRel);
        self.counters
            .reserved_units
            .fetch_sub(units as i64, Ordering::AcqRel);
    }

    /// Free blocks.
    pub fn free_blocks(&self) -> u64 {
        self.counters.free.load(Ordering::Acquire).max(0) as u64
    }

    /// Blocks that an ordinary request can still get.
    pub fn available(&self) -> u64 {
        let c = &self.counters;
        let held = c.reserved_units.load(Ordering::Acquire) + c.reserve_of(Class::Ordinary);
        let free = c.free.load(Ordering::Acquire)
            - c.reserved.load(Ordering::Acquire)
            - held * NODE_BLOCKS as i64;
        free.max(0) as u64
    }

    /// Units that one step of a merge may take: half of those that nothing else was promised,
    /// at least half of what is held for merges.
    pub fn step_units(&self) -> u64 {
        let c = &self.counters;
        let spare = c.units.load(Ordering::Acquire)
            - c.reserved_units.load(Ordering::Acquire)
            - c.reserved.load(Ordering::Acquire) / NODE_BLOCKS as i64;
        (spare / 2).max(c.standing / 2) as u64
    }
}
