//! Directories whose listing the kernel has cached, and how worn each of them is.
//!
//! A READ makes the access time that the kernel has of a file stale, so the next stat(2) of it costs a
//! GETATTR. A listing brings the attributes of all entries with a few messages (READDIRPLUS), but the
//! kernel does not ask for one that it has. A listing is *worn* when so many of its files were read that
//! a new one costs less than their attributes one by one. Knows neither trees nor the engine; directories
//! are named by node id.
//!
//! A mistake costs messages only: all counts are approximate.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Parts with locks of their own, selected by node id.
const PARTS: usize = 32;

/// As many files must have been read: a new listing costs three messages more than the cached one.
const FEWEST: u32 = 4;

/// One of so many entries must have been read: an entry costs the kernel and the daemon about a tenth
/// of a message.
const SHARE: u32 = 4;

/// The listing of a directory.
#[derive(Debug, Default)]
struct Listing {
    entries: u32,
    /// Files that were read since.
    read: u32,
}

impl Listing {
    fn is_worn(&self) -> bool {
        self.read >= FEWEST && self.read.saturating_mul(SHARE) >= self.entries
    }
}

/// The listings that a mount's kernel has.
#[derive(Default)]
pub struct Listings {
    parts: [Mutex<HashMap<u64, Listing>>; PARTS],
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
        let listing = part.entry(dir).or_default();
        if first {
            *listing = Listing::default();
        }
        listing.entries = listing.entries.saturating_add(entries);
    }

    /// A file in a directory was read from its beginning.
    pub fn file_read(&self, dir: u64) {
        if let Some(part) = self.part(dir)
            && let Some(listing) = part.lock().get_mut(&dir)
        {
            listing.read = listing.read.saturating_add(1);
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
        (0..files).for_each(|_| listings.file_read(dir));
    }

    #[test]
    fn listing_is_dropped_once_when_enough_of_its_files_were_read() {
        let listings = Listings::default();
        listings.sent(7, true, 30);
        listings.sent(7, false, 10);
        read(&listings, 7, 9);
        assert!(!listings.drops(7));
        read(&listings, 7, 1);
        assert!(!listings.drops(8) && listings.drops(7) && !listings.drops(7));
        // It is not cached any more.
        read(&listings, 7, 40);
        assert!(!listings.drops(7));
    }

    #[test]
    fn few_files_are_asked_for_one_by_one() {
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
        assert!(!listings.drops(7));
        assert!(listings.parts.iter().all(|part| part.lock().is_empty()));
    }
}
