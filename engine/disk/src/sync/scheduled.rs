//! The Shuttle versions of the types of [`crate::sync`], with the same interfaces.
//!
//! Compiled with `--cfg shuttle` only. The locks are those of `shuttle-parking_lot`, which has no
//! condition variable; the one here is built from Shuttle's own.

pub use shuttle::sync::atomic;
pub use shuttle::thread_local;
pub use shuttle_parking_lot::{
    MappedMutexGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard,
    RwLockWriteGuard,
};

use std::cell::Cell;
use std::time::Duration;

/// Timed waits shorter than this are polls in a loop: they return at once.
const SHORT: Duration = Duration::from_secs(1);

std::thread_local! {
    /// Whether timed waits never time out. Thread-local to the system thread, on which Shuttle runs
    /// all threads of a scenario.
    static PATIENT: Cell<bool> = const { Cell::new(false) };
}

/// Threads of the scheduler.
pub mod thread {
    use std::time::Duration;

    pub use shuttle::thread::*;

    /// Lets other threads run. Shuttle's own `sleep` lets the scheduler go on with the same thread
    /// for ever, so that a loop which waits for another thread would not end.
    pub fn sleep(_: Duration) {
        yield_now();
    }
}

/// Makes timed waits never time out, so that a lost wake-up shows as a deadlock.
pub fn wait_for_ever(patient: bool) {
    PATIENT.set(patient);
}

/// A condition variable for [`Mutex`].
#[derive(Default)]
pub struct Condvar {
    /// Held from before a waiter releases its lock until it sleeps, so that no wake-up is lost in
    /// between.
    asleep: shuttle::sync::Mutex<()>,
    inner: shuttle::sync::Condvar,
}

impl Condvar {
    /// A condition variable without waiters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Releases the lock and waits for a notification.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let asleep = self.asleep.lock();
        MutexGuard::unlocked(guard, || {
            if let Ok(asleep) = asleep {
                drop(self.inner.wait(asleep));
            }
        });
    }

    /// As [`Self::wait`], with a timeout: a wait shorter than `SHORT` returns at once unless
    /// `wait_for_ever` is set; all others wait for a notification only.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) {
        if time >= SHORT || PATIENT.get() {
            self.wait(guard);
        } else {
            MutexGuard::unlocked(guard, thread::yield_now);
        }
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        let asleep = self.asleep.lock();
        self.inner.notify_one();
        drop(asleep);
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        let asleep = self.asleep.lock();
        self.inner.notify_all();
        drop(asleep);
    }
}
