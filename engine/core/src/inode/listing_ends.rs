//! Ends of directory listings: a listing covers the indexes below the one that was the next index
//! when it began.
//!
//! The kernel does not report when a listing begins or ends; it only passes cookies. So each cookie
//! carries, above the index of its entry, the low bits of the number of an end. A directory
//! remembers its newest ends while it is in memory. A cookie whose end was forgotten gets a later
//! end, never an earlier one: every entry that existed when the listing began is delivered.

use std::collections::VecDeque;

/// Ends that a directory remembers.
const KEPT: usize = 256;

/// Layout of a cookie: the index, and above it the number of the end.
#[derive(Clone, Copy)]
struct Layout {
    /// Bits of the index.
    index: u32,
    /// Bits of the number.
    number: u32,
    /// Distinguishes the layouts.
    mark: u64,
}

/// A cookie is a file offset on a mount, so bit 63 is never set.
const MARK: u64 = 1 << 62;

/// For indexes below 2^48.
const NARROW: Layout = Layout {
    index: 48,
    number: 14,
    mark: 0,
};

/// For the other indexes, all of which are below 2^60.
const WIDE: Layout = Layout {
    index: 60,
    number: 2,
    mark: MARK,
};

/// The low `bits` bits of a number.
fn low(number: u64, bits: u32) -> u64 {
    number & ((1 << bits) - 1)
}

/// The listing that a cookie identifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listing {
    /// Index of the last entry that was delivered.
    pub after: u64,
    /// The index at which it ends, exclusive.
    pub end: u64,
    /// Number of that end.
    number: u64,
}

impl Listing {
    /// The cookie of the entry at an index, which is below 2^60.
    pub fn cookie(&self, index: u64) -> u64 {
        let layout = match index >> NARROW.index {
            0 => NARROW,
            _ => WIDE,
        };
        layout.mark | low(self.number, layout.number) << layout.index | index
    }
}

/// The newest ends of a directory's listings, ascending.
#[derive(Debug, Default)]
pub struct Ends {
    /// Number of the oldest end.
    first: u64,
    ends: VecDeque<u64>,
}

impl Ends {
    /// The listing of a cookie, if it can continue or begin without a new end. `next` is the
    /// directory's next index.
    pub fn find(&self, cookie: u64, next: u64) -> Option<Listing> {
        let newest = *self.ends.back()?;
        if cookie == 0 {
            return (newest == next).then(|| self.newest(0, newest));
        }
        let layout = match cookie & MARK {
            0 => NARROW,
            _ => WIDE,
        };
        let wanted = low(cookie >> layout.index, layout.number);
        let last = self.first + self.ends.len() as u64 - 1;
        let older = low(last.wrapping_sub(wanted), layout.number);
        let number = last.saturating_sub(older).max(self.first);
        Some(Listing {
            after: low(cookie, layout.index),
            end: *self.ends.get((number - self.first) as usize)?,
            number,
        })
    }

    /// The listing of a cookie; records a new end if no known one fits.
    pub fn find_or_note(&mut self, cookie: u64, next: u64) -> Listing {
        if let Some(found) = self.find(cookie, next) {
            return found;
        }
        if self.ends.len() == KEPT {
            self.ends.pop_front();
            self.first += 1;
        }
        self.ends.push_back(next);
        match cookie {
            0 => self.newest(0, next),
            _ => self
                .find(cookie, next)
                .unwrap_or_else(|| self.newest(0, next)),
        }
    }

    fn newest(&self, after: u64, end: u64) -> Listing {
        Listing {
            after,
            end,
            number: self.first + self.ends.len() as u64 - 1,
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn cookie_finds_its_end() {
        let mut ends = Ends::default();
        let first = ends.find_or_note(0, 10);
        assert_eq!((first.after, first.end), (0, 10));
        assert_eq!(first.cookie(7), 7, "the first end adds no bits");
        assert_eq!(ends.find(0, 10), Some(first), "the same end serves all");
        assert_eq!(ends.find(0, 11), None);
        let second = ends.find_or_note(0, 1 << 33);
        let at = (1 << 32) + 5;
        let found = ends.find(second.cookie(at), 1 << 34).unwrap();
        assert_eq!((found.after, found.end), (at, 1 << 33));
        let found = ends.find(first.cookie(7), 1 << 34).unwrap();
        assert_eq!((found.after, found.end), (7, 10));
    }

    #[test]
    fn forgotten_end_is_replaced_by_later_one() {
        let mut ends = Ends::default();
        let cookies: Vec<(u64, u64)> = (10..40_000)
            .map(|next| (ends.find_or_note(0, next).cookie(5), next))
            .collect();
        let kept = cookies.len() - KEPT;
        for (n, (cookie, end)) in cookies.into_iter().enumerate() {
            let found = ends.find(cookie, 50_000).unwrap();
            assert_eq!(found.after, 5);
            assert!(cookie < 1 << 63 && found.end >= end);
            assert!(n < kept || found.end == end, "{end} is {}", found.end);
        }
        // The directory was evicted and loaded again.
        let mut ends = Ends::default();
        let found = ends.find_or_note(
            Listing {
                after: 0,
                end: 9,
                number: 77,
            }
            .cookie(5),
            60,
        );
        assert_eq!((found.after, found.end), (5, 60));
    }

    #[test]
    fn cookies_preserve_large_indexes() {
        let mut ends = Ends::default();
        for index in [3, 1 << 32, (1 << 48) - 1, 1 << 48, 999_999_999_999_999_999] {
            for more in 1..4 {
                let listing = ends.find_or_note(0, index + more);
                let cookie = listing.cookie(index);
                assert!(cookie < 1 << 63);
                let found = ends.find(cookie, u64::MAX).unwrap();
                assert_eq!((found.after, found.end), (index, index + more));
            }
        }
        for hostile in [u64::MAX, 1 << 63, MARK, i64::MAX as u64] {
            assert!(ends.find(hostile, 0).is_some());
        }
    }
}
