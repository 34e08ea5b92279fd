//! Sharding: spreads threads over the shards of a shared structure, to reduce lock contention.
//!
//! Floor 0: uses only [`crate::sync`].

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

use crate::sync::{Mutex, thread_local};

const SHARDS: usize = 16;

/// Lists shorter than this are not pruned.
const FEW: usize = 1024;

/// Entries sampled to estimate how many are useless.
const SAMPLE: usize = 64;
/// Useless entries in the sample from which on a scan of the list pays off: each check reads memory
/// that is likely not cached.
const WORTH: usize = SAMPLE / 8;

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The shard of the calling thread, below `shards`. Threads are assigned shards round-robin.
pub fn thread_shard(shards: usize) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    SHARD.with(|s| {
        if s.get() == usize::MAX {
            s.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        s.get() % shards
    })
}

/// A list that removes useless entries whenever it has doubled, if there are more than a few.
pub struct Pruned<T> {
    items: Vec<T>,
    /// Length after the last pruning or check.
    kept: usize,
}

impl<T> Default for Pruned<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            kept: 0,
        }
    }
}

impl<T> Pruned<T> {
    /// Adds entries. If many may be useless, removes and returns those for which `useless` is true.
    /// `useless` may be called several times for an entry, also for one that stays.
    pub fn extend(
        &mut self,
        more: impl Iterator<Item = T>,
        mut useless: impl FnMut(&mut T) -> bool,
    ) -> Vec<T> {
        self.items.extend(more);
        if self.items.len() < (2 * self.kept).max(FEW) {
            return Vec::new();
        }
        let removed = match self.is_worth_it(&mut useless) {
            true => self.items.extract_if(.., useless).collect(),
            false => Vec::new(),
        };
        self.kept = self.items.len();
        removed
    }

    /// Estimates from a pseudo-random sample whether many entries are useless.
    fn is_worth_it(&mut self, mut useless: impl FnMut(&mut T) -> bool) -> bool {
        let len = self.items.len().max(1) as u64;
        let place = |n: u64| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % len;
        let places = (1..=SAMPLE as u64).map(|n| place(n) as usize);
        let found = places.filter(|at| self.items.get_mut(*at).is_some_and(&mut useless));
        found.take(WORTH).count() == WORTH
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Takes all entries.
    pub fn take(&mut self) -> Vec<T> {
        std::mem::take(self).items
    }

    /// Uses `memory` as storage if the list has none yet.
    pub fn house(&mut self, memory: impl FnOnce() -> Vec<T>) {
        if self.items.capacity() == 0 {
            self.items = memory();
        }
    }
}

/// A list that many threads append to and one thread takes as a whole.
pub struct Sharded<T> {
    shards: Box<[CachePadded<Mutex<Pruned<T>>>]>,
}

impl<T> Default for Sharded<T> {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
        }
    }
}

impl<T> Sharded<T> {
    /// Appends an entry.
    pub fn push(&self, item: T) {
        self.push_pruned(item, |_| false);
    }

    /// Appends an entry. Returns useless entries like [`Pruned::extend`]; `useless` must not block.
    pub fn push_pruned(&self, item: T, useless: impl FnMut(&mut T) -> bool) -> Vec<T> {
        match self.shards.get(thread_shard(SHARDS)) {
            Some(shard) => shard.lock().extend(std::iter::once(item), useless),
            None => Vec::new(),
        }
    }

    /// Takes all entries.
    pub fn take(&self) -> Vec<T> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let mut taken = shard.lock().take();
            all.append(&mut taken);
        }
        all
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn pruned_list_rarely_scans_useful_entries() {
        let mut list = Pruned::default();
        let mut looks = 0;
        let mut add = |n: u32, every: u32| {
            let mut useless = |n: &mut u32| {
                looks += 1;
                n.is_multiple_of(every)
            };
            list.extend(std::iter::once(n), &mut useless).len()
        };
        let removed: usize = (1..=100_000).map(|n| add(n, 100)).sum();
        assert_eq!(removed, 0, "too few");
        let removed: usize = (1..=200_000).map(|n| add(n, 4)).sum();
        assert!(removed > 20_000, "{removed}");
        assert!(looks < 500_000, "{looks}");
    }

    #[test]
    fn pruned_list_stays_short_and_keeps_useful_entries() {
        let mut list = Pruned::default();
        let mut removed = 0;
        for n in 0..100_000_u32 {
            removed += list.extend(std::iter::once(n), |n| *n % 1000 != 0).len();
            assert!(list.items.len() <= FEW);
        }
        let left = list.take();
        assert_eq!(left.len() + removed, 100_000);
        assert_eq!(left.iter().filter(|n| *n % 1000 == 0).count(), 100);
        assert!(list.is_empty());
    }
}
