//! The space budget: the counters of the whole volume, which limit reservations and allocations.
//!
//! Uses atomics only. With F free blocks, U free units, D reserved blocks and R reserved units, two
//! numbers decide everything:
//!
//! - spare blocks A = F - D - 4R,
//! - spare units  B = U - R.
//!
//! Both are never negative and are packed into one word, so a reservation is one compare-and-swap.
//! Allocating reserved space does not change A. It lowers B only by the units that data breaks, and
//! data may break a unit only if the reserve remains: B >= min(standing, A/4) afterwards. If all
//! free blocks are in free units, then F = 4U, so any reservation of data (D > 0) implies A/4 < B,
//! and a unit may be broken. Hence an allocation from a reservation always succeeds. Data never
//! gets the blocks kept for deletes and merges, so their units are never broken.
//!
//! The units of groups that were not counted yet enter as a lower bound, so counting a group can
//! only increase B.
//!
//! # The life of a block
//!
//! Each change of A and B is one atomic operation. Nothing here is on the device.
//!
//! | From | To | Caused by | A | B |
//! |---|---|---|---|---|
//! | spare | reserved for data | [`Budget::reserve`], if the class leaves its floor | less | |
//! | spare | reserved, a unit | the same | 4 less | 1 less |
//! | reserved | spare | [`Budget::unreserve`] | more | more |
//! | reserved | allocated | [`Budget::took_data`], [`Budget::took_unit`], with the group locked | | |
//! | a spare unit | broken | [`Budget::break_units`], for reserved data | | less |
//! | spare | allocated | [`Budget::take_unpromised`], if the class leaves its floor | less | less |
//! | allocated | spare | [`Budget::give`]: what is freed, when no durable state needs it; with the group locked | more | more |
//! | uncounted | spare | [`Budget::found_units`], when a group is counted | | more |
//! | any | lost | [`Budget::lose`]: the bitmap of its group is damaged, and the group counts as full | less | less |
//!
//! 1. A and B are never negative, and both fit into the word.
//! 2. Nothing is allocated or returned that was not reserved.
//! 3. An allocation from a reservation succeeds, unless blocks of it are lost.

use crossbeam_utils::CachePadded;

use super::Class;
use cairnfs_disk::format::NODE_BLOCKS;
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};

/// Which resource was short when a reservation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Short {
    Blocks,
    Units,
}

/// The spare blocks and units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Spare {
    blocks: u64,
    units: u64,
}

impl Spare {
    fn unpack(word: u64) -> Self {
        Self {
            blocks: word & u64::from(u32::MAX),
            units: word >> 32,
        }
    }

    /// Both values fit: a volume has fewer than 2^32 blocks outside its fixed areas.
    fn pack(self) -> u64 {
        self.units << 32 | self.blocks
    }

    fn minus(self, blocks: u64, units: u64) -> Option<Self> {
        Some(Self {
            blocks: self.blocks.checked_sub(blocks)?,
            units: self.units.checked_sub(units)?,
        })
    }

    /// Units that data may break without touching the reserve.
    fn breakable(self, standing: u64) -> u64 {
        let held = standing.min(self.blocks / NODE_BLOCKS);
        self.units.saturating_sub(held)
    }
}

/// The parts of the standing reserve, in units.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Floors {
    /// For merges.
    pub merge: u64,
    /// For deletes, in addition to `merge`.
    pub delete: u64,
    /// For index growth caused by overwriting data, in addition to both.
    pub rewrite: u64,
    /// For overwriting data itself, in addition to all others. These units may be broken, because
    /// the replaced data frees scattered blocks.
    pub replaced: u64,
}

/// The counters.
pub(super) struct Budget {
    /// A and B as a packed [`Spare`].
    spare: CachePadded<AtomicU64>,
    /// D: reserved blocks for data.
    promised_blocks: CachePadded<AtomicU64>,
    /// R: reserved units.
    promised_units: AtomicU64,
    /// Blocks allocated since the volume was opened.
    taken: CachePadded<AtomicU64>,
    /// Blocks freed since the volume was opened.
    given: AtomicU64,
    free_at_open: u64,
    floors: Floors,
}

impl Budget {
    /// Counters of a volume with so many free blocks and (known) free units.
    pub fn new(blocks: u64, units: u64, floors: Floors) -> Self {
        Self {
            spare: CachePadded::new(AtomicU64::new(Spare { blocks, units }.pack())),
            promised_blocks: CachePadded::new(AtomicU64::new(0)),
            promised_units: AtomicU64::new(0),
            taken: CachePadded::new(AtomicU64::new(0)),
            given: AtomicU64::new(0),
            free_at_open: blocks,
            floors,
        }
    }

    /// Units that a reservation of this class must leave.
    pub fn floor(&self, class: Class) -> u64 {
        let Floors {
            merge,
            delete,
            rewrite,
            ..
        } = self.floors;
        match class {
            Class::Ordinary => merge + delete + rewrite,
            Class::Rewrite => merge + delete,
            Class::Delete => merge,
            Class::Merge => 0,
        }
    }

    /// Blocks that a data reservation of this class must leave if `units` spare units remain. Units
    /// that earlier reservations will break count as whole until the data is allocated; meanwhile
    /// `Rewrite` gets less than it could.
    fn floor_blocks(&self, units: u64, class: Class) -> u64 {
        let left = match class {
            Class::Ordinary => self.floor(class) + self.floors.replaced,
            // Data may not use the part that is kept for index growth.
            Class::Rewrite => units.clamp(self.floor(class), self.floor(Class::Ordinary)),
            Class::Delete | Class::Merge => self.floor(class),
        };
        left * NODE_BLOCKS
    }

    /// Blocks that ordinary reservations must leave.
    pub fn kept_blocks(&self) -> u64 {
        self.floor_blocks(0, Class::Ordinary)
    }

    /// Checks that a reservation of this class, with or without `data`, may leave `left`.
    fn check_left(&self, left: Spare, class: Class, data: bool) -> Result<(), Short> {
        let floor = match class {
            Class::Rewrite if !data => self.floor(class) * NODE_BLOCKS,
            _ => self.floor_blocks(left.units, class),
        };
        match left.blocks < floor {
            true => Err(Short::Blocks),
            false if left.units < self.floor(class) => Err(Short::Units),
            false => Ok(()),
        }
    }

    fn now(&self) -> Spare {
        Spare::unpack(self.spare.load(Ordering::Acquire))
    }

    fn update<T, E>(&self, mut change: impl FnMut(Spare) -> Result<(Spare, T), E>) -> Result<T, E> {
        let mut word = self.spare.load(Ordering::Acquire);
        loop {
            let (next, value) = change(Spare::unpack(word))?;
            match self.spare.compare_exchange_weak(
                word,
                next.pack(),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(value),
                Err(seen) => word = seen,
            }
        }
    }

    /// Reserves `blocks` for data and `units` for nodes.
    pub fn reserve(&self, blocks: u64, units: u64, class: Class) -> Result<(), Short> {
        let all = units
            .checked_mul(NODE_BLOCKS)
            .and_then(|n| n.checked_add(blocks))
            .ok_or(Short::Blocks)?;
        if all == 0 {
            return Ok(());
        }
        self.update(|spare| {
            let left = Spare {
                blocks: spare.blocks.checked_sub(all).ok_or(Short::Blocks)?,
                units: spare.units.checked_sub(units).ok_or(Short::Units)?,
            };
            self.check_left(left, class, blocks > 0)
                .map(|()| (left, ()))
        })?;
        self.promised_blocks.fetch_add(blocks, Ordering::Relaxed);
        self.promised_units.fetch_add(units, Ordering::Relaxed);
        Ok(())
    }

    /// Returns a reservation.
    pub fn unreserve(&self, blocks: u64, units: u64) {
        if blocks | units == 0 {
            return;
        }
        lower(&self.promised_blocks, blocks);
        lower(&self.promised_units, units);
        self.add(blocks + NODE_BLOCKS * units, units);
    }

    fn add(&self, blocks: u64, units: u64) {
        let more = Spare { blocks, units };
        self.spare.fetch_add(more.pack(), Ordering::AcqRel);
    }

    /// Requests to break up to `units` free units for reserved data; returns how many are granted.
    pub fn break_units(&self, units: u64) -> u64 {
        if units == 0 {
            return 0;
        }
        let standing = self.floor(Class::Ordinary);
        let granted = self.update(|spare| {
            let granted = spare.breakable(standing).min(units);
            match spare.minus(0, granted) {
                Some(next) if granted > 0 => Ok((next, granted)),
                _ => Err(()),
            }
        });
        granted.unwrap_or(0)
    }

    /// Units that data may break at the moment.
    pub fn breakable(&self) -> u64 {
        self.now().breakable(self.floor(Class::Ordinary))
    }

    /// Counts reserved data blocks as allocated.
    pub fn took_data(&self, blocks: u64) {
        lower(&self.promised_blocks, blocks);
        self.taken.fetch_add(blocks, Ordering::AcqRel);
    }

    /// Counts a reserved unit as allocated.
    pub fn took_unit(&self) {
        lower(&self.promised_units, 1);
        self.taken.fetch_add(NODE_BLOCKS, Ordering::AcqRel);
    }

    /// Takes unreserved free blocks, and the units broken by this; false if the class does not
    /// allow it.
    pub fn take_unpromised(&self, blocks: u64, units: u64, class: Class) -> bool {
        let leaves = |left: &Spare| self.check_left(*left, class, true).is_ok();
        let taken = self.update(|s| {
            let left = s.minus(blocks, units).filter(leaves);
            left.map(|left| (left, ())).ok_or(())
        });
        if taken.is_ok() {
            self.taken.fetch_add(blocks, Ordering::AcqRel);
        }
        taken.is_ok()
    }

    /// Counts freed blocks, and `units` units that became entirely free. `given` is raised before
    /// the blocks can be reserved, and while their group is locked: a search without success then
    /// notices that there are more.
    pub fn give(&self, blocks: u64, units: u64) {
        self.given.fetch_add(blocks, Ordering::AcqRel);
        self.add(blocks, units);
    }

    /// Adds the free units of a newly counted group that exceed its lower bound.
    pub fn found_units(&self, units: u64) {
        self.add(0, units);
    }

    /// Takes away the free blocks and units of a group that counts as full from now on. What was
    /// reserved of them is not found by the allocation.
    pub fn lose(&self, blocks: u64, units: u64) {
        let lost = |spare: Spare| Spare {
            blocks: spare.blocks.saturating_sub(blocks),
            units: spare.units.saturating_sub(units),
        };
        let _: Result<(), Short> = self.update(|spare| Ok((lost(spare), ())));
        self.taken.fetch_add(blocks, Ordering::AcqRel);
    }

    /// Blocks freed and blocks allocated since the volume was opened. Changes with every allocation
    /// and every release.
    pub fn moves(&self) -> (u64, u64) {
        (
            self.given.load(Ordering::Acquire),
            self.taken.load(Ordering::Acquire),
        )
    }

    /// Free blocks, including reserved ones.
    pub fn free_blocks(&self) -> u64 {
        let (given, taken) = self.moves();
        (self.free_at_open + given).saturating_sub(taken)
    }

    /// Known free units, including reserved ones.
    pub fn free_units(&self) -> u64 {
        self.now().units + self.promised_units.load(Ordering::Acquire)
    }

    /// Reserved blocks and units.
    pub fn reserved(&self) -> (u64, u64) {
        (
            self.promised_blocks.load(Ordering::Acquire),
            self.promised_units.load(Ordering::Acquire),
        )
    }

    /// Blocks that a new reservation of this class could get, or the resource that is short even
    /// for one block.
    pub fn available(&self, class: Class) -> Result<u64, Short> {
        let spare = self.now();
        let floor = self.floor_blocks(spare.units, class);
        match spare.blocks.checked_sub(floor) {
            None | Some(0) => Err(Short::Blocks),
            Some(_) if spare.units < self.floor(class) => Err(Short::Units),
            Some(blocks) => Ok(blocks),
        }
    }
}

/// Lowers a count of reservations. Using more than was reserved is a bug of the caller; it must not
/// wrap the count around.
fn lower(count: &AtomicU64, by: u64) {
    let before = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
        Some(n.saturating_sub(by))
    });
    debug_assert!(
        before.is_ok_and(|n| n >= by),
        "budget invariant 2: more used than reserved"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floors(merge: u64, delete: u64, rewrite: u64) -> Floors {
        Floors {
            merge,
            delete,
            rewrite,
            replaced: 0,
        }
    }

    #[test]
    fn overwritten_data_leaves_units_for_index_growth() {
        let floors = Floors {
            replaced: 3,
            ..floors(10, 5, 2)
        };
        let budget = Budget::new(1000, 250, floors);
        let kept = budget.kept_blocks();
        assert_eq!(kept, 80);
        budget.reserve(1000 - kept, 0, Class::Ordinary).unwrap();
        assert_eq!(budget.available(Class::Rewrite), Ok(12));
        assert_eq!(budget.reserve(13, 0, Class::Rewrite), Err(Short::Blocks));
        budget.reserve(12, 0, Class::Rewrite).unwrap();
        assert_eq!(budget.break_units(250), 233);
        budget.took_data(12);
        budget.reserve(0, 2, Class::Rewrite).unwrap();
        assert_eq!(budget.reserve(0, 1, Class::Rewrite), Err(Short::Blocks));
        // Scattered blocks become free, but no unit.
        budget.give(12, 0);
        assert_eq!(budget.available(Class::Rewrite), Ok(12));
        assert!(budget.available(Class::Ordinary).is_err());
        budget.reserve(0, 5, Class::Delete).unwrap();
    }

    #[test]
    fn classes_reach_different_floors() {
        let budget = Budget::new(1000, 250, floors(10, 5, 2));
        assert_eq!(budget.available(Class::Ordinary), Ok(932));
        assert_eq!(budget.reserve(933, 0, Class::Ordinary), Err(Short::Blocks));
        assert_eq!(budget.reserve(932, 0, Class::Ordinary), Ok(()));
        assert_eq!(budget.reserve(0, 1, Class::Ordinary), Err(Short::Blocks));
        assert_eq!(budget.reserve(0, 2, Class::Rewrite), Ok(()));
        assert_eq!(budget.reserve(1, 0, Class::Rewrite), Err(Short::Blocks));
        assert_eq!(budget.reserve(0, 5, Class::Delete), Ok(()));
        assert_eq!(budget.reserve(1, 0, Class::Delete), Err(Short::Blocks));
        assert_eq!(budget.reserve(0, 10, Class::Merge), Ok(()));
        assert_eq!(budget.reserve(1, 0, Class::Merge), Err(Short::Blocks));
        assert_eq!(budget.reserved(), (932, 17));
        budget.unreserve(932, 17);
        assert_eq!(budget.available(Class::Ordinary), Ok(932));
    }

    #[test]
    fn overflowing_reservations_are_refused() {
        let budget = Budget::new(1000, 250, floors(0, 0, 0));
        for (blocks, units) in [(u64::MAX, 1), (0, u64::MAX), (u64::MAX, 0)] {
            assert!(budget.reserve(blocks, units, Class::Merge).is_err());
        }
        assert_eq!(budget.available(Class::Merge), Ok(1000));
    }

    #[test]
    fn data_does_not_break_reserve_units() {
        let budget = Budget::new(400, 20, floors(10, 0, 0));
        budget.reserve(320, 0, Class::Ordinary).unwrap();
        assert_eq!(budget.break_units(50), 10);
        assert_eq!(budget.break_units(1), 0);
        budget.reserve(0, 10, Class::Merge).unwrap();
        assert_eq!(budget.free_units(), 10);
        assert_eq!(budget.available(Class::Merge), Ok(40));
    }
}
