//! Space in the log: who may commit, and who waits until a merge has moved the tail, or let go memory.
//!
//! One signed counter of free bytes. A transaction takes its worst case before it takes any lock
//! and gives back what it did not need; written records take whole blocks; a merge gives back what
//! lies before the new tail. Beside it a standing credit lets a merge close a context however full
//! the log is, so a full log always empties.

use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::format::BLOCK_SIZE;
use crate::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};

/// Bytes that a context takes beside its entries: header and rounding of its last record.
pub const CONTEXT_BASE: i64 = 2 * BLOCK_SIZE as i64;

/// Longest wait for space without another look at it.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Bytes that only a mount record may take. One is enough behind a full log: a mount that is killed
/// before its first merge leaves its record at the end, where the next one overwrites it.
const MOUNT_RESERVE: i64 = BLOCK_SIZE as i64;

/// Accounting of the log's space.
pub struct Ring {
    capacity: i64,
    free: CachePadded<AtomicI64>,
    /// LSN up to which blocks are occupied from the tail; checked before each write.
    tail: AtomicU64,
    /// How often waiters were woken.
    wakes: Mutex<u64>,
    moved: Condvar,
}

impl Ring {
    /// A ring of `blocks` with `used` of them between tail and head. The base of the open context
    /// and the standing credit of merges are taken at once.
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

    /// Bytes neither written nor promised.
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

    /// Takes `bytes` whether they are free or not: only what a reservation or credit stands for.
    pub fn take(&self, bytes: i64) {
        self.free.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Gives back `bytes`.
    pub fn give(&self, bytes: i64) {
        self.free.fetch_add(bytes, Ordering::AcqRel);
    }

    /// How often waiters were woken; to be asked before looking for space.
    pub fn wakes(&self) -> u64 {
        *self.wakes.lock()
    }

    /// Waits until waiters are woken, unless `enough` tells that there is nothing to wait for; but not if
    /// they were since `seen`: then the merge that the caller asked for may be over, and others may have
    /// taken what it gave. Spurious returns are fine, callers loop.
    pub fn wait(&self, seen: u64, enough: impl Fn() -> bool) {
        let mut wakes = self.wakes.lock();
        if *wakes == seen && !enough() {
            // Reservations are given back without a word, so a waiter looks again now and then.
            self.moved.wait_for(&mut wakes, LOOK_AGAIN);
        }
    }

    /// Wakes everybody who waits, for example because the volume has failed.
    pub fn wake(&self) {
        *self.wakes.lock() += 1;
        self.moved.notify_all();
    }

    /// Moves the tail and gives back what lay before it.
    pub fn move_tail(&self, lsn: u64) {
        let old = self.tail.swap(lsn, Ordering::AcqRel);
        self.give(lsn.saturating_sub(old) as i64 * BLOCK_SIZE as i64);
        self.wake();
    }
}
