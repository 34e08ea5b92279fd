//! The scheduler's versions of what [`crate::sync`] gives, with the faces of the real ones.
//!
//! Compiled with `--cfg shuttle` only. Locks are those of `shuttle-parking_lot`, which has no
//! condition variable; the one here is made from the scheduler's own.

pub use shuttle::sync::atomic;
pub use shuttle::{thread, thread_local};
pub use shuttle_parking_lot::{
    MappedMutexGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard,
    RwLockWriteGuard,
};

use std::cell::Cell;
use std::time::Duration;

/// Waits at most this long are looks that a waiter takes again and again.
const SHORT: Duration = Duration::from_secs(1);

std::thread_local! {
    /// All threads of a run of the scheduler are one thread of the system.
    static PATIENT: Cell<bool> = const { Cell::new(false) };
}

/// From now on no wait ends by its time: a wake-up that is lost shows as a deadlock.
#[cfg(test)]
pub fn wait_for_ever(patient: bool) {
    PATIENT.set(patient);
}

/// A condition variable for [`Mutex`].
#[derive(Default)]
pub struct Condvar {
    /// Held from before a waiter lets its lock go until it sleeps, so no wake-up falls between.
    asleep: shuttle::sync::Mutex<()>,
    inner: shuttle::sync::Condvar,
}

impl Condvar {
    /// One that nobody waits for.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the lock go and waits to be woken.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let asleep = self.asleep.lock();
        MutexGuard::unlocked(guard, || {
            if let Ok(asleep) = asleep {
                drop(self.inner.wait(asleep));
            }
        });
    }

    /// The same for some time: a short wait ends at once, a long one only when woken.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) {
        if time >= SHORT || PATIENT.get() {
            self.wait(guard);
        } else {
            MutexGuard::unlocked(guard, thread::yield_now);
        }
    }

    /// Wakes one who waits.
    pub fn notify_one(&self) {
        let asleep = self.asleep.lock();
        self.inner.notify_one();
        drop(asleep);
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        let asleep = self.asleep.lock();
        self.inner.notify_all();
        drop(asleep);
    }
}
