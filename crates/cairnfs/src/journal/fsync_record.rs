//! Writing an fsync record: changes of the open context that go to the log ahead of it.
//!
//! Whoever writes one holds the head's lock, so all contexts before are written, and the open one
//! stays open. Nobody commits while the record is gathered; it is formatted and written when commits
//! go on, for what was gathered is no longer changed. Replay takes a record for a context of its own.
//! The data that it refers to has been written, but need not be durable: the record tells what it
//! must hold, so one flush makes both durable.

use std::sync::Arc;

use crate::device::Stamps;
use crate::error::Result;
use crate::format::record::FLAG_GROUP;
use crate::journal::cil::Context;
use crate::journal::push::Head;
use crate::journal::ring::CONTEXT_BASE;
use crate::journal::vector::LogVector;
use crate::journal::{Journal, LogSpaceReclaimer, Written};
use crate::sync::atomic::Ordering;

/// Changes that go to the log together.
#[derive(Default)]
pub struct FsyncRecord {
    /// The context they belong to.
    pub seq: u64,
    /// The items.
    pub vectors: Vec<Arc<LogVector>>,
    /// Log bytes that were reserved for them.
    pub paid: i64,
    /// Stamps of data they refer to that must be durable before.
    pub data: Stamps,
    /// Checks of other data they refer to, as the record has them.
    pub checks: Vec<u8>,
}

impl FsyncRecord {
    /// Takes a vector out of its context, unless that was done before.
    pub fn take(&mut self, context: &Context, vector: &Arc<LogVector>) {
        if vector.is_logged() {
            return;
        }
        let charge = vector.charge();
        if charge == 0 {
            return;
        }
        vector.set_logged();
        context.charge(-charge);
        self.paid += charge;
        self.vectors.push(vector.clone());
    }
}

/// What is to be written.
pub enum Gathered {
    /// This record.
    FsyncRecord(FsyncRecord),
    /// The whole context.
    Context,
}

impl Journal {
    /// Writes what `gather` takes while nobody commits. It is not durable yet; tells how far the log
    /// was written then.
    ///
    /// # Errors
    /// The device's failure.
    pub fn write_fsync_record(
        &self,
        reclaimer: &dyn LogSpaceReclaimer,
        gather: impl FnOnce(&Context) -> Gathered,
    ) -> Result<Written> {
        self.reserve(CONTEXT_BASE, reclaimer)?;
        let mut head = self.head.lock();
        let guard = self.storage.guard("an fsync was broken off");
        let gathered = gather(&self.cil.still());
        let result = match gathered {
            Gathered::Context => {
                self.counters.whole_contexts.fetch_add(1, Ordering::Relaxed);
                let (context, ()) = self.cil.swap(false, || ());
                self.write_closed(&mut head, &context)
            }
            Gathered::FsyncRecord(record) => self.write_gathered(&mut head, record),
        };
        if let Err(e) = &result {
            self.storage.fail(e.clone());
        }
        guard.done();
        result.map(|()| *self.written.lock())
    }

    fn write_gathered(&self, head: &mut Head, record: FsyncRecord) -> Result<()> {
        let start = head.position().lsn;
        let mut stamp = record.data.made;
        if record.data.waiting {
            // Whoever wrote the log since may have written it.
            self.storage.write_with_staged(&[])?;
            stamp = stamp.max(self.storage.staged_stamp());
        }
        self.data_first(stamp)?;
        let (vectors, paid) = self.entries_again(record.vectors);
        let any = self.write_entries(head, record.seq, FLAG_GROUP, &vectors, &record.checks)?;
        self.return_unused_space(head, start, record.paid + paid + CONTEXT_BASE);
        if !any {
            return Ok(());
        }
        let counters = &self.counters;
        counters.fsync_records.fetch_add(1, Ordering::Relaxed);
        counters
            .fsync_entries
            .fetch_add(vectors.len() as u64, Ordering::Relaxed);
        let blocks = head.position().lsn - start;
        counters.fsync_blocks.fetch_add(blocks, Ordering::Relaxed);
        let before = self.written.lock().seq;
        self.note_written(head, before);
        self.flush_far(head)
    }
}
