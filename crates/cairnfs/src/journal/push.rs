//! Writing a closed context to the log: vectors are formatted into records, which are written
//! sequentially.
//!
//! Runs under the head's lock and takes no other lock except each vector's own for the copy. Data
//! that the context refers to is durable before the first record that refers to it is written.

use std::sync::Arc;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::device::{AlignedBuf, Piece};
use crate::error::{Error, Result};
use crate::fault::{self, InjectedFault, is_injected};
use crate::format::geometry::LOG_START;
use crate::format::record::{
    FLAG_FSYNC, FLAG_LAST, FLAG_MOUNT, FLAG_ROOTS, RecordHeader, blocks_for,
};
use crate::format::{BLOCK_SIZE, checksum};
use crate::journal::Journal;
use crate::journal::bytes::RecordBytes;
use crate::journal::cil::{Context, Drained};
use crate::journal::position::{FLUSH_EVERY, LogPosition};
use crate::journal::ring::CONTEXT_BASE;
use crate::journal::vector::{LogVector, Logged};
use crate::prefetch::prefetch;
use crate::space::BlockRun;
use crate::sync::atomic::Ordering;

/// Vectors that are prefetched together.
const FETCHED: usize = 32;

/// The end of the log, and the state that is kept between pushes.
pub struct Head {
    lsn: u64,
    chain: u64,
    /// Largest sequence of a context, fsync record or mount record that is in the log as a whole. A
    /// closed context has a larger one if all its items were cancelled: it has no record.
    pub(super) logged_seq: u64,
    flushed_lsn: u64,
    record: RecordBytes,
    /// Runs freed by contexts written since the last merge began.
    pub(super) freed: Vec<BlockRun>,
}

impl Head {
    pub(super) fn new(end: LogPosition, logged_seq: u64) -> Self {
        Self {
            lsn: end.lsn,
            chain: end.chain,
            logged_seq,
            flushed_lsn: end.lsn,
            record: RecordBytes::default(),
            freed: Vec::new(),
        }
    }

    pub(super) fn position(&self) -> LogPosition {
        LogPosition {
            lsn: self.lsn,
            chain: self.chain,
        }
    }
}

/// Header fields of a record besides those derived from its payload.
struct Part {
    seq: u64,
    part: u32,
    entries: u32,
    flags: u32,
    /// Bytes of checks at the payload's end.
    checks: u32,
}

impl Journal {
    /// Writes a closed context; its log space was charged when it was filled. The changes of
    /// `roots` are its last entries: a record that has them closes its context.
    pub(super) fn write_context(
        &self,
        head: &mut Head,
        context: &Context,
        roots: &[Arc<LogVector>],
    ) -> Result<()> {
        let start = head.lsn;
        self.storage.check()?;
        fault::unless(InjectedFault::StagedWithContext, || {
            self.storage.write_with_staged(&[])
        })?;
        let staged = if context.has_staged() {
            self.storage.staged_stamp()
        } else {
            0
        };
        self.data_first(context.data_stamp().max(staged))?;
        let Drained {
            vectors,
            mut freed,
            charged,
            died,
        } = context.drain();
        self.counters.cancelled.fetch_add(died, Ordering::Relaxed);
        let largest = &self.counters.largest;
        largest.fetch_max(charged.max(0) as u64, Ordering::Relaxed);
        head.freed.append(&mut freed);
        let (mut vectors, paid) = self.with_copies(vectors);
        vectors.extend_from_slice(roots);
        let flags = match roots {
            [] => 0,
            _ => FLAG_ROOTS,
        };
        if self.write_entries(head, context.seq, flags, &vectors, &[])? {
            self.counters.contexts.fetch_add(1, Ordering::Relaxed);
        }
        self.return_unused_space(head, start, charged + paid + CONTEXT_BASE);
        self.note_written(head, context.seq);
        self.signals.pushed();
        self.flush_far(head)
    }

    /// Writes the data that is staged now. The caller must not hold a lock of a file's state.
    ///
    /// # Errors
    /// The device's failure, now or earlier.
    pub fn write_staged(&self) -> Result<()> {
        if self.storage.has_none_staged() {
            return Ok(());
        }
        let _head = self.head.lock();
        self.storage.write_with_staged(&[])
    }

    /// Makes data up to `stamp` durable before a record that refers to it is written.
    ///
    /// # Errors
    /// The device's failure.
    pub fn data_first(&self, stamp: u64) -> Result<()> {
        if self.storage.is_flushed(stamp) || is_injected(InjectedFault::LogBeforeData) {
            return Ok(());
        }
        self.storage.order_through(stamp)
    }

    /// Writes items in as many records as they need. A context's records leave out the items that
    /// fsync records have logged. Returns whether anything was written.
    pub(super) fn write_entries(
        &self,
        head: &mut Head,
        seq: u64,
        flags: u32,
        vectors: &[Arc<LogVector>],
        checks: &[u8],
    ) -> Result<bool> {
        let mut part = Part {
            seq,
            part: 0,
            entries: 0,
            flags,
            checks: 0,
        };
        let mut left = vectors;
        loop {
            let (bytes, rest) = self.put_entries(head.record.room(), left, &mut part);
            head.record.added(bytes);
            left = rest;
            if left.is_empty() {
                break;
            }
            if part.entries == 0 {
                return Err(Error::Invalid("an item larger than a log record"));
            }
            self.write_record(head, &part)?;
            self.flush_far(head)?;
            part.part += 1;
            part.entries = 0;
        }
        let any = part.part > 0 || part.entries > 0;
        if any {
            if head.record.room().len() < checks.len() {
                self.write_record(head, &part)?;
                part.part += 1;
                part.entries = 0;
            }
            let Some(room) = head.record.room().get_mut(..checks.len()) else {
                return Err(Error::Invalid("checks larger than a log record"));
            };
            room.copy_from_slice(checks);
            head.record.added(checks.len());
            part.checks = checks.len() as u32;
            part.flags |= FLAG_LAST;
            self.write_record(head, &part)?;
        }
        Ok(any)
    }

    /// Puts as many items into a record as fit. Returns the bytes they take, and the remaining
    /// items.
    fn put_entries<'v>(
        &self,
        mut room: &mut [u8],
        vectors: &'v [Arc<LogVector>],
        part: &mut Part,
    ) -> (usize, &'v [Arc<LogVector>]) {
        let (mut bytes, mut done) = (0, 0);
        let of_group = part.flags & FLAG_FSYNC != 0;
        'full: for some in vectors.chunks(FETCHED) {
            some.iter().for_each(|vector| prefetch(&**vector));
            for vector in some {
                if vector.is_logged() && !of_group {
                    done += 1;
                    continue;
                }
                match vector.log_to(room) {
                    Logged::Added(used) => {
                        room = room.get_mut(used..).unwrap_or_default();
                        bytes += used;
                        part.entries += 1;
                    }
                    Logged::Nothing => {
                        self.counters.cancelled.fetch_add(1, Ordering::Relaxed);
                    }
                    Logged::Full => break 'full,
                }
                done += 1;
            }
        }
        (bytes, vectors.get(done..).unwrap_or_default())
    }

    /// Gives back the part of `paid` (bytes) that the records since `start` did not use.
    pub(super) fn return_unused_space(&self, head: &Head, start: u64, paid: i64) {
        let used = (head.lsn - start) as i64 * BLOCK_SIZE as i64;
        assert!(
            used <= paid,
            "records need {used} log bytes, {paid} were reserved"
        );
        self.ring.give(paid - used);
    }

    /// Makes the log durable if more than [`FLUSH_EVERY`] blocks of it are not, which bounds the
    /// part that recovery must search.
    pub(super) fn flush_far(&self, head: &mut Head) -> Result<()> {
        if head.lsn - head.flushed_lsn < FLUSH_EVERY {
            return Ok(());
        }
        self.storage.order_through(self.storage.stamp())?;
        head.flushed_lsn = head.lsn;
        self.durable_lsn.fetch_max(head.lsn, Ordering::AcqRel);
        Ok(())
    }

    /// Writes a mount record. It is paid from the base of the context `seq`.
    pub(super) fn write_mount(&self, head: &mut Head, seq: u64) -> Result<()> {
        head.record.clear();
        if head.lsn + 1 - self.ring.tail() > self.log_blocks {
            return Err(Error::Invalid(
                "the log has no room for one more mount; open the volume read-only to save its files",
            ));
        }
        self.write_record(
            head,
            &Part {
                seq,
                part: 0,
                entries: 0,
                flags: FLAG_MOUNT | FLAG_LAST,
                checks: 0,
            },
        )?;
        self.note_written(head, seq);
        self.signals.pushed();
        // The next context needs a full base; the mount record used one block of the old one.
        self.ring.take(BLOCK_SIZE as i64);
        Ok(())
    }

    fn write_record(&self, head: &mut Head, part: &Part) -> Result<()> {
        let len = head.record.len();
        let blocks = blocks_for(len);
        let occupied = head.lsn + blocks - self.ring.tail();
        assert!(
            occupied <= self.log_blocks,
            "the log would overwrite its tail: {occupied} of {} blocks",
            self.log_blocks
        );
        let mut header = RecordHeader {
            flags: U32::new(part.flags),
            uuid: self.uuid,
            nonce: U64::new(self.nonce),
            lsn: U64::new(head.lsn),
            chain: U64::new(head.chain),
            seq: U64::new(part.seq),
            durable_lsn: U64::new(self.durable_lsn()),
            generation: U64::new(self.generation.load(Ordering::Acquire)),
            part: U32::new(part.part),
            entries: U32::new(part.entries),
            payload_len: U32::new(len as u32),
            payload_crc: U32::new(checksum::crc(head.record.payload())),
            checks_len: U32::new(part.checks),
            ..RecordHeader::default()
        };
        fault::inject(InjectedFault::DurableLsnAhead, || {
            header.durable_lsn = U64::new(head.lsn);
        });
        header.seal();
        let bytes = blocks as usize * BLOCK_SIZE;
        let buffer = head.record.close(header.as_bytes(), bytes);
        self.write_ring(head.lsn, buffer, bytes)?;
        head.lsn += blocks;
        head.chain = header.checksum.get();
        if part.flags & FLAG_LAST != 0 {
            head.logged_seq = part.seq;
        }
        head.record.clear();
        self.counters.records.fetch_add(1, Ordering::Relaxed);
        self.counters
            .log_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        self.counters
            .entries
            .fetch_add(u64::from(part.entries), Ordering::Relaxed);
        Ok(())
    }

    /// Writes a record together with the staged data that waits for one.
    fn write_ring(&self, lsn: u64, buffer: &Arc<AlignedBuf>, bytes: usize) -> Result<()> {
        let at = lsn % self.log_blocks;
        let first = bytes.min((self.log_blocks - at) as usize * BLOCK_SIZE);
        let block = BLOCK_SIZE as u64;
        let pieces = [
            Piece::new((LOG_START + at) * block, buffer.clone(), 0..first),
            Piece::new(LOG_START * block, buffer.clone(), first..bytes),
        ];
        let used = if first < bytes { 2 } else { 1 };
        let pieces = pieces.get(..used).unwrap_or_default();
        let alone = || self.storage.write_all(pieces);
        let with_staged = || self.storage.write_with_staged(pieces);
        fault::or(InjectedFault::StagedLeft, with_staged, alone)
    }
}
