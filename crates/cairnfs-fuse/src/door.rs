//! Which requests a mount still accepts while it ends.
//!
//! A mount whose files are open when it has to end goes through three states: open; closing, when
//! only requests pass that bring what the kernel holds already, and none that would let it take or
//! keep more; shut, when all requests are refused. Uses nothing of the crate but refusals. After
//! [`Door::shut`] no request is under way, so nothing is acknowledged behind the closing of the
//! volume.

use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};

use crate::convert::Refusal;

const OPEN: u8 = 0;
const CLOSING: u8 = 1;
const SHUT: u8 = 2;

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// It writes back what the kernel holds, or is needed for that.
    WriteBack,
    /// Anything else.
    New,
}

/// The state of a mount.
#[derive(Default)]
pub struct Door {
    state: AtomicU8,
    /// Held shared by each request under way.
    inside: RwLock<()>,
}

impl Door {
    /// Admits a request, which is under way as long as the guard lives.
    ///
    /// # Errors
    /// ENOTCONN, as when the daemon is gone.
    pub fn enter(&self, purpose: Purpose) -> Result<RwLockReadGuard<'_, ()>, Refusal> {
        // Recursive: a request under way may wait for one that the kernel sends in turn.
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

    /// From now on only requests for [`Purpose::WriteBack`] are admitted.
    pub fn close(&self) {
        self.state.store(CLOSING, Ordering::Release);
    }

    /// From now on no request is admitted. Waits for those under way.
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
    fn writeback_passes_until_it_is_shut() {
        let door = Door::default();
        let passes = |purpose| door.enter(purpose).is_ok();
        assert!(door.is_open() && passes(Purpose::New) && passes(Purpose::WriteBack));
        door.close();
        assert!(!door.is_open() && !passes(Purpose::New) && passes(Purpose::WriteBack));
        door.shut();
        assert!(!passes(Purpose::New) && !passes(Purpose::WriteBack));
    }

    #[test]
    fn shutting_waits_for_requests_under_way() {
        let door = Door::default();
        let (shut, is_shut) = channel();
        thread::scope(|scope| {
            let inside = door.enter(Purpose::New).unwrap();
            scope.spawn(|| {
                door.shut();
                shut.send(()).unwrap();
            });
            while door.enter(Purpose::WriteBack).is_ok() {
                thread::yield_now();
            }
            assert!(is_shut.try_recv().is_err());
            drop(inside);
            is_shut.recv().unwrap();
        });
    }
}
