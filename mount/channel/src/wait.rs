//! How both sides wait: they look at the memory for a while, then they sleep.
//!
//! Looking is right only while the other side runs on another processor: a wake-up of a sleeping thread
//! costs tens of microseconds, a reply less than one. It is wrong on one processor, and where more
//! threads want to run than there are processors: there it takes the processor from the thread that is
//! waited for. The daemon says how long callers look ([`spin_for`]), from what it knows of processors and
//! channels. What it cannot know, such as other programs that keep the processors busy, a waiting thread
//! learns itself: when looking was in vain several times, it sleeps at once, and looks again only now and
//! then to see whether that has changed ([`Patience`]).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;

/// How long a thread looks at most: about what a wake-up costs that it saves.
pub const SPIN: Duration = Duration::from_micros(30);
/// Looking that often in vain makes a thread sleep at once.
const VAIN: u32 = 4;
/// Every so many waits, one that would sleep at once looks again.
const AGAIN: u32 = 64;

/// How long callers look before they sleep, if `callers` programs call a daemon whose threads may run on
/// so many processors.
pub fn spin_for(processors: usize, callers: usize) -> Duration {
    if processors > callers {
        SPIN
    } else {
        Duration::ZERO
    }
}

/// Whether looking has helped lately.
#[derive(Debug, Default)]
pub struct Patience(AtomicU32);

impl Patience {
    /// Whether to look this time.
    pub fn looks(&self) -> bool {
        let vain = self.0.load(Ordering::Relaxed);
        if vain < VAIN {
            return true;
        }
        self.0
            .store(vain.wrapping_add(1).max(VAIN), Ordering::Relaxed);
        (vain - VAIN) % AGAIN == AGAIN - 1
    }

    /// Looking has helped, or was in vain.
    pub fn note(&self, helped: bool) {
        let vain = self.0.load(Ordering::Relaxed);
        let vain = if helped { 0 } else { vain.saturating_add(1) };
        self.0.store(vain, Ordering::Relaxed);
    }
}

/// Sleeps while `word` is `value`, and at most for `limit`.
pub(crate) fn sleep(word: &AtomicU32, value: u32, limit: Duration) {
    let limit = rustix::time::Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: limit.subsec_nanos().into(),
    };
    // Whatever ends the sleep, the caller looks at the word again.
    let _ = futex::wait(word, futex::Flags::empty(), value, Some(&limit));
}

/// Wakes the thread that sleeps on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    // Nobody there is no failure.
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_looks_where_looking_takes_the_processor_of_the_other_side() {
        for (processors, callers, looks) in [
            (1, 1, false),
            (2, 1, true),
            (2, 2, false),
            (8, 7, true),
            (8, 64, false),
        ] {
            assert_eq!(
                !spin_for(processors, callers).is_zero(),
                looks,
                "{processors} {callers}"
            );
        }
    }

    #[test]
    fn a_thread_that_looks_in_vain_sleeps_at_once_and_looks_again_now_and_then() {
        let patience = Patience::default();
        for _ in 0..VAIN {
            assert!(patience.looks());
            patience.note(false);
        }
        let looks = (0..AGAIN * 10).filter(|_| patience.looks()).count();
        assert_eq!(looks, 10);
        patience.note(true);
        assert!(patience.looks());
    }
}
