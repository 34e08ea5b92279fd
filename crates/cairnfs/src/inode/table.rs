//! The inode table: finds inodes in memory, and lets the cold and clean ones go.
//!
//! Sharded by number; each shard has its own map and its own second-chance queue, so neither a
//! look-up nor an eviction takes a lock of the volume. An inode that only the table holds, that
//! nobody uses and that has no changes may leave; a look-up needs the shard's lock, so it cannot
//! come back meanwhile.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use crate::inode::Inode;

const SHARDS: usize = 64;
/// Queue entries examined for each inode that comes in beyond the limit.
const EVICT_STEPS: usize = 4;

/// A hasher for numbers that are spread by a multiplication.
#[derive(Default)]
pub struct IntHasher(u64);

impl Hasher for IntHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }
}

/// Builds [`IntHasher`]s.
pub type IntHash = BuildHasherDefault<IntHasher>;

#[derive(Default)]
struct Shard {
    inodes: HashMap<u64, Arc<Inode>, IntHash>,
    queue: VecDeque<u64>,
}

/// All inodes in memory.
pub struct InodeTable {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    limit: usize,
}

impl InodeTable {
    /// A table that begins to evict beyond `limit` inodes.
    pub fn new(limit: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            limit: limit / SHARDS,
        }
    }

    fn shard(&self, ino: u64) -> Option<&Mutex<Shard>> {
        // Neighbouring numbers are used together: a run of 8 shares a shard.
        self.shards.get((ino >> 3) as usize % SHARDS).map(|s| &**s)
    }

    /// The inode, if it is in memory.
    pub fn get(&self, ino: u64) -> Option<Arc<Inode>> {
        let inode = self.shard(ino)?.lock().inodes.get(&ino).cloned()?;
        inode.recent.store(true, Ordering::Relaxed);
        Some(inode)
    }

    /// The inode; one not loaded yet if it was not in memory.
    pub fn get_or_new(&self, ino: u64) -> Arc<Inode> {
        let Some(shard) = self.shard(ino) else {
            return Arc::new(Inode::new(ino));
        };
        let mut shard = shard.lock();
        if let Some(inode) = shard.inodes.get(&ino) {
            inode.recent.store(true, Ordering::Relaxed);
            return inode.clone();
        }
        let inode = Arc::new(Inode::new(ino));
        self.add(&mut shard, inode.clone());
        inode
    }

    /// Adds a new inode.
    pub fn insert(&self, inode: Arc<Inode>) {
        if let Some(shard) = self.shard(inode.ino) {
            self.add(&mut shard.lock(), inode);
        }
    }

    fn add(&self, shard: &mut Shard, inode: Arc<Inode>) {
        shard.queue.push_back(inode.ino);
        shard.inodes.insert(inode.ino, inode);
        if shard.inodes.len() > self.limit {
            // One that cannot go is a sign that many cannot: a merge will free them all at once.
            for _ in 0..EVICT_STEPS {
                if evict_one(shard) == Outcome::Busy {
                    break;
                }
            }
        }
    }

    /// Lets every cold and clean inode go, in steps.
    pub fn shrink(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            for _ in 0..shard.queue.len() {
                if shard.inodes.len() <= self.limit {
                    break;
                }
                evict_one(&mut shard);
            }
        }
    }

    /// Number of inodes in memory.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|s| s.lock().inodes.len()).sum()
    }
}

#[derive(PartialEq)]
enum Outcome {
    Gone,
    SecondChance,
    Busy,
}

fn evict_one(shard: &mut Shard) -> Outcome {
    let Some(ino) = shard.queue.pop_front() else {
        return Outcome::Gone;
    };
    let Some(inode) = shard.inodes.get(&ino) else {
        return Outcome::Gone;
    };
    let outcome = if Arc::strong_count(inode) > 1 || !inode.is_clean() {
        Outcome::Busy
    } else if inode.recent.swap(false, Ordering::Relaxed) {
        Outcome::SecondChance
    } else {
        Outcome::Gone
    };
    if outcome == Outcome::Gone {
        shard.inodes.remove(&ino);
    } else {
        shard.queue.push_back(ino);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cold_clean_inodes_leave_and_used_ones_stay() {
        let table = InodeTable::new(SHARDS * 8);
        let used = table.get_or_new(5);
        used.take_use();
        drop(used);
        for ino in 0..20_000 {
            drop(table.get_or_new(ino));
        }
        assert!(table.count() < SHARDS * 8 * 2, "{} inodes", table.count());
        assert!(table.get(5).is_some());
        assert_eq!(table.get(5).unwrap().uses(), 1);
    }
}
