//! A ring that polls as long as the other one serves, so that a lone client stays where it is.
//!
//! The kernel wakes a client that gets its reply on a processor that is idle, if there is one; the
//! one that runs the ring's thread is not. So between two processors a lone client would move with
//! each message, and each time a halted processor would have to be woken, which takes longer than
//! the rest. While the other ring polls, its processor does not count as idle. With more than two
//! processors the client finds another one, so rings do not do this. Neither does a ring of whose
//! processor others take most: it is not idle then, and polling would take time from them.
//! Rings share their counters of messages; times come in as arguments.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

/// How long a ring goes on polling behind the last message of the other one. A client that unpacks or
/// reads files computes for longer than a poll between two messages now and then, and moves if the
/// other processor is idle when it gets its reply.
pub(super) const STAY: Duration = Duration::from_micros(100);

/// If others take more than half of a processor for so long, they need it. A look after which nobody
/// else ran takes less than [`BRIEF`].
const WINDOW: Duration = Duration::from_millis(2);
const BRIEF: Duration = Duration::from_micros(10);

/// How long a ring whose processor others use does not poll for the other ring, and the longest after
/// it found that again and again: within [`AGAIN`] times the last rest. A poll may take a time slice
/// from the others, about 3 ms.
const REST: Duration = Duration::from_millis(20);
const REST_MAX: Duration = Duration::from_secs(2);
const AGAIN: u32 = 10;

/// Messages of the other ring during a poll by which it paid.
const PAID: u32 = 8;

/// A client whose messages go to both rings in turn sends at most so many to the other one before it
/// comes back.
const TURN: u32 = 16;

/// Messages that each of the two rings of a connection has served; empty unless there are two
/// processors in all.
#[derive(Debug)]
pub(super) struct Company {
    served: Vec<CachePadded<AtomicU64>>,
}

impl Company {
    /// For so many rings, on a machine with so many processors.
    pub(super) fn new(rings: usize, processors: usize) -> Arc<Self> {
        let members = if (rings, processors) == (2, 2) { 2 } else { 0 };
        let served = (0..members).map(|_| CachePadded::default()).collect();
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
    /// Messages that it served during this poll.
    heard: u32,
    /// Since when the time that others take is counted, and that time.
    window: Instant,
    taken: Duration,
    /// When others needed this processor last, and for how long this ring rested then.
    needed: Option<Instant>,
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
            window: now,
            taken: Duration::ZERO,
            needed: None,
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
        self.window = now;
        self.taken = Duration::ZERO;
    }

    /// Whether to go on polling for the other ring's client. To be called after each look for a
    /// message of this ring.
    pub(super) fn is_wanted(&mut self, now: Instant) -> bool {
        if self.rests(now) {
            return false;
        }
        let gap = now.saturating_duration_since(self.looked);
        self.looked = now;
        if gap >= BRIEF {
            self.taken += gap;
        }
        let passed = now.saturating_duration_since(self.window);
        if passed >= WINDOW {
            if 2 * self.taken > passed {
                self.begin_rest(now);
                return false;
            }
            self.window = now;
            self.taken = Duration::ZERO;
        }
        let new = self.meanwhile();
        self.seen += u64::from(new);
        self.heard = self.heard.saturating_add(new);
        new > 0
    }

    fn rests(&self, now: Instant) -> bool {
        self.was_needed(now, self.rest)
    }

    fn begin_rest(&mut self, now: Instant) {
        self.rest = match self.was_needed(now, AGAIN * self.rest) {
            true => (2 * self.rest).min(REST_MAX),
            false => REST,
        };
        self.needed = Some(now);
    }

    /// Whether others needed this processor less than this time ago.
    fn was_needed(&self, now: Instant, within: Duration) -> bool {
        let needed = self.needed.map(|at| now.saturating_duration_since(at));
        needed.is_some_and(|ago| ago < within)
    }

    /// The time between two messages of a client of which one came after the ring has waited for
    /// this long.
    pub(super) fn gap(&self, waited: Duration) -> Duration {
        match self.meanwhile() {
            others if others <= TURN => waited / (others + 1),
            _ => waited,
        }
    }

    /// Messages that the other ring has served since the last look.
    fn meanwhile(&self) -> u32 {
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
            let (company, now) = (Company::new(2, 2), Instant::now());
            let mut polls = Companion::new(&company, 0, now);
            polls.begin(now);
            let serves = Companion::new(&company, 1, now);
            Self { polls, serves, now }
        }

        fn look(&mut self, after: Duration) -> bool {
            self.now += after;
            self.polls.is_wanted(self.now)
        }

        /// Others run for this long between two looks, until the ring rests.
        fn use_by_others(&mut self, run: Duration) {
            let end = self.now + 2 * WINDOW;
            while !self.polls.rests(self.now) {
                assert!(self.now < end, "polls on");
                self.serves.serves();
                self.look(run);
            }
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
        // By one long run, or by many short ones.
        for run in [WINDOW, 2 * BRIEF] {
            let mut pair = Pair::new();
            let mut expected = REST;
            for _ in 0..20 {
                pair.use_by_others(run);
                // Not wanted until then, and found to be needed at once again.
                pair.now += expected - 2 * SOON;
                pair.polls.begin(pair.now);
                pair.serves.serves();
                assert!(!pair.look(SOON));
                pair.polls.begin(pair.now);
                pair.serves.serves();
                assert!(pair.look(SOON), "{expected:?}");
                expected = (2 * expected).min(REST_MAX);
            }
            // It was free for long.
            pair.now += AGAIN * REST_MAX;
            pair.polls.begin(pair.now);
            pair.use_by_others(run);
            assert_eq!(pair.polls.rest, REST);
        }
    }

    #[test]
    fn brief_runs_of_others_end_no_poll() {
        let mut pair = Pair::new();
        for n in 0..10_000 {
            pair.serves.serves();
            let after = if n % 50 == 0 { 10 * BRIEF } else { BRIEF / 2 };
            assert!(pair.look(after));
        }
    }

    #[test]
    fn gap_of_a_client_that_goes_to_and_fro_is_that_of_its_messages() {
        let mut pair = Pair::new();
        let waited = Duration::from_micros(170);
        pair.polls.begin(pair.now);
        assert_eq!(pair.polls.gap(waited), waited);
        (0..TURN).for_each(|_| pair.serves.serves());
        assert_eq!(pair.polls.gap(waited), waited / (TURN + 1));
        // They are another client's.
        pair.serves.serves();
        assert_eq!(pair.polls.gap(waited), waited);
    }

    #[test]
    fn rings_of_other_numbers_keep_no_company() {
        for (rings, processors) in [(1, 1), (2, 64), (3, 3), (64, 64)] {
            let (company, now) = (Company::new(rings, processors), Instant::now());
            let mut first = Companion::new(&company, 0, now);
            first.begin(now);
            Companion::new(&company, rings - 1, now).serves();
            assert!(!first.is_wanted(now + SOON), "{rings} of {processors}");
        }
    }
}
