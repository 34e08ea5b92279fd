//! Requests to the background workers: push, merge, durability interval, stop.
//!
//! Requests are flags under one small lock, which commits take only when a limit was passed.
//! Without workers (a simulation drives the volume itself) no thread waits here.

use std::time::{Duration, Instant};

use cairnfs_disk::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cairnfs_disk::sync::{Condvar, Mutex};

#[derive(Default)]
struct Requests {
    /// Sequence of the newest context that is to be pushed.
    push: Option<u64>,
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
    /// Largest sequence for which a push was requested.
    push_wanted: AtomicU64,
    merge_wanted: AtomicBool,
}

/// Why a log worker woke up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogWork {
    /// The context of this sequence passed its soft limit.
    Push(u64),
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

    /// Asks for a push of the context `seq`; only the first request for it counts.
    pub fn want_push(&self, seq: u64) {
        let wanted = &self.push_wanted;
        if wanted.load(Ordering::Relaxed) < seq && wanted.fetch_max(seq, Ordering::AcqRel) < seq {
            let mut requests = self.requests.lock();
            requests.push = requests.push.max(Some(seq));
            self.log.notify_one();
        }
    }

    /// Called when a push of the context `seq` was put off: a request for it counts again.
    pub fn put_off(&self, seq: u64) {
        let wanted = &self.push_wanted;
        let _ = wanted.compare_exchange(seq, seq - 1, Ordering::AcqRel, Ordering::Relaxed);
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
                if requests.push.is_some() {
                    // This thread may have been woken for it.
                    self.log.notify_one();
                }
                return LogWork::Interval;
            }
            if let Some(seq) = requests.push.take() {
                return LogWork::Push(seq);
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

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn push_of_a_context_is_asked_for_once_unless_it_was_put_off() {
        let signals = Signals::default();
        let next = || signals.next_log_work(Some(Instant::now() + Duration::from_millis(1)));
        signals.want_push(7);
        signals.want_push(7);
        assert_eq!(next(), LogWork::Push(7));
        signals.want_push(7);
        signals.want_push(6);
        assert_eq!(next(), LogWork::Interval);
        signals.put_off(7);
        signals.want_push(7);
        assert_eq!(next(), LogWork::Push(7));
        signals.want_push(8);
        signals.put_off(7);
        signals.want_push(8);
        assert_eq!(next(), LogWork::Push(8));
        assert_eq!(next(), LogWork::Interval);
    }

    #[test]
    fn push_that_one_worker_leaves_is_done_by_another() {
        let signals = Signals::default();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| signals.next_log_work(None));
            signals.want_push(7);
            // It does not matter which worker was woken: the other one gets it.
            assert_eq!(
                signals.next_log_work(Some(Instant::now())),
                LogWork::Interval
            );
            assert_eq!(other.join().unwrap(), LogWork::Push(7));
        });
    }
}
