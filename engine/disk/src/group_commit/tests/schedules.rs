//! Thread schedules of group commit: marks, batches and the queue, with leaders that fail.

use std::sync::Arc;

use super::*;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::explore::{Cost, explore};
use crate::sync::{Mutex, thread, wait_for_ever};

fn join<T>(threads: impl IntoIterator<Item = thread::JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

/// Writes that a flush makes durable, as a device has them.
#[derive(Default)]
struct Writes {
    written: AtomicU64,
    durable: AtomicU64,
    flushed: Watermark,
    leaders: AtomicUsize,
    failures: AtomicUsize,
}

impl Writes {
    /// A flush; the first `failing` ones fail.
    fn flush(&self, failing: usize) -> Result<(), ()> {
        assert_eq!(self.leaders.fetch_add(1, Ordering::SeqCst), 0, "one leads");
        let covers = self.written.load(Ordering::SeqCst);
        let fails = self.failures.load(Ordering::SeqCst) < failing;
        if fails {
            self.failures.fetch_add(1, Ordering::SeqCst);
        } else {
            self.durable.fetch_max(covers, Ordering::SeqCst);
            self.flushed.raise(covers);
        }
        self.leaders.fetch_sub(1, Ordering::SeqCst);
        if fails { Err(()) } else { Ok(()) }
    }

    fn write_and_flush(&self, failing: usize) -> Result<(), ()> {
        let mark = self.written.fetch_add(1, Ordering::SeqCst) + 1;
        let flushed = self.flushed.reach(mark, || self.flush(failing));
        if flushed.is_ok() {
            assert!(self.durable.load(Ordering::SeqCst) >= mark);
        }
        flushed
    }
}

#[test]
fn watermark_waiter_returns_only_after_its_mark() {
    explore("group commit: watermark", Cost::Small, || {
        wait_for_ever(true);
        let writes = Arc::new(Writes::default());
        let threads = [0; 3].map(|_| {
            let writes = writes.clone();
            thread::spawn(move || (0..2).for_each(|_| writes.write_and_flush(0).unwrap()))
        });
        join(threads);
        assert!(writes.flushed.has_reached(6));
    });
}

#[test]
fn watermark_error_reaches_its_leader_alone() {
    explore("group commit: failing watermark", Cost::Small, || {
        wait_for_ever(true);
        let writes = Arc::new(Writes::default());
        let threads = [0; 4].map(|_| {
            let writes = writes.clone();
            thread::spawn(move || writes.write_and_flush(2))
        });
        let refused = join(threads).into_iter().filter(Result::is_err).count();
        assert_eq!(refused, writes.failures.load(Ordering::SeqCst));
        assert!((1..=2).contains(&refused));
    });
}

/// The batches that were served, each with its requests, and the batches themselves.
#[derive(Default)]
struct Served {
    batches: Batches<u64, usize>,
    served: Mutex<Vec<Vec<u64>>>,
}

impl Served {
    /// Has a request served; returns the number of its batch, which the leader `fails` gives up.
    fn serve(&self, request: u64, fails: u64) -> Option<usize> {
        match self.batches.join(&[request]) {
            Joined::Follower(result) => result,
            Joined::Leader(_) if request == fails => None,
            Joined::Leader(leader) => {
                // Only one thread at a time serves, as with the head of a log.
                let mut served = self.served.lock();
                served.push(leader.close().into_vec());
                let number = served.len() - 1;
                drop(served);
                Some(leader.end(number))
            }
        }
    }

    fn run(fails: u64) {
        wait_for_ever(true);
        let all = Arc::new(Self::default());
        let threads = [1, 2, 3, 4].map(|request| {
            let all = all.clone();
            thread::spawn(move || (request, all.serve(request, fails)))
        });
        let results = join(threads);
        let served = all.served.lock();
        let times = |request| served.iter().flatten().filter(|r| **r == request).count();
        for (request, result) in results {
            match result {
                Some(number) => assert!(served[number].contains(&request)),
                None => assert!(fails != 0),
            }
            assert_eq!(times(request), usize::from(result.is_some()));
        }
    }
}

#[test]
fn batch_result_reaches_exactly_its_requests() {
    explore("group commit: batches", Cost::Small, || Served::run(0));
}

#[test]
fn batch_given_up_is_served_to_none() {
    explore("group commit: batches given up", Cost::Small, || {
        Served::run(1)
    });
}

#[test]
fn queue_serves_each_request_once() {
    explore("group commit: queue", Cost::Small, || {
        const MOST: usize = 2;
        wait_for_ever(true);
        let queue = Arc::new(BatchQueue::new(MOST));
        let serving = Arc::new(AtomicUsize::new(0));
        let served = Arc::new(Mutex::new(Vec::new()));
        let threads = [1, 2, 3, 4].map(|request| {
            let (queue, serving, served) = (queue.clone(), serving.clone(), served.clone());
            thread::spawn(move || {
                let serve = |batch| {
                    assert!(serving.fetch_add(1, Ordering::SeqCst) < MOST);
                    served.lock().extend::<Vec<u64>>(batch);
                    serving.fetch_sub(1, Ordering::SeqCst);
                };
                if queue.push(request) {
                    while !queue.serve(serve) {}
                }
            })
        });
        join(threads);
        let mut served = served.lock();
        served.sort_unstable();
        assert_eq!(*served, [1, 2, 3, 4]);
    });
}
