//! Thread pools for requests that wait for the device or take long, so that they do not block the
//! event loops.
//!
//! An event loop may wait itself if no other job is in flight and another event loop is left to
//! receive requests. No job is handed over then, which is fastest under low load. The thread of a
//! ring must not wait, because no other thread serves its queue. Otherwise the job and its reply
//! are handed to a thread of the pool; such threads are started on demand and end when idle. Every
//! accepted job is run, also when the pool is dropped.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

type Job = Box<dyn FnOnce() + Send>;

/// Maximum number of threads for waiting requests; further requests are queued.
const MAX_THREADS: usize = 64;

/// Maximum number of threads for requests that compute or copy for long; further requests are
/// queued. They take processors and device time from all other requests.
const MAX_LONG: usize = 4;

/// A thread that was idle for this time ends.
const IDLE: Duration = Duration::from_secs(10);

/// A pool of threads in which requests wait.
#[derive(Clone)]
pub struct Waiting {
    shared: Arc<Shared>,
    /// Whether the calling thread may run a waiting job itself.
    inline: bool,
}

/// Ends the pool's threads when the last [`Waiting`] is dropped.
struct Shared {
    pool: Arc<Pool>,
}

struct Pool {
    most_threads: usize,
    /// The processors of its threads: the thread of a ring, which may start one, is bound to a
    /// single one.
    processors: Option<CpuSet>,
    state: Mutex<State>,
    wake: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
    /// Number of jobs accepted so far, which numbers them, and the numbers of the unfinished ones.
    accepted: u64,
    under_way: BTreeSet<u64>,
}

/// An unfinished job; dropping this finishes it.
pub struct UnderWay {
    pool: Arc<Pool>,
    number: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.pool.state.lock().under_way.remove(&self.number);
        self.pool.done.notify_all();
    }
}

impl Waiting {
    /// Creates a pool for a session of `event_loops` threads.
    pub fn new(event_loops: usize) -> Self {
        Self::with(event_loops > 1, MAX_THREADS)
    }

    /// Creates a pool for the requests of rings that wait for the device.
    pub fn for_rings_only() -> Self {
        Self::with(false, MAX_THREADS)
    }

    /// Creates a pool for requests that compute or copy for long. It is separate and small, so that
    /// few of them run at once and none takes a thread from a request that only waits.
    pub fn for_long_work() -> Self {
        Self::with(false, MAX_LONG)
    }

    fn with(inline: bool, most_threads: usize) -> Self {
        let pool = Arc::new(Pool {
            most_threads,
            processors: sched_getaffinity(None).ok(),
            state: Mutex::default(),
            wake: Condvar::new(),
            done: Condvar::new(),
        });
        Self {
            shared: Arc::new(Shared { pool }),
            inline,
        }
    }

    /// The same pool for threads that must not wait.
    pub fn for_rings(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            inline: false,
        }
    }

    /// Runs a job in another thread: one that waits for long, or for other requests.
    pub fn run_elsewhere(&self, job: impl FnOnce(UnderWay) + Send + 'static) {
        let (under_way, _) = self.begin();
        self.hand_over(move || job(under_way));
    }

    /// Waits until all jobs accepted before this call are finished.
    pub fn finish(&self) {
        let pool = &self.shared.pool;
        let mut state = pool.state.lock();
        let last = state.accepted;
        while state.under_way.first().is_some_and(|first| *first <= last) {
            pool.done.wait(&mut state);
        }
    }

    /// Registers a job. Also returns whether the calling thread may wait for it itself: it is an
    /// event loop, no other job is in flight, and another loop is left.
    pub fn begin(&self) -> (UnderWay, bool) {
        let pool = &self.shared.pool;
        let mut state = pool.state.lock();
        let alone = state.under_way.is_empty();
        state.accepted += 1;
        let number = state.accepted;
        state.under_way.insert(number);
        drop(state);
        let pool = Arc::clone(pool);
        (UnderWay { pool, number }, alone && self.inline)
    }

    /// Continues a registered job in another thread.
    pub fn hand_over(&self, job: impl FnOnce() + Send + 'static) {
        let pool = &self.shared.pool;
        let mut state = pool.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() || state.threads >= pool.most_threads {
            pool.wake.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let working = Arc::clone(pool);
        let spawned = thread::Builder::new()
            .name("cairnfs-wait".into())
            .spawn(move || working.work());
        if let Err(error) = spawned {
            tracing::warn!("no thread for a waiting request: {error}");
            let mut state = pool.state.lock();
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

impl Drop for Shared {
    fn drop(&mut self) {
        self.pool.state.lock().closed = true;
        self.pool.wake.notify_all();
    }
}

impl Pool {
    fn work(&self) {
        if let Some(processors) = &self.processors {
            // If it fails, the thread is only less free.
            let _ = sched_setaffinity(None, processors);
        }
        let mut state = self.state.lock();
        let mut enough = false;
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state.lock();
                enough = false;
            } else if state.closed || enough {
                state.threads -= 1;
                return;
            } else {
                state.idle += 1;
                enough = self.wake.wait_for(&mut state, IDLE).timed_out();
                state.idle -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::thread::current;

    /// Runs a job that waits as an event loop does.
    fn run(waiting: &Waiting, job: impl FnOnce(UnderWay) + Send + 'static) {
        match waiting.begin() {
            (under_way, true) => job(under_way),
            (under_way, false) => waiting.hand_over(move || job(under_way)),
        }
    }

    #[test]
    fn single_event_loop_hands_waiting_job_over() {
        let (tx, rx) = channel();
        let alone = Waiting::new(1);
        let me = current().id();
        run(&alone, move |_| tx.send(current().id()).unwrap());
        assert_ne!(rx.recv().unwrap(), me);
    }

    #[test]
    fn one_of_two_event_loops_waits_in_place() {
        let (tx, rx) = channel();
        run(&Waiting::new(2), move |_| tx.send(current().id()).unwrap());
        assert_eq!(rx.recv().unwrap(), current().id());
    }

    #[test]
    fn thread_of_a_ring_hands_waiting_job_over() {
        let (tx, rx) = channel();
        let event_loop = Waiting::new(2);
        let me = current().id();
        run(&event_loop.for_rings(), move |_| {
            tx.send(current().id()).unwrap()
        });
        assert_ne!(rx.recv().unwrap(), me);
        event_loop.finish();
        assert!(event_loop.begin().1, "the pool is the same");
    }

    #[test]
    fn jobs_that_wait_for_each_other_all_run() {
        let waiting = Waiting::new(1);
        let barrier = Arc::new(std::sync::Barrier::new(9));
        for _ in 0..8 {
            let barrier = Arc::clone(&barrier);
            run(&waiting, move |_| {
                barrier.wait();
            });
        }
        barrier.wait();
    }

    #[test]
    fn long_work_is_limited_to_max_long_threads() {
        let working = Waiting::for_long_work();
        let running = Arc::new(std::sync::Barrier::new(MAX_LONG + 1));
        let (go_on, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let (tx, rx) = channel();
        for _ in 0..MAX_LONG {
            let (running, held) = (Arc::clone(&running), Arc::clone(&held));
            working.run_elsewhere(move |_under_way| {
                running.wait();
                held.lock().recv().unwrap();
            });
        }
        working.run_elsewhere(move |_under_way| tx.send(()).unwrap());
        running.wait();
        assert_eq!(working.shared.pool.state.lock().threads, MAX_LONG);
        assert!(rx.try_recv().is_err(), "a further one waits");
        (0..MAX_LONG).for_each(|_| go_on.send(()).unwrap());
        working.finish();
        rx.recv().unwrap();
    }

    #[test]
    fn one_event_loop_waits_at_a_time() {
        let waiting = Waiting::new(4);
        let (tx, rx) = channel();
        let (go_on, held) = channel::<()>();
        let inner = waiting.clone();
        run(&waiting, move |_outer| {
            let me = current().id();
            run(&inner, move |_| {
                tx.send(current().id() == me).unwrap();
                held.recv().unwrap();
            });
        });
        assert!(!rx.recv().unwrap());
        go_on.send(()).unwrap();
        waiting.finish();
    }

    #[test]
    fn finish_waits_for_earlier_jobs() {
        let waiting = Waiting::new(1);
        let (go_on, held) = channel::<()>();
        let done = Arc::new(AtomicBool::new(false));
        let stored = Arc::clone(&done);
        run(&waiting, move |_under_way| {
            held.recv().unwrap();
            stored.store(true, Ordering::SeqCst);
        });
        let finisher = thread::spawn({
            let waiting = waiting.clone();
            move || waiting.finish()
        });
        go_on.send(()).unwrap();
        finisher.join().unwrap();
        assert!(done.load(Ordering::SeqCst));
        waiting.finish();
    }

    #[test]
    fn accepted_jobs_run_after_pool_is_dropped() {
        let (tx, rx) = channel();
        let waiting = Waiting::new(1);
        for i in 0..100 {
            let tx = tx.clone();
            run(&waiting, move |_| tx.send(i).unwrap());
        }
        drop((waiting, tx));
        assert_eq!(rx.iter().count(), 100);
    }
}
