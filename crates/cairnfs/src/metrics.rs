//! How often something happened, and how long it took: for people who ask where time goes.
//!
//! Floor 0: uses only [`crate::sync`] and the clock. Nothing depends on what is measured here.

use std::time::Instant;

use crate::sync::atomic::{AtomicU64, Ordering};

/// A kind of work or wait.
#[derive(Debug, Default)]
pub struct Latency {
    times: AtomicU64,
    nanos: AtomicU64,
    longest: AtomicU64,
}

/// What was measured, in all and at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LatencyTotals {
    /// How often.
    pub times: u64,
    /// Nanoseconds in all.
    pub nanos: u64,
    /// Nanoseconds of the longest.
    pub longest: u64,
}

impl Latency {
    /// Runs `work`, and counts it with its time.
    pub fn time<R>(&self, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = work();
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.times.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        self.longest.fetch_max(nanos, Ordering::Relaxed);
        result
    }

    /// What was measured so far.
    pub fn get(&self) -> LatencyTotals {
        LatencyTotals {
            times: self.times.load(Ordering::Relaxed),
            nanos: self.nanos.load(Ordering::Relaxed),
            longest: self.longest.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn what_is_timed_is_counted() {
        let latency = Latency::default();
        assert_eq!(latency.time(|| 7), 7);
        latency.time(|| std::hint::black_box((0..1000).sum::<u64>()));
        let found = latency.get();
        assert_eq!(found.times, 2);
        assert!(found.longest <= found.nanos && found.nanos <= 2 * found.longest);
    }
}
