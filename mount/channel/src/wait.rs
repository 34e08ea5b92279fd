//! How both sides wait: they look at the memory for a while, then they sleep.
//!
//! A wake-up of a sleeping thread costs tens of microseconds, a reply less than one. So a waiting thread
//! looks first ([`look`]). Where there are more callers than processors to spare, it yields its processor
//! after each look: the thread that is waited for may need it. The daemon says which of the two is right
//! ([`is_crowded`]), from what it knows of processors and channels. What it cannot know, such as other
//! programs that keep the processors busy, and to which a yield gives a whole slice of time, a waiting
//! thread learns itself ([`Patience`]): when looking was in vain several times, it sleeps at once, and
//! tries again after some waits; after ever more if a try costs a slice.

use std::hint::spin_loop;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::thread::sched_yield;

use crate::sync::Hint;

/// How long a thread looks at most: about what a wake-up costs that it saves.
const SPIN: Duration = Duration::from_micros(30);
/// The same where it yields: others take their turns meanwhile.
const YIELDING: Duration = Duration::from_micros(200);
/// A yield that takes longer has given the processor to another program.
const SLICE: Duration = Duration::from_micros(500);
/// Looks at the memory between two looks at the clock.
const LOOKS: usize = 32;
/// Looking that often in vain makes a thread sleep at once.
const VAIN: u32 = 4;
/// A thread that sleeps at once looks again after so many waits; if that costs a slice, after twice as many each
/// time.
const AGAIN: u32 = 64;
const MOST_AGAIN: u32 = 1 << 16;

/// Whether waiting threads take processors from those that they wait for: if `callers` programs call a
/// thread of the daemon that may run on so many processors.
pub fn is_crowded(processors: usize, callers: usize) -> bool {
    processors <= callers
}

/// What came of looking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Looked {
    /// Whether it is done.
    pub done: bool,
    /// Whether a sleep would have been slower.
    pub helped: bool,
    /// Whether another program has had a slice of time meanwhile.
    pub is_dear: bool,
}

/// Looks whether `done`, as long as that is likely to be faster than a sleep.
pub(crate) fn look(crowded: bool, done: impl Fn() -> bool) -> Looked {
    let ended = |is_dear: bool| {
        let done = done();
        let helped = done && !is_dear;
        Looked {
            done,
            helped,
            is_dear,
        }
    };
    if cfg!(shuttle) {
        // The scheduler has no time.
        return ended(false);
    }
    let begin = Instant::now();
    let time = if crowded { YIELDING } else { SPIN };
    loop {
        for _ in 0..LOOKS {
            if done() {
                return ended(false);
            }
            if crowded {
                break;
            }
            spin_loop();
        }
        let before = begin.elapsed();
        if before > time {
            return ended(false);
        }
        if crowded {
            sched_yield();
            if begin.elapsed() - before > SLICE {
                return ended(true);
            }
        }
    }
}

/// Whether looking has helped lately.
#[derive(Debug, Default)]
pub struct Patience {
    /// How often it was in vain, one after the other.
    vain: Hint,
    /// Waits until it is tried again.
    left: Hint,
}

impl Patience {
    /// Whether to look this time.
    pub fn looks(&self) -> bool {
        if self.vain.load(Ordering::Relaxed) < VAIN {
            return true;
        }
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    /// Looking has helped, or was in vain.
    pub fn note(&self, looked: Looked) {
        let vain = self.vain.load(Ordering::Relaxed);
        let vain = match looked {
            Looked { helped: true, .. } => 0,
            Looked { is_dear: true, .. } => vain.saturating_add(1),
            // A few microseconds now and then are little beside a wake-up each time.
            Looked { .. } => (vain + 1).min(VAIN),
        };
        self.vain.store(vain, Ordering::Relaxed);
        if let Some(tries) = vain.checked_sub(VAIN) {
            let again = AGAIN.checked_shl(tries).unwrap_or(MOST_AGAIN);
            self.left
                .store(again.clamp(AGAIN, MOST_AGAIN), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_thread_yields_where_the_other_side_may_need_its_processor() {
        let cases = [
            (1, 1, true),
            (2, 1, false),
            (2, 2, true),
            (8, 7, false),
            (8, 64, true),
        ];
        for (processors, callers, crowded) in cases {
            assert_eq!(
                is_crowded(processors, callers),
                crowded,
                "{processors} {callers}"
            );
        }
    }

    #[test]
    fn a_thread_that_looks_in_vain_sleeps_at_once_and_looks_again_more_rarely_if_that_is_dear() {
        let looked = |helped, is_dear| Looked {
            done: helped,
            helped,
            is_dear,
        };
        for is_dear in [true, false] {
            let patience = Patience::default();
            for _ in 0..VAIN {
                assert!(patience.looks());
                patience.note(looked(false, is_dear));
            }
            let mut waits = Vec::new();
            let mut since = 0;
            while waits.len() < 14 {
                since += 1;
                if patience.looks() {
                    patience.note(looked(false, is_dear));
                    waits.push(since);
                    since = 0;
                }
            }
            if is_dear {
                assert_eq!(waits[..3], [AGAIN + 1, 2 * AGAIN + 1, 4 * AGAIN + 1]);
                assert_eq!(waits[13], MOST_AGAIN + 1);
            } else {
                assert_eq!(waits, [AGAIN + 1; 14]);
            }
            patience.note(looked(true, false));
            assert!(patience.looks());
        }
    }

    #[test]
    fn looking_ends_when_it_is_done_or_in_vain() {
        for crowded in [false, true] {
            assert!(look(crowded, || true).helped);
            let vain = look(crowded, || false);
            assert!(!vain.done && !vain.helped);
        }
    }
}
