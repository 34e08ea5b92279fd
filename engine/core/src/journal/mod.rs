//! Delayed logging: changes gather in a context in memory; a push writes the context to the log.
//!
//! Uses device, format, space's [`crate::space::BlockRun`] and errors. Contexts get their
//! places in the log in the order of their sequence numbers, under the head's lock, and count as
//! written in that order; several threads may format and write some at once ([`head`]). Commits that
//! insert changes take no lock of these. A context is valid once all its records are valid, so there
//! is no separate commit record.

mod ablation;
mod bytes;
pub mod cil;
#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "tests/ends.rs"]
mod ends;
pub mod fsync_record;
mod head;
#[cfg(test)]
#[path = "tests/log.rs"]
mod log;
pub mod position;
mod push;
#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "tests/pushes.rs"]
mod pushes;
mod records;
pub mod recover;
pub mod ring;
#[cfg(test)]
#[cfg(shuttle)]
#[path = "tests/schedules.rs"]
mod schedules;
pub mod signals;
pub mod vector;

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::journal::bytes::Spares;
use crate::journal::cil::{Cil, Filled};
use crate::journal::head::{Closing, Turns};
use crate::journal::position::LogPosition;
use crate::journal::push::Closed;
use crate::journal::ring::{CONTEXT_BASE, Ring};
use crate::journal::signals::Signals;
use crate::journal::vector::LogVector;
use crate::space::BlockRun;
use cairnfs_disk::device::{Storage, waiting};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault};
use cairnfs_disk::format::superblock::Superblock;
use cairnfs_disk::mechanism::Mechanism;
use cairnfs_disk::metrics::Latency;
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};

/// Smallest and largest soft limit of a context, in log bytes. A context of this size starts a
/// background push; an fsync that arrives during pushes waits for them.
const SOFT_LIMIT: std::ops::RangeInclusive<i64> = (256 << 10)..=(512 << 10);

/// Smallest and largest hard limit of a context, in log bytes. Beyond it committers wait for the
/// push.
const HARD_LIMIT: std::ops::RangeInclusive<i64> = (512 << 10)..=(64 << 20);

/// How far the log has been written.
#[derive(Debug, Clone, Copy, Default)]
pub struct Written {
    seq: u64,
    lsn: u64,
    chain: u64,
    /// Stamp of the last of these writes, or of a later write.
    stamp: u64,
}

/// Counters of the journal.
#[derive(Debug, Default)]
pub struct JournalCounters {
    /// Contexts written.
    pub contexts: AtomicU64,
    /// Records written.
    pub records: AtomicU64,
    /// Bytes written to the log, rounding included.
    pub log_bytes: AtomicU64,
    /// Entries written.
    pub entries: AtomicU64,
    /// Vectors that were dead when their context was pushed, so they were not logged.
    pub cancelled: AtomicU64,
    /// Log bytes of the largest context.
    pub largest: AtomicU64,
    /// Time from closing a context to the end of its write.
    pub pushes: Latency,
    /// Time that committers waited because the context was too large.
    pub throttled: Latency,
    /// Time that reservations waited for space in the log.
    pub log_waits: Latency,
    /// Inodes whose fsync was requested.
    pub fsyncs: AtomicU64,
    /// Fsync records written.
    pub fsync_records: AtomicU64,
    /// Inodes in fsync records.
    pub fsync_inodes: AtomicU64,
    /// Entries in fsync records.
    pub fsync_entries: AtomicU64,
    /// Log blocks taken by fsync records.
    pub fsync_blocks: AtomicU64,
    /// Times the whole context was written for an fsync.
    pub whole_contexts: AtomicU64,
}

/// Makes space in a full log.
pub trait LogSpaceReclaimer {
    /// Gives back log space that is reserved but that no transaction holds.
    fn sweep(&self);
    /// Runs a merge in the calling thread. Used when no workers run.
    ///
    /// # Errors
    /// The failure of the merge.
    fn merge(&self) -> Result<()>;

    /// Whether the last merge found no free blocks, so that waiting for the next merge may not
    /// help.
    fn is_starved(&self) -> bool;
}

/// The boundary that a push for a merge sets.
pub struct MergePoint<R> {
    /// Sequence of the last context that the merge takes.
    pub seq: u64,
    /// Largest sequence in the log up to that context, which has no record if it was empty.
    pub logged_seq: u64,
    /// End of the log after that context.
    pub end: LogPosition,
    /// Block runs freed by contexts up to that sequence.
    pub freed: Vec<BlockRun>,
    /// Result of the caller's closure, which ran while no thread committed.
    pub taken: R,
}

/// How much background pushes do.
#[derive(Debug, Clone, Copy)]
pub struct PushLimits {
    /// Log records that a push formats before its turn, in number.
    pub ahead: usize,
    /// Number of vectors, dead ones included, that start a push when the threads of one shard have
    /// added them: the inodes' dependency lists are freed only with their context.
    pub changes: u64,
}

impl PushLimits {
    /// Those of a volume with little memory.
    pub const LEAST: Self = Self {
        ahead: 4,
        changes: 1 << 15,
    };
}

/// The journal of an open volume.
pub struct Journal {
    storage: Arc<Storage>,
    log_blocks: u64,
    uuid: [u8; 16],
    nonce: u64,
    cil: Cil,
    ring: Ring,
    turns: Turns,
    spares: Spares,
    written: CachePadded<Mutex<Written>>,
    durable_seq: AtomicU64,
    durable_lsn: AtomicU64,
    generation: AtomicU64,
    signals: Arc<Signals>,
    counters: JournalCounters,
    limits: PushLimits,
    ablated: Option<Mechanism>,
}

impl Journal {
    /// A journal that continues at `end`, the end of the valid log. The first context has the
    /// sequence `seq`. Writes nothing.
    pub fn new(
        storage: Arc<Storage>,
        superblock: &Superblock,
        nonce: u64,
        end: LogPosition,
        seq: u64,
        (limits, signals): (PushLimits, Arc<Signals>),
    ) -> Self {
        let tail = superblock.tail_lsn.get();
        let log_blocks = superblock.log_blocks.get();
        Self {
            storage,
            log_blocks,
            uuid: superblock.uuid,
            nonce,
            cil: Cil::new(seq, superblock.merged_seq.get()),
            ring: Ring::new(log_blocks, tail, end.lsn - tail),
            turns: Turns::new(end, seq - 1),
            spares: Spares::new(limits.ahead),
            written: CachePadded::new(Mutex::new(Written {
                seq: seq - 1,
                lsn: end.lsn,
                chain: end.chain,
                stamp: 0,
            })),
            durable_seq: AtomicU64::new(seq - 1),
            durable_lsn: AtomicU64::new(end.lsn),
            generation: AtomicU64::new(superblock.generation.get()),
            signals,
            counters: JournalCounters::default(),
            limits,
            ablated: None,
        }
    }

    /// The committed item list.
    pub fn cil(&self) -> &Cil {
        &self.cil
    }

    /// The log's space accounting.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The counters.
    pub fn counters(&self) -> &JournalCounters {
        &self.counters
    }

    /// LSN up to which the log is durable before any later write.
    pub fn durable_lsn(&self) -> u64 {
        self.durable_lsn.load(Ordering::Acquire)
    }

    /// The end of the written log.
    pub fn end(&self) -> LogPosition {
        let written = self.written.lock();
        LogPosition {
            lsn: written.lsn,
            chain: written.chain,
        }
    }

    /// Records the generation of the newest durable superblock.
    pub fn set_generation(&self, generation: u64) {
        self.generation.store(generation, Ordering::Release);
    }

    /// Log bytes at which a background push starts.
    pub fn soft_limit(&self) -> i64 {
        (self.ring.capacity() / 64).clamp(*SOFT_LIMIT.start(), *SOFT_LIMIT.end())
    }

    fn hard_limit(&self) -> i64 {
        (self.ring.capacity() / 4).clamp(*HARD_LIMIT.start(), *HARD_LIMIT.end())
    }

    /// Reserves `bytes` of log space, a transaction's worst case; waits for a merge if the log is
    /// full. The caller holds no lock.
    ///
    /// # Errors
    /// The volume has failed; [`Error::HostFull`](cairnfs_disk::error::Error::HostFull);
    /// [`Error::NoSpace`] if merges find no free blocks.
    pub fn reserve(&self, bytes: i64, reclaimer: &dyn LogSpaceReclaimer) -> Result<()> {
        loop {
            self.storage.check()?;
            let seen = self.ring.wakes();
            if self.ring.try_take(bytes) {
                return Ok(());
            }
            reclaimer.sweep();
            if self.ring.try_take(bytes) {
                return Ok(());
            }
            waiting::before()?;
            // A merge cannot make space while the host refuses writes, so retry them first.
            self.storage.retry_held()?;
            if self.signals.has_workers() {
                self.signals.want_merge();
                self.counters.log_waits.time(|| {
                    self.ring.wait(seen, || {
                        self.ring.free() >= bytes
                            || self.storage.failure().is_some()
                            || !self.signals.has_workers()
                    });
                });
                if reclaimer.is_starved() && self.ring.free() < bytes {
                    return Err(Error::NoSpace);
                }
            } else {
                reclaimer.merge()?;
            }
        }
    }

    /// Called after a commit, with no lock held. Starts a push beyond the soft limit, and waits for
    /// one beyond the hard limit.
    ///
    /// # Errors
    /// The push's failure.
    pub fn throttle(
        &self,
        filled: Filled,
        seq: u64,
        reclaimer: &dyn LogSpaceReclaimer,
    ) -> Result<()> {
        let hard = self.hard_limit();
        // Without workers every push is run by the thread that waits for it, so the limit is lower.
        let limit = if self.signals.has_workers() {
            hard
        } else {
            hard / 2
        };
        if filled.charged >= limit && !waiting::postponed(seq) {
            let throttled = &self.counters.throttled;
            return throttled.time(|| self.write_through(seq, reclaimer));
        }
        let many = filled.charged >= self.soft_limit() || filled.changes >= self.limits.changes;
        if many && self.signals.has_workers() {
            self.signals.want_push(seq);
        }
        Ok(())
    }

    /// Returns once the context `seq` and all earlier ones are written. They need not be durable.
    /// Threads that wait here at the same time share a context.
    pub fn write_through(&self, seq: u64, reclaimer: &dyn LogSpaceReclaimer) -> Result<()> {
        if self.written.lock().seq >= seq {
            return self.storage.check();
        }
        self.write_open(seq, reclaimer, |closing| closing.wait_for_earlier())
    }

    /// Closes the context `seq`, if it is open, and writes it. Earlier ones may be on their way to
    /// the log, so only a few threads may call this: an fsync waits for all of them.
    pub fn push(&self, seq: u64, reclaimer: &dyn LogSpaceReclaimer) -> Result<()> {
        if self.cil.seq() > seq {
            return self.storage.check();
        }
        self.write_open(seq, reclaimer, |_| ())
    }

    /// Writes the context `seq`, if it is still open after `wait` and not empty.
    fn write_open(
        &self,
        seq: u64,
        reclaimer: &dyn LogSpaceReclaimer,
        wait: impl FnOnce(&mut Closing<'_>),
    ) -> Result<()> {
        self.reserve(CONTEXT_BASE, reclaimer)?;
        let mut closing = self.turns.closing();
        wait(&mut closing);
        // Another push may have overtaken this one.
        let overtaken = self.cil.seq() > seq;
        if overtaken || self.cil.hold().is_empty() {
            self.ring.give(CONTEXT_BASE);
            if !overtaken {
                // Everything was cancelled; the context stays open, and may be filled again.
                self.signals.put_off(seq);
            }
            return self.storage.check();
        }
        let mut closed = self.close_context(closing);
        self.write_closed(&mut closed, &[]).map(|_| ())
    }

    /// Closes the open context.
    fn close_context<'a>(&self, closing: Closing<'a>) -> Closed<'a> {
        // The turn is taken within the swap. So the thread that closes the next context waits only for
        // the locks that are not free again yet.
        let (context, turn) = self.cil.swap(false, |_| closing.take_turn());
        Closed::new(turn, context)
    }

    /// Frees memory that only pushes of large contexts need. Call it periodically.
    pub fn rest(&self) {
        self.spares.free();
    }

    /// Returns once the context `seq` and all earlier ones are durable.
    ///
    /// # Errors
    /// The device's failure, now or earlier.
    pub fn force(&self, seq: u64, reclaimer: &dyn LogSpaceReclaimer) -> Result<()> {
        if self.durable_seq.load(Ordering::Acquire) >= seq {
            return self.storage.check();
        }
        self.write_through(seq, reclaimer)?;
        fault::unless(InjectedFault::FsyncWithoutFlush, || self.flush())
    }

    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// The device's failure, now or earlier.
    pub fn flush(&self) -> Result<()> {
        let written = *self.written.lock();
        self.make_durable(&written, self.storage.stamp())
    }

    /// Orders everything written so far before all later writes: it is durable before any of them.
    ///
    /// # Errors
    /// The device's failure, now or earlier.
    pub fn order(&self) -> Result<()> {
        let (written, stamp) = (*self.written.lock(), self.storage.stamp());
        self.storage.order_through(stamp)?;
        self.durable_lsn.fetch_max(written.lsn, Ordering::AcqRel);
        if self.storage.is_flushed(stamp) {
            self.durable_seq.fetch_max(written.seq, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Makes the log durable up to the position `written`. Later records need not become durable.
    ///
    /// # Errors
    /// The device's failure, now or earlier.
    pub fn flush_written(&self, written: &Written) -> Result<()> {
        fault::unless(InjectedFault::FsyncWithoutFlush, || {
            self.make_durable(written, written.stamp)
        })
    }

    fn make_durable(&self, written: &Written, stamp: u64) -> Result<()> {
        self.storage.flush_through(stamp)?;
        self.durable_lsn.fetch_max(written.lsn, Ordering::AcqRel);
        self.durable_seq.fetch_max(written.seq, Ordering::AcqRel);
        Ok(())
    }

    /// Closes the open context as the last one of a merge and writes it. `take` gets its sequence
    /// and runs while no thread commits; it returns changes of roots, which become the last entries
    /// of the context and for which the caller has reserved `paid` bytes of log. The base of the next
    /// context is paid from the standing credit, so this never waits for log space; the merge
    /// restores the credit with [`Self::merged`]. A caller that has reserved [`CONTEXT_BASE`]
    /// besides `paid` leaves the credit whole. If `take` fails, the context stays open.
    ///
    /// # Errors
    /// Those of `take`; the device's failure, which stops the volume.
    pub fn push_for_merge<R>(
        &self,
        paid: i64,
        take: impl FnOnce(u64) -> Result<(R, Vec<Arc<LogVector>>)>,
    ) -> Result<MergePoint<R>> {
        // A merge that closed its context early would free committers of the hard limit, until the
        // log is full and all others wait as well.
        let mut closing = self.turns.closing();
        closing.wait_for_earlier();
        let (context, ((taken, roots), turn)) = self.cil.try_swap(true, |seq| {
            take(seq).map(|taken| (taken, closing.take_turn()))
        })?;
        let mut closed = Closed::new(turn, context);
        closed.charge(paid);
        self.write_closed(&mut closed, &roots)?;
        let seq = closed.seq();
        let head = closed.head();
        Ok(MergePoint {
            seq,
            logged_seq: head.logged_seq,
            end: head.position(),
            freed: std::mem::take(&mut head.freed),
            taken,
        })
    }

    /// Moves the tail, once a merge's superblock is durable, and restores the standing credit if it
    /// was `credited`: the merge closed its last context with it.
    pub fn merged(&self, tail: u64, credited: bool) {
        if credited {
            self.ring.take(CONTEXT_BASE);
        }
        assert!(
            self.ring.tail() <= tail,
            "merge invariant 3: the tail never moves back"
        );
        self.ring.move_tail(tail);
    }

    /// Writes the mount record, the first record of every mount, and makes it durable.
    pub fn write_mount_record(&self) -> Result<()> {
        let mut closed = self.close_context(self.turns.closing());
        let seq = closed.seq();
        self.write_mount(closed.head(), seq)?;
        drop(closed);
        fault::unless(InjectedFault::MountRecordUnflushed, || self.flush())
    }

    /// Notes that everything up to `position` is written, all contexts up to `seq` among it.
    fn note_written(&self, position: LogPosition, seq: u64) -> Written {
        let written = Written {
            seq,
            lsn: position.lsn,
            chain: position.chain,
            stamp: self.storage.stamp(),
        };
        let mut before = self.written.lock();
        assert!(
            before.seq <= seq && before.lsn <= position.lsn,
            "context invariant 3: contexts become written in order"
        );
        *before = written;
        written
    }
}
