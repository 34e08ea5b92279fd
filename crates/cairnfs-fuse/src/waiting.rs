//! Requests that wait for the device must not use up the event loops.
//!
//! A thread that runs an event loop may wait itself as long as one other is left to read requests:
//! then nothing is handed over, which is fastest while little is going on. Beyond that the request
//! and its reply go to a thread of their own kind. Every job accepted is run, also when the pool is
//! dropped.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::{Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// More waiting requests than this stand in a queue.
const MAX_THREADS: usize = 64;

/// Where requests wait.
pub struct Waiting {
    /// Event loops that wait now.
    inline: AtomicUsize,
    /// Event loops that may wait at a time.
    inline_limit: usize,
    pool: Arc<Pool>,
}

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Waiting {
    /// For a session of `event_loops` threads.
    pub fn new(event_loops: usize) -> Self {
        Self {
            inline: AtomicUsize::new(0),
            inline_limit: event_loops.saturating_sub(1),
            pool: Arc::default(),
        }
    }

    /// Runs a job that may wait: here if another event loop is left, otherwise elsewhere.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        if self.inline.fetch_add(1, Ordering::AcqRel) < self.inline_limit {
            job();
            self.inline.fetch_sub(1, Ordering::AcqRel);
        } else {
            self.inline.fetch_sub(1, Ordering::AcqRel);
            self.run_elsewhere(job);
        }
    }

    /// Runs a job in another thread: for what waits long, or for other requests.
    pub fn run_elsewhere(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.pool.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() || state.threads >= MAX_THREADS {
            self.pool.wake.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let pool = Arc::clone(&self.pool);
        let spawned = thread::Builder::new()
            .name("cairnfs-wait".into())
            .spawn(move || pool.work());
        if let Err(error) = spawned {
            tracing::warn!("no thread for a waiting request: {error}");
            let mut state = self.pool.state.lock();
            state.threads -= 1;
            let stranded = match state.threads {
                0 => state.jobs.pop_front(),
                _ => None,
            };
            drop(state);
            if let Some(job) = stranded {
                job();
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.pool.state.lock().closed = true;
        self.pool.wake.notify_all();
    }
}

impl Pool {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state.lock();
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                self.wake.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread::current;

    #[test]
    fn the_last_event_loop_never_waits_itself() {
        let (tx, rx) = channel();
        let alone = Waiting::new(1);
        let me = current().id();
        alone.run(move || tx.send(current().id()).unwrap());
        assert_ne!(rx.recv().unwrap(), me);
    }

    #[test]
    fn with_others_left_it_waits_in_place() {
        let (tx, rx) = channel();
        Waiting::new(2).run(move || tx.send(current().id()).unwrap());
        assert_eq!(rx.recv().unwrap(), current().id());
    }

    #[test]
    fn jobs_that_wait_for_each_other_all_run() {
        let waiting = Waiting::new(1);
        let barrier = Arc::new(std::sync::Barrier::new(9));
        for _ in 0..8 {
            let barrier = Arc::clone(&barrier);
            waiting.run(move || {
                barrier.wait();
            });
        }
        barrier.wait();
    }

    #[test]
    fn jobs_outlive_the_pool() {
        let (tx, rx) = channel();
        let waiting = Waiting::new(1);
        for i in 0..100 {
            let tx = tx.clone();
            waiting.run(move || tx.send(i).unwrap());
        }
        drop((waiting, tx));
        assert_eq!(rx.iter().count(), 100);
    }
}
