//! Reservations, growth and counters of committers, separate for each shard of threads, so that
//! concurrent committers seldom share a cache line.
//!
//! A cache holds a small credit of log space and index units for the reservations of its threads,
//! and the sums of their commits since the sums were last taken. The credit is reserved like any
//! reservation. A reservation that finds too little space elsewhere first sweeps all caches, so
//! near a limit every byte is available.

use crossbeam_utils::CachePadded;

use crate::space::growth_units;
use crate::txn::reservations::Totals;
use cairnfs_disk::shard::{Unsummed, thread_shard};
use cairnfs_disk::sync::{Mutex, MutexGuard};

const CACHES: usize = if cfg!(shuttle) { 2 } else { 16 };

/// Log bytes and index units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::txn) struct Credit {
    pub log: i64,
    pub units: u64,
}

/// Counters of commits, for display.
#[derive(Debug, Clone, Copy, Default)]
pub struct CommitCounts {
    /// Transactions.
    pub commits: u64,
    /// Items formatted in place into their existing vector.
    pub reused: u64,
    /// Vectors allocated.
    pub allocated: u64,
    /// Items that died in their context and are never logged.
    pub died: u64,
    /// Bytes formatted: the log bytes if every change were written.
    pub formatted: u64,
    /// The part of `formatted` that replaced bytes of the same context.
    pub relogged: u64,
}

impl CommitCounts {
    fn add(&mut self, more: &Self) {
        self.commits += more.commits;
        self.reused += more.reused;
        self.allocated += more.allocated;
        self.died += more.died;
        self.formatted += more.formatted;
        self.relogged += more.relogged;
    }
}

#[derive(Default)]
struct ReservationCache {
    credit: Credit,
    /// Bytes of committed items, for index growth. Negative if items died here that were committed
    /// by threads of other shards, whose caches count them.
    growth: i64,
    /// Index units reserved for this growth.
    kept: u64,
    /// Bytes of deleted items, by which the index shrinks.
    shrinkage: u64,
    /// Change of the dirty sets' memory in bytes that is not in the common sum yet.
    memory: Unsummed,
    counts: CommitCounts,
}

/// The reservation caches of all shards of threads.
pub(super) struct ReservationCaches {
    caches: Box<[CachePadded<Mutex<ReservationCache>>]>,
    /// Credit that a cache takes at once; it keeps at most twice as much.
    batch: Credit,
    /// Bytes of memory that a cache may hold back from the common sum.
    memory_step: i64,
}

impl ReservationCaches {
    pub fn new(batch: Credit, memory_step: i64, is_shared: bool) -> Self {
        let caches = if is_shared { 1 } else { CACHES };
        Self {
            caches: (0..caches).map(|_| CachePadded::default()).collect(),
            batch,
            memory_step,
        }
    }

    pub fn batch(&self) -> Credit {
        self.batch
    }

    /// The calling thread's cache; the first if all threads share it.
    fn own(&self) -> Option<MutexGuard<'_, ReservationCache>> {
        let own = self.caches.get(thread_shard(CACHES));
        own.or_else(|| self.caches.first())
            .map(|cache| cache.lock())
    }

    /// Takes `need` from the calling thread's credit, if it has enough. Returns whether it had.
    pub fn take(&self, need: Credit) -> bool {
        let Some(mut cache) = self.own() else {
            return false;
        };
        let enough = cache.credit.log >= need.log && cache.credit.units >= need.units;
        if enough {
            cache.credit.log -= need.log;
            cache.credit.units -= need.units;
        }
        enough
    }

    /// Takes all credit of all caches.
    pub fn sweep(&self) -> Credit {
        let mut all = Credit::default();
        for cache in &self.caches {
            let credit = std::mem::take(&mut cache.lock().credit);
            all.log += credit.log;
            all.units += credit.units;
        }
        all
    }

    /// Takes and resets the sums of all caches.
    pub fn take_totals(&self) -> Totals {
        let mut totals = Totals {
            memory: 0,
            shrinkage: 0,
            units: 0,
        };
        for cache in &self.caches {
            let mut cache = cache.lock();
            cache.growth = 0;
            totals.units += std::mem::take(&mut cache.kept);
            totals.shrinkage += std::mem::take(&mut cache.shrinkage);
            totals.memory += cache.memory.take();
        }
        totals
    }

    /// Bytes of committed items that let the index grow.
    pub fn growth(&self) -> i64 {
        self.caches
            .iter()
            .map(|cache| cache.lock().growth.max(0))
            .sum()
    }

    /// Bytes of deleted items that let the index shrink.
    pub fn shrinkage(&self) -> u64 {
        self.caches.iter().map(|cache| cache.lock().shrinkage).sum()
    }

    /// Adds to the counters what the calling thread did without a reservation.
    pub fn count(&self, counts: &CommitCounts) {
        if let Some(mut cache) = self.own() {
            cache.counts.add(counts);
        }
    }

    pub fn counts(&self) -> CommitCounts {
        let mut all = CommitCounts::default();
        for cache in &self.caches {
            all.add(&cache.lock().counts);
        }
        all
    }

    /// Returns the rest of a reservation, and records the results of its transaction. Returns the
    /// credit beyond what the cache keeps, and memory for the common sum.
    pub fn put_back(&self, rest: Credit, done: &Done) -> (Credit, i64) {
        let Some(mut cache) = self.own() else {
            return (rest, done.memory);
        };
        cache.counts.add(&done.counts);
        // The units are rounded up in each cache, so they suffice for the sum of all caches.
        cache.growth += done.growth;
        let needed = growth_units(cache.growth);
        let kept = rest.units.min(needed.saturating_sub(cache.kept));
        let freed = cache.kept.saturating_sub(needed);
        debug_assert!(
            cache.kept + kept >= needed,
            "reservation invariant 3: {} bytes of items with {} units reserved",
            done.growth,
            rest.units
        );
        cache.kept = cache.kept + kept - freed;
        cache.shrinkage += done.shrinkage;
        let memory = cache.memory.add(done.memory, self.memory_step);
        cache.credit.log += rest.log;
        cache.credit.units += rest.units - kept + freed;
        let max_credit = Credit {
            log: 2 * self.batch.log,
            units: 2 * self.batch.units,
        };
        let surplus = Credit {
            log: (cache.credit.log - max_credit.log).max(0),
            units: cache.credit.units.saturating_sub(max_credit.units),
        };
        cache.credit.log -= surplus.log;
        cache.credit.units -= surplus.units;
        (surplus, memory)
    }
}

/// Results of a transaction, for its cache.
#[derive(Debug, Default)]
pub(in crate::txn) struct Done {
    /// Bytes of items that it put, minus those that died.
    pub growth: i64,
    /// Bytes of deleted items that the index has, or will have from an earlier context.
    pub shrinkage: u64,
    /// Change of the dirty sets' memory, in bytes.
    pub memory: i64,
    pub counts: CommitCounts,
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn credit_is_kept_to_a_limit_and_swept() {
        let caches = ReservationCaches::new(Credit { log: 100, units: 2 }, 1000, false);
        let (log, units) = (150, 3);
        assert!(!caches.take(Credit { log: 1, units: 0 }));
        let none = Done::default();
        let back = caches.put_back(Credit { log, units }, &none);
        assert_eq!(back, (Credit::default(), 0));
        let done = Done {
            memory: 600,
            growth: 5,
            ..Done::default()
        };
        let (surplus, memory) = caches.put_back(Credit { log, units }, &done);
        assert_eq!(surplus, Credit { log: 100, units: 1 });
        assert_eq!(memory, 0);
        assert_eq!(caches.put_back(Credit::default(), &done).1, 1200);
        assert!(caches.take(Credit { log: 50, units: 4 }));
        assert!(!caches.take(Credit { log: 50, units: 1 }));
        assert_eq!(caches.sweep(), Credit { log: 150, units: 0 });
        assert_eq!(caches.growth(), 10);
        assert_eq!(caches.take_totals().units, 1);
        assert_eq!(caches.growth(), 0);
    }

    /// Number of threads, one after the other, that find the credit of the calling thread.
    fn finders(is_shared: bool) -> usize {
        let caches = ReservationCaches::new(Credit { log: 100, units: 2 }, 1000, is_shared);
        let one = Credit { log: 1, units: 1 };
        let takes = |_| {
            caches.put_back(one, &Done::default());
            let taken = std::thread::scope(|scope| scope.spawn(|| caches.take(one)).join());
            caches.sweep();
            usize::from(taken.unwrap())
        };
        (0..CACHES).map(takes).sum()
    }

    #[test]
    fn threads_have_caches_of_their_own_unless_they_share_one() {
        assert!(finders(false) < CACHES);
        assert_eq!(finders(true), CACHES);
    }
}
