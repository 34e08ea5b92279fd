//! The inode table: finds inodes in memory, and evicts cold and clean ones.
//!
//! Sharded by number. Each shard has its own map and its own second-chance queue, so neither a
//! lookup nor an eviction takes a lock of the volume. An inode that only the table holds and that
//! has no changes may be evicted; a lookup needs the shard's lock, so it cannot race with that. For
//! an evicted inode in use (a kernel may remember millions) only the number of uses is kept. An
//! inode in use without links is not evicted, because its deletion depends on its uses.
//!
//! An inode with changes is in no queue; the thread that cleans it reports it to the table. So a
//! table full of changed inodes is not searched repeatedly for inodes to evict. For this the order
//! of eviction is a queue apart from the map and not a [`cairnfs_disk::clock`] table, whose hand would pass
//! all inodes, evictable or not.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::inode::Inode;
use cairnfs_disk::hash::{IntHash, RUN_BITS, RunHash};
use cairnfs_disk::prefetch::prefetch;
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 64;
/// Queue entries examined for each inode that is added beyond the limit.
const EVICT_STEPS: usize = 4;

#[derive(Default)]
struct Shard {
    inodes: HashMap<u64, Arc<Inode>, RunHash>,
    queue: VecDeque<u64>,
    /// Use counts of evicted inodes.
    parked: HashMap<u64, u64, IntHash>,
}

/// All inodes in memory.
pub struct InodeTable {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// Inodes of a shard beyond which it evicts. Read for each inode that is added.
    limit: AtomicUsize,
}

impl InodeTable {
    /// A table that evicts beyond `limit` inodes.
    pub fn new(limit: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            limit: AtomicUsize::new(limit / SHARDS),
        }
    }

    /// Evicts beyond `limit` inodes from now on. Returns whether it did so beyond more before.
    pub fn set_limit(&self, limit: usize) -> bool {
        let limit = limit / SHARDS;
        self.limit.swap(limit, Ordering::Relaxed) > limit
    }

    fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    fn shard(&self, ino: u64) -> Option<&Mutex<Shard>> {
        let shard = (ino >> RUN_BITS) as usize % SHARDS;
        self.shards.get(shard).map(|s| &**s)
    }

    /// Returns the inode, not loaded if it was not in memory.
    pub fn get_or_new(&self, ino: u64) -> Arc<Inode> {
        let Some(shard) = self.shard(ino) else {
            return Arc::new(Inode::new(ino));
        };
        let mut shard = shard.lock();
        if let Some(inode) = shard.inodes.get(&ino) {
            prefetch(&**inode);
            // Avoids writing a cache line that many threads read.
            if !inode.recent.load(Ordering::Relaxed) {
                inode.recent.store(true, Ordering::Relaxed);
            }
            return inode.clone();
        }
        let inode = Arc::new(Inode::new(ino));
        if let Some(uses) = shard.parked.remove(&ino) {
            inode.add_uses(uses);
        }
        shard.queue.push_back(ino);
        inode.queued.store(true, Ordering::Relaxed);
        self.add(&mut shard, inode.clone());
        inode
    }

    /// Whether the inode is not in memory and the table is full.
    pub fn is_full_without(&self, ino: u64) -> bool {
        let Some(shard) = self.shard(ino) else {
            return false;
        };
        let shard = shard.lock();
        shard.inodes.len() >= self.limit() && !shard.inodes.contains_key(&ino)
    }

    /// The inode, if it is in memory, loaded and exists.
    pub fn ready(&self, ino: u64) -> Option<Arc<Inode>> {
        self.peek(ino).filter(|inode| inode.is_ready())
    }

    /// The inode, if it is in memory. Does not count as a use for eviction.
    pub fn peek(&self, ino: u64) -> Option<Arc<Inode>> {
        self.shard(ino)?.lock().inodes.get(&ino).cloned()
    }

    /// Drops `uses` uses of an inode. Returns the inode if none is left and it is in memory. An
    /// inode that was evicted has links, so nothing depends on its uses.
    pub fn forget(&self, ino: u64, uses: u64) -> Option<Arc<Inode>> {
        let mut shard = self.shard(ino)?.lock();
        if let Some(inode) = shard.inodes.get(&ino).cloned() {
            drop(shard);
            return inode.drop_uses(uses).then_some(inode);
        }
        if let Entry::Occupied(mut parked) = shard.parked.entry(ino) {
            match parked.get().checked_sub(uses) {
                None | Some(0) => drop(parked.remove()),
                Some(left) => drop(parked.insert(left)),
            }
        }
        None
    }

    /// All inodes in use with their uses, in no order.
    pub fn in_use(&self) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let all = shard.inodes.values().map(|inode| (inode.ino, inode.uses()));
            found.extend(all.filter(|(_, uses)| *uses > 0));
            found.extend(shard.parked.iter().map(|(ino, uses)| (*ino, *uses)));
        }
        found
    }

    /// Number of uses of an inode.
    pub fn uses(&self, ino: u64) -> u64 {
        let Some(shard) = self.shard(ino) else {
            return 0;
        };
        let shard = shard.lock();
        let parked = || shard.parked.get(&ino).copied().unwrap_or(0);
        shard
            .inodes
            .get(&ino)
            .map_or_else(parked, |inode| inode.uses())
    }

    /// Adds uses of an inode that has links.
    pub fn add_uses(&self, ino: u64, uses: u64) {
        let Some(shard) = self.shard(ino) else {
            return;
        };
        let mut shard = shard.lock();
        match shard.inodes.get(&ino) {
            Some(inode) => inode.add_uses(uses),
            None => *shard.parked.entry(ino).or_default() += uses,
        }
    }

    /// All inodes in memory, in no order. Among them are all with changes that the index lacks.
    pub fn all(&self) -> Vec<Arc<Inode>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(shard.lock().inodes.values().cloned());
        }
        found
    }

    /// Called when a merge has cleaned an inode, one of `together`: it may be evicted. It is
    /// evicted at once if the table has no place for it and as many new inodes; so threads that
    /// create files need not search for cold inodes to evict. At least a quarter of the places
    /// stay filled.
    pub fn cleaned(&self, inode: Arc<Inode>, together: usize) {
        let Some(shard) = self.shard(inode.ino) else {
            return;
        };
        let mut shard = shard.lock();
        let coming = (together / SHARDS).min(self.limit() / 4 * 3);
        let full = shard.inodes.len() + coming > self.limit();
        // The two references are the table's and the caller's.
        if full && Arc::strong_count(&inode) == 2 && !inode.used_lately() && inode.may_leave() {
            shard.leave(&inode);
        } else if !inode.queued.swap(true, Ordering::Relaxed) {
            shard.queue.push_back(inode.ino);
        }
    }

    /// Evicts a cancelled inode, unless other threads still use it.
    pub fn evict_cancelled(&self, inode: Arc<Inode>) {
        let Some(shard) = self.shard(inode.ino) else {
            return;
        };
        let mut shard = shard.lock();
        if Arc::strong_count(&inode) == 2 && inode.may_leave() {
            shard.leave(&inode);
        } else if !inode.queued.swap(true, Ordering::Relaxed) {
            shard.queue.push_back(inode.ino);
        }
    }

    /// Removes an inode with all its state; the next lookup loads it again.
    pub fn remove(&self, inode: &Inode) {
        if let Some(shard) = self.shard(inode.ino) {
            shard.lock().inodes.remove(&inode.ino);
        }
    }

    /// Adds a new inode, whose changes are about to be committed.
    pub fn insert(&self, inode: Arc<Inode>) {
        if let Some(shard) = self.shard(inode.ino) {
            self.add(&mut shard.lock(), inode);
        }
    }

    fn add(&self, shard: &mut Shard, inode: Arc<Inode>) {
        shard.inodes.insert(inode.ino, inode);
        if shard.inodes.len() > self.limit() {
            for _ in 0..EVICT_STEPS {
                if shard.evict_one() {
                    break;
                }
            }
        }
    }

    /// Evicts cold and clean inodes until every shard is within its limit.
    pub fn shrink(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            for _ in 0..shard.queue.len() {
                if shard.inodes.len() <= self.limit() {
                    break;
                }
                shard.evict_one();
            }
        }
    }

    /// Number of inodes in memory.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|s| s.lock().inodes.len()).sum()
    }
}

impl Shard {
    /// Examines the oldest inode of the queue. Returns whether it was evicted.
    fn evict_one(&mut self) -> bool {
        let Some(ino) = self.queue.pop_front() else {
            return false;
        };
        let Some(inode) = self.inodes.get(&ino).cloned() else {
            return true;
        };
        if inode.has_changes() {
            inode.queued.store(false, Ordering::Relaxed);
            return false;
        }
        // The two references are the table's and this function's.
        let keep = Arc::strong_count(&inode) > 2 || inode.used_lately() || !inode.may_leave();
        if keep {
            self.queue.push_back(ino);
        } else {
            self.leave(&inode);
        }
        !keep
    }

    fn leave(&mut self, inode: &Inode) {
        debug_assert!(
            inode.may_leave(),
            "inode invariant 3: without links and in use, it stays in memory"
        );
        let uses = inode.uses();
        if uses > 0 {
            self.parked.insert(inode.ino, uses);
        }
        self.inodes.remove(&inode.ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::attrs::Attrs;
    use cairnfs_disk::types::Time;

    fn holds(table: &InodeTable, ino: u64) -> bool {
        table.shard(ino).unwrap().lock().inodes.contains_key(&ino)
    }

    #[test]
    fn evicted_inodes_keep_use_counts() {
        let table = InodeTable::new(SHARDS);
        for ino in 0..10_000 {
            let mut attrs = Attrs::new(0o100_644, (0, 0), 0, 1, Time::default());
            attrs.nlink = u32::from(ino != 5);
            let inode = Arc::new(Inode::born(ino, attrs));
            table.insert(inode.clone());
            table.cleaned(inode, 1);
        }
        table.shrink();
        table.shrink();
        assert!(table.count() < 200, "{} inodes", table.count());
        assert!(holds(&table, 5), "without links, but in use");
        assert_eq!(table.get_or_new(77).uses(), 1);
        table.get_or_new(78).take_use();
        assert!(!holds(&table, 79));
        let mut used = table.in_use();
        used.sort_unstable();
        let uses = |ino| (ino, 1 + u64::from(ino == 78));
        assert!(used == (0..10_000).map(uses).collect::<Vec<_>>());
        assert!(table.forget(79, 1).is_none());
        assert_eq!(table.get_or_new(79).uses(), 0);
        assert!(!table.in_use().iter().any(|(ino, _)| *ino == 79));
        assert_eq!((table.uses(79), table.uses(80)), (0, 1));
        (80..82).for_each(|ino| table.add_uses(ino, 2));
        assert_eq!(table.get_or_new(80).uses(), 3, "not in memory");
        table.add_uses(80, 1);
        assert_eq!((table.uses(80), table.uses(81)), (4, 3));
        assert!(table.forget(78, 1).is_none(), "one use is left");
        assert!(table.forget(78, 1).is_some_and(|inode| inode.uses() == 0));
    }

    #[test]
    fn large_merge_leaves_places_for_new_inodes() {
        for (together, left) in [(1, SHARDS * 8), (2000, SHARDS * 2)] {
            let table = InodeTable::new(SHARDS * 8);
            let inodes: Vec<_> = (0..2000).map(|ino| Arc::new(Inode::new(ino))).collect();
            inodes.iter().for_each(|i| table.insert(i.clone()));
            assert_eq!(table.count(), 2000, "none of those with changes leaves");
            inodes.into_iter().for_each(|i| table.cleaned(i, together));
            assert_eq!(table.count(), left);
        }
    }

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
        assert!(holds(&table, 5));
        assert_eq!(table.get_or_new(5).uses(), 1);
    }
}
