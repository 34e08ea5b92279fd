//! Several writes in flight at once, through io_uring, where the kernel supports it.
//!
//! Each thread has its own ring, created on first use. The ring shares ownership of a write's
//! memory and file until the write is over, so an early return or a panic here is safe. A single write
//! is a system call in any case, and is made without it. Helper threads instead of the ring gained half
//! as much on a loop device, and lost on a file.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use compio_buf::IoVectoredBuf;
use compio_driver::op::WriteVectoredAt;
use compio_driver::{Key, Proactor, PushEntry};
use rustix::process::{Pid, getpid};
use smallvec::SmallVec;

use super::staged::Piece;

type Write = WriteVectoredAt<Piece, Arc<OwnedFd>>;

/// Maximum number of writes in flight in a ring.
pub(super) const MOST: usize = 64;
/// Entries of a ring. The driver needs some for itself: when no entry is free, it reaps the
/// finished operations and then waits for one more. If all were finished, that wait would never
/// end.
const ENTRIES: u32 = 2 * MOST as u32;

impl IoVectoredBuf for Piece {
    fn iter_slice(&self) -> impl Iterator<Item = &[u8]> {
        self.parts()
    }
}

thread_local! {
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

/// A ring, which only the process that created it may use: its memory is not mapped in a child of
/// fork(), where not even dropping it is possible.
struct Ring {
    proactor: Option<Proactor>,
    process: Pid,
}

impl Ring {
    fn new() -> Option<Self> {
        let proactor = Proactor::builder().capacity(ENTRIES).build().ok()?;
        Some(Self {
            proactor: Some(proactor),
            process: getpid(),
        })
    }

    fn is_ours(&self) -> bool {
        self.process == getpid()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.is_ours() {
            std::mem::forget(self.proactor.take());
        }
    }
}

/// Whether this process can create an io_uring.
pub(super) fn is_there() -> bool {
    with_ring(|ring| ring.driver_type().is_iouring()).unwrap_or(false)
}

/// Calls `work` with this thread's ring; `None` if no ring can be created because descriptors or
/// memory are limited, or the system call is forbidden.
fn with_ring<R>(work: impl FnOnce(&mut Proactor) -> R) -> Option<R> {
    RING.with_borrow_mut(|ring| {
        if !ring.as_ref().is_some_and(Ring::is_ours) {
            *ring = Ring::new();
        }
        ring.as_mut()?.proactor.as_mut().map(work)
    })
}

/// The results of several writes, in their order: bytes written, or the error.
type Completions = SmallVec<[io::Result<usize>; INLINE_WRITES]>;

/// Inline capacity: most fsyncs need no more writes than this.
const INLINE_WRITES: usize = 4;

/// Executes up to [`MOST`] writes at once; `None` if there is no ring (then no write was
/// submitted).
pub(super) fn write(file: &Arc<OwnedFd>, pieces: &[Piece]) -> Option<io::Result<Completions>> {
    with_ring(|ring| {
        let mut flights = SmallVec::<[Flight; INLINE_WRITES]>::new();
        for piece in pieces {
            let write = WriteVectoredAt::new(file.clone(), piece.offset, piece.clone());
            flights.push(Flight::of(ring.push(write)));
        }
        loop {
            let mut over = true;
            for flight in &mut flights {
                over &= flight.poll_completion(ring);
            }
            if over {
                break;
            }
            match ring.poll(None) {
                // A signal ends the wait, too: with `Interrupted`, or with `TimedOut` if the same
                // call also submitted the writes.
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

/// A write in flight (`pending`) or its result (`over`).
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

    /// Checks for completion; whether the write is over.
    fn poll_completion(&mut self, ring: &mut Proactor) -> bool {
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
    fn maximum_number_of_writes_completes_without_hang() {
        // Writes to /dev/null complete at submission.
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
