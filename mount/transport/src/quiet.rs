//! A moment in which all data that the kernel has begun to send has arrived.
//!
//! The kernel sends dirty data in the background, and no later request waits for that data. The
//! kernel counts the requests without a reply, but beside busy programs there is always one. So for a
//! moment all replies but those of writes are kept back: programs wait for the kept replies and send
//! nothing new. When no other request than those with a kept reply is unanswered, every earlier write
//! has been answered. Serving goes on meanwhile, and no thread waits. Uses synchronization only.
//!
//! A request that asks for such a moment is unanswered all the time, as if its reply were kept. Any
//! reader of a mount can send such requests, so there is a pause between two moments: for three
//! quarters of the time no reply is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::abi::{Opcode, fattr};
use crate::reply::{Errno, Sink};

/// The longest time that replies are kept back, and the time between two looks meanwhile.
const LIMIT: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_micros(50);

/// The time after a moment in which none begins for a request, as a multiple of how long it took.
const REST: u32 = 3;

/// A reply that is kept back.
type Kept = Box<dyn FnOnce() + Send>;

/// Keeps replies of one connection back.
#[derive(Default)]
pub struct Quiet {
    /// Whether replies are kept; spares others the lock.
    keeps: AtomicBool,
    state: Mutex<State>,
    /// Held by the caller that keeps them back; the time before which none does so for a request.
    turn: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct State {
    /// While replies are kept back.
    kept: Option<Vec<Kept>>,
    /// Number of unanswered requests whose answers wait for a quiet moment.
    askers: usize,
}

/// For whom a quiet moment is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// A request, which is unanswered until the call has returned.
    Request,
    /// Nobody for whom the kernel waits.
    Other,
}

/// Counts one pending request for a quiet moment, until it is dropped.
struct Asking<'a> {
    quiet: &'a Quiet,
    own: usize,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.quiet.state.lock().askers -= self.own;
    }
}

/// Sends what was kept, also after a panic.
struct Release<'a>(&'a Quiet);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.keeps.store(false, Ordering::Relaxed);
        let kept = self.0.state.lock().kept.take();
        kept.into_iter().flatten().for_each(|send| send());
    }
}

impl Quiet {
    /// Waits for a moment in which the kernel has no unanswered write; `waiting` returns the number
    /// of requests without a reply, or `None` if it is not known. Returns whether there was such a
    /// moment within a quarter of a second. Must not be called in an event loop.
    pub fn comes(&self, asker: Asker, waiting: &dyn Fn() -> Option<usize>) -> bool {
        let asking = self.ask(asker);
        let mut turn = self.turn.lock();
        match waiting() {
            // Other askers may be answered at any time, this one is not.
            Some(number) if number == asking.own => return true,
            Some(_) => {}
            None => return false,
        }
        if asker == Asker::Request {
            let rests = turn.map(|until| until.saturating_duration_since(Instant::now()));
            thread::sleep(rests.unwrap_or_default());
        }
        let began = Instant::now();
        let came = self.keep_until_quiet(began, waiting);
        let ended = Instant::now();
        *turn = Some(ended + (ended - began) * REST);
        came
    }

    fn ask(&self, asker: Asker) -> Asking<'_> {
        let own = usize::from(asker == Asker::Request);
        self.state.lock().askers += own;
        Asking { quiet: self, own }
    }

    fn keep_until_quiet(&self, began: Instant, waiting: &dyn Fn() -> Option<usize>) -> bool {
        self.state.lock().kept = Some(Vec::new());
        let _release = Release(self);
        self.keeps.store(true, Ordering::Relaxed);
        while began.elapsed() < LIMIT {
            // The requests counted here stay unanswered. If the kernel has the same number of unanswered
            // requests, there are no others.
            let unanswered = self.unanswered();
            match waiting() {
                Some(number) if number == unanswered => return true,
                Some(_) => thread::sleep(PAUSE),
                None => return false,
            }
        }
        false
    }

    /// Whether replies are kept back now.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps.load(Ordering::Relaxed)
    }

    /// Calls `send`, which sends a reply, at the end of the time in which replies are kept back, or
    /// now.
    pub(crate) fn keep(&self, send: impl FnOnce() + Send + 'static) {
        if let Some(kept) = &mut self.state.lock().kept {
            return kept.push(Box::new(send));
        }
        send();
    }

    /// Number of the requests that are unanswered at least until replies are kept no longer. An asker
    /// is not counted any more before his reply is.
    fn unanswered(&self) -> usize {
        let state = self.state.lock();
        state.kept.as_ref().map_or(0, Vec::len) + state.askers
    }
}

/// Whether the reply to a request must not be kept back: a write, and a change of size, behind which
/// the kernel holds back writes of the file without counting them.
pub(crate) fn is_direct(opcode: Opcode, op: &[u8]) -> bool {
    match opcode {
        Opcode::WRITE => true,
        Opcode::SETATTR => {
            let valid = op.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
            valid.is_some_and(|valid| valid & fattr::SIZE != 0)
        }
        _ => false,
    }
}

/// The sink of requests whose replies can be kept back.
pub(crate) struct Patient {
    sink: Arc<dyn Sink>,
    quiet: Arc<Quiet>,
}

impl Patient {
    pub fn new(sink: Arc<dyn Sink>, quiet: Arc<Quiet>) -> Self {
        Self { sink, quiet }
    }
}

impl Sink for Patient {
    fn send(&self, unique: u64, outcome: Result<&[&[u8]], Errno>) {
        if !self.quiet.keeps() {
            return self.sink.send(unique, outcome);
        }
        let outcome = outcome.map(<[_]>::concat);
        let sink = Arc::clone(&self.sink);
        self.quiet.keep(move || match &outcome {
            Ok(bytes) => sink.send(unique, Ok(&[bytes])),
            Err(error) => sink.send(unique, Err(*error)),
        });
    }

    fn may_wait(&self) -> bool {
        self.sink.may_wait()
    }

    fn is_bounded(&self) -> bool {
        self.sink.is_bounded()
    }

    fn send_filled(
        &self,
        unique: u64,
        size: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<usize, Errno>,
    ) {
        if !self.quiet.keeps() {
            return self.sink.send_filled(unique, size, fill);
        }
        let mut bytes = vec![0; size];
        match fill(&mut bytes) {
            Ok(len) => self.send(unique, Ok(&[bytes.get(..len).unwrap_or(&bytes)])),
            Err(error) => self.send(unique, Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, OnceCell, RefCell};
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Tells the numbers of replies and the lengths of their contents.
    struct Told(Mutex<Sender<(u64, usize)>>);

    impl Sink for Told {
        fn send(&self, unique: u64, outcome: Result<&[&[u8]], Errno>) {
            let len = outcome.map_or(0, |parts| parts.concat().len());
            self.0.lock().send((unique, len)).unwrap();
        }

        fn may_wait(&self) -> bool {
            true
        }

        fn is_bounded(&self) -> bool {
            false
        }
    }

    #[test]
    fn replies_are_kept_until_only_they_are_awaited() {
        let (tx, told) = channel();
        let quiet = Arc::new(Quiet::default());
        let sink: Arc<dyn Sink> = Arc::new(Told(Mutex::new(tx)));
        let patient = Patient::new(Arc::clone(&sink), Arc::clone(&quiet));
        patient.send(1, Ok(&[b"at once"]));
        assert_eq!(told.recv().unwrap(), (1, 7));
        // The kernel awaits four replies; that of a write is not kept.
        let unanswered = Cell::new(4);
        let came = quiet.comes(Asker::Other, &|| {
            match unanswered.get() {
                4 if !quiet.keeps() => {}
                4 => {
                    patient.send(2, Ok(&[b"a", b"bc"]));
                    patient.send(3, Err(Errno::EIO));
                    patient.send_filled(4, 100, &mut |room| {
                        room.fill(1);
                        Ok(9)
                    });
                    assert!(told.try_recv().is_err());
                    sink.send(5, Ok(&[]));
                    assert_eq!(told.recv().unwrap(), (5, 0));
                    unanswered.set(3);
                }
                _ => assert!(told.try_recv().is_err()),
            }
            Some(unanswered.get())
        });
        assert!(came && !quiet.keeps());
        let sent: Vec<_> = told.try_iter().collect();
        assert_eq!(sent, [(2, 3), (3, 0), (4, 9)]);
    }

    #[test]
    fn nothing_is_kept_if_the_kernel_is_quiet_or_does_not_tell() {
        let quiet = Quiet::default();
        let never = |told: Option<usize>| {
            assert!(!quiet.keeps());
            told
        };
        assert!(quiet.comes(Asker::Other, &|| never(Some(0))));
        assert!(!quiet.comes(Asker::Other, &|| never(None)));
    }

    #[test]
    fn unanswered_askers_are_no_writes() {
        let quiet = Quiet::default();
        assert!(quiet.comes(Asker::Request, &|| Some(1)));
        let (looks, other) = (Cell::new(0), RefCell::new(None));
        let came = quiet.comes(Asker::Request, &|| {
            looks.set(looks.get() + 1);
            if looks.get() == 3 {
                *other.borrow_mut() = Some(quiet.ask(Asker::Request));
            }
            // Two askers, and a write until the last look.
            Some(if looks.get() < 5 { 3 } else { 2 })
        });
        assert!(came);
        assert_eq!(looks.get(), 5);
        drop(other);
        assert!(quiet.comes(Asker::Other, &|| Some(usize::from(!quiet.keeps()))));
    }

    #[test]
    fn moments_for_requests_are_kept_apart() {
        const TAKES: Duration = Duration::from_millis(5);
        let quiet = Quiet::default();
        let last = Cell::new(Instant::now());
        let take = || {
            let began = Instant::now();
            quiet.comes(Asker::Other, &|| {
                let taken = last.replace(Instant::now()).duration_since(began);
                Some(usize::from(!quiet.keeps() || taken < TAKES))
            })
        };
        assert!(take());
        let first = OnceCell::new();
        assert!(quiet.comes(Asker::Request, &|| {
            if quiet.keeps() {
                first.get_or_init(Instant::now);
            }
            Some(2 - usize::from(quiet.keeps()))
        }));
        let rested = first.get().unwrap().duration_since(last.get());
        assert!(rested >= TAKES * REST, "{rested:?}");
    }

    #[test]
    fn writes_and_what_holds_them_back_are_direct() {
        let setattr = |valid: u32| is_direct(Opcode::SETATTR, &valid.to_ne_bytes());
        assert!(is_direct(Opcode::WRITE, &[]) && setattr(fattr::SIZE | fattr::MODE));
        assert!(!setattr(fattr::MODE) && !is_direct(Opcode::SETATTR, &[8]));
        assert!(!is_direct(Opcode::FSYNC, &fattr::SIZE.to_ne_bytes()));
    }

    #[test]
    fn kernel_that_waits_for_more_is_not_waited_for_without_end() {
        let quiet = Quiet::default();
        assert!(!quiet.comes(Asker::Other, &|| Some(1)));
        assert!(!quiet.keeps());
    }
}
