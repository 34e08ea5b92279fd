//! Counts and latencies of operations, for operators and benchmarks.
//!
//! Uses only [`crate::sync`] and the clock. Nothing depends on the values.

use std::time::Instant;

use crate::sync::atomic::{AtomicU64, Ordering};

/// Latency of one kind of work or wait.
#[derive(Debug, Default)]
pub struct Latency {
    times: AtomicU64,
    nanos: AtomicU64,
    longest: AtomicU64,
}

/// Sum and maximum of the measured times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LatencyTotals {
    /// Number of measurements.
    pub times: u64,
    /// Sum of the times, in nanoseconds.
    pub nanos: u64,
    /// The longest time, in nanoseconds.
    pub longest: u64,
}

impl Latency {
    /// Runs `work` and measures its time.
    pub fn time<R>(&self, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = work();
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.times.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        self.longest.fetch_max(nanos, Ordering::Relaxed);
        result
    }

    /// The totals so far.
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
    fn latency_counts_calls_and_longest_time() {
        let latency = Latency::default();
        assert_eq!(latency.time(|| 7), 7);
        latency.time(|| std::hint::black_box((0..1000).sum::<u64>()));
        let found = latency.get();
        assert_eq!(found.times, 2);
        assert!(found.longest <= found.nanos && found.nanos <= 2 * found.longest);
    }
}
