//! The daemon's end of a channel, as the serving thread and others share it.
//!
//! The serving thread carries out what is deferred in *passes*: it takes the bits and carries out what they
//! stand for. `passes` is odd during one. Others wait for passes to end, and never for a program.

use std::sync::PoisonError;
use std::time::Duration;

use crate::region::{FIRST_EPOCH, Region};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Doorbell, Mutex};
use crate::wait::look;

/// After so much sleep it is looked again, because a wake-up may be missed.
const DOUBT: Duration = Duration::from_millis(20);

/// The daemon's end of a channel.
pub struct DaemonEnd {
    pub(crate) region: Region,
    pub(crate) doorbell: Doorbell,
    /// Passes begun and ended.
    passes: AtomicU64,
    /// The epoch of leases that are given now. The one in the region is for the program to read only.
    epoch: AtomicU64,
    /// What was deferred by leases of earlier epochs than this one is carried out.
    settled: AtomicU64,
    /// Whether no thread serves it any more.
    left: AtomicBool,
    waiting: AtomicUsize,
    /// Replies that are to come from other threads.
    pub(crate) promised: AtomicUsize,
    lock: Mutex<()>,
    passed: Condvar,
}

impl DaemonEnd {
    pub(crate) fn new(region: Region, doorbell: Doorbell) -> Self {
        Self {
            region,
            doorbell,
            passes: AtomicU64::new(0),
            epoch: AtomicU64::new(FIRST_EPOCH),
            settled: AtomicU64::new(FIRST_EPOCH),
            left: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            promised: AtomicUsize::new(0),
            lock: Mutex::new(()),
            passed: Condvar::new(),
        }
    }

    /// The epoch of a lease that is given now.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Whether calls may be deferred, or not be carried out yet, by a lease of this epoch.
    pub fn is_leased(&self, epoch: u64) -> bool {
        epoch >= self.settled.load(Ordering::SeqCst)
    }

    /// Ends the epoch: the program defers no call on the files that it has leases on now. What it has deferred
    /// may still have to be carried out.
    pub fn end_epoch(&self) -> u64 {
        let epoch = self.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        self.region.epoch.fetch_max(epoch, Ordering::SeqCst);
        epoch
    }

    /// What was deferred before this epoch is carried out.
    pub(crate) fn settle(&self, epoch: u64) {
        self.settled.fetch_max(epoch, Ordering::SeqCst);
    }

    pub(crate) fn has_deferred(&self) -> bool {
        self.region.deferred.load(Ordering::SeqCst) != 0
    }

    /// Whether something is deferred, or being carried out.
    pub fn is_unfinished(&self) -> bool {
        // In this order, as in `finish`.
        self.has_deferred() || self.passes.load(Ordering::SeqCst) % 2 == 1
    }

    pub(crate) fn has_request(&self) -> bool {
        self.region.pending.load(Ordering::SeqCst) != 0 || self.has_deferred()
    }

    /// Runs a pass. Only the serving thread does.
    pub(crate) fn pass(&self, carry_out: impl FnOnce(u64)) {
        self.passes.fetch_add(1, Ordering::SeqCst);
        carry_out(self.region.deferred.swap(0, Ordering::SeqCst));
        self.passes.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    /// No thread serves it from now on.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.passed.notify_all();
        }
    }

    /// Waits until what is deferred now is carried out; `ask` has the serving thread run a pass, whatever the
    /// program has told.
    pub(crate) fn finish(&self, ask: impl FnOnce()) {
        // In this order: what was not there any more had been taken by a pass that is counted.
        let deferred = self.has_deferred();
        let passes = self.passes.load(Ordering::SeqCst);
        let under_way = passes % 2;
        let until = match (deferred, under_way) {
            (false, 0) => return,
            (false, _) => passes + 1,
            // One that is under way may have taken the bits before.
            (true, _) => passes + under_way + 2,
        };
        if deferred {
            ask();
        }
        let done =
            || self.passes.load(Ordering::SeqCst) >= until || self.left.load(Ordering::SeqCst);
        if look(false, done).done {
            return;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !done() {
            let woken = self.passed.wait_timeout(held, DOUBT);
            (held, _) = woken.unwrap_or_else(PoisonError::into_inner);
        }
        drop(held);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
