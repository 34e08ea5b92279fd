//! Counters of an open volume: operations, times, memory use.
//!
//! Only reads; nothing depends on it.

use crate::fs::FileSystem;
use cairnfs_disk::metrics::Latency;
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};

/// Name and value; times in nanoseconds.
type Counter = (&'static str, u64);

/// Counters whose values are levels, not sums: the difference of two readings is meaningless.
pub const LEVELS: &[&str] = &[
    "open_ns",
    "replayed_bytes",
    "push_longest_ns",
    "push_largest_bytes",
    "throttle_longest_ns",
    "log_wait_longest_ns",
    "merge_longest_ns",
    "flush_longest_ns",
    "inodes_in_memory",
    "node_cache_bytes",
    "name_bytes",
    "xattr_value_bytes",
    "dirty_bytes",
    "page_bytes",
    "held_bytes",
];

impl FileSystem {
    /// Counters since the volume was opened, for operators and benchmarks. Those in [`LEVELS`] are
    /// current values or maxima; all others only grow.
    pub fn counters(&self) -> Vec<Counter> {
        let mut counters = self.core().storage().counters().to_vec();
        counters.extend(self.log_counters());
        counters.extend(self.commit_counters());
        counters.extend(self.sync_counters());
        counters.extend(self.wait_counters());
        counters.extend(self.memory_counters());
        counters.extend(self.value_counters());
        counters
    }

    fn log_counters(&self) -> [Counter; 8] {
        let journal = self.core().journal().counters();
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        [
            ("open_ns", self.engine.lifecycle.open_nanos()),
            ("replayed_bytes", self.core().replayed()),
            ("log_bytes", get(&journal.log_bytes)),
            ("log_records", get(&journal.records)),
            ("log_entries", get(&journal.entries)),
            ("contexts", get(&journal.contexts)),
            ("items_cancelled", get(&journal.cancelled)),
            ("push_largest_bytes", get(&journal.largest)),
        ]
    }

    fn sync_counters(&self) -> [Counter; 7] {
        let journal = self.core().journal().counters();
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        [
            ("syncs", self.syncs_done()),
            ("fsyncs", get(&journal.fsyncs)),
            ("fsync_records", get(&journal.fsync_records)),
            ("fsync_inodes", get(&journal.fsync_inodes)),
            ("fsync_entries", get(&journal.fsync_entries)),
            ("fsync_log_blocks", get(&journal.fsync_blocks)),
            ("fsync_whole_contexts", get(&journal.whole_contexts)),
        ]
    }

    fn commit_counters(&self) -> [Counter; 6] {
        let commits = self.core().reservations().counts();
        [
            ("commits", commits.commits),
            ("vectors_reused", commits.reused),
            ("vectors_allocated", commits.allocated),
            ("items_died", commits.died),
            ("bytes_formatted", commits.formatted),
            ("bytes_relogged", commits.relogged),
        ]
    }

    fn wait_counters(&self) -> Vec<Counter> {
        let journal = self.core().journal().counters();
        let storage = self.core().storage();
        let latency = |names: [&'static str; 3], latency: &Latency| {
            let found = latency.get();
            names
                .into_iter()
                .zip([found.times, found.nanos, found.longest])
        };
        let pushes = latency(["pushes", "push_ns", "push_longest_ns"], &journal.pushes);
        let merges = self.core().merger().times();
        pushes
            .chain(latency(
                ["throttled", "throttle_ns", "throttle_longest_ns"],
                &journal.throttled,
            ))
            .chain(latency(
                ["log_waits", "log_wait_ns", "log_wait_longest_ns"],
                &journal.log_waits,
            ))
            .chain(latency(["merges", "merge_ns", "merge_longest_ns"], merges))
            .chain(latency(
                ["flushes_led", "flush_ns", "flush_longest_ns"],
                storage.flush_times(),
            ))
            .collect()
    }

    fn value_counters(&self) -> [Counter; 5] {
        let values = self.core().values();
        let counters = values.counters();
        [
            ("xattr_value_hits", counters.hits),
            ("xattr_value_misses", counters.misses),
            ("xattr_shared_bytes", counters.shared),
            ("xattr_value_evictions", counters.evictions),
            ("xattr_value_bytes", values.memory().max(0) as u64),
        ]
    }

    fn memory_counters(&self) -> [Counter; 7] {
        let nodes = self.core().index().counters();
        let bytes = |n: i64| n.max(0) as u64;
        let roots = self.engine.roots.list();
        let inodes = roots.iter().map(|root| root.items.table().count());
        let names = roots.iter().map(|root| root.items.name_bytes());
        [
            ("inodes_in_memory", inodes.sum::<usize>() as u64),
            ("node_cache_hits", nodes.hits),
            ("node_cache_misses", nodes.misses),
            ("node_cache_bytes", nodes.bytes),
            ("name_bytes", bytes(names.sum())),
            ("dirty_bytes", bytes(self.core().dirty_bytes())),
            ("page_bytes", bytes(self.engine.pages.bytes())),
        ]
    }
}
