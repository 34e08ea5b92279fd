//! Writing to the log: a closed context, and the records of any kind, which get their places and
//! headers sequentially.
//!
//! Each write has its turn ([`super::head`]), and holds the head's lock in it. A background push
//! holds the lock only while its records get their places, and writes them beside other pushes.
//! Data that a context refers to is durable before the first record that refers to it is written.

use std::sync::Arc;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::journal::cil::{Context, Drained};
use crate::journal::head::{Head, Turn};
use crate::journal::position::FLUSH_EVERY;
use crate::journal::records::{Record, Records};
use crate::journal::ring::CONTEXT_BASE;
use crate::journal::vector::LogVector;
use crate::journal::{Journal, Written};
use crate::space::BlockRun;
use cairnfs_disk::device::{AlignedBuf, Piece, Pieces};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault, is_injected};
use cairnfs_disk::format::geometry::LOG_START;
use cairnfs_disk::format::record::{FLAG_LAST, FLAG_MOUNT, FLAG_ROOTS, RecordHeader};
use cairnfs_disk::format::{BLOCK_SIZE, checksum};
use cairnfs_disk::sync::atomic::Ordering;

/// What a context leaves to the head.
#[derive(Default)]
struct Taken {
    /// Runs that its changes freed.
    freed: Vec<BlockRun>,
    /// Log bytes that were reserved for it.
    paid: i64,
}

/// A record whose place in the log is known.
struct Placed {
    lsn: u64,
    header: RecordHeader,
    record: Record,
}

/// A closed context on its way to the log.
pub(super) struct Closed<'a> {
    // Dropped in this order: the next turn does not wait until the items are freed.
    turn: Turn<'a>,
    context: Arc<Context>,
    vectors: Vec<Arc<LogVector>>,
}

impl<'a> Closed<'a> {
    pub(super) fn new(turn: Turn<'a>, context: Arc<Context>) -> Self {
        Self {
            turn,
            context,
            vectors: Vec::new(),
        }
    }

    /// Its context's sequence.
    pub(super) fn seq(&self) -> u64 {
        self.context.seq
    }

    /// The log's head, when it is the context's turn: once it is written, it ends there.
    pub(super) fn head(&mut self) -> &mut Head {
        self.turn.head()
    }

    /// Accounts log bytes that were reserved for it besides those of its commits.
    pub(super) fn charge(&self, bytes: i64) {
        self.context.charge(bytes);
    }
}

impl Journal {
    /// Writes a closed context, with the changes of `roots` as its last entries. Returns how far the
    /// log is written then. The turn is over when `closed` is dropped.
    pub(super) fn write_closed(
        &self,
        closed: &mut Closed<'_>,
        roots: &[Arc<LogVector>],
    ) -> Result<Written> {
        self.or_fail("a push to the log was broken off", || {
            let pushes = &self.counters.pushes;
            pushes.time(|| self.write_context(closed, roots))
        })
    }

    /// Fails the volume if `write` fails or panics: if changes do not reach the log, their commits
    /// are lost, and every later context is invalid. The caller has a turn, or the right to take the
    /// next one, so nothing later counts as written before that.
    pub(super) fn or_fail<T>(
        &self,
        broken_off: &'static str,
        write: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let guard = self.storage.guard(broken_off);
        let result = write();
        if let Err(e) = &result {
            self.storage.fail(e.clone());
        }
        guard.done();
        result
    }

    /// Its log space was charged when the context was filled. A record that has changes of roots
    /// closes its context.
    fn write_context(&self, closed: &mut Closed<'_>, roots: &[Arc<LogVector>]) -> Result<Written> {
        let context = &closed.context;
        let Drained {
            vectors,
            freed,
            charged,
            died,
        } = context.drain();
        let largest = &self.counters.largest;
        largest.fetch_max(charged.max(0) as u64, Ordering::Relaxed);
        let (vectors, paid) = self.with_copies(vectors);
        closed.vectors = vectors;
        closed.vectors.extend_from_slice(roots);
        let flags = match roots {
            [] => 0,
            _ => FLAG_ROOTS,
        };
        let mut records = Records::new(context.seq, flags, &closed.vectors, &[]);
        let mut ahead = self.format_ahead(&mut records)?;
        let mut taken = Taken {
            freed,
            paid: charged + paid + CONTEXT_BASE,
        };
        let mut apart = None;
        if !context.has_staged() {
            // Before the turn, so that contexts on their way share a flush.
            self.data_first(context.data_stamp())?;
            if records.ended() {
                let all = (&mut ahead, &mut taken);
                apart = self.write_apart(&mut closed.turn, context.seq, all)?;
            }
        }
        let written = match apart {
            Some(written) => written,
            None => {
                let all = (ahead, &mut records, taken);
                self.write_at_head(closed.turn.head(), context, all)?
            }
        };
        let died = died + records.cancelled();
        self.counters.cancelled.fetch_add(died, Ordering::Relaxed);
        Ok(written)
    }

    /// Writes records that are formatted, and then the others of a context, at the head.
    fn write_at_head(
        &self,
        head: &mut Head,
        context: &Context,
        (formatted, records, taken): (Vec<Record>, &mut Records<'_>, Taken),
    ) -> Result<Written> {
        let start = head.lsn;
        self.storage.check()?;
        self.write_data_of(context)?;
        if self.write_records(head, formatted, records)? {
            self.counters.contexts.fetch_add(1, Ordering::Relaxed);
        }
        self.take(head, start, taken);
        let written = self.note_written(head.position(), context.seq);
        self.flush_far(head)?;
        Ok(written)
    }

    /// Writes all records of the context `seq` while other pushes write theirs. Returns none, and
    /// changes nothing, if the log must be flushed behind it, or if the thread has the head already.
    fn write_apart(
        &self,
        turn: &mut Turn<'_>,
        seq: u64,
        (records, taken): (&mut Vec<Record>, &mut Taken),
    ) -> Result<Option<Written>> {
        let blocks: u64 = records.iter().map(Record::blocks).sum();
        let places = turn.place(|head| {
            if is_far(head, blocks) {
                return None;
            }
            let start = head.lsn;
            let records = std::mem::take(records).into_iter();
            let placed: Vec<Placed> = records.map(|record| self.place(head, record)).collect();
            self.take(head, start, std::mem::take(taken));
            Some((placed, head.position()))
        });
        let Some((placed, end)) = places else {
            return Ok(None);
        };
        let contexts = u64::from(!placed.is_empty());
        for record in placed {
            self.write_placed(record, |pieces| self.storage.write_all(pieces))?;
        }
        let counted = &self.counters.contexts;
        counted.fetch_add(contexts, Ordering::Relaxed);
        turn.wait_for_earlier();
        // The write of an earlier one may have failed.
        self.storage.check()?;
        Ok(Some(self.note_written(end, seq)))
    }

    /// Takes the freed runs of a context whose records begin at `start` and end at the head, and
    /// gives back the log space that it does not need.
    fn take(&self, head: &mut Head, start: u64, mut taken: Taken) {
        head.freed.append(&mut taken.freed);
        self.return_unused_space(head, start, taken.paid);
    }

    /// Formats records before the context's turn. The rest of a large one is formatted in its turn,
    /// record by record, which bounds the memory for it.
    fn format_ahead(&self, records: &mut Records<'_>) -> Result<Vec<Record>> {
        let mut ahead = Vec::new();
        while ahead.len() < self.limits.ahead
            && let Some(record) = records.next(&self.spares)?
        {
            ahead.push(record);
        }
        Ok(ahead)
    }

    /// Makes the data durable that a context's entries refer to.
    fn write_data_of(&self, context: &Context) -> Result<()> {
        fault::unless(InjectedFault::StagedWithContext, || {
            self.storage.write_with_staged(&[])
        })?;
        let staged = if context.has_staged() {
            self.storage.staged_stamp()
        } else {
            0
        };
        self.data_first(context.data_stamp().max(staged))
    }

    /// Writes the data that is staged now. The caller must not hold a lock of a file's state.
    ///
    /// # Errors
    /// The device's failure, now or earlier.
    pub fn write_staged(&self) -> Result<()> {
        if self.storage.has_none_staged() {
            return Ok(());
        }
        self.turns.pause(|| self.storage.write_with_staged(&[]))
    }

    /// Makes data up to `stamp` durable before a record that refers to it is written.
    pub fn data_first(&self, stamp: u64) -> Result<()> {
        if self.storage.is_flushed(stamp) || is_injected(InjectedFault::LogBeforeData) {
            return Ok(());
        }
        self.storage.order_through(stamp)
    }

    /// Writes records that are formatted, and then the others of `records`. Returns whether there
    /// was any.
    pub(super) fn write_records(
        &self,
        head: &mut Head,
        formatted: Vec<Record>,
        records: &mut Records<'_>,
    ) -> Result<bool> {
        let mut any = false;
        let others = std::iter::from_fn(|| records.next(&self.spares).transpose());
        for record in formatted.into_iter().map(Ok).chain(others) {
            let record = record?;
            let is_last = record.is_last();
            self.write_record(head, record)?;
            if !is_last {
                self.flush_far(head)?;
            }
            any = true;
        }
        Ok(any)
    }

    /// Gives back the part of `paid` (bytes) that the records since `start` did not use.
    pub(super) fn return_unused_space(&self, head: &Head, start: u64, paid: i64) {
        let used = (head.lsn - start) as i64 * BLOCK_SIZE as i64;
        assert!(
            used <= paid,
            "context invariant 4: records need {used} log bytes, {paid} were reserved"
        );
        self.ring.give(paid - used);
    }

    /// Makes the log durable if more than [`FLUSH_EVERY`] blocks of it are not, which bounds the
    /// part that recovery must search.
    pub(super) fn flush_far(&self, head: &mut Head) -> Result<()> {
        if !is_far(head, 0) {
            return Ok(());
        }
        self.storage.order_through(self.storage.stamp())?;
        head.flushed_lsn = head.lsn;
        self.durable_lsn.fetch_max(head.lsn, Ordering::AcqRel);
        Ok(())
    }

    /// Writes a mount record. It is paid from the base of the context `seq`.
    pub(super) fn write_mount(&self, head: &mut Head, seq: u64) -> Result<()> {
        if head.lsn + 1 - self.ring.tail() > self.log_blocks {
            return Err(Error::Invalid(
                "the log has no room for one more mount; open the volume read-only to save its files",
            ));
        }
        let bytes = self.spares.take();
        let record = Record {
            seq,
            part: 0,
            entries: 0,
            flags: FLAG_MOUNT | FLAG_LAST,
            checks: 0,
            crc: checksum::crc(bytes.payload()),
            bytes,
        };
        self.write_record(head, record)?;
        self.note_written(head.position(), seq);
        // The next context needs a full base; the mount record used one block of the old one.
        self.ring.take(BLOCK_SIZE as i64);
        Ok(())
    }

    fn write_record(&self, head: &mut Head, record: Record) -> Result<()> {
        let placed = self.place(head, record);
        self.write_placed(placed, |pieces| {
            let alone = || self.storage.write_all(pieces);
            // Together with the staged data that waits for a record.
            let with_staged = || self.storage.write_with_staged(pieces);
            fault::or(InjectedFault::StagedLeft, with_staged, alone)
        })
    }

    /// Gives a record its place at the head, and its header.
    fn place(&self, head: &mut Head, record: Record) -> Placed {
        let (lsn, blocks) = (head.lsn, record.blocks());
        let occupied = lsn + blocks - self.ring.tail();
        assert!(
            occupied <= self.log_blocks,
            "context invariant 5: the log would overwrite its tail: {occupied} of {} blocks",
            self.log_blocks
        );
        assert!(
            record.seq >= head.logged_seq,
            "context invariant 2: records stand in the order of sequences"
        );
        let mut header = RecordHeader {
            flags: U32::new(record.flags),
            uuid: self.uuid,
            nonce: U64::new(self.nonce),
            lsn: U64::new(lsn),
            chain: U64::new(head.chain),
            seq: U64::new(record.seq),
            durable_lsn: U64::new(self.durable_lsn()),
            generation: U64::new(self.generation.load(Ordering::Acquire)),
            part: U32::new(record.part),
            entries: U32::new(record.entries),
            payload_len: U32::new(record.bytes.len() as u32),
            payload_crc: U32::new(record.crc),
            checks_len: U32::new(record.checks),
            ..RecordHeader::default()
        };
        fault::inject(InjectedFault::DurableLsnAhead, || {
            header.durable_lsn = U64::new(lsn);
        });
        header.seal();
        head.lsn += blocks;
        head.chain = header.checksum.get();
        if record.is_last() {
            head.logged_seq = record.seq;
        }
        Placed {
            lsn,
            header,
            record,
        }
    }

    /// Writes a record to its place by `write`.
    fn write_placed(
        &self,
        placed: Placed,
        write: impl FnOnce(&[Piece]) -> Result<()>,
    ) -> Result<()> {
        let Placed {
            lsn,
            header,
            mut record,
        } = placed;
        let bytes = record.blocks() as usize * BLOCK_SIZE;
        let buffer = record.bytes.close(header.as_bytes(), bytes);
        let pieces = self.pieces(lsn, buffer, bytes);
        write(&pieces)?;
        // They share the buffer, which is to be filled again.
        drop(pieces);
        let counters = &self.counters;
        counters.records.fetch_add(1, Ordering::Relaxed);
        counters
            .log_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        let entries = u64::from(record.entries);
        counters.entries.fetch_add(entries, Ordering::Relaxed);
        self.spares.put(record.bytes);
        Ok(())
    }

    /// The parts of the log that a record takes: two, if it continues at the log's beginning.
    fn pieces(&self, lsn: u64, buffer: &Arc<AlignedBuf>, bytes: usize) -> Pieces {
        let at = lsn % self.log_blocks;
        let first = bytes.min((self.log_blocks - at) as usize * BLOCK_SIZE);
        let parts = [(LOG_START + at, 0..first), (LOG_START, first..bytes)];
        let parts = parts.into_iter().filter(|(_, part)| !part.is_empty());
        parts
            .map(|(block, part)| Piece::new(block * BLOCK_SIZE as u64, buffer.clone(), part))
            .collect()
    }
}

/// Whether more than [`FLUSH_EVERY`] blocks of the log are not durable with `more` behind the head.
fn is_far(head: &Head, more: u64) -> bool {
    head.lsn + more - head.flushed_lsn >= FLUSH_EVERY
}
