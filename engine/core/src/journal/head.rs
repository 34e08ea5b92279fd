//! The log's head, and the order in which threads write there.
//!
//! Contexts are closed one at a time, and the thread that closes one gets the next turn at the head.
//! Between closing and its turn a thread may prepare its records while others do the same. All
//! records get their places in the order of the turns. Records that have their places may be written
//! at the same time as those of later turns, but a turn passes only when all earlier ones have: then
//! everything before the end of its records is written. A turn that is dropped passes, also when its
//! thread failed or panicked, so no later one waits for ever.

use crossbeam_utils::CachePadded;

use crate::journal::position::LogPosition;
use crate::space::BlockRun;
use cairnfs_disk::sync::{Condvar, Mutex, MutexGuard};

/// The end of the log, and the state that is kept between writes.
pub(super) struct Head {
    pub lsn: u64,
    pub chain: u64,
    /// Largest sequence of a context, fsync record or mount record that has its place in the log as a
    /// whole. A closed context has a larger one if all its items were cancelled: it has no record.
    pub logged_seq: u64,
    pub flushed_lsn: u64,
    /// Runs freed by contexts that got their places since the last merge began.
    pub freed: Vec<BlockRun>,
    /// Number of turns whose records have their places. Not less than `passed`.
    placed: u64,
    /// Number of turns that have passed.
    passed: u64,
}

impl Head {
    pub fn position(&self) -> LogPosition {
        LogPosition {
            lsn: self.lsn,
            chain: self.chain,
        }
    }
}

/// Number of turns given.
struct Given(u64);

/// The head, and whose turn it is there.
pub(super) struct Turns {
    /// Locked while a context is closed.
    given: CachePadded<Mutex<Given>>,
    head: CachePadded<Mutex<Head>>,
    moved: Condvar,
}

/// The right to close the open context, which one thread has at a time.
pub(super) struct Closing<'a> {
    turns: &'a Turns,
    given: MutexGuard<'a, Given>,
    head: Option<MutexGuard<'a, Head>>,
}

/// A turn at the head. Dropping it waits until all earlier ones have passed, and passes it.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    /// Number of turns before this one.
    before: u64,
    /// Once all earlier ones have passed.
    head: Option<MutexGuard<'a, Head>>,
}

impl Turns {
    /// The turns of a log that continues at `end`.
    pub fn new(end: LogPosition, logged_seq: u64) -> Self {
        Self {
            given: CachePadded::new(Mutex::new(Given(0))),
            head: CachePadded::new(Mutex::new(Head {
                lsn: end.lsn,
                chain: end.chain,
                logged_seq,
                flushed_lsn: end.lsn,
                freed: Vec::new(),
                placed: 0,
                passed: 0,
            })),
            moved: Condvar::new(),
        }
    }

    /// Takes the right to close the open context.
    pub fn closing(&self) -> Closing<'_> {
        Closing {
            turns: self,
            given: self.given.lock(),
            head: None,
        }
    }

    /// Runs `f` while no thread has the head.
    pub fn pause<R>(&self, f: impl FnOnce() -> R) -> R {
        let _head = self.head.lock();
        f()
    }

    /// The head, when `count` turns have passed. Mostly the lock suffices: only a thread that is
    /// still preparing its records, or writes them apart, does not hold it.
    fn after(&self, count: u64) -> MutexGuard<'_, Head> {
        self.when(|head| head.passed >= count)
    }

    fn when(&self, ready: impl Fn(&Head) -> bool) -> MutexGuard<'_, Head> {
        let mut head = self.head.lock();
        while !ready(&head) {
            self.moved.wait(&mut head);
        }
        head
    }
}

impl<'a> Closing<'a> {
    /// Waits until everything closed so far is written. Until the turn is taken nothing else is
    /// closed, and until it has passed nothing else is written.
    pub fn wait_for_earlier(&mut self) {
        self.head = Some(self.turns.after(self.given.0));
    }

    /// Takes the next turn, and lets others close.
    pub fn take_turn(mut self) -> Turn<'a> {
        let before = self.given.0;
        self.given.0 += 1;
        Turn {
            turns: self.turns,
            before,
            head: self.head.take(),
        }
    }
}

impl Turn<'_> {
    /// Gives the records of this turn their places while earlier turns may still be writing theirs.
    /// `place` moves the head and returns the places, or returns none; then this turn continues with
    /// [`Self::head`]. With places, later turns go on, and this one writes outside the head's lock
    /// and calls [`Self::wait_for_earlier`] before it says that its records are written. Returns
    /// none, without a call, to a thread that has the head already.
    pub fn place<R>(&mut self, place: impl FnOnce(&mut Head) -> Option<R>) -> Option<R> {
        if self.head.is_some() {
            return None;
        }
        let mut head = self.turns.when(|head| head.placed >= self.before);
        assert!(
            head.placed == self.before,
            "context invariant 2: places are given in the order of the turns"
        );
        let places = place(&mut head)?;
        head.placed += 1;
        drop(head);
        self.turns.moved.notify_all();
        Some(places)
    }

    /// Waits until all earlier turns have passed. Until this one has, no place is given and no turn
    /// passes, but later turns that have their places may be writing.
    pub fn wait_for_earlier(&mut self) {
        self.head();
    }

    /// Waits until all earlier turns have passed. Returns the head. If this turn has no places yet,
    /// nobody else changes the head until the turn has passed.
    pub fn head(&mut self) -> &mut Head {
        let Self {
            turns,
            before,
            head,
        } = self;
        head.get_or_insert_with(|| turns.after(*before))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let head = self.head();
        head.passed += 1;
        head.placed = head.placed.max(head.passed);
        self.head = None;
        self.turns.moved.notify_all();
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    fn turns() -> Turns {
        Turns::new(LogPosition { lsn: 5, chain: 0 }, 0)
    }

    #[test]
    fn head_is_reached_in_order_of_turns() {
        let (turns, all_given) = (turns(), Barrier::new(8));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut turn = turns.closing().take_turn();
                    let place = 5 + turn.before;
                    all_given.wait();
                    assert_eq!(turn.head().lsn, place);
                    turn.head().lsn += 1;
                });
            }
        });
        assert_eq!(turns.head.lock().lsn, 13);
    }

    #[test]
    fn places_are_given_before_earlier_turns_pass_and_the_head_after() {
        let (turns, passed) = (turns(), AtomicU64::new(0));
        let [second_taken, third_taken, placed] = [(); 3].map(|()| Barrier::new(2));
        let place = |turn: &mut Turn<'_>, len| {
            turn.place(|head| {
                head.lsn += len;
                Some(head.lsn - len)
            })
        };
        let mut first = turns.closing().take_turn();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut second = turns.closing().take_turn();
                second_taken.wait();
                assert_eq!(place(&mut second, 3), Some(15));
                placed.wait();
                second.wait_for_earlier();
                assert_eq!(passed.fetch_add(1, Ordering::SeqCst), 1);
            });
            second_taken.wait();
            scope.spawn(|| {
                let mut third = turns.closing().take_turn();
                third_taken.wait();
                assert_eq!(third.place(|_| None::<()>), None);
                assert_eq!(third.head().lsn, 18);
                assert_eq!(passed.load(Ordering::SeqCst), 2);
                assert_eq!(place(&mut third, 1), None, "it has the head");
            });
            third_taken.wait();
            assert_eq!(place(&mut first, 10), Some(5));
            placed.wait();
            passed.fetch_add(1, Ordering::SeqCst);
            drop(first);
        });
        assert_eq!(turns.closing().take_turn().head().lsn, 18);
    }

    #[test]
    fn turn_without_places_gives_later_ones_theirs_when_it_passes() {
        let (turns, taken) = (turns(), Barrier::new(2));
        let mut first = turns.closing().take_turn();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut second = turns.closing().take_turn();
                taken.wait();
                assert_eq!(second.place(|head| Some(head.lsn)), Some(6));
            });
            taken.wait();
            first.head().lsn += 1;
            drop(first);
        });
    }

    #[test]
    fn earlier_turns_are_waited_for_before_closing() {
        let (passed, both_given) = (AtomicU64::new(0), Barrier::new(3));
        let turns = turns();
        let mut first = turns.closing().take_turn();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut second = turns.closing().take_turn();
                both_given.wait();
                second.head();
                assert_eq!(passed.fetch_add(1, Ordering::SeqCst), 1);
            });
            scope.spawn(|| {
                both_given.wait();
                turns.closing().wait_for_earlier();
                assert_eq!(passed.load(Ordering::SeqCst), 2);
            });
            both_given.wait();
            first.head();
            passed.fetch_add(1, Ordering::SeqCst);
            drop(first);
        });
    }

    #[test]
    fn turn_of_a_thread_that_panics_passes() {
        let turns = turns();
        let broken_off = catch_unwind(AssertUnwindSafe(|| {
            let _before = turns.closing().take_turn();
            panic!("before its turn comes");
        }));
        assert!(broken_off.is_err());
        let broken_off = catch_unwind(AssertUnwindSafe(|| {
            let mut turn = turns.closing().take_turn();
            turn.head().lsn = 7;
            panic!("in its turn");
        }));
        assert!(broken_off.is_err());
        assert_eq!(turns.closing().take_turn().head().lsn, 7);
    }

    #[test]
    fn nothing_is_closed_or_written_between_waiting_and_turn() {
        let turns = turns();
        let mut closing = turns.closing();
        closing.wait_for_earlier();
        assert!(turns.head.try_lock().is_none() && turns.given.try_lock().is_none());
        let turn = closing.take_turn();
        assert!(turns.head.try_lock().is_none() && turns.given.try_lock().is_some());
        drop(turn);
        assert!(turns.head.try_lock().is_some());
    }
}
