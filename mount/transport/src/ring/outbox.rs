//! Replies on their way to the ring's thread, which alone may submit them.
//!
//! A reply is finished by any thread. Only the thread of the ring submits: the kernel delivers the
//! next request of an entry in the context of the thread that submitted it, and takes the entry for
//! cancelled when that thread ends. The thread sleeps in the kernel; a finished reply wakes it
//! through an eventfd that the ring listens to, but only if it sleeps or is about to.
//!
//! No wake-up is lost: the thread clears `awake` before it looks for the last time, and a reply is
//! added before `awake` is read. So either the thread finds the reply or the reply finds the thread
//! asleep.

use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::region::Body;
use crate::reply::Errno;

/// A finished reply.
pub(super) struct Done {
    pub(super) slot: usize,
    pub(super) outcome: Result<Body, Errno>,
}

/// Finished replies of one ring.
pub(super) struct Outbox {
    done: Mutex<Vec<Done>>,
    awake: AtomicBool,
    doorbell: OwnedFd,
}

impl Outbox {
    /// Creates an empty outbox, whose thread is awake.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            done: Mutex::default(),
            awake: AtomicBool::new(true),
            doorbell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Becomes readable, again with each ring, while the thread sleeps and a reply is finished. Its
    /// count is never read, so listening to it means waiting for writes.
    pub(super) fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Adds a finished reply, and wakes the ring's thread if it sleeps.
    pub(super) fn push(&self, done: Done) {
        self.done.lock().push(done);
        if !self.awake.swap(true, Ordering::SeqCst) {
            // Fails only when the count overflows, after 2^64 - 1 writes.
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }

    /// Exchanges all finished replies for an empty list.
    pub(super) fn take(&self, into: &mut Vec<Done>) {
        mem::swap(&mut *self.done.lock(), into);
    }

    /// Whether no reply is there.
    pub(super) fn is_empty(&self) -> bool {
        self.done.lock().is_empty()
    }

    /// Announces that the thread will sleep; replies wake it from now on. Returns whether it may:
    /// no reply is there.
    pub(super) fn may_sleep(&self) -> bool {
        self.awake.store(false, Ordering::SeqCst);
        let empty = self.is_empty();
        if !empty {
            self.awake();
        }
        empty
    }

    /// Announces that the thread is awake.
    pub(super) fn awake(&self) {
        self.awake.store(true, Ordering::SeqCst);
    }
}
