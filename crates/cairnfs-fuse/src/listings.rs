//! Directories whose listing the kernel has cached, and how worn each of them is.
//!
//! A READ makes the access time that the kernel has of a file stale, and a listing that of its
//! directory, so the next stat(2) of it costs a GETATTR. A listing brings the attributes of all
//! entries with a few messages (READDIRPLUS), but the kernel does not ask for one that it has. A
//! listing is *worn* when so many of its entries are stale that a new one costs less than their
//! attributes one by one. Knows neither trees nor the engine; directories are named by node id.
//!
//! A mistake costs messages only: all counts are approximate.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

/// Parts with locks of their own, selected by node id.
const PARTS: usize = 32;

/// As many entries must be stale: a new listing costs three messages more than the cached one.
const FEWEST: u32 = 4;

/// One of so many entries must be stale: an entry costs the kernel and the daemon about a tenth of a
/// message.
const SHARE: u32 = 4;

/// At most so many worn listings are dropped with one message.
const AT_ONCE: usize = 4;

/// At most so many wait to be dropped.
const WAITING: usize = 4096;

/// The listing of a directory.
#[derive(Debug, Default)]
struct Listing {
    entries: u32,
    /// Entries that became stale since.
    stale: u32,
}

impl Listing {
    fn is_worn(&self) -> bool {
        self.stale >= FEWEST && self.stale.saturating_mul(SHARE) >= self.entries
    }
}

/// The listings that a mount's kernel has.
#[derive(Default)]
pub struct Listings {
    parts: [Mutex<HashMap<u64, Listing>>; PARTS],
    /// Those that have become worn, and probably still are.
    worn: Mutex<VecDeque<u64>>,
}

impl Listings {
    fn part(&self, dir: u64) -> Option<&Mutex<HashMap<u64, Listing>>> {
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
            if worn.len() == WAITING {
                worn.pop_front();
            }
            worn.push_back(dir);
        }
    }

    /// Whether the kernel shall drop the listing of a directory, because it is worn. That is then taken
    /// for done.
    pub fn drops(&self, dir: u64) -> bool {
        let Some(part) = self.part(dir) else {
            return false;
        };
        let mut part = part.lock();
        let worn = part.get(&dir).is_some_and(Listing::is_worn);
        if worn {
            part.remove(&dir);
        }
        worn
    }

    /// Some listings that the kernel shall drop, the worn ones that are the oldest. That is then taken
    /// for done.
    pub fn drops_some(&self) -> Vec<u64> {
        let some: Vec<u64> = {
            let mut worn = self.worn.lock();
            let len = worn.len().min(AT_ONCE);
            worn.drain(..len).collect()
        };
        some.into_iter().filter(|dir| self.drops(*dir)).collect()
    }

    /// The kernel has dropped the inode.
    pub fn forgotten(&self, node: u64) {
        if let Some(part) = self.part(node) {
            part.lock().remove(&node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(listings: &Listings, dir: u64, files: u32) {
        (0..files).for_each(|_| listings.stale(dir));
    }

    #[test]
    fn listing_is_dropped_once_when_enough_of_its_entries_are_stale() {
        let listings = Listings::default();
        listings.sent(7, true, 30);
        listings.sent(7, false, 10);
        read(&listings, 7, 9);
        assert!(!listings.drops(7));
        read(&listings, 7, 1);
        assert!(!listings.drops(8) && listings.drops(7) && !listings.drops(7));
        // It is not cached any more.
        read(&listings, 7, 40);
        assert!(!listings.drops(7) && listings.drops_some().is_empty());
    }

    #[test]
    fn few_entries_are_asked_for_one_by_one() {
        let listings = Listings::default();
        listings.sent(7, true, 5);
        read(&listings, 7, 3);
        assert!(!listings.drops(7));
        read(&listings, 7, 1);
        assert!(listings.drops(7));
    }

    #[test]
    fn new_listing_and_forgetting_begin_anew() {
        let listings = Listings::default();
        for _ in 0..2 {
            listings.sent(7, true, 5);
            read(&listings, 7, 3);
        }
        assert!(!listings.drops(7));
        read(&listings, 7, 1);
        listings.forgotten(7);
        assert!(!listings.drops(7) && listings.drops_some().is_empty());
        assert!(listings.parts.iter().all(|part| part.lock().is_empty()));
    }

    #[test]
    fn worn_listings_are_dropped_a_few_at_a_time() {
        let listings = Listings::default();
        for dir in 0..6 {
            listings.sent(dir, true, 20);
            read(&listings, dir, 20);
        }
        listings.sent(2, true, 20);
        assert_eq!(listings.drops_some(), [0, 1, 3]);
        assert_eq!(listings.drops_some(), [4, 5]);
        assert!(listings.drops_some().is_empty());
    }

    #[test]
    fn so_many_wait_and_no_more() {
        let listings = Listings::default();
        for dir in 0..2 * WAITING as u64 {
            listings.sent(dir, true, 4);
            read(&listings, dir, 4);
        }
        assert_eq!(listings.worn.lock().len(), WAITING);
    }
}
