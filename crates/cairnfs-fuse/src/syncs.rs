//! Fsyncs: data is written side by side, then one flush serves all that are ready.
//!
//! An fsync is first a job of its own, which writes what its file has. Then it stands with others
//! until one thread takes all that stand there, has them made durable together, and answers each.
//! So few threads wait for the device, however many fsyncs do. Every fsync gets exactly one answer.

use std::sync::Arc;

use cairnfs::fs::Wish;
use parking_lot::Mutex;

use crate::convert::Refusal;
use crate::ops::{Outcome, caught};
use crate::waiting::Waiting;

/// One is being flushed while another is written to the log.
const LEADERS: usize = 2;

/// What fsyncs are asked of.
pub trait Durable: Send + Sync + 'static {
    /// Writes the data of a file.
    fn write_out(&self, ino: u64) -> Outcome<()>;
    /// Makes files durable, with an answer for each.
    fn fsync_each(&self, wishes: &[Wish]) -> Vec<Outcome<()>>;
}

type Answer = Box<dyn FnOnce(Outcome<()>) + Send>;

#[derive(Default)]
struct Ready {
    wishes: Vec<Wish>,
    answers: Vec<Answer>,
    leaders: usize,
}

/// The fsyncs of a mount.
pub struct Syncs<D> {
    durable: Arc<D>,
    ready: Arc<Mutex<Ready>>,
}

impl<D: Durable> Syncs<D> {
    /// None yet.
    pub fn new(durable: Arc<D>) -> Self {
        Self {
            durable,
            ready: Arc::default(),
        }
    }

    /// Makes a file durable and calls `answer` when that is done, maybe in another thread.
    pub fn sync(
        &self,
        wish: Wish,
        waiting: &Waiting,
        answer: impl FnOnce(Outcome<()>) + Send + 'static,
    ) {
        let durable = Arc::clone(&self.durable);
        let ready = Arc::clone(&self.ready);
        waiting.run(move |under_way| {
            let answer = move |outcome| {
                answer(outcome);
                drop(under_way);
            };
            match caught("fsync", wish.ino, || durable.write_out(wish.ino)) {
                Ok(()) => Ready::join(&ready, &*durable, wish, Box::new(answer)),
                refused => answer(refused),
            }
        });
    }
}

impl Ready {
    /// Stands with the others, and leads them if not enough do.
    fn join(ready: &Mutex<Self>, durable: &impl Durable, wish: Wish, answer: Answer) {
        let mut standing = ready.lock();
        standing.wishes.push(wish);
        standing.answers.push(answer);
        if standing.leaders == LEADERS {
            return;
        }
        standing.leaders += 1;
        while !standing.wishes.is_empty() {
            let wishes = std::mem::take(&mut standing.wishes);
            let answers = std::mem::take(&mut standing.answers);
            drop(standing);
            lead(durable, &wishes, answers);
            standing = ready.lock();
        }
        standing.leaders -= 1;
    }
}

fn lead(durable: &impl Durable, wishes: &[Wish], answers: Vec<Answer>) {
    let first = wishes.first().map_or(0, |w| w.ino);
    let outcomes = caught("fsync", first, || Ok(durable.fsync_each(wishes)));
    let mut outcomes = outcomes.unwrap_or_default().into_iter();
    for answer in answers {
        answer(outcomes.next().unwrap_or(Err(Refusal(libc::EIO))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Condvar;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Whose flushes begin with a word to the test, and end when it says so.
    struct Slow {
        began: Mutex<Sender<Vec<u64>>>,
        go_on: Mutex<Receiver<()>>,
        written: Mutex<usize>,
        wrote: Condvar,
    }

    impl Durable for Slow {
        fn write_out(&self, ino: u64) -> Outcome<()> {
            *self.written.lock() += 1;
            self.wrote.notify_all();
            match ino {
                13 => Err(Refusal(libc::ENOENT)),
                _ => Ok(()),
            }
        }

        fn fsync_each(&self, wishes: &[Wish]) -> Vec<Outcome<()>> {
            let inodes = wishes.iter().map(|w| w.ino).collect();
            self.began.lock().send(inodes).unwrap();
            self.go_on.lock().recv().unwrap();
            assert!(wishes.iter().all(|w| w.ino != 99), "on purpose");
            let each = |w: &Wish| match w.ino % 10 {
                5 => Err(Refusal(libc::ENOSPC)),
                _ => Ok(()),
            };
            wishes.iter().map(each).collect()
        }
    }

    struct Bench {
        slow: Arc<Slow>,
        syncs: Syncs<Slow>,
        waiting: Waiting,
        began: Receiver<Vec<u64>>,
        go_on: Sender<()>,
        answers: Sender<(u64, Outcome<()>)>,
        answered: Receiver<(u64, Outcome<()>)>,
    }

    impl Bench {
        fn new() -> Self {
            let ((begins, began), (go_on, goes_on)) = (channel(), channel());
            let (answers, answered) = channel();
            let slow = Arc::new(Slow {
                began: Mutex::new(begins),
                go_on: Mutex::new(goes_on),
                written: Mutex::default(),
                wrote: Condvar::new(),
            });
            Self {
                syncs: Syncs::new(Arc::clone(&slow)),
                slow,
                waiting: Waiting::new(1),
                began,
                go_on,
                answers,
                answered,
            }
        }

        fn sync(&self, ino: u64) {
            let wish = Wish {
                ino,
                data_only: false,
            };
            let answers = self.answers.clone();
            self.syncs.sync(wish, &self.waiting, move |outcome| {
                answers.send((ino, outcome)).unwrap();
            });
        }

        fn wait_until_written(&self, count: usize) {
            let mut written = self.slow.written.lock();
            while *written < count {
                self.slow.wrote.wait(&mut written);
            }
        }
    }

    #[test]
    fn those_who_come_meanwhile_share_the_next_flush() {
        let bench = Bench::new();
        for leader in [1, 2] {
            bench.sync(leader);
            assert_eq!(bench.began.recv().unwrap(), [leader]);
        }
        // Both leaders wait for the device; nobody else needs a thread for that.
        let others: Vec<u64> = (100..200).collect();
        others.iter().for_each(|ino| bench.sync(*ino));
        bench.wait_until_written(2 + others.len());
        while bench.syncs.ready.lock().wishes.len() < others.len() {
            std::thread::yield_now();
        }
        bench.go_on.send(()).unwrap();
        let mut shared = bench.began.recv().unwrap();
        shared.sort_unstable();
        assert_eq!(shared, others);
        (0..2).for_each(|_| bench.go_on.send(()).unwrap());
        bench.waiting.finish();
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
    fn what_cannot_be_written_is_refused_alone() {
        let bench = Bench::new();
        bench.sync(13);
        assert_eq!(
            bench.answered.recv().unwrap(),
            (13, Err(Refusal(libc::ENOENT)))
        );
    }

    #[test]
    fn a_panic_is_an_answer() {
        let bench = Bench::new();
        // More often than there are leaders: none is lost by it.
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
