//! Names of a directory that are known in memory: a map from the hash of a name to its entry's
//! index.
//!
//! Every entry that is not yet in the index is here; entries in the index may be. If a directory
//! knows all its names, a name that is not here does not exist, so creating it needs no index
//! lookup. This is only a cache: names that are trimmed are found in the index again.

use std::collections::HashMap;
use std::sync::Arc;

use cairnfs_disk::hash::IntHash;
use cairnfs_disk::sync::atomic::{AtomicI64, Ordering};

/// Memory of all names of a volume, in bytes.
pub type NameMemory = Arc<AtomicI64>;

/// Bytes of a place in the map: hash, index, and the map's control byte.
const PLACE: usize = 17;

/// Places that a directory may have without being tracked for trimming; they are freed with its
/// inode.
const FEW: usize = 32;

/// Known names of one directory.
pub struct Names {
    indexes: HashMap<u64, u64, IntHash>,
    /// Entries whose hash has a place in the map already; very few.
    equal: Vec<(u64, u64)>,
    memory: NameMemory,
    counted: i64,
}

impl Names {
    /// An empty set of names, whose memory is counted in `memory`.
    pub fn new(memory: &NameMemory) -> Self {
        Self {
            indexes: HashMap::default(),
            equal: Vec::new(),
            memory: memory.clone(),
            counted: 0,
        }
    }

    /// Adds the entry at `index`, whose name has this hash. Returns whether memory grew notably.
    pub fn add(&mut self, hash: u64, index: u64) -> bool {
        match self.indexes.insert(hash, index) {
            Some(other) if other != index => {
                self.equal.retain(|e| *e != (hash, index));
                self.equal.push((hash, other));
            }
            _ => {}
        }
        self.count()
    }

    /// Removes the entry at `index`, whose name has this hash.
    pub fn remove(&mut self, hash: u64, index: u64) {
        if self.indexes.get(&hash) != Some(&index) {
            self.equal.retain(|e| *e != (hash, index));
            return;
        }
        self.indexes.remove(&hash);
        if let Some(at) = self.equal.iter().position(|e| e.0 == hash) {
            let (_, other) = self.equal.swap_remove(at);
            self.indexes.insert(hash, other);
        }
    }

    /// Indexes of the entries whose names have this hash.
    pub fn find(&self, hash: u64) -> impl Iterator<Item = u64> {
        let first = self.indexes.get(&hash).copied();
        let equal = self.equal.iter().filter(move |e| e.0 == hash);
        first.into_iter().chain(equal.map(|e| e.1))
    }

    /// Replaces all names by `names`, pairs of hash and index.
    pub fn replace(&mut self, names: impl Iterator<Item = (u64, u64)>) {
        self.indexes = HashMap::default();
        self.equal = Vec::new();
        for (hash, index) in names {
            self.add(hash, index);
        }
        self.count();
    }

    fn count(&mut self) -> bool {
        let places = self.indexes.capacity();
        let bytes = (places * PLACE) as i64;
        let grown = bytes - self.counted;
        if grown != 0 {
            self.memory.fetch_add(grown, Ordering::Relaxed);
            self.counted = bytes;
        }
        grown > 0 && places > FEW
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.memory.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn equal_hashes_stay_distinct_and_memory_is_released() {
        let memory = NameMemory::default();
        let mut names = Names::new(&memory);
        let found = |names: &Names, hash| {
            let mut found: Vec<u64> = names.find(hash).collect();
            found.sort_unstable();
            found
        };
        for index in 10..13 {
            names.add(7, index);
        }
        names.add(8, 20);
        names.add(7, 10);
        assert_eq!(found(&names, 7), [10, 11, 12]);
        names.remove(7, 12);
        names.remove(7, 10);
        assert_eq!(found(&names, 7), [11]);
        names.remove(7, 11);
        assert!(found(&names, 7).is_empty());
        assert_eq!(found(&names, 8), [20]);
        (0..1000).for_each(|n| {
            names.add(n << 32, n);
        });
        assert!(memory.load(Ordering::Relaxed) >= 1000 * PLACE as i64);
        names.replace([(1, 2)].into_iter());
        assert_eq!((found(&names, 1), found(&names, 8)), (vec![2], vec![]));
        assert!(memory.load(Ordering::Relaxed) < 1000);
        drop(names);
        assert_eq!(memory.load(Ordering::Relaxed), 0);
    }
}
