//! What waiting for messages costs: polling catches those of a busy client, an idle connection
//! uses no processor time. One test, because it measures the time of its process.

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
fn busy_client_is_polled_and_idle_one_costs_nothing() {
    const IDLE: Duration = Duration::from_secs(1);
    const CAUGHT: u64 = 10;
    let running = Running::start(Nothing, 2);
    let ask = || drop(running.kernel.ask(17, 10, 9, &Bytes::new()));
    if thread::available_parallelism().unwrap().get() > 1 {
        (0..2_000_000)
            .take_while(|_| running.traffic.polled() < CAUGHT)
            .for_each(|_| ask());
        let polled = running.traffic.polled();
        assert!(polled >= CAUGHT, "{polled} messages were found by polling");
    }
    let before = used();
    thread::sleep(IDLE);
    let cost = used() - before;
    assert!(cost < IDLE / 20, "{cost:?} of {IDLE:?} while idle");
    ask();
    running.end().unwrap();
}
