//! What committers set aside, owe and count, apart for each shard of threads, so that those who commit
//! side by side seldom meet at a cache line.
//!
//! A lane holds a small credit of log space and index units for the reservations of its threads, and
//! what their commits added since somebody asked for the sum. The credit is promised like any
//! reservation; whoever finds too little elsewhere sweeps the lanes first, so near a limit every byte
//! is seen.

use crossbeam_utils::CachePadded;

use crate::shard::thread_shard;
use crate::space::growth_units;
use crate::sync::{Mutex, MutexGuard};

const LANES: usize = if cfg!(shuttle) { 2 } else { 16 };

/// Log bytes and index units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Credit {
    pub log: i64,
    pub units: u64,
}

/// What commits did, for people.
#[derive(Debug, Clone, Copy, Default)]
pub struct CommitCounts {
    /// Transactions.
    pub commits: u64,
    /// Items formatted in place into the vector they had.
    pub reused: u64,
    /// Vectors allocated.
    pub allocated: u64,
    /// Items that died in their context and are never logged.
    pub died: u64,
    /// Bytes formatted: what the log would get if every change were written.
    pub formatted: u64,
    /// Of these, bytes that took the place of others of the same context.
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
pub(super) struct Lane {
    pub credit: Credit,
    /// Bytes of items committed, for index growth; less than none if what died here was committed by
    /// others, whose lanes have it.
    pub growth: i64,
    /// Index units set aside for it.
    pub kept: u64,
    /// Bytes of items deleted, by which the index shrinks.
    pub shrinkage: u64,
    /// Change of the memory of dirty sets that the sum does not have yet.
    pub memory: i64,
    pub counts: CommitCounts,
}

pub(super) struct Lanes {
    lanes: Box<[CachePadded<Mutex<Lane>>]>,
    /// What a lane takes at once; twice as much is the most it keeps.
    batch: Credit,
    /// Memory that a lane may keep to itself.
    memory_step: i64,
}

impl Lanes {
    pub fn new(batch: Credit, memory_step: i64) -> Self {
        Self {
            lanes: (0..LANES).map(|_| CachePadded::default()).collect(),
            batch,
            memory_step,
        }
    }

    pub fn batch(&self) -> Credit {
        self.batch
    }

    /// The calling thread's lane.
    pub fn own(&self) -> Option<MutexGuard<'_, Lane>> {
        self.lanes.get(thread_shard(LANES)).map(|lane| lane.lock())
    }

    /// Takes from the calling thread's credit, if it has enough.
    pub fn take(&self, need: Credit) -> bool {
        let Some(mut lane) = self.own() else {
            return false;
        };
        let enough = lane.credit.log >= need.log && lane.credit.units >= need.units;
        if enough {
            lane.credit.log -= need.log;
            lane.credit.units -= need.units;
        }
        enough
    }

    /// Takes all credit out of all lanes.
    pub fn sweep(&self) -> Credit {
        let mut all = Credit::default();
        for lane in &self.lanes {
            let credit = std::mem::take(&mut lane.lock().credit);
            all.log += credit.log;
            all.units += credit.units;
        }
        all
    }

    /// Takes the units kept for index growth, which begins anew.
    pub fn take_growth(&self) -> u64 {
        let mut kept = 0;
        for lane in &self.lanes {
            let mut lane = lane.lock();
            lane.growth = 0;
            kept += std::mem::take(&mut lane.kept);
        }
        kept
    }

    /// Bytes of items committed that let the index grow.
    pub fn growth(&self) -> i64 {
        self.lanes
            .iter()
            .map(|lane| lane.lock().growth.max(0))
            .sum()
    }

    /// Whether there are any.
    pub fn grows(&self) -> bool {
        self.growth() > 0
    }

    /// Takes the bytes by which the index shrinks, which begin anew.
    pub fn take_shrinkage(&self) -> u64 {
        let taken = |lane: &CachePadded<Mutex<Lane>>| std::mem::take(&mut lane.lock().shrinkage);
        self.lanes.iter().map(taken).sum()
    }

    /// Bytes of items deleted that let the index shrink.
    pub fn shrinkage(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.lock().shrinkage).sum()
    }

    /// Takes the memory that the sum does not have yet.
    pub fn take_memory(&self) -> i64 {
        let taken = |lane: &CachePadded<Mutex<Lane>>| std::mem::take(&mut lane.lock().memory);
        self.lanes.iter().map(taken).sum()
    }

    /// Counts what the calling thread did without a reservation.
    pub fn count(&self, counts: &CommitCounts) {
        if let Some(mut lane) = self.own() {
            lane.counts.add(counts);
        }
    }

    pub fn counts(&self) -> CommitCounts {
        let mut all = CommitCounts::default();
        for lane in &self.lanes {
            all.add(&lane.lock().counts);
        }
        all
    }

    /// Gives a reservation's rest, and notes what its transaction did. Returns what goes back to all:
    /// credit beyond what the lane keeps, and memory for the sum.
    pub fn settle(&self, rest: Credit, done: &Done) -> (Credit, i64) {
        let Some(mut lane) = self.own() else {
            return (rest, done.memory);
        };
        lane.counts.add(&done.counts);
        // Rounded up in each lane, it is enough for all of them together.
        lane.growth += done.growth;
        let needed = growth_units(lane.growth);
        let kept = rest.units.min(needed.saturating_sub(lane.kept));
        let freed = lane.kept.saturating_sub(needed);
        debug_assert!(
            lane.kept + kept >= needed,
            "{} bytes of items with {} units reserved",
            done.growth,
            rest.units
        );
        lane.kept = lane.kept + kept - freed;
        lane.shrinkage += done.shrinkage;
        lane.memory += done.memory;
        let memory = match lane.memory.abs() >= self.memory_step {
            true => std::mem::take(&mut lane.memory),
            false => 0,
        };
        lane.credit.log += rest.log;
        lane.credit.units += rest.units - kept + freed;
        let most = Credit {
            log: 2 * self.batch.log,
            units: 2 * self.batch.units,
        };
        let surplus = Credit {
            log: (lane.credit.log - most.log).max(0),
            units: lane.credit.units.saturating_sub(most.units),
        };
        lane.credit.log -= surplus.log;
        lane.credit.units -= surplus.units;
        (surplus, memory)
    }
}

/// What a transaction did to its lane.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Bytes of items that it put, less those that died.
    pub growth: i64,
    /// Bytes of items deleted that the index has, or will have from an earlier context.
    pub shrinkage: u64,
    /// Change of the memory of dirty sets.
    pub memory: i64,
    pub counts: CommitCounts,
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn credit_is_kept_to_a_limit_and_swept() {
        let lanes = Lanes::new(Credit { log: 100, units: 2 }, 1000);
        let (log, units) = (150, 3);
        assert!(!lanes.take(Credit { log: 1, units: 0 }));
        let none = Done::default();
        let back = lanes.settle(Credit { log, units }, &none);
        assert_eq!(back, (Credit::default(), 0));
        let done = Done {
            memory: 600,
            growth: 5,
            ..Done::default()
        };
        let (surplus, memory) = lanes.settle(Credit { log, units }, &done);
        assert_eq!(surplus, Credit { log: 100, units: 1 });
        assert_eq!(memory, 0);
        assert_eq!(lanes.settle(Credit::default(), &done).1, 1200);
        assert!(lanes.take(Credit { log: 50, units: 4 }));
        assert!(!lanes.take(Credit { log: 50, units: 1 }));
        assert_eq!(lanes.sweep(), Credit { log: 150, units: 0 });
        assert!(lanes.grows());
        assert_eq!(lanes.take_growth(), 1);
        assert!(!lanes.grows());
    }
}
