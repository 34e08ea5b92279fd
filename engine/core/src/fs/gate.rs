//! Holds back the changes of a root for a short time, so that what replaces the root comes to an end
//! beside programs that write without pause.
//!
//! Uses synchronization only. A call that changes files passes the gate first, before it has a lock,
//! a reservation or a place in a context: so nothing that a merge, a commit or a fork needs belongs
//! to a call that waits here. A call that has passed goes on.

use std::sync::Arc;

use crate::fs::{FileSystem, OpenRoot};
use cairnfs_disk::device::waiting;
use cairnfs_disk::error::Result;
use cairnfs_disk::sync::atomic::{AtomicBool, Ordering};
use cairnfs_disk::sync::{Condvar, Mutex};

/// The gate of one root.
#[derive(Default)]
pub(super) struct Gate {
    /// Holders. Several may hold it at a time, in any order.
    holders: Mutex<usize>,
    opened: Condvar,
    /// Whether there are holders; spares calls the lock.
    is_held: AtomicBool,
}

/// While this exists, calls that change files of a root, or fork it, wait at their beginning.
#[doc(hidden)]
pub struct HeldWriters {
    root: Arc<OpenRoot>,
}

impl Gate {
    fn hold(&self) {
        let mut holders = self.holders.lock();
        *holders += 1;
        self.is_held.store(true, Ordering::Relaxed);
    }

    fn release(&self) {
        let mut holders = self.holders.lock();
        *holders = holders.saturating_sub(1);
        if *holders == 0 {
            self.is_held.store(false, Ordering::Relaxed);
            self.opened.notify_all();
        }
    }

    /// Waits while the root is held. The caller has no lock.
    ///
    /// # Errors
    /// [`Error::WouldWait`](cairnfs_disk::error::Error::WouldWait) if this thread must not wait.
    pub fn pass(&self) -> Result<()> {
        if !self.is_held.load(Ordering::Relaxed) {
            return Ok(());
        }
        waiting::before()?;
        let mut holders = self.holders.lock();
        while *holders > 0 {
            self.opened.wait(&mut holders);
        }
        Ok(())
    }
}

impl Drop for HeldWriters {
    fn drop(&mut self) {
        self.root.gate.release();
    }
}

impl FileSystem {
    /// Makes calls that change files of this tree, or fork it, wait at their beginning. Those that
    /// have begun are finite in number.
    #[doc(hidden)]
    pub fn hold_writers(&self) -> HeldWriters {
        self.root.gate.hold();
        HeldWriters {
            root: self.root.clone(),
        }
    }
}
