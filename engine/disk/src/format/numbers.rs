//! Which inode numbers a volume gives.
//!
//! Pure, as all of `format`. Files that are made on the volume have ascending numbers. Files that
//! come from other volumes have numbers in *ranges*, far above, each of which is taken once for a
//! part of the numbers of one volume. So the numbers of its own files stay low, however much it
//! receives.

use crate::format::{FIRST_USER_INO, MAX_COUNTER};

/// The first number of the first range.
pub const FIRST_RANGE: u64 = 1 << 59;
/// Numbers in a range.
pub const RANGE: u64 = 1 << 32;
/// Most ranges of a volume.
pub const MAX_RANGES: u32 = ((MAX_COUNTER - FIRST_RANGE) / RANGE) as u32;

/// What a range is for: as many numbers of one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// The volume that made the files.
    pub uuid: [u8; 16],
    /// Which of its parts of [`RANGE`] numbers.
    pub nth: u64,
}

/// The numbers that a volume may have given to inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    /// Numbers below this one were given, to files that were made here.
    pub next: u64,
    /// The ranges below this one were taken.
    pub ranges: u32,
}

impl Given {
    /// Whether an inode of a user may have the number.
    pub fn has(&self, ino: u64) -> bool {
        let ranged = range_of(ino).is_some_and(|range| range < self.ranges);
        ino >= FIRST_USER_INO && (ino < self.next || ranged)
    }

    /// Adds a number that was found in use.
    pub fn add(&mut self, ino: u64) {
        match range_of(ino) {
            Some(range) => self.ranges = self.ranges.max(range.saturating_add(1).min(MAX_RANGES)),
            None => self.next = self.next.max(ino.saturating_add(1)),
        }
    }

    /// How many of the numbers were given before `ino`, of how many.
    pub fn before(&self, ino: u64) -> (u64, u64) {
        let all = |ranges: u64| self.next.saturating_add(ranges);
        let before = match ino.checked_sub(FIRST_RANGE) {
            Some(ranges) => all(ranges),
            None => ino.min(self.next),
        };
        (before, all(u64::from(self.ranges) * RANGE))
    }
}

/// The range of a number; `None` for the numbers below all ranges.
pub fn range_of(ino: u64) -> Option<u32> {
    let behind = ino.checked_sub(FIRST_RANGE)?;
    u32::try_from(behind / RANGE).ok()
}

/// The first number of a range.
pub fn first_of(range: u32) -> u64 {
    FIRST_RANGE + u64::from(range) * RANGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_numbers_are_below_the_next_or_in_ranges_that_were_taken() {
        let mut given = Given {
            next: 100,
            ranges: 0,
        };
        let has = |given: &Given| [15, 16, 99, 100, FIRST_RANGE, first_of(2)].map(|n| given.has(n));
        assert_eq!(has(&given), [false, true, true, false, false, false]);
        given.add(100);
        given.add(first_of(2) - 1);
        assert_eq!(has(&given), [false, true, true, true, true, false]);
        assert_eq!(
            given,
            Given {
                next: 101,
                ranges: 2
            }
        );
        assert_eq!(given.before(50), (50, 101 + 2 * RANGE));
        assert_eq!(given.before(FIRST_RANGE + 7), (108, 101 + 2 * RANGE));
        assert!(first_of(MAX_RANGES) <= MAX_COUNTER);
    }
}
