//! Writes for which the host file system has no space: queued in memory, in order, until it has.
//!
//! To the engine the queue is a part of the device's volatile cache: a held write has returned,
//! reads find it, and a flush fails until it is on the device. From the first held write on, all
//! writes, discards and ordering flushes are queued behind it; an ordering flush becomes a barrier
//! in the queue. So the device always sees writes and flushes in the order in which the engine made
//! them, and a power cut meanwhile leaves the same state as a power cut at an earlier moment. Writes
//! of the log that were made beside the first held one are the exception: they may be on the device
//! without it. Recovery ends at the gap, as after any cut before the flush that all of them need.

use std::collections::VecDeque;

use super::{Device, Piece};
use crate::error::{Error, Result};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A queued operation on the device.
#[derive(Clone)]
enum Op {
    Write(Piece),
    Discard {
        offset: u64,
        len: u64,
    },
    /// Everything before it becomes durable before anything after it is written.
    Barrier,
}

impl Op {
    /// Copies a small write out of the larger buffer that it is a part of, so that the queue does
    /// not keep the whole buffer in memory.
    fn alone(self) -> Self {
        match self {
            Op::Write(piece) => Op::Write(piece.alone()),
            other => other,
        }
    }
}

#[derive(Default)]
struct Queue {
    ops: VecDeque<Op>,
    /// The volume's path, from the device's error.
    path: String,
}

/// The queue of held operations.
#[derive(Default)]
pub(super) struct HeldWrites {
    /// Whether the queue is not empty; changes under the queue's lock.
    active: AtomicBool,
    /// Bytes of the writes in the queue.
    bytes: AtomicU64,
    queue: Mutex<Queue>,
    /// Locked by the thread that drains the queue. Taken before `queue`.
    draining: Mutex<()>,
}

impl HeldWrites {
    /// Whether anything is held.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Bytes of writes that are held.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The error for callers that need all writes to be on the device.
    pub fn error(&self) -> Error {
        self.error_beside(0, 0)
    }

    /// The error for a change that needs `missing` bytes besides all writes, where `free` bytes are
    /// free.
    pub fn error_beside(&self, missing: u64, free: u64) -> Error {
        let all = self.bytes().saturating_add(missing);
        Error::HostFull {
            path: self.queue.lock().path.clone(),
            missing: all.saturating_sub(free).max(1),
        }
    }

    /// Queues writes for which there was no space.
    pub fn hold(&self, pieces: &[Piece], path: String) {
        let mut queue = self.queue.lock();
        if queue.ops.is_empty() {
            tracing::warn!(
                "the file system that holds {path} is full: changes wait in memory until there is \
                 space, and no sync succeeds"
            );
            queue.path = path;
        }
        self.push(&mut queue, pieces.iter().cloned().map(Op::Write));
    }

    /// Queues writes if the queue is not empty; returns `false` if it is empty.
    pub fn write(&self, pieces: impl FnOnce() -> Vec<Piece>) -> bool {
        self.push_behind(|| pieces().into_iter().map(Op::Write))
    }

    /// As [`Self::write`], for a discard.
    pub fn discard(&self, offset: u64, len: u64) -> bool {
        self.push_behind(|| [Op::Discard { offset, len }].into_iter())
    }

    /// As [`Self::write`], for an ordering flush.
    pub fn barrier(&self) -> bool {
        self.push_behind(|| [Op::Barrier].into_iter())
    }

    fn push_behind<I: Iterator<Item = Op>>(&self, ops: impl FnOnce() -> I) -> bool {
        if !self.is_active() {
            return false;
        }
        let mut queue = self.queue.lock();
        let active = !queue.ops.is_empty();
        if active {
            self.push(&mut queue, ops());
        }
        active
    }

    fn push(&self, queue: &mut Queue, ops: impl Iterator<Item = Op>) {
        for op in ops {
            if let Op::Write(piece) = &op {
                self.bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
            }
            queue.ops.push_back(op.alone());
        }
        self.active.store(!queue.ops.is_empty(), Ordering::Release);
    }

    /// Held writes that overlap a range, oldest first.
    pub fn over(&self, offset: u64, len: usize) -> Vec<Piece> {
        if !self.is_active() {
            return Vec::new();
        }
        let end = offset + len as u64;
        let queue = self.queue.lock();
        let writes = queue.ops.iter().filter_map(|op| match op {
            Op::Write(piece) => Some(piece),
            _ => None,
        });
        let overlaps = |p: &&Piece| p.offset < end && offset < p.offset + p.len() as u64;
        writes.filter(overlaps).cloned().collect()
    }

    /// Executes the queued operations as far as there is space. Succeeds only if the queue is empty
    /// afterwards.
    ///
    /// # Errors
    /// [`Error::HostFull`] if there is still no space; an I/O error of the device.
    pub fn drain(&self, device: &dyn Device) -> Result<()> {
        let _one = self.draining.lock();
        self.drain_now(device)
    }

    /// As [`Self::drain`]; if another thread is draining, returns at once with the current state.
    pub fn try_drain(&self, device: &dyn Device) -> Result<()> {
        match self.draining.try_lock() {
            Some(_one) => self.drain_now(device),
            None if self.is_active() => Err(self.error()),
            None => Ok(()),
        }
    }

    fn drain_now(&self, device: &dyn Device) -> Result<()> {
        loop {
            let Some(op) = self.queue.lock().ops.front().cloned() else {
                return Ok(());
            };
            let done = match &op {
                Op::Write(piece) => device.write_all(std::slice::from_ref(piece)),
                Op::Discard { offset, len } => device.discard(*offset, *len),
                Op::Barrier => device.flush(),
            };
            match done {
                Err(Error::HostFull { .. }) => return Err(self.error()),
                other => other?,
            }
            self.pop_executed(&op);
        }
    }

    /// Removes the first operation of the queue after the device has executed it.
    fn pop_executed(&self, op: &Op) {
        let mut queue = self.queue.lock();
        queue.ops.pop_front();
        if let Op::Write(piece) = op {
            self.bytes.fetch_sub(piece.len() as u64, Ordering::Relaxed);
        }
        if queue.ops.is_empty() {
            self.active.store(false, Ordering::Release);
            tracing::warn!("{} has space again: all changes are written", queue.path);
        }
    }

    /// Drops all held operations, because the volume is closed.
    pub fn forget(&self) {
        let _one = self.draining.lock();
        let mut queue = self.queue.lock();
        queue.ops.clear();
        self.bytes.store(0, Ordering::Relaxed);
        self.active.store(false, Ordering::Release);
    }
}
