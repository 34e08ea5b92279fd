//! Group commit of fsyncs: data is written out in parallel, then one flush serves all ready
//! requests.
//!
//! The data of an fsync's file is written out first: in the event loop, or in a separate thread if
//! that waits for the device. Then the request is queued until a leader takes the whole queue
//! ([`BatchQueue`]), makes its files durable together, and answers each request. So few threads
//! wait for the device, however many fsyncs are in flight. An event loop leads at most one such
//! group, and only if no other job is in flight. Every fsync gets exactly one answer. If it shall also wait
//! for a backup, its answer is kept there ([`Durable::answer`]), and no thread waits.

use std::sync::Arc;

use cairnfs::fs::FsyncRequest;
use cairnfs_disk::group_commit::BatchQueue;

use crate::convert::Refusal;
use crate::ops::{Outcome, caught};
use crate::waiting::Waiting;

/// Maximum number of leaders: one group is flushed while another is written to the log.
const LEADERS: usize = 2;

/// The operations that make files durable.
pub trait Durable: Send + Sync + 'static {
    /// Writes out the data of a file if that need not wait for the device; returns whether it did.
    fn write_out_at_once(&self, ino: u64) -> Outcome<bool>;
    /// Writes out the data of a file. May wait for the device.
    fn write_out(&self, ino: u64) -> Outcome<()>;
    /// Makes files durable; returns one result per request, in order.
    fn fsync_each(&self, requests: &[FsyncRequest]) -> Vec<Outcome<()>>;
    /// Answers a request whose file is durable, possibly later and in another thread. Does not wait.
    fn answer(&self, answer: Answer) {
        answer(Ok(()));
    }
}

/// Takes the outcome of an fsync.
pub type Answer = Box<dyn FnOnce(Outcome<()>) + Send>;

/// The fsyncs of a mount.
pub struct Syncs<D> {
    durable: Arc<D>,
    ready: Arc<BatchQueue<(FsyncRequest, Answer)>>,
}

impl<D> Clone for Syncs<D> {
    fn clone(&self) -> Self {
        Self {
            durable: Arc::clone(&self.durable),
            ready: Arc::clone(&self.ready),
        }
    }
}

impl<D: Durable> Syncs<D> {
    /// Creates an empty queue.
    pub fn new(durable: Arc<D>) -> Self {
        Self {
            durable,
            ready: Arc::new(BatchQueue::new(LEADERS)),
        }
    }

    /// Makes a file durable and calls `answer` after that, possibly in another thread.
    pub fn sync(
        &self,
        request: FsyncRequest,
        waiting: &Waiting,
        answer: impl FnOnce(Outcome<()>) + Send + 'static,
    ) {
        let (under_way, here) = waiting.begin();
        let answer: Answer = Box::new(move |outcome| {
            answer(outcome);
            drop(under_way);
        });
        let at_once = || self.durable.write_out_at_once(request.ino);
        let syncs = self.clone();
        match caught("fsync", request.ino, at_once) {
            Err(refused) => answer(Err(refused)),
            Ok(false) if !here => waiting.hand_over(move || {
                if syncs.write_and_enqueue(request, answer) {
                    syncs.lead_all();
                }
            }),
            Ok(written) => {
                let to_lead = if written {
                    self.ready.push((request, answer))
                } else {
                    self.write_and_enqueue(request, answer)
                };
                if to_lead && !(here && self.lead()) {
                    waiting.hand_over(move || syncs.lead_all());
                }
            }
        }
    }

    /// Writes out the data and queues the request; returns whether the caller must lead.
    fn write_and_enqueue(&self, request: FsyncRequest, answer: Answer) -> bool {
        match caught("fsync", request.ino, || self.durable.write_out(request.ino)) {
            Ok(()) => self.ready.push((request, answer)),
            refused => {
                answer(refused);
                false
            }
        }
    }

    fn lead_all(&self) {
        while !self.lead() {}
    }

    /// Makes the files of the queued requests durable. Returns true if the queue is empty
    /// afterwards; the caller is then not a leader any more.
    fn lead(&self) -> bool {
        self.ready.serve(|batch| serve(&*self.durable, batch))
    }
}

fn serve(durable: &impl Durable, batch: Vec<(FsyncRequest, Answer)>) {
    let (requests, answers): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
    let first = requests.first().map_or(0, |w| w.ino);
    let outcomes = caught("fsync", first, || Ok(durable.fsync_each(&requests)));
    let mut outcomes = outcomes.unwrap_or_default().into_iter();
    for answer in answers {
        match outcomes.next().unwrap_or(Err(Refusal(libc::EIO))) {
            Ok(()) => durable.answer(answer),
            refused => answer(refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::{Condvar, Mutex};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    /// A [`Durable`] whose flushes report their start to the test and block until the test releases
    /// them.
    struct Slow {
        began: Mutex<Sender<Vec<u64>>>,
        go_on: Mutex<Receiver<()>>,
        apart_goes_on: Mutex<Receiver<()>>,
        written: Mutex<usize>,
        wrote: Condvar,
    }

    /// A flush that includes this inode is released by a separate channel.
    const APART: u64 = 11;

    impl Durable for Slow {
        fn write_out_at_once(&self, ino: u64) -> Outcome<bool> {
            let waits = ino.is_multiple_of(3);
            if !waits {
                self.write_out(ino)?;
            }
            Ok(!waits)
        }

        fn write_out(&self, ino: u64) -> Outcome<()> {
            *self.written.lock() += 1;
            self.wrote.notify_all();
            match ino {
                13 | 39 => Err(Refusal(libc::ENOENT)),
                _ => Ok(()),
            }
        }

        fn fsync_each(&self, requests: &[FsyncRequest]) -> Vec<Outcome<()>> {
            let inodes = requests.iter().map(|w| w.ino).collect();
            self.began.lock().send(inodes).unwrap();
            let go_on = if requests.iter().any(|w| w.ino == APART) {
                &self.apart_goes_on
            } else {
                &self.go_on
            };
            go_on.lock().recv().unwrap();
            if requests.iter().any(|w| w.ino == 99) {
                // Unwinds like a panic, but prints nothing.
                std::panic::resume_unwind(Box::new("on purpose"));
            }
            let each = |w: &FsyncRequest| match w.ino % 10 {
                5 => Err(Refusal(libc::ENOSPC)),
                _ => Ok(()),
            };
            requests.iter().map(each).collect()
        }
    }

    /// What an event loop needs to serve fsyncs.
    #[derive(Clone)]
    struct Loop {
        syncs: Syncs<Slow>,
        waiting: Waiting,
        answers: Sender<(u64, Outcome<()>)>,
    }

    impl Loop {
        fn sync(&self, ino: u64) {
            let request = FsyncRequest {
                ino,
                data_only: false,
            };
            let answers = self.answers.clone();
            self.syncs.sync(request, &self.waiting, move |outcome| {
                answers.send((ino, outcome)).unwrap();
            });
        }
    }

    struct Bench {
        slow: Arc<Slow>,
        asked: Loop,
        began: Receiver<Vec<u64>>,
        go_on: Sender<()>,
        apart_goes_on: Sender<()>,
        answered: Receiver<(u64, Outcome<()>)>,
    }

    impl Bench {
        fn new() -> Self {
            Self::with_loops(1)
        }

        fn with_loops(event_loops: usize) -> Self {
            let ((begins, began), (go_on, goes_on)) = (channel(), channel());
            let (apart_goes_on, apart) = channel();
            let (answers, answered) = channel();
            let slow = Arc::new(Slow {
                began: Mutex::new(begins),
                go_on: Mutex::new(goes_on),
                apart_goes_on: Mutex::new(apart),
                written: Mutex::default(),
                wrote: Condvar::new(),
            });
            Self {
                asked: Loop {
                    syncs: Syncs::new(Arc::clone(&slow)),
                    waiting: Waiting::new(event_loops),
                    answers,
                },
                slow,
                began,
                go_on,
                apart_goes_on,
                answered,
            }
        }

        fn sync(&self, ino: u64) {
            self.asked.sync(ino);
        }

        fn wait_until_written(&self, count: usize) {
            let mut written = self.slow.written.lock();
            while *written < count {
                self.slow.wrote.wait(&mut written);
            }
        }
    }

    #[test]
    fn fsyncs_queued_during_flush_share_next_flush() {
        let bench = Bench::new();
        for leader in [1, 2] {
            bench.sync(leader);
            assert_eq!(bench.began.recv().unwrap(), [leader]);
        }
        // Both leaders wait for the device; the other requests need no thread.
        let others: Vec<u64> = (100..200).collect();
        others.iter().for_each(|ino| bench.sync(*ino));
        bench.wait_until_written(2 + others.len());
        while bench.asked.syncs.ready.waiting() < others.len() {
            std::thread::yield_now();
        }
        bench.go_on.send(()).unwrap();
        let mut shared = bench.began.recv().unwrap();
        shared.sort_unstable();
        assert_eq!(shared, others);
        (0..2).for_each(|_| bench.go_on.send(()).unwrap());
        bench.asked.waiting.finish();
        let answers: Vec<_> = bench.answered.try_iter().collect();
        assert_eq!(answers.len(), 2 + others.len());
        for (ino, outcome) in answers {
            let expected = match ino % 10 {
                5 => Err(Refusal(libc::ENOSPC)),
                _ => Ok(()),
            };
            assert_eq!(outcome, expected, "each has its own answer");
        }
    }

    #[test]
    fn event_loop_leads_at_most_one_group() {
        let bench = Bench::with_loops(2);
        thread::scope(|scope| {
            let event_loop = scope.spawn({
                let asked = bench.asked.clone();
                move || asked.sync(APART)
            });
            assert_eq!(bench.began.recv().unwrap(), [APART]);
            bench.sync(2);
            assert_eq!(bench.began.recv().unwrap(), [2]);
            bench.sync(4);
            bench.apart_goes_on.send(()).unwrap();
            assert_eq!(bench.began.recv().unwrap(), [4]);
            event_loop.join().unwrap();
        });
        (0..2).for_each(|_| bench.go_on.send(()).unwrap());
        bench.asked.waiting.finish();
        assert_eq!(bench.answered.try_iter().count(), 3);
    }

    #[test]
    fn write_out_error_refuses_only_its_fsync() {
        for refused in [13, 39] {
            let bench = Bench::new();
            bench.sync(refused);
            let answer = (refused, Err(Refusal(libc::ENOENT)));
            assert_eq!(bench.answered.recv().unwrap(), answer);
        }
    }

    #[test]
    fn panic_in_flush_is_answered_with_eio() {
        let bench = Bench::new();
        // More panics than leaders: a panic must not use up a leader.
        for ino in [99, 99, 99, 1] {
            bench.go_on.send(()).unwrap();
            bench.sync(ino);
            let expected = match ino {
                99 => Err(Refusal(libc::EIO)),
                _ => Ok(()),
            };
            assert_eq!(bench.answered.recv().unwrap(), (ino, expected));
        }
    }
}
