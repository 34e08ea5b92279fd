//! The life of an open volume: how long opening took, how many handles there are, whether it is
//! closed, how closing ended.
//!
//! The last handle closes the volume, unless a caller did before. A volume closes once. Calls that begin later are refused, and each later close returns the
//! result of the first.

use std::time::Duration;

use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Whether a volume is open.
#[derive(Default)]
pub(super) struct Lifecycle {
    open_nanos: AtomicU64,
    /// File systems of any root that exist.
    handles: AtomicUsize,
    /// Set when closing begins.
    closed: AtomicBool,
    /// The result of closing; locked while closing runs.
    result: Mutex<Option<Result<()>>>,
}

impl Lifecycle {
    /// Records how long opening took.
    pub fn opened(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.open_nanos.store(nanos, Ordering::Relaxed);
    }

    /// Nanoseconds that opening took, including replay and orphan removal.
    pub fn open_nanos(&self) -> u64 {
        self.open_nanos.load(Ordering::Relaxed)
    }

    /// Counts another handle. The caller has one, or makes the first.
    pub fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts another handle if there is any, for a thread that has none.
    pub fn try_add_handle(&self) -> bool {
        let more = |handles: usize| (handles > 0).then_some(handles + 1);
        let added = self
            .handles
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        added.is_ok()
    }

    /// Counts one handle less. Returns whether it was the last one.
    pub fn drop_handle(&self) -> bool {
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether closing has begun.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Refuses a call on a closed volume.
    pub fn check_open(&self) -> Result<()> {
        if self.is_closed() {
            Err(Error::Invalid("the volume is closed"))
        } else {
            Ok(())
        }
    }

    /// Runs `close` in the first call. Later calls wait for it and return its result.
    ///
    /// # Errors
    /// The error of `close`; it panicked.
    pub fn close_once(&self, close: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut result = self.result.lock();
        if self.closed.swap(true, Ordering::AcqRel) {
            let broken = Error::Invalid("closing the volume was broken off");
            return result.clone().unwrap_or(Err(broken));
        }
        result.insert(close()).clone()
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use super::*;

    #[test]
    fn close_runs_once_and_keeps_its_result() {
        let life = Lifecycle::default();
        life.check_open().unwrap();
        let refused = |result| assert!(matches!(result, Err(Error::NoSpace)), "{result:?}");
        refused(life.close_once(|| {
            assert!(
                life.check_open().is_err(),
                "calls are refused while it closes"
            );
            Err(Error::NoSpace)
        }));
        refused(life.close_once(|| panic!("closed twice")));
        assert!(life.is_closed());
    }

    #[test]
    fn close_that_panicked_is_an_error_later() {
        let life = Lifecycle::default();
        // Unwinds like a panic, but prints nothing.
        let close = || life.close_once(|| resume_unwind(Box::new("closing failed")));
        catch_unwind(AssertUnwindSafe(close)).unwrap_err();
        let later = life.close_once(|| Ok(()));
        assert!(matches!(later, Err(Error::Invalid(_))), "{later:?}");
    }
}
