//! What the kernel may have cached of the directories that it knows: that a name does not exist, listings, and
//! attributes. Programs that ask by a channel change directories behind the kernel's back; what it
//! has cached of names would be wrong then, so such a change is left to the kernel ([`KnownDirs::refuses`]);
//! attributes are dropped ([`KnownDirs::attributes_dropped`]).
//!
//! Directories are named by node id. All methods but [`KnownDirs::forgotten`] are called with references
//! held, so none runs beside a change by a program.
//!
//! A listing ends with the second change by the kernel after it: the kernel drops it behind the reply to the
//! first one, while it holds the directory, and so before it sends the second.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::fault::{InjectedFault, is_injected};

/// Parts with locks of their own, selected by node id.
const PARTS: usize = 32;

/// Names that are remembered of one directory, and of all. With more, any name may be cached.
const NAMES: usize = 4096;
const ALL_NAMES: usize = 1 << 18;

/// Names that the kernel was told do not exist.
#[derive(Debug)]
enum Absent {
    /// The hashes of their names.
    Names(HashSet<u64>),
    /// Perhaps any name.
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listing {
    No,
    Cached,
    /// The kernel has been answered a change since.
    Ending,
}

#[derive(Debug)]
struct Dir {
    absent: Absent,
    listing: Listing,
    /// Whether the kernel has been seen to have the inode, so that no reply that brings it is on its way.
    arrived: bool,
    /// Whether the kernel may have the attributes of the inode, or get them by a reply that is on its way.
    attributes: bool,
}

impl Default for Dir {
    fn default() -> Self {
        Self {
            absent: Absent::Names(HashSet::new()),
            listing: Listing::No,
            arrived: false,
            attributes: true,
        }
    }
}

type Part = Mutex<HashMap<u64, Dir>>;

/// The directories of a mount of whose entries the kernel may have cached something.
#[derive(Debug, Default)]
pub struct KnownDirs {
    parts: [Part; PARTS],
    hasher: RandomState,
    names: AtomicUsize,
}

impl KnownDirs {
    fn part(&self, dir: u64) -> Option<&Part> {
        self.parts.get(dir as usize % PARTS)
    }

    fn with<R>(&self, dir: u64, what: impl FnOnce(&mut Dir) -> R) -> Option<R> {
        Some(what(self.part(dir)?.lock().entry(dir).or_default()))
    }

    /// The kernel is told that a name does not exist.
    pub fn absent(&self, dir: u64, name: &[u8]) {
        let hash = self.hasher.hash_one(name);
        self.with(dir, |dir| {
            if let Absent::Names(names) = &mut dir.absent {
                if names.len() < NAMES && self.names.load(Ordering::Relaxed) < ALL_NAMES {
                    let new = names.insert(hash);
                    self.names.fetch_add(usize::from(new), Ordering::Relaxed);
                } else {
                    self.names.fetch_sub(names.len(), Ordering::Relaxed);
                    dir.absent = Absent::Any;
                }
            }
        });
    }

    /// The kernel is told that a name exists now.
    pub fn made(&self, dir: u64, name: &[u8]) {
        let Some(part) = self.part(dir) else { return };
        if let Some(Dir {
            absent: Absent::Names(names),
            ..
        }) = part.lock().get_mut(&dir)
        {
            let had = names.remove(&self.hasher.hash_one(name));
            self.names.fetch_sub(usize::from(had), Ordering::Relaxed);
        }
    }

    /// The kernel is told that it has changed a directory.
    pub fn changed(&self, dir: u64) {
        let Some(part) = self.part(dir) else { return };
        if let Some(dir) = part.lock().get_mut(&dir) {
            dir.listing = match dir.listing {
                Listing::Cached => Listing::Ending,
                Listing::Ending | Listing::No => Listing::No,
            };
        }
    }

    /// The kernel is sent entries of a directory.
    pub fn listed(&self, dir: u64) {
        self.with(dir, |dir| dir.listing = Listing::Cached);
    }

    /// The kernel has returned references to an inode. `known` tells whether it has others.
    pub fn forgotten(&self, node: u64, known: impl FnOnce() -> bool) {
        let Some(part) = self.part(node) else { return };
        let mut part = part.lock();
        // With the lock: what is found out about the node after it was looked up again stays.
        if !part.contains_key(&node) || known() {
            return;
        }
        if let Some(Dir {
            absent: Absent::Names(names),
            ..
        }) = part.remove(&node)
        {
            self.names.fetch_sub(names.len(), Ordering::Relaxed);
        }
    }

    /// Whether a change in a directory must be the kernel's, because of what it may have cached: one that
    /// makes `name`, or that only removes.
    pub fn refuses(&self, dir: u64, name: Option<&[u8]>) -> bool {
        if is_injected(InjectedFault::CachedNamesIgnored) {
            return false;
        }
        let Some(part) = self.part(dir) else {
            return true;
        };
        part.lock().get(&dir).is_some_and(|dir| {
            let absent = name.is_some_and(|name| match &dir.absent {
                Absent::Names(names) => names.contains(&self.hasher.hash_one(name)),
                Absent::Any => true,
            });
            absent || dir.listing != Listing::No
        })
    }

    /// Whether the kernel has been seen to have the inode.
    pub fn has_arrived(&self, dir: u64) -> bool {
        let part = self.part(dir);
        part.is_some_and(|part| part.lock().get(&dir).is_some_and(|dir| dir.arrived))
    }

    /// The kernel is about to be told the attributes of an inode, which have not been read yet, or cannot change
    /// meanwhile.
    pub fn attributes_told(&self, node: u64) {
        let Some(part) = self.part(node) else { return };
        if let Some(dir) = part.lock().get_mut(&node) {
            dir.attributes = true;
        }
    }

    /// The kernel is to drop the attributes of a directory. Returns whether it may have any: a reply that is on
    /// its way is dropped with them, and one to a later question is told by [`Self::attributes_told`].
    pub fn attributes_dropped(&self, dir: u64) -> bool {
        let had = self.with(dir, |dir| std::mem::replace(&mut dir.attributes, false));
        had.unwrap_or(true)
    }

    /// The kernel was seen to have the inode, or not to have it.
    pub fn seen(&self, dir: u64, arrived: bool) {
        self.with(dir, |dir| dir.arrived = arrived);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_was_told_are_absent_are_its_to_make() {
        let dirs = KnownDirs::default();
        dirs.absent(7, b"a");
        assert!(dirs.refuses(7, Some(b"a")) && !dirs.refuses(7, Some(b"b")));
        assert!(!dirs.refuses(7, None) && !dirs.refuses(8, Some(b"a")));
        dirs.made(7, b"a");
        assert!(!dirs.refuses(7, Some(b"a")));
        assert_eq!(dirs.names.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_listing_ends_with_the_second_change_after_it() {
        let dirs = KnownDirs::default();
        dirs.listed(7);
        assert!(dirs.refuses(7, None) && dirs.refuses(7, Some(b"a")));
        dirs.changed(7);
        assert!(dirs.refuses(7, None));
        dirs.listed(7);
        dirs.changed(7);
        assert!(dirs.refuses(7, None));
        dirs.changed(7);
        assert!(!dirs.refuses(7, None));
    }

    #[test]
    fn many_names_are_any_name_until_the_directory_is_forgotten() {
        let dirs = KnownDirs::default();
        for n in 0..=NAMES as u32 {
            dirs.absent(7, &n.to_le_bytes());
        }
        assert!(dirs.refuses(7, Some(b"never looked up")));
        dirs.seen(7, true);
        dirs.forgotten(7, || true);
        assert!(dirs.refuses(7, Some(b"a")) && dirs.has_arrived(7));
        dirs.forgotten(7, || false);
        assert!(!dirs.refuses(7, Some(b"a")) && !dirs.has_arrived(7));
        dirs.absent(7, b"a");
        dirs.forgotten(7, || false);
        assert_eq!(dirs.names.load(Ordering::Relaxed), 0);
    }
}
