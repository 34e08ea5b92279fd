//! Locks, atomics and threads of the whole library.
//!
//! Uses nothing of the crate. In an ordinary build these are the types of `parking_lot`
//! and `std`. With `--cfg shuttle` they belong to a scheduler that runs one thread at a time and
//! chooses the next thread at every use of them, so that a test can explore thread schedules. It is
//! a cfg and not a feature because another crate could enable a feature. Everything that does not
//! use this module is one step to the scheduler:
//!
//! - `arc-swap`: a load returns a complete old or new value, and stores are made under a lock of
//!   this module. Its own algorithm, and memory orders weaker than sequential consistency, are not
//!   explored. `loom` would cover these, but searches a few dozen steps, and the engine has hundreds.
//! - `OnceLock` and `Arc`: each use is one step; no thread waits in them.
//! - The threads of a large merge, for its parts and for writing nodes, and their channels: tests
//!   under the scheduler have no merge that large.
//! - Counters and idle memory in a `static`: they outlive a run of the scheduler.

#[cfg(not(shuttle))]
pub use parking_lot::{
    Condvar, MappedMutexGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard,
    RwLockUpgradableReadGuard, RwLockWriteGuard,
};
#[cfg(not(shuttle))]
pub use std::{sync::atomic, thread, thread_local};

mod together;

pub use together::{in_threads, processors};

#[cfg(shuttle)]
pub mod explore;
#[cfg(shuttle)]
mod scheduled;
#[cfg(shuttle)]
pub use scheduled::wait_for_ever;
#[cfg(shuttle)]
pub use scheduled::{
    Condvar, MappedMutexGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard,
    RwLockUpgradableReadGuard, RwLockWriteGuard, atomic, thread, thread_local,
};
