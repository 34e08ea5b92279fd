//! Several writes in flight at once, through io_uring, where the kernel has it.
//!
//! Each thread has a ring of its own, made when it first needs one. What a write reads is shared
//! with the ring until the write is over, so nothing here depends on how a call ends.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use compio_buf::IoVectoredBuf;
use compio_driver::op::WriteVectoredAt;
use compio_driver::{Key, Proactor, PushEntry};
use smallvec::SmallVec;

use super::staged::Piece;

type Write = WriteVectoredAt<Piece, Arc<OwnedFd>>;

/// Writes in flight at a time.
pub(super) const MOST: usize = 64;
/// Entries of a ring. It needs some for itself; when it finds none it takes up what is over by then, and
/// then waits for one more, for ever if that was all.
const ENTRIES: u32 = 2 * MOST as u32;

impl IoVectoredBuf for Piece {
    fn iter_slice(&self) -> impl Iterator<Item = &[u8]> {
        self.parts()
    }
}

thread_local! {
    static RING: RefCell<Option<Proactor>> = const { RefCell::new(None) };
}

/// Whether the kernel lets us have a ring.
pub(super) fn is_there() -> bool {
    with_ring(|ring| ring.driver_type().is_iouring()).unwrap_or(false)
}

/// Does something with this thread's ring; `None` if it can have none, as its descriptors or memory
/// are limited, or the call is forbidden.
fn with_ring<R>(work: impl FnOnce(&mut Proactor) -> R) -> Option<R> {
    RING.with_borrow_mut(|ring| {
        if ring.is_none() {
            *ring = Proactor::builder().capacity(ENTRIES).build().ok();
        }
        ring.as_mut().map(work)
    })
}

/// What became of several writes: for each in order, how many bytes were taken.
type Completions = SmallVec<[io::Result<usize>; FEW]>;

/// Most fsyncs have no more writes.
const FEW: usize = 4;

/// Makes up to [`MOST`] writes at once; `None` if there is no ring, and nothing was begun.
pub(super) fn write(file: &Arc<OwnedFd>, pieces: &[Piece]) -> Option<io::Result<Completions>> {
    with_ring(|ring| {
        let mut flights = SmallVec::<[Flight; FEW]>::new();
        for piece in pieces {
            let write = WriteVectoredAt::new(file.clone(), piece.offset, piece.clone());
            flights.push(Flight::of(ring.push(write)));
        }
        loop {
            let mut over = true;
            for flight in &mut flights {
                over &= flight.look(ring);
            }
            if over {
                break;
            }
            match ring.poll(None) {
                // A signal ends the wait, too: with the first, or with the second if the same call
                // had begun the writes.
                Err(e) if !matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::TimedOut) => {
                    return Err(e);
                }
                _ => {}
            }
        }
        let result = |flight: Flight| flight.over.unwrap_or(Err(ErrorKind::Other.into()));
        Ok(flights.into_iter().map(result).collect())
    })
}

/// A write under way, or what became of it.
struct Flight {
    pending: Option<Key<Write>>,
    over: Option<io::Result<usize>>,
}

impl Flight {
    fn of(entry: PushEntry<Key<Write>, compio_buf::BufResult<usize, Write>>) -> Self {
        match entry {
            PushEntry::Pending(key) => Self {
                pending: Some(key),
                over: None,
            },
            PushEntry::Ready(result) => Self {
                pending: None,
                over: Some(result.0),
            },
        }
    }

    /// Whether it is over.
    fn look(&mut self, ring: &mut Proactor) -> bool {
        if let Some(key) = self.pending.take() {
            *self = Self::of(ring.pop(key));
        }
        self.over.is_some()
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use crate::device::Page;

    #[test]
    fn as_many_writes_as_may_be_in_flight_end_though_all_are_over_at_once() {
        // Writes to this are over when they have begun.
        let file = std::fs::File::options().write(true).open("/dev/null");
        let file = Arc::new(OwnedFd::from(file.unwrap()));
        let piece = |n: usize| Piece::of_pages(n as u64 * 4096, vec![Page::with(&[n as u8])]);
        let pieces: Vec<Piece> = (0..MOST).map(piece).collect();
        let written = std::thread::spawn(move || write(&file, &pieces));
        let Some(taken) = written.join().unwrap() else {
            return;
        };
        let taken = taken.unwrap();
        assert_eq!(taken.len(), MOST);
        assert!(taken.into_iter().all(|taken| taken.unwrap() == 4096));
    }
}
