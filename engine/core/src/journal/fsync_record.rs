//! Writing an fsync record: changes of the open context that are logged ahead of it.
//!
//! The record is gathered when all earlier contexts are written, and while the open one stays open
//! and no thread commits: requests that arrive during an earlier write share the record. It is
//! formatted and written while commits go on, because gathered vectors are not changed any more, and
//! while other threads prepare later contexts for the log. Replay treats a record as a
//! context of its own. The data that it refers to is written before the record or together with it,
//! and need not be durable: the record holds checksums of that data, so one flush makes both
//! durable. Data without checksums in the record is durable before the record is written.

use std::sync::Arc;

use crate::journal::cil::Context;
use crate::journal::head::Head;
use crate::journal::records::Records;
use crate::journal::ring::CONTEXT_BASE;
use crate::journal::vector::LogVector;
use crate::journal::{Journal, LogSpaceReclaimer, Written};
use cairnfs_disk::device::Stamps;
use cairnfs_disk::error::Result;
use cairnfs_disk::fault::{InjectedFault, is_injected};
use cairnfs_disk::format::record::FLAG_FSYNC;
use cairnfs_disk::sync::atomic::Ordering;

/// Changes that are logged together.
#[derive(Default)]
pub struct FsyncRecord {
    /// Sequence of the context they belong to.
    pub seq: u64,
    /// The items.
    pub vectors: Vec<Arc<LogVector>>,
    /// Log bytes that were reserved for them.
    pub paid: i64,
    /// Stamps of data that the items refer to and that must be durable first.
    pub data: Stamps,
    /// Encoded checksums of the other data that the items refer to.
    pub checks: Vec<u8>,
}

impl FsyncRecord {
    /// Moves a vector's charge from its context to this record, unless the vector is already logged
    /// or dead.
    pub fn take(&mut self, context: &Context, vector: &Arc<LogVector>) {
        if vector.is_logged() {
            return;
        }
        let charge = vector.charge();
        if charge == 0 {
            return;
        }
        assert!(
            vector.seq() == context.seq || is_injected(InjectedFault::RelogInPlace),
            "context invariant 6: a charge is taken over from the vector's own context"
        );
        vector.set_logged();
        context.charge(-charge);
        self.paid += charge;
        self.vectors.push(vector.clone());
    }
}

/// What an fsync writes.
pub enum Gathered {
    /// An fsync record.
    FsyncRecord(FsyncRecord),
    /// The whole context.
    Context,
}

impl Journal {
    /// Writes what `gather` returns; `gather` runs while no thread commits. The record is not
    /// durable yet. Returns the position up to which the log is written.
    pub fn write_fsync_record(
        &self,
        reclaimer: &dyn LogSpaceReclaimer,
        gather: impl FnOnce(&Context) -> Gathered,
    ) -> Result<Written> {
        self.reserve(CONTEXT_BASE, reclaimer)?;
        let mut closing = self.turns.closing();
        closing.wait_for_earlier();
        let broken_off = "an fsync was broken off";
        let gathered = self.or_fail(broken_off, || {
            let open = self.cil.still();
            let gathered = gather(&open);
            if let Gathered::FsyncRecord(record) = &gathered {
                assert!(
                    record.seq == open.seq,
                    "fsync invariant 2: a record is of the open context"
                );
            }
            Ok(gathered)
        })?;
        match gathered {
            Gathered::Context => {
                self.counters.whole_contexts.fetch_add(1, Ordering::Relaxed);
                self.write_closed(&mut self.close_context(closing), &[])
            }
            Gathered::FsyncRecord(record) => {
                let mut turn = closing.take_turn();
                self.or_fail(broken_off, || self.write_gathered(turn.head(), record))
            }
        }
    }

    fn write_gathered(&self, head: &mut Head, record: FsyncRecord) -> Result<Written> {
        let (vectors, paid) = self.with_copies(record.vectors);
        let mut records = Records::new(record.seq, FLAG_FSYNC, &vectors, &record.checks);
        let start = head.position().lsn;
        let mut stamp = record.data.made;
        if record.data.waiting {
            // A log write since then may have included the staged data.
            self.storage.write_with_staged(&[])?;
            stamp = stamp.max(self.storage.staged_stamp());
        }
        self.data_first(stamp)?;
        let any = self.write_records(head, Vec::new(), &mut records)?;
        self.return_unused_space(head, start, record.paid + paid + CONTEXT_BASE);
        let before = *self.written.lock();
        if !any {
            return Ok(before);
        }
        let counters = &self.counters;
        counters.fsync_records.fetch_add(1, Ordering::Relaxed);
        counters
            .fsync_entries
            .fetch_add(vectors.len() as u64, Ordering::Relaxed);
        let blocks = head.position().lsn - start;
        counters.fsync_blocks.fetch_add(blocks, Ordering::Relaxed);
        let written = self.note_written(head.position(), before.seq);
        self.flush_far(head)?;
        Ok(written)
    }
}
