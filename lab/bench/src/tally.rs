//! The counts of one thread: operations, bytes, and latencies of single operations.
//!
//! Every latency is stored, so percentiles are exact.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Result;

/// The counts of a thread.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Number of completed operations.
    pub operations: u64,
    /// Bytes written to files.
    pub bytes: u64,
    latencies: Vec<u64>,
}

impl Tally {
    /// Executes one operation and records its latency. A failed operation is not counted.
    pub fn timed<T>(&mut self, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let done = operation()?;
        self.latencies.push(nanos(start.elapsed()));
        self.operations += 1;
        Ok(done)
    }

    /// Adds the counts of another thread.
    pub fn add(&mut self, mut other: Tally) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.latencies.append(&mut other.latencies);
    }

    /// Returns the latencies of the timed operations; `None` if there were none.
    pub fn latency(&mut self) -> Option<Latency> {
        self.latencies.sort_unstable();
        let sorted = &self.latencies;
        Some(Latency {
            count: sorted.len() as u64,
            p50: percentile(sorted, 500)?,
            p90: percentile(sorted, 900)?,
            p99: percentile(sorted, 990)?,
            p99_9: percentile(sorted, 999)?,
            max: percentile(sorted, 1000)?,
        })
    }
}

/// Latencies of operations, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Number of timed operations.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p99_9: u64,
    /// Maximum.
    pub max: u64,
}

/// Returns the smallest value that at least so many in a thousand of the values do not exceed (nearest
/// rank).
fn percentile(sorted: &[u64], per_mille: usize) -> Option<u64> {
    let rank = (sorted.len() * per_mille).div_ceil(1000);
    sorted.get(rank.saturating_sub(1)).copied()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_cover_all_timed_operations() {
        let mut tally = Tally::default();
        assert_eq!(tally.latency(), None);
        let parts = [1..=60, 61..=200];
        for part in parts {
            tally.add(Tally {
                operations: 1,
                bytes: 10,
                latencies: part.rev().collect(),
            });
        }
        let found = tally.latency().unwrap();
        assert_eq!(
            (found.count, found.p50, found.p90, found.p99, found.max),
            (200, 100, 180, 198, 200)
        );
        assert_eq!((tally.operations, tally.bytes), (2, 20));
        assert_eq!(found.p99_9, 200);
        assert_eq!(percentile(&[7], 500), Some(7));
    }

    #[test]
    fn failed_operation_is_not_counted() {
        let mut tally = Tally::default();
        assert!(tally.timed::<()>(|| Err("no".into())).is_err());
        assert_eq!(tally.timed(|| Ok(5)).unwrap(), 5);
        assert_eq!(tally.operations, 1);
        assert_eq!(tally.latency().unwrap().count, 1);
    }
}
