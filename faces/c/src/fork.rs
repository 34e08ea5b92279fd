//! What fork() leaves: a child has the memory of an open volume, but not its threads, and perhaps
//! locks that no thread will release.
//!
//! So the child of a process that opened a volume makes no call: each fails with `EBADF`, and the
//! volume belongs to the parent alone. A child that executes another program, or whose parent never
//! opened a volume, is not affected.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Failure, Outcome};

/// Whether this process is a fork of one that had opened a volume.
static IS_FORK: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    IS_FORK.store(true, Ordering::Relaxed);
}

/// Has children of this process marked, from the first call on.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `in_child` stores to an atomic, which is allowed in the child of a process with
        // threads, and lives as long as this library: glibc forgets it with `dlclose`.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        debug_assert_eq!(failed, 0, "no memory for a handler");
    });
}

/// Refuses a call in a fork.
pub(crate) fn check() -> Outcome<()> {
    if IS_FORK.load(Ordering::Relaxed) {
        Err(Failure::new(
            libc::EBADF,
            "this process was forked from one that had opened a volume: open volumes after fork(), \
             or execute a program",
        ))
    } else {
        Ok(())
    }
}
