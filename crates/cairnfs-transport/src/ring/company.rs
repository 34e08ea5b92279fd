//! A ring that polls as long as the other one serves, so that a lone client stays where it is.
//!
//! The kernel wakes a client that gets its reply on a processor that is idle, if there is one; the
//! one that runs the ring's thread is not. So between two processors a lone client would move with
//! each message, and each time a halted processor would have to be woken, which takes longer than
//! the rest. While the other ring polls, its processor does not count as idle. With more than two
//! rings the client finds another processor, so they do not do this. Neither does a ring whose
//! processor runs other threads: it is not idle then, and polling would take time from them. Pure:
//! times come in as arguments.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

/// Between two looks another thread ran if they are so far apart; threads of the kernel that serve
/// a device take less.
const TAKEN: Duration = Duration::from_millis(1);

/// How long a ring whose processor others used does not poll for the other ring, and the longest after
/// it found that again and again. A poll that others interrupt may take a time slice from them, about
/// 3 ms.
const REST: Duration = Duration::from_millis(20);
const REST_MAX: Duration = Duration::from_secs(2);

/// Messages of the other ring during a poll by which it paid, and between two rests by which the first
/// one was an accident.
const PAID: u32 = 8;
const CALM: u32 = 1000;

/// Messages that each of the rings of a connection has served.
#[derive(Debug)]
pub(super) struct Company {
    served: Vec<CachePadded<AtomicU64>>,
}

impl Company {
    pub(super) fn new(rings: usize) -> Arc<Self> {
        let served = (0..rings).map(|_| CachePadded::default()).collect();
        Arc::new(Self { served })
    }
}

/// One ring's part in it.
#[derive(Debug)]
pub(super) struct Companion {
    company: Arc<Company>,
    own: usize,
    /// What the other ring had served at the last look, and when that was.
    seen: u64,
    looked: Instant,
    /// Messages that it served during this poll, and since others used this ring's processor.
    heard: u32,
    calm: u32,
    rests: Option<Instant>,
    rest: Duration,
}

impl Companion {
    /// For the ring with this number, counted from 0.
    pub(super) fn new(company: &Arc<Company>, own: usize, now: Instant) -> Self {
        Self {
            company: Arc::clone(company),
            own,
            seen: 0,
            looked: now,
            heard: 0,
            calm: 0,
            rests: None,
            rest: REST,
        }
    }

    /// This ring serves a message.
    pub(super) fn serves(&self) {
        if let Some(served) = self.company.served.get(self.own) {
            // No other thread writes it.
            served.store(served.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// A poll or a sleep begins.
    pub(super) fn begin(&mut self, now: Instant) {
        self.seen = self.others();
        self.looked = now;
        self.heard = 0;
        self.rests = self.rests.filter(|until| now < *until);
    }

    /// Whether to go on polling for the other ring's client. To be called after each look for a
    /// message of this ring.
    pub(super) fn is_wanted(&mut self, now: Instant) -> bool {
        let gap = now.saturating_duration_since(self.looked);
        self.looked = now;
        if self.rests.is_some() {
            return false;
        }
        if gap >= TAKEN {
            self.rests = Some(now + self.rest);
            self.rest = (2 * self.rest).min(REST_MAX);
            self.calm = 0;
            return false;
        }
        let new = self.meanwhile();
        self.seen += u64::from(new);
        self.heard = self.heard.saturating_add(new);
        self.calm = self.calm.saturating_add(new);
        if self.calm >= CALM {
            self.rest = REST;
        }
        new > 0
    }

    /// Messages that the other ring has served since a sleep began.
    pub(super) fn meanwhile(&self) -> u32 {
        let new = self.others().saturating_sub(self.seen);
        u32::try_from(new).unwrap_or(u32::MAX)
    }

    /// Whether the poll paid although this ring got no message.
    pub(super) fn has_paid(&self) -> bool {
        self.heard >= PAID
    }

    /// Messages that the other ring has served, if there is exactly one.
    fn others(&self) -> u64 {
        match self.company.served.as_slice() {
            [first, second] => {
                let other = if self.own == 0 { second } else { first };
                other.load(Ordering::Relaxed)
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(10);

    /// Two rings, the first of which polls, and the time.
    struct Pair {
        polls: Companion,
        serves: Companion,
        now: Instant,
    }

    impl Pair {
        fn new() -> Self {
            let (company, now) = (Company::new(2), Instant::now());
            let mut polls = Companion::new(&company, 0, now);
            polls.begin(now);
            let serves = Companion::new(&company, 1, now);
            Self { polls, serves, now }
        }

        fn look(&mut self, after: Duration) -> bool {
            self.now += after;
            self.polls.is_wanted(self.now)
        }
    }

    #[test]
    fn a_ring_polls_as_long_as_the_other_serves() {
        let mut pair = Pair::new();
        assert!(!pair.look(SOON));
        for _ in 0..PAID {
            assert!(!pair.polls.has_paid());
            pair.serves.serves();
            assert!(pair.look(SOON));
            assert!(!pair.look(SOON));
        }
        assert!(pair.polls.has_paid());
        pair.polls.begin(pair.now);
        assert!(!pair.polls.has_paid());
        // Its own messages do not count.
        pair.polls.serves();
        assert!(!pair.look(SOON));
    }

    #[test]
    fn a_ring_whose_processor_is_used_rests_ever_longer() {
        let mut pair = Pair::new();
        let mut expected = REST;
        for _ in 0..20 {
            pair.serves.serves();
            assert!(!pair.look(TAKEN));
            let mut rested = Duration::ZERO;
            loop {
                pair.polls.begin(pair.now);
                pair.serves.serves();
                if pair.look(SOON) {
                    break;
                }
                pair.now += REST / 2;
                rested += REST / 2;
            }
            assert!(
                rested.abs_diff(expected) <= REST,
                "{rested:?}, {expected:?}"
            );
            expected = (2 * expected).min(REST_MAX);
        }
        // Its processor was its own for a while.
        for _ in 0..CALM {
            pair.serves.serves();
            pair.look(SOON);
        }
        assert_eq!(pair.polls.rest, REST);
    }

    #[test]
    fn rings_of_other_numbers_keep_no_company() {
        for rings in [1, 3, 64] {
            let (company, now) = (Company::new(rings), Instant::now());
            let mut first = Companion::new(&company, 0, now);
            first.begin(now);
            Companion::new(&company, rings - 1, now).serves();
            assert!(!first.is_wanted(now + SOON), "{rings}");
        }
    }
}
