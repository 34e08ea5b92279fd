//! Requests to the background workers: push, merge, durability interval, stop.
//!
//! Requests are flags under one small lock, which commits take only when a limit was passed.
//! Without workers (a simulation drives the volume itself) no thread waits here.

use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex};

#[derive(Default)]
struct Requests {
    push: bool,
    merge: bool,
    settle: bool,
    drop: bool,
    stop: bool,
}

/// Requests for background work.
#[derive(Default)]
pub struct Signals {
    requests: Mutex<Requests>,
    log: Condvar,
    merge: Condvar,
    workers: AtomicBool,
    push_wanted: AtomicBool,
    merge_wanted: AtomicBool,
}

/// Why the log worker woke up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogWork {
    /// The open context passed its soft limit.
    Push,
    /// The durability interval has passed.
    Interval,
    /// The volume closes.
    Stop,
}

/// Why the merge worker woke up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeWork {
    /// A merge is wanted.
    Merge,
    /// What the newest merge has left is wanted, and no merge.
    Settle,
    /// Dropped roots have space to be freed, and nothing else is wanted.
    Drop,
    /// The volume closes.
    Stop,
}

impl Signals {
    /// Whether workers serve the requests.
    pub fn has_workers(&self) -> bool {
        self.workers.load(Ordering::Acquire)
    }

    /// Sets whether workers run.
    pub fn set_workers(&self, running: bool) {
        self.workers.store(running, Ordering::Release);
    }

    /// Asks for a push.
    pub fn want_push(&self) {
        if !self.push_wanted.swap(true, Ordering::AcqRel) {
            self.requests.lock().push = true;
            self.log.notify_one();
        }
    }

    /// Asks for a merge.
    pub fn want_merge(&self) {
        if !self.merge_wanted.swap(true, Ordering::AcqRel) {
            self.requests.lock().merge = true;
            self.merge.notify_one();
        }
    }

    /// Asks for what the newest merge has left until its superblock is durable.
    pub fn want_settle(&self) {
        self.requests.lock().settle = true;
        self.merge.notify_one();
    }

    /// Asks for the space of dropped roots to be freed.
    pub fn want_drop(&self) {
        self.requests.lock().drop = true;
        self.merge.notify_one();
    }

    /// Called after a push: the next commit beyond the limit makes a new request.
    pub fn pushed(&self) {
        self.push_wanted.store(false, Ordering::Release);
    }

    /// Called when a merge begins: a thread that needs more space makes a new request.
    pub fn merging(&self) {
        self.merge_wanted.store(false, Ordering::Release);
    }

    /// Asks the workers to stop.
    pub fn stop(&self) {
        self.requests.lock().stop = true;
        self.log.notify_all();
        self.merge.notify_all();
    }

    /// Waits for log work, at most until `deadline`.
    pub fn next_log_work(&self, deadline: Option<Instant>) -> LogWork {
        let mut requests = self.requests.lock();
        loop {
            if requests.stop {
                return LogWork::Stop;
            }
            let wait = match deadline {
                Some(d) => d.saturating_duration_since(Instant::now()),
                None => Duration::from_secs(3600),
            };
            if wait.is_zero() {
                return LogWork::Interval;
            }
            if std::mem::take(&mut requests.push) {
                return LogWork::Push;
            }
            self.log.wait_for(&mut requests, wait);
        }
    }

    /// Waits for merge work.
    pub fn next_merge_work(&self) -> MergeWork {
        let mut requests = self.requests.lock();
        loop {
            if requests.stop {
                return MergeWork::Stop;
            }
            if std::mem::take(&mut requests.merge) {
                return MergeWork::Merge;
            }
            if std::mem::take(&mut requests.settle) {
                return MergeWork::Settle;
            }
            if std::mem::take(&mut requests.drop) {
                return MergeWork::Drop;
            }
            self.merge.wait(&mut requests);
        }
    }
}
