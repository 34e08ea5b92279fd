//! Locks, atomics and threads of the whole library.
//!
//! Floor 0: uses nothing of the crate. In an ordinary build these are `parking_lot` and `std` and
//! nothing more. With `--cfg shuttle` they belong to a scheduler that runs one thread at a time and
//! chooses who goes on at every use of them, so a test can search through orders of events. It is
//! no feature, which another crate could switch on. What does not go through here is one step to
//! that scheduler:
//!
//! - `arc-swap`: a load gives a whole old or a whole new value, and stores are made under a lock
//!   that goes through here. Its own algorithm, and all orders weaker than sequential consistency,
//!   are not searched.
//! - `OnceLock` and `Arc`: each use is one step; nobody waits in one.
//! - The thread that writes the nodes of a large merge, and its channels: no merge under that scheduler
//!   is so large.
//! - Counters and idle memory in a `static`: they outlive a run of the scheduler.

#[cfg(not(shuttle))]
pub use {
    parking_lot::{
        Condvar, MappedMutexGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard,
        RwLockUpgradableReadGuard, RwLockWriteGuard,
    },
    std::sync::atomic,
    std::thread,
    std::thread_local,
};

#[cfg(test)]
#[cfg(shuttle)]
pub mod explore;
#[cfg(shuttle)]
mod scheduled;
#[cfg(test)]
#[cfg(shuttle)]
pub use scheduled::wait_for_ever;
#[cfg(shuttle)]
pub use scheduled::{
    Condvar, MappedMutexGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard,
    RwLockUpgradableReadGuard, RwLockWriteGuard, atomic, thread, thread_local,
};
