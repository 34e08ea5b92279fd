//! When the thread of a busy ring lets its processor go for a moment.
//!
//! A ring and its clients take turns on one processor without ever leaving it idle. Where they are in
//! a scheduling group of their own (a session's autogroup), Linux 6.18 then hardly lets run what is in
//! the root group, as the threads of the kernel are: the disk's replies wait for seconds, and with them
//! each sync. While the ring's thread sleeps, its clients soon wait for it, and the processor is
//! free. Pure: times come in as arguments.

use std::time::{Duration, Instant};

/// How long the thread sleeps; a sleep as long as this that came by itself counts as well.
pub(super) const PAUSE: Duration = Duration::from_micros(50);

/// Time without such a sleep after which one is due while a reply is owed, and at all.
const OWED: Duration = Duration::from_millis(2);
const AT_ALL: Duration = Duration::from_millis(100);

/// When the thread slept last.
#[derive(Debug)]
pub(super) struct SleepTimer {
    last: Instant,
}

impl SleepTimer {
    pub(super) fn new(now: Instant) -> Self {
        Self { last: now }
    }

    /// Whether a sleep is due. `owed`: whether a reply will come from another thread, which may wait
    /// for the device.
    pub(super) fn is_due(&self, now: Instant, owed: bool) -> bool {
        let after = if owed { OWED } else { AT_ALL };
        now.saturating_duration_since(self.last) >= after
    }

    /// The thread slept from `since` to `now`.
    pub(super) fn slept(&mut self, since: Instant, now: Instant) {
        if now.saturating_duration_since(since) >= PAUSE {
            self.last = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_is_due_only_after_a_time_without_one() {
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        let mut timer = SleepTimer::new(start);
        assert!(!timer.is_due(at(1_999), true) && timer.is_due(at(2_000), true));
        assert!(!timer.is_due(at(99_999), false) && timer.is_due(at(100_000), false));
        // Too short to count.
        timer.slept(at(1_900), at(1_949));
        assert!(timer.is_due(at(2_000), true));
        timer.slept(at(2_000), at(2_050));
        assert!(!timer.is_due(at(4_049), true) && timer.is_due(at(4_050), true));
        assert!(!timer.is_due(at(100_000), false));
    }
}
