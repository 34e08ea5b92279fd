//! What is set aside for transactions before they begin, and what their commits sum up to until a
//! merge takes it.
//!
//! [`Reservations`] owns the reservation caches of the threads ([`cache`]) and the memory of the
//! dirty sets. It uses the allocator and the log's ring, and waits for nothing: a caller that finds
//! too little decides what to do. Every credit handed out is reserved in both until it is put back
//! or given back.

mod cache;

use std::sync::Arc;

use crossbeam_utils::CachePadded;

pub use cache::CommitCounts;
pub(super) use cache::{Credit, Done};

use self::cache::ReservationCaches;
use crate::journal::Journal;
use crate::space::{Class, Space};
use cairnfs_disk::error::Result;
use cairnfs_disk::mechanism::Mechanism;
use cairnfs_disk::sync::atomic::{AtomicI64, Ordering};

/// Sums of all commits since a merge last took them.
pub(super) struct Totals {
    /// Bytes of memory of the dirty sets.
    pub memory: i64,
    /// Bytes of deleted items, by which the index shrinks.
    pub shrinkage: u64,
    /// Index units reserved for the growth of the index.
    pub units: u64,
}

/// Reservations of log bytes and index units.
pub struct Reservations {
    space: Arc<Space>,
    journal: Arc<Journal>,
    caches: ReservationCaches,
    /// Memory of dirty sets in bytes, without the part that the caches hold back.
    memory: CachePadded<AtomicI64>,
}

impl Reservations {
    /// Empty caches, each of which takes `batch` at once and holds back at most `memory_step` bytes
    /// of memory from the common sum.
    pub(super) fn new(
        space: Arc<Space>,
        journal: Arc<Journal>,
        batch: Credit,
        memory_step: i64,
    ) -> Self {
        let is_shared = journal.is_ablated(Mechanism::ReservationCaches);
        Self {
            space,
            journal,
            caches: ReservationCaches::new(batch, memory_step, is_shared),
            memory: CachePadded::default(),
        }
    }

    /// Takes `need` from the thread's cache, or from log and allocator if there is plenty. Returns
    /// whether it was taken.
    pub(super) fn take(&self, need: Credit) -> Result<bool> {
        Ok(self.caches.take(need) || self.take_with_batch(need)?)
    }

    /// Takes `need`, and a batch for the next reservations from the cache, if there is plenty.
    /// Returns whether there was.
    fn take_with_batch(&self, need: Credit) -> Result<bool> {
        let batch = self.caches.batch();
        let (log, units) = (need.log + batch.log, need.units + batch.units);
        if !self.journal.ring().try_take(log) {
            return Ok(false);
        }
        let reserved = self.space.reserve(0, units, Class::Ordinary);
        if !matches!(reserved, Ok(true)) {
            self.journal.ring().give(log);
            return reserved;
        }
        self.put_back(batch, &Done::default());
        Ok(true)
    }

    /// Gives a credit back to the log and the allocator.
    pub(super) fn give_back(&self, credit: Credit) {
        if credit.log != 0 {
            self.journal.ring().give(credit.log);
        }
        self.space.unreserve(0, credit.units);
    }

    /// Gives back the credit of all caches, which no transaction has reserved.
    pub fn sweep(&self) {
        self.give_back(self.caches.sweep());
    }

    /// Returns the rest of a reservation to the thread's cache, and records the results of its
    /// transaction.
    pub(super) fn put_back(&self, rest: Credit, done: &Done) {
        let (surplus, memory) = self.caches.put_back(rest, done);
        self.give_back(surplus);
        if memory != 0 {
            self.add_memory(memory);
        }
    }

    /// Tries to reserve space, and once more with the credit of the caches if there is too little.
    /// Returns whether it was reserved.
    pub(super) fn reserve_with_sweep(
        &self,
        attempt: impl Fn(&Space) -> Result<bool>,
    ) -> Result<bool> {
        if attempt(&self.space)? {
            return Ok(true);
        }
        self.sweep();
        attempt(&self.space)
    }

    /// Adds to the counters what the calling thread did without a reservation.
    pub(super) fn count(&self, counts: &CommitCounts) {
        self.caches.count(counts);
    }

    /// Counters of commits since the volume was opened.
    pub fn counts(&self) -> CommitCounts {
        self.caches.counts()
    }

    /// Bytes of committed items that let the index grow, and that no merge has taken.
    pub(super) fn growth(&self) -> u64 {
        self.caches.growth() as u64
    }

    /// Bytes of deleted items that let the index shrink, and that no merge has taken.
    pub(super) fn shrinkage(&self) -> u64 {
        self.caches.shrinkage()
    }

    /// Approximate bytes of memory of the dirty sets that no merge has taken.
    pub(super) fn memory(&self) -> i64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// Changes the memory of the dirty sets without a commit.
    pub(super) fn add_memory(&self, bytes: i64) {
        self.memory.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes and resets all sums for a merge, while no thread commits.
    pub(super) fn take_totals(&self) -> Totals {
        let mut totals = self.caches.take_totals();
        totals.memory += self.memory.swap(0, Ordering::AcqRel);
        totals
    }
}
