//! Atomics, locks, threads' sleep and doorbells of both ends.
//!
//! In an ordinary build these are the types of `std` and what the kernel has. With `--cfg shuttle` they
//! belong to a scheduler that runs one thread at a time and chooses the next thread at every use of them,
//! as those of the engine do (`cairnfs_disk::sync`), and the memory that both ends share is on the heap.
//! Then no sleep ends by its time, so a wake-up that is missed is a deadlock. Not explored: memory orders
//! weaker than sequential consistency, the death of either end, and [`Hint`]s, of which each use is one step.

#[cfg(not(shuttle))]
mod kernel;
#[cfg(shuttle)]
mod scheduled;

#[cfg(not(shuttle))]
pub use std::sync::{Condvar, Mutex, MutexGuard, atomic};

#[cfg(not(shuttle))]
pub use kernel::{
    Bells, Connection, Doorbell, Word, doorbell, empty, has_ended, ring, same, sleep, wake,
};
#[cfg(shuttle)]
pub use scheduled::{
    Bells, Condvar, Connection, Doorbell, Mutex, MutexGuard, Word, atomic, doorbell, empty,
    has_ended, ring, same, sleep, wake,
};

/// A number on which only the speed depends.
pub type Hint = std::sync::atomic::AtomicU32;
