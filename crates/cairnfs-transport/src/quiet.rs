//! A moment in which all data that the kernel has begun to send has arrived.
//!
//! The kernel sends dirty data in the background, and nothing that follows waits for it. It counts
//! the requests without a reply, but beside busy programs there is always one. So replies are kept
//! back for a moment, all but those of writes: each program waits for its reply and sends nothing
//! new, and when the kernel waits for the kept replies only, each write that had been sent before is
//! answered. Serving goes on meanwhile, and no thread waits. Uses synchronization only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::reply::{Errno, Sink};

/// The longest time that replies are kept back, and the time between two looks meanwhile.
const LIMIT: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_micros(50);

/// A reply that is kept back.
type Kept = Box<dyn FnOnce() + Send>;

/// Keeps replies of one connection back.
#[derive(Default)]
pub struct Quiet {
    /// Whether replies are kept; spares others the lock.
    keeps: AtomicBool,
    kept: Mutex<Option<Vec<Kept>>>,
    /// Held by the caller that keeps them back.
    turn: Mutex<()>,
}

/// Sends what was kept, also after a panic.
struct Release<'a>(&'a Quiet);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.keeps.store(false, Ordering::Relaxed);
        let kept = self.0.kept.lock().take();
        kept.into_iter().flatten().for_each(|send| send());
    }
}

impl Quiet {
    /// Waits for a moment in which the kernel has no unanswered write; `waiting` returns the number
    /// of requests without a reply, or `None` if it is not known. Returns whether there was such a
    /// moment within a quarter of a second. Must not be called in an event loop.
    pub fn comes(&self, waiting: &dyn Fn() -> Option<usize>) -> bool {
        let _turn = self.turn.lock();
        match waiting() {
            Some(0) => return true,
            Some(_) => {}
            None => return false,
        }
        *self.kept.lock() = Some(Vec::new());
        let release = Release(self);
        self.keeps.store(true, Ordering::Relaxed);
        let began = Instant::now();
        let mut came = false;
        while !came && began.elapsed() < LIMIT {
            // A kept reply stays unanswered, so the number is of these requests if it is the same.
            let kept = self.number();
            match waiting() {
                Some(number) if number == kept => came = true,
                Some(_) => thread::sleep(PAUSE),
                None => break,
            }
        }
        drop(release);
        came
    }

    /// Whether replies are kept back now.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps.load(Ordering::Relaxed)
    }

    /// Calls `send`, which sends a reply, at the end of the time in which replies are kept back, or
    /// now.
    pub(crate) fn keep(&self, send: impl FnOnce() + Send + 'static) {
        if let Some(kept) = &mut *self.kept.lock() {
            return kept.push(Box::new(send));
        }
        send();
    }

    fn number(&self) -> usize {
        self.kept.lock().as_ref().map_or(0, Vec::len)
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
    use std::cell::Cell;
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

        fn send_filled(
            &self,
            unique: u64,
            size: usize,
            fill: &mut dyn FnMut(&mut [u8]) -> Result<usize, Errno>,
        ) {
            let mut bytes = vec![0; size];
            let len = fill(&mut bytes).unwrap();
            self.send(unique, Ok(&[&bytes[..len]]));
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
        let came = quiet.comes(&|| {
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
        assert!(quiet.comes(&|| never(Some(0))));
        assert!(!quiet.comes(&|| never(None)));
    }

    #[test]
    fn kernel_that_waits_for_more_is_not_waited_for_without_end() {
        let quiet = Quiet::default();
        assert!(!quiet.comes(&|| Some(1)));
        assert!(!quiet.keeps());
    }
}
