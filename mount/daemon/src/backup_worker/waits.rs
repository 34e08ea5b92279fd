//! Fsyncs that wait until the backup has what they have made durable.
//!
//! They are only a list: no thread waits for each, least of all one that serves the mount. The thread that
//! ships answers all that came before a moment was begun; another one answers, with a failure, those that
//! have waited for too long, also while a store does not answer at all.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Told whether the backup has it.
type Answer = Box<dyn FnOnce(bool) + Send>;

/// Those that wait, the first ones in front.
pub(super) struct Waits {
    limit: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Instant, Answer)>,
    /// How many were answered.
    answered: u64,
    closed: bool,
}

/// Answers all when it is dropped, and then everybody at once: nothing is stored any longer.
pub(super) struct Closed<'a>(pub &'a Waits);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.answer(u64::MAX, false);
    }
}

impl Waits {
    /// Nobody waits yet; nobody will for longer than `limit`.
    ///
    /// # Errors
    /// There is no thread left.
    pub fn begin(limit: Duration) -> io::Result<Arc<Self>> {
        let waits = Arc::new(Self {
            limit,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let watched = Arc::downgrade(&waits);
        let thread = thread::Builder::new().name("cairnfs-waits".into());
        thread.spawn(move || watch(&watched))?;
        Ok(waits)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more waits.
    pub fn add(&self, answer: Answer) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            return answer(false);
        }
        // Where the clock ends, one that has no limit is not waited for at all.
        let now = Instant::now();
        let until = now.checked_add(self.limit).unwrap_or(now);
        state.waiting.push_back((until, answer));
        self.changed.notify_all();
    }

    /// Whether somebody waits.
    pub fn any(&self) -> bool {
        !self.lock().waiting.is_empty()
    }

    /// A mark behind all that wait now.
    pub fn mark(&self) -> u64 {
        let state = self.lock();
        state.answered.saturating_add(state.waiting.len() as u64)
    }

    /// Answers all before a mark.
    pub fn answer(&self, mark: u64, stored: bool) {
        while let Some(answer) = self.first_before(mark) {
            answer(stored);
        }
    }

    fn first_before(&self, mark: u64) -> Option<Answer> {
        let mut state = self.lock();
        let (_, answer) = if state.answered < mark {
            state.waiting.pop_front()?
        } else {
            return None;
        };
        state.answered += 1;
        Some(answer)
    }

    /// Answers those that have waited for too long; returns how long the next one may still wait.
    fn answer_late(&self) -> Option<Duration> {
        loop {
            let mut state = self.lock();
            let left = state
                .waiting
                .front()?
                .0
                .saturating_duration_since(Instant::now());
            if !left.is_zero() {
                return Some(left);
            }
            let (_, answer) = state.waiting.pop_front()?;
            state.answered += 1;
            drop(state);
            answer(false);
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.changed.notify_all();
    }
}

/// How long the thread sleeps without a reason, before it looks whether it is still needed.
const LONGEST: Duration = Duration::from_secs(1);

fn watch(watched: &Weak<Waits>) {
    while let Some(waits) = watched.upgrade() {
        let left = waits.answer_late().unwrap_or(LONGEST).min(LONGEST);
        let state = waits.lock();
        let waited = waits.changed.wait_timeout(state, left);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn wait(waits: &Waits) -> Receiver<bool> {
        let (answers, answer) = channel();
        waits.add(Box::new(move |stored| answers.send(stored).unwrap()));
        answer
    }

    #[test]
    fn a_moment_answers_those_that_came_before_it_began() {
        let waits = Waits::begin(LONG).unwrap();
        let before = [wait(&waits), wait(&waits)];
        let mark = waits.mark();
        let after = wait(&waits);
        waits.answer(mark, true);
        assert!(before.iter().all(|answer| answer.recv().unwrap()));
        assert!(after.try_recv().is_err() && waits.any());
        waits.answer(waits.mark(), false);
        assert!(!after.recv().unwrap() && !waits.any());
        // None is answered for a mark of one that was answered before.
        let last = wait(&waits);
        waits.answer(mark, true);
        assert!(last.try_recv().is_err());
        drop(Closed(&waits));
        assert!(!last.recv().unwrap());
        assert!(!wait(&waits).recv().unwrap());
    }

    #[test]
    fn nobody_waits_longer_than_the_limit_and_a_moment_answers_none_twice() {
        let waits = Waits::begin(Duration::from_millis(20)).unwrap();
        let late = wait(&waits);
        let mark = waits.mark();
        assert!(!late.recv().unwrap());
        let next = wait(&waits);
        waits.answer(mark, true);
        assert!(!next.recv().unwrap(), "it came after the mark");
    }
}
