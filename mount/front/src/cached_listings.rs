//! Directories whose listing the kernel has cached, and how worn each of them is.
//!
//! A read makes the access time that the kernel has of an inode stale, and so does a listing for its
//! directory. The next stat(2) of each costs a GETATTR. A listing brings the attributes of all entries
//! with a few messages (READDIRPLUS), but the kernel does not ask for one that it has. A listing is
//! *worn* when so many of its entries are stale that a new one costs less than their attributes one by
//! one. Worn listings are renewed when the kernel does ask for attributes one by one: a program that
//! only lists names is served best by the old ones. Knows neither trees nor the engine; directories are
//! named by node id.
//!
//! A mistake costs messages only: all counts are approximate.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;

/// Parts with locks of their own, selected by node id.
const PARTS: usize = 32;

/// As many entries must be stale: a new listing costs three messages more than the cached one.
const FEWEST: u32 = 4;

/// One of so many entries must be stale: an entry costs the kernel and the daemon about a tenth of a
/// message.
const SHARE: u32 = 4;

/// So many attributes of stale entries are asked for before worn listings are renewed, which may start a
/// process.
const ASKED: u32 = 64;

/// At most so many worn listings are known.
const WORN: usize = 1 << 16;

/// The listing of a directory.
#[derive(Debug, Default)]
struct Listing {
    entries: u32,
    /// Entries that became stale since.
    stale: u32,
    /// Stale entries whose attributes were asked for.
    asked: u32,
}

impl Listing {
    fn is_worn(&self) -> bool {
        self.stale >= FEWEST && self.stale.saturating_mul(SHARE) >= self.entries
    }

    /// Whether a new one pays. It does not if a program has the names already, and asks for one after
    /// the other.
    fn shall_be_dropped(&self) -> bool {
        self.is_worn() && self.asked < FEWEST
    }
}

type Part = Mutex<HashMap<u64, Listing>>;

/// The listings that a mount's kernel has.
#[derive(Default)]
pub struct Listings {
    parts: [Part; PARTS],
    /// Those that have become worn, and probably still are.
    worn: Mutex<VecDeque<u64>>,
    /// Whether there are any; changed under the lock. Lets GETATTR skip the rest.
    some_worn: AtomicBool,
    /// Attributes of stale entries that were asked for since the last renewal.
    asked: AtomicU32,
    /// Whether a renewal was asked for, and has not ended.
    renewed: AtomicBool,
}

impl Listings {
    fn part(&self, dir: u64) -> Option<&Part> {
        self.parts.get(dir as usize % PARTS)
    }

    /// The kernel was sent entries of a directory, the first ones or further ones.
    pub fn sent(&self, dir: u64, first: bool, entries: u32) {
        let Some(part) = self.part(dir) else {
            return;
        };
        let mut part = part.lock();
        if first {
            part.insert(dir, Listing::default());
        }
        // The kernel drops one while it is read, perhaps.
        if let Some(listing) = part.get_mut(&dir) {
            listing.entries = listing.entries.saturating_add(entries);
        }
    }

    /// An entry of a directory has become stale.
    pub fn stale(&self, dir: u64) {
        let Some(part) = self.part(dir) else {
            return;
        };
        let mut part = part.lock();
        let Some(listing) = part.get_mut(&dir) else {
            return;
        };
        let before = listing.is_worn();
        listing.stale = listing.stale.saturating_add(1);
        if listing.is_worn() && !before {
            drop(part);
            let mut worn = self.worn.lock();
            if worn.len() == WORN {
                worn.pop_front();
            }
            worn.push_back(dir);
            self.some_worn.store(true, Ordering::Release);
        }
    }

    /// Whether a listing is worn, so that it matters what is asked for.
    pub fn some_worn(&self) -> bool {
        self.some_worn.load(Ordering::Acquire)
    }

    /// The attributes of an entry of a directory were asked for. Returns whether worn listings shall be
    /// renewed now; the caller sees to it that [`Self::end_renewal`] is called then.
    pub fn asked(&self, dir: u64) -> bool {
        let Some(part) = self.part(dir) else {
            return false;
        };
        match part.lock().get_mut(&dir) {
            Some(listing) if listing.stale > 0 => {
                listing.stale -= 1;
                listing.asked += 1;
            }
            _ => return false,
        }
        let enough = self.asked.fetch_add(1, Ordering::Relaxed) + 1 >= ASKED;
        enough && !self.renewed.swap(true, Ordering::AcqRel)
    }

    /// A renewal has ended.
    pub fn end_renewal(&self) {
        self.asked.store(0, Ordering::Relaxed);
        self.renewed.store(false, Ordering::Release);
    }

    /// A worn listing, the oldest one, which the kernel shall drop. That is then taken for done.
    pub fn next_worn(&self) -> Option<u64> {
        loop {
            let dir = {
                let mut worn = self.worn.lock();
                let dir = worn.pop_front();
                self.some_worn.store(!worn.is_empty(), Ordering::Release);
                dir?
            };
            let mut part = self.part(dir)?.lock();
            if part.get(&dir).is_some_and(Listing::shall_be_dropped) {
                part.remove(&dir);
                return Some(dir);
            }
        }
    }

    /// The kernel has dropped the inode.
    pub fn forgotten(&self, node: u64) {
        if let Some(part) = self.part(node) {
            part.lock().remove(&node);
        }
    }

    /// Forgets all listings.
    pub fn clear(&self) {
        self.parts.iter().for_each(|part| part.lock().clear());
        let mut worn = self.worn.lock();
        worn.clear();
        self.some_worn.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory is listed with so many entries, of which so many become stale then.
    fn list(listings: &Listings, dir: u64, entries: u32, stale: u32) {
        listings.sent(dir, true, entries);
        (0..stale).for_each(|_| listings.stale(dir));
    }

    fn all_worn(listings: &Listings) -> Vec<u64> {
        std::iter::from_fn(|| listings.next_worn()).collect()
    }

    #[test]
    fn listing_is_worn_when_enough_of_its_entries_are_stale() {
        let listings = Listings::default();
        listings.sent(7, true, 30);
        listings.sent(7, false, 10);
        (0..9).for_each(|_| listings.stale(7));
        list(&listings, 8, 5, 3);
        assert!(!listings.some_worn());
        listings.stale(7);
        assert!(listings.some_worn());
        assert_eq!(all_worn(&listings), [7]);
        // It is not cached any more.
        (0..40).for_each(|_| listings.stale(7));
        assert!(!listings.some_worn() && all_worn(&listings).is_empty());
        listings.stale(8);
        assert_eq!(all_worn(&listings), [8]);
    }

    #[test]
    fn new_listing_and_forgetting_begin_anew() {
        let listings = Listings::default();
        list(&listings, 7, 5, 3);
        list(&listings, 7, 5, 3);
        assert!(!listings.some_worn());
        listings.stale(7);
        listings.forgotten(7);
        list(&listings, 8, 5, 5);
        list(&listings, 8, 5, 0);
        assert!(all_worn(&listings).is_empty());
        list(&listings, 9, 5, 5);
        listings.clear();
        assert!(!listings.some_worn() && all_worn(&listings).is_empty());
        assert!(listings.parts.iter().all(|part| part.lock().is_empty()));
    }

    #[test]
    fn as_many_attributes_of_stale_entries_are_asked_for() {
        let listings = Listings::default();
        list(&listings, 1, 140, 140);
        list(&listings, 2, 100, 0);
        for _ in 1..ASKED {
            assert!(!listings.asked(1) && !listings.asked(2) && !listings.asked(3));
        }
        assert!(listings.asked(1) && !listings.asked(1));
        listings.end_renewal();
        let further = (0..200).position(|_| listings.asked(1));
        assert_eq!(further, Some(ASKED as usize - 1));
        // Those that were asked for are stale no more.
        listings.end_renewal();
        assert!(!(0..200).any(|_| listings.asked(1)));
    }

    #[test]
    fn listing_whose_entries_are_being_asked_for_is_kept() {
        let listings = Listings::default();
        (1..=3).for_each(|dir| list(&listings, dir, 100, 100));
        (0..FEWEST).for_each(|_| assert!(!listings.asked(2)));
        (1..FEWEST).for_each(|_| assert!(!listings.asked(3)));
        assert_eq!(all_worn(&listings), [1, 3]);
    }

    #[test]
    fn so_many_worn_ones_are_known_and_no_more() {
        let listings = Listings::default();
        (0..=WORN as u64).for_each(|dir| list(&listings, dir, 4, 4));
        let worn = all_worn(&listings);
        assert_eq!((worn.len(), worn.first()), (WORN, Some(&1)));
    }
}
