//! Work that is done up to a number: the leader does it for all callers that wait for a smaller
//! number.
//!
//! At most one thread leads at a time. A follower does not get the leader's error: it leads itself,
//! and gets its own.

use crossbeam_utils::CachePadded;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};

/// The number up to which work is done, and the wait for it. It begins at 0.
#[derive(Default)]
pub struct Watermark {
    reached: CachePadded<AtomicU64>,
    /// Whether a thread leads.
    led: CachePadded<Mutex<bool>>,
    ended: Condvar,
}

impl Watermark {
    /// The number up to which work is done.
    pub fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    /// Whether work is done up to `mark`.
    pub fn has_reached(&self, mark: u64) -> bool {
        self.reached() >= mark
    }

    /// Records that work is done up to `mark`.
    pub fn raise(&self, mark: u64) {
        self.reached.fetch_max(mark, Ordering::AcqRel);
    }

    /// Returns when work is done up to `mark`. If it is not, and no thread leads, the caller leads:
    /// `lead` does the work and calls [`Self::raise`], possibly several times until `mark` is
    /// reached. No lock is held meanwhile.
    ///
    /// # Errors
    /// That of `lead`, if the caller led.
    pub fn reach<E>(&self, mark: u64, lead: impl Fn() -> Result<(), E>) -> Result<(), E> {
        if self.has_reached(mark) {
            return Ok(());
        }
        let mut led = self.led.lock();
        while !self.has_reached(mark) {
            if *led {
                self.ended.wait(&mut led);
                continue;
            }
            *led = true;
            drop(led);
            let turn = Turn(self);
            lead()?;
            drop(turn);
            led = self.led.lock();
        }
        Ok(())
    }
}

/// The calling thread leads until this is dropped.
struct Turn<'a>(&'a Watermark);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let led = std::mem::replace(&mut *self.0.led.lock(), false);
        debug_assert!(led, "group invariant 1: one thread leads");
        self.0.ended.notify_all();
    }
}
