//! Rings that wait use no processor time. One test, because it measures the time of its process.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod memory;

use std::fs::{self, File};
use std::thread;
use std::time::Duration;

use cairnfs_transport::Transport;
use rustix::time::{ClockId, clock_gettime};

use memory::Mounted;

/// Processor time of this process.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

#[test]
fn idle_rings_cost_nothing() {
    const IDLE: Duration = Duration::from_secs(1);
    let Some(mut mounted) = Mounted::new(Transport::Ring) else {
        return;
    };
    for n in 0..2000 {
        fs::write(mounted.path(&format!("{n}")), "something").unwrap();
        File::open(mounted.path(&format!("{n}")))
            .unwrap()
            .sync_all()
            .unwrap();
    }
    let before = used();
    thread::sleep(IDLE);
    let cost = used() - before;
    assert!(cost < IDLE / 20, "{cost:?} of {IDLE:?} while idle");
    assert_eq!(mounted.traffic.transport(), "ring");
    mounted.end().unwrap();
}
