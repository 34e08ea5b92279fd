//! Whether looking for the next message before sleeping pays.
//!
//! A client that waits for each reply sends its next message some microseconds after it. To sleep
//! and be woken meanwhile costs more than these microseconds, above all in a virtual machine, where
//! a halted processor is woken by its host. So the thread that waits looks for a message for a
//! while before it sleeps. That is wasted when the next message comes later, so it depends on what
//! the last ones did. Pure: times come in as arguments.

use std::time::Duration;

/// How long to look. A client that runs on another processor sends its next message within about
/// 20 us of a reply; longer polling caught nothing more.
pub(crate) const POLL: Duration = Duration::from_micros(30);

/// A message that arrived within this time behind the last reply, while the thread slept, would
/// probably have been caught: waking up is a part of the time.
const NEAR: Duration = Duration::from_micros(100);

/// The same for a loop that waits on the client's processor, which costs nothing while the client computes.
const NEAR_BESIDE: Duration = Duration::from_millis(1);

/// Polls that may fail before polling ends, at most; each one that succeeds counts against one that
/// fails.
const CREDIT_MAX: u32 = 16;

/// The same when polling begins.
const CREDIT: u32 = 4;

/// Near messages in succession after which polling begins, and the most that are asked for: each
/// time that polling ends, twice as many are needed, so a client that is always a little too slow
/// costs [`CREDIT`] vain polls in this many messages.
const NEED: u32 = 8;
const NEED_MAX: u32 = 1024;

/// History of the messages of one connection.
#[derive(Debug)]
pub(crate) struct Pace {
    credit: u32,
    near: u32,
    need: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            credit: 0,
            near: 0,
            need: NEED,
        }
    }
}

impl Pace {
    /// Whether a message that arrived so long after waiting began was worth waiting for, by a loop
    /// that is bound to the client's processor or not.
    pub fn is_near(waited: Duration, beside: bool) -> bool {
        waited <= if beside { NEAR_BESIDE } else { NEAR }
    }

    /// It did harm.
    pub fn failed(&mut self) {
        self.credit = 1;
        self.missed();
    }

    /// Whether to poll before the next sleep.
    pub fn pays(&self) -> bool {
        self.credit > 0
    }

    /// A poll found a message.
    pub fn caught(&mut self) {
        self.credit = (self.credit + 1).min(CREDIT_MAX);
        if self.credit == CREDIT_MAX {
            self.need = NEED;
        }
    }

    /// A poll found none.
    pub fn missed(&mut self) {
        self.credit = self.credit.saturating_sub(1);
        self.near = 0;
        if self.credit == 0 {
            self.need = (self.need * 2).min(NEED_MAX);
        }
    }

    /// A message arrived this long after waiting began, without a poll.
    pub fn slept(&mut self, waited: Duration) {
        if !Self::is_near(waited, false) {
            self.near = 0;
            return;
        }
        self.near += 1;
        if self.near >= self.need {
            self.near = 0;
            self.credit = CREDIT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(40);
    const LATE: Duration = Duration::from_millis(1);

    #[test]
    fn polling_begins_after_near_messages_in_succession() {
        let mut pace = Pace::default();
        for _ in 0..100 {
            (1..NEED).for_each(|_| pace.slept(SOON));
            assert!(!pace.pays());
            pace.slept(LATE);
        }
        (0..NEED).for_each(|_| pace.slept(SOON));
        assert!(pace.pays());
    }

    #[test]
    fn polling_ends_when_it_finds_nothing() {
        let mut pace = Pace::default();
        (0..NEED).for_each(|_| pace.slept(SOON));
        (0..1000).for_each(|_| pace.caught());
        (0..CREDIT_MAX).for_each(|_| {
            assert!(pace.pays());
            pace.missed();
        });
        assert!(!pace.pays());
    }

    #[test]
    fn vain_polls_become_rare() {
        let mut pace = Pace::default();
        let mut vain = 0;
        for _ in 0..100_000 {
            if pace.pays() {
                pace.missed();
                vain += 1;
            } else {
                pace.slept(SOON)
            }
        }
        assert!(vain < 1000, "{vain} of 100,000 messages");
    }

    #[test]
    fn success_restores_quick_begin() {
        let mut pace = Pace::default();
        for _ in 0..10_000 {
            if pace.pays() {
                pace.missed()
            } else {
                pace.slept(SOON)
            }
        }
        while !pace.pays() {
            pace.slept(SOON);
        }
        (0..CREDIT_MAX).for_each(|_| pace.caught());
        (0..CREDIT_MAX).for_each(|_| pace.missed());
        (0..2 * NEED).for_each(|_| pace.slept(SOON));
        assert!(pace.pays());
    }
}
