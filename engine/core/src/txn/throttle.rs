//! Throttling: holds back committers that are faster than push or merge.
//!
//! Called with all locks dropped. What a committer waits for here is always under way: a push or a
//! merge that was requested, or that it runs itself if there are no workers.

use crate::journal::LogSpaceReclaimer;
use crate::txn::{Core, Receipt};
use cairnfs_disk::device::waiting;
use cairnfs_disk::error::{Error, Result};

impl Core {
    /// Bytes of dirty sets, including those being merged.
    pub fn dirty_bytes(&self) -> i64 {
        self.current_bytes() + self.merger.backlog().sealed_bytes()
    }

    /// Bytes of dirty sets that no merge has taken yet, and of values that only dirty sets hold.
    fn current_bytes(&self) -> i64 {
        self.reservations.memory() + self.values.beyond()
    }

    /// Makes the dirty sets appear to exceed all limits.
    #[cfg(all(test, not(shuttle)))]
    pub fn exceed_dirty_limits(&self) {
        self.reservations.add_memory(self.limits.dirty_hard);
    }

    /// Holds back a committer that is faster than push or merge. The caller holds no lock.
    ///
    /// # Errors
    /// The failure of a push or merge that was waited for.
    pub fn throttle(&self, receipt: Receipt) -> Result<()> {
        match self.wait_for_limits(receipt) {
            // This change is committed already; the next one is refused.
            Err(Error::HostFull { .. }) => Ok(()),
            other => other,
        }
    }

    /// Makes up for a wait up to context `seq` that was left out ([`waiting::Waits::owed`]). The
    /// caller holds no lock.
    pub fn settle(&self, seq: u64) -> Result<()> {
        let waited = self.journal.write_through(seq, self);
        match waited.and_then(|()| self.wait_for_limits(Receipt::default())) {
            Err(Error::HostFull { .. }) => Ok(()),
            other => other,
        }
    }

    fn wait_for_limits(&self, receipt: Receipt) -> Result<()> {
        self.journal.throttle(receipt.filled, receipt.seq, self)?;
        if self.current_bytes() < self.limits.dirty_soft
            && self.journal.ring().free() > self.journal.ring().capacity() / 2
        {
            return Ok(());
        }
        self.press()
    }

    /// Starts a merge, or waits for one if too much memory is held.
    fn press(&self) -> Result<()> {
        if !self.signals.has_workers() {
            if waiting::postponed(0) {
                return Ok(());
            }
            let seen = self.merger.merges();
            // A merge that was running at the call and has ended since serves this caller, too.
            self.merger.wait_for_running();
            return if self.merger.merges() == seen {
                self.merge()
            } else {
                Ok(())
            };
        }
        self.signals.want_merge();
        if self.dirty_bytes() < self.limits.dirty_hard || waiting::postponed(0) {
            Ok(())
        } else {
            self.wait_for_memory()
        }
    }

    /// Waits until merges have released so much that the dirty sets are within their limit, and at
    /// most for two merges: the first may have begun before the caller's changes.
    fn wait_for_memory(&self) -> Result<()> {
        let (ring, merges) = (self.journal.ring(), self.merger.merges());
        loop {
            self.storage.check()?;
            let seen = ring.wakes();
            let enough = || {
                self.dirty_bytes() < self.limits.dirty_hard
                    || self.storage.is_holding()
                    || self.merger.merges() >= merges + 2
                    || !self.signals.has_workers()
            };
            if enough() {
                return Ok(());
            }
            self.signals.want_merge();
            ring.wait(seen, || enough() || self.storage.failure().is_some());
        }
    }
}

impl LogSpaceReclaimer for Core {
    fn sweep(&self) {
        self.reservations.sweep();
    }

    fn merge(&self) -> Result<()> {
        Core::merge(self)
    }

    fn is_starved(&self) -> bool {
        self.merger.is_starved()
    }
}
