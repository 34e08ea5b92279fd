//! Sharding: spreads threads over the shards of a shared structure, to reduce contention for locks
//! and cache lines.
//!
//! Uses only [`crate::sync`].

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;

use crossbeam_utils::CachePadded;

use crate::sync::atomic::{AtomicI64, Ordering};
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
        let removed = if self.is_worth_it(&mut useless) {
            self.items.extract_if(.., useless).collect()
        } else {
            Vec::new()
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

    /// Whether there is any entry.
    pub fn has_any(&self) -> bool {
        self.shards.iter().any(|shard| !shard.lock().is_empty())
    }

    /// Takes all entries.
    pub fn take(&self) -> Vec<T> {
        self.take_lists().into_iter().flatten().collect()
    }

    /// Takes all entries, those of each shard in their order.
    pub fn take_lists(&self) -> Vec<Vec<T>> {
        let taken = self.shards.iter().map(|shard| shard.lock().take());
        taken.filter(|list| !list.is_empty()).collect()
    }
}

/// The part of a common sum that a shard has not added yet. Adding in steps keeps threads from
/// writing the sum's cache line at each change. The shard's lock protects it.
#[derive(Debug, Default)]
pub struct Unsummed(i64);

impl Unsummed {
    /// Adds `amount`. Returns what to add to the sum now: all of it once it has reached `step`,
    /// which is positive, in either direction; before that 0.
    pub fn add(&mut self, amount: i64, step: i64) -> i64 {
        self.0 += amount;
        if self.0.abs() >= step { self.take() } else { 0 }
    }

    /// Takes all of it, for the sum.
    pub fn take(&mut self) -> i64 {
        std::mem::take(&mut self.0)
    }
}

/// [`Unsummed`] without a lock.
#[derive(Debug, Default)]
pub struct AtomicUnsummed(AtomicI64);

impl AtomicUnsummed {
    /// As [`Unsummed::add`]. Concurrent calls may take each other's part; none takes it twice.
    pub fn add(&self, amount: i64, step: i64) -> i64 {
        let pending = self.0.fetch_add(amount, Ordering::Relaxed) + amount;
        if pending.abs() >= step {
            self.0.swap(0, Ordering::Relaxed)
        } else {
            0
        }
    }

    /// What the sum lacks.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn sum_and_unsummed_parts_are_exact_after_every_step() {
        let (mut locked, atomic) = (Unsummed::default(), AtomicUnsummed::default());
        let (mut sums, mut exact, mut adds) = ([0, 0], 0, 0);
        for n in 0..10_000_i64 {
            let amount = n * 7919 % 41 - 19;
            exact += amount;
            let due = locked.add(amount, 100);
            assert_eq!(atomic.add(amount, 100), due);
            assert!(due == 0 || due.abs() >= 100);
            adds += usize::from(due != 0);
            sums = sums.map(|sum| sum + due);
            assert_eq!(sums[1] + atomic.get(), exact);
            assert!(atomic.get().abs() < 100);
        }
        assert!((1..1000).contains(&adds), "{adds}");
        assert_eq!(sums[0] + locked.take(), exact);
        assert_eq!(locked.take(), 0);
    }

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

#[cfg(test)]
#[cfg(shuttle)]
mod schedules {
    use std::sync::Arc;

    use super::*;
    use crate::sync::explore::{Cost, explore};
    use crate::sync::thread;

    #[test]
    fn concurrent_adds_reach_the_sum_once() {
        explore("shard: sums in steps", Cost::Small, || {
            let parts: Arc<(AtomicUnsummed, AtomicI64)> = Arc::default();
            let threads = [3, -2, 4].map(|amount| {
                let parts = parts.clone();
                thread::spawn(move || {
                    for _ in 0..3 {
                        let due = parts.0.add(amount, 5);
                        parts.1.fetch_add(due, Ordering::Relaxed);
                    }
                })
            });
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(parts.0.get() + parts.1.load(Ordering::Relaxed), 15);
        });
    }
}
