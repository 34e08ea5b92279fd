//! Accounting of log space: which transactions may commit, and which wait until a merge has moved
//! the tail or released memory.
//!
//! One signed counter of free bytes. A transaction takes its worst case before it takes any lock,
//! and gives back the part it did not need. Written records take whole blocks; a merge gives back
//! the blocks before the new tail. In addition a standing credit lets a merge close a context
//! however full the log is, so a full log can always be emptied.

use std::time::Duration;

use crossbeam_utils::CachePadded;

use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use cairnfs_disk::sync::{Condvar, Mutex};

/// Log bytes that a context takes besides its entries: header and rounding of its last record.
pub const CONTEXT_BASE: i64 = 2 * BLOCK_SIZE as i64;

/// Longest wait for space before it is checked again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Bytes that only a mount record may take. One block is enough: the record of a mount that is
/// killed before its first merge stays at the end of the log, where the next mount overwrites it.
const MOUNT_RESERVE: i64 = BLOCK_SIZE as i64;

/// Accounting of the log's space.
pub struct Ring {
    capacity: i64,
    free: CachePadded<AtomicI64>,
    /// LSN of the oldest occupied block; each write checks that it does not overwrite it.
    tail: AtomicU64,
    /// Number of wakeups so far.
    wakes: Mutex<u64>,
    moved: Condvar,
}

impl Ring {
    /// A ring of `blocks` blocks with `used` of them between tail and head. The base of the open
    /// context and the standing credit of merges are taken immediately.
    pub fn new(blocks: u64, tail: u64, used: u64) -> Self {
        let block = BLOCK_SIZE as i64;
        let capacity = blocks as i64 * block;
        Self {
            capacity,
            free: CachePadded::new(AtomicI64::new(
                capacity - used as i64 * block - 2 * CONTEXT_BASE - MOUNT_RESERVE,
            )),
            tail: AtomicU64::new(tail),
            wakes: Mutex::new(0),
            moved: Condvar::new(),
        }
    }

    /// Size of the log in bytes.
    pub fn capacity(&self) -> i64 {
        self.capacity
    }

    /// Bytes that are neither written nor reserved.
    pub fn free(&self) -> i64 {
        self.free.load(Ordering::Relaxed)
    }

    /// LSN of the tail.
    pub fn tail(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    /// Takes `bytes` if they are free.
    pub fn try_take(&self, bytes: i64) -> bool {
        if self.free.fetch_sub(bytes, Ordering::AcqRel) >= bytes {
            return true;
        }
        self.give(bytes);
        false
    }

    /// Takes `bytes` even if they are not free. Only for space that a reservation or the credit
    /// covers.
    pub fn take(&self, bytes: i64) {
        self.free.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Gives back `bytes`.
    pub fn give(&self, bytes: i64) {
        self.free.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Number of wakeups so far; to be read before looking for space (see [`Self::wait`]).
    pub fn wakes(&self) -> u64 {
        *self.wakes.lock()
    }

    /// Waits for a wakeup, unless `enough` returns true or a wakeup happened since `seen`: then the
    /// merge that the caller asked for may be over, and other threads may have taken the space it
    /// freed. May return spuriously; callers loop.
    pub fn wait(&self, seen: u64, enough: impl Fn() -> bool) {
        let mut wakes = self.wakes.lock();
        if *wakes == seen && !enough() {
            // Returned reservations do not wake waiters, so a waiter checks again periodically.
            self.moved.wait_for(&mut wakes, LOOK_AGAIN);
        }
    }

    /// Wakes all waiters, for example because the volume has failed.
    pub fn wake(&self) {
        *self.wakes.lock() += 1;
        self.moved.notify_all();
    }

    /// Moves the tail and gives back the space before it.
    pub fn move_tail(&self, lsn: u64) {
        let old = self.tail.swap(lsn, Ordering::AcqRel);
        self.give(lsn.saturating_sub(old) as i64 * BLOCK_SIZE as i64);
        self.wake();
    }
}
