//! scratch
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]
use cairnfs_sim::explore::{Depth, explore};
use cairnfs_sim::workload::*;
use std::time::Instant;

#[test]
fn probe() {
    let base = base_volume().unwrap();
    let n: u64 = std::env::var("N")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1);
    let len: u32 = std::env::var("LEN")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1);
    let b = Bounded::new(len);
    let t = Instant::now();
    let mut all = cairnfs_sim::explore::Tally::default();
    let mut shown = 0;
    for i in (0..b.count()).step_by((b.count() / n).max(1) as usize) {
        let seq = b.sequence(i);
        let r = record(base.clone(), &seq).unwrap();
        let tally = explore(&r, &Depth::default(), &mut |_| {});
        if !tally.failures.is_empty() && shown < 12 {
            shown += 1;
            let s: Vec<String> = seq.iter().map(|s| s.to_string()).collect();
            println!(
                "{}: {} states, {} failures\n   {}\n   {:?}",
                s.join("; "),
                tally.states,
                tally.failures.len(),
                tally.failures[0],
                r.calls().collect::<Vec<_>>()
            );
        }
        all.add(tally);
    }
    println!(
        "{} states {} disks {} interrupted {} used {} failures in {:?}",
        all.states,
        all.disks.len(),
        all.interrupted,
        all.used,
        all.failures.len(),
        t.elapsed()
    );
}

#[test]
fn probe_random() {
    let base = cairnfs_sim::record::fresh_volume(16 << 20).unwrap();
    let n: u64 = std::env::var("N")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1);
    let len: usize = std::env::var("LEN")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1);
    let t = Instant::now();
    let mut all = cairnfs_sim::explore::Tally::default();
    let mut shown = 0;
    for i in 0..n {
        let seq = random_steps(i, len);
        let r = record(base.clone(), &seq).unwrap();
        let depth = Depth {
            states: 400,
            ..Depth::default()
        };
        let tally = explore(&r, &depth, &mut |_| {});
        if !tally.failures.is_empty() && shown < 12 {
            shown += 1;
            println!(
                "{i}: {} states, {} failures\n   {}\n   {:?}",
                tally.states,
                tally.failures.len(),
                tally.failures[0],
                r.calls().collect::<Vec<_>>()
            );
        }
        all.add(tally);
    }
    println!(
        "{} states {} disks {} interrupted {} used {} failures in {:?}",
        all.states,
        all.disks.len(),
        all.interrupted,
        all.used,
        all.failures.len(),
        t.elapsed()
    );
}
