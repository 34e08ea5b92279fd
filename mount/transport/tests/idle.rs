//! What waiting for messages costs: an idle connection uses no processor time, also after a busy
//! client, for whose messages its loop may have polled. One test, because it measures the time of
//! its process.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod fake;

use std::thread;
use std::time::Duration;

use cairnfs_transport::{Features, Offer, Server, Wanted};
use rustix::time::{ClockId, clock_gettime};

use fake::{Bytes, Running};

/// Refuses everything.
struct Nothing;

impl Server for Nothing {
    fn negotiate(&self, _offer: &Offer) -> Result<Wanted, String> {
        Ok(Wanted {
            features: Features::default(),
            max_request: 4096,
            max_background: 1,
            time_granularity: 1,
        })
    }
}

/// Processor time of this process.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

#[test]
fn idle_connection_costs_nothing_after_a_busy_client() {
    const IDLE: Duration = Duration::from_secs(1);
    /// Most machines catch some of so many messages by polling; one whose processors are taken by
    /// others catches none.
    const ASKED: u32 = 20_000;
    let running = Running::start(Nothing, 2);
    let ask = || drop(running.kernel.ask(17, 10, 9, &Bytes::new()));
    (0..ASKED).for_each(|_| ask());
    println!(
        "{} of {ASKED} messages were found by polling, {} served on the client's processor",
        running.traffic.polled(),
        running.traffic.followed()
    );
    let before = used();
    thread::sleep(IDLE);
    let cost = used() - before;
    assert!(cost < IDLE / 20, "{cost:?} of {IDLE:?} while idle");
    ask();
    running.end().unwrap();
}
