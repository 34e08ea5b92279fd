//! Admission of requests while a mount is being ended.
//!
//! A mount whose files are open at its end goes through three states: open; closing, which admits
//! only requests that write back what the kernel has already cached, and none by which it would
//! accept or keep more; shut, which refuses all requests. Depends only on [`Refusal`]. After
//! [`Admission::shut`] no request is in flight, so none is acknowledged after the volume is closed.

use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};

use crate::convert::Refusal;

const OPEN: u8 = 0;
const CLOSING: u8 = 1;
const SHUT: u8 = 2;

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Writes back data or times that the kernel has cached, or is needed for that.
    WriteBack,
    /// Anything else.
    New,
}

/// The admission state of a mount.
#[derive(Default)]
pub struct Admission {
    state: AtomicU8,
    /// Held shared by each admitted request.
    inside: RwLock<()>,
}

impl Admission {
    /// Admits a request, which is in flight until the guard is dropped.
    ///
    /// # Errors
    /// `ENOTCONN`, as if the daemon were dead.
    pub fn enter(&self, purpose: Purpose) -> Result<RwLockReadGuard<'_, ()>, Refusal> {
        // Recursive: an admitted request may wait for another one that the kernel sends in
        // consequence. A fair lock would block the latter behind a waiting `shut`.
        let inside = self.inside.read_recursive();
        match (self.state.load(Ordering::Acquire), purpose) {
            (OPEN, _) | (CLOSING, Purpose::WriteBack) => Ok(inside),
            _ => Err(Refusal(libc::ENOTCONN)),
        }
    }

    /// Whether all requests are admitted.
    pub fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) == OPEN
    }

    /// From then on only requests for [`Purpose::WriteBack`] are admitted.
    pub fn close(&self) {
        self.state.store(CLOSING, Ordering::Release);
    }

    /// From then on no request is admitted. Waits for those in flight.
    pub fn shut(&self) {
        self.state.store(SHUT, Ordering::Release);
        drop(self.inside.write());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn writeback_is_admitted_until_shut() {
        let admission = Admission::default();
        let passes = |purpose| admission.enter(purpose).is_ok();
        assert!(admission.is_open() && passes(Purpose::New) && passes(Purpose::WriteBack));
        admission.close();
        assert!(!admission.is_open() && !passes(Purpose::New) && passes(Purpose::WriteBack));
        admission.shut();
        assert!(!passes(Purpose::New) && !passes(Purpose::WriteBack));
    }

    #[test]
    fn shut_waits_for_requests_in_flight() {
        let admission = Admission::default();
        let (shut, is_shut) = channel();
        thread::scope(|scope| {
            let inside = admission.enter(Purpose::New).unwrap();
            scope.spawn(|| {
                admission.shut();
                shut.send(()).unwrap();
            });
            while admission.enter(Purpose::WriteBack).is_ok() {
                thread::yield_now();
            }
            assert!(is_shut.try_recv().is_err());
            drop(inside);
            is_shut.recv().unwrap();
        });
    }
}
