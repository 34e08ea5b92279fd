//! Following the chain of records from the log's tail, with the table of cases that decides what
//! each record means.
//!
//! | Record at the end of the chain | Open context | Case |
//! |---|---|---|
//! | none that is valid | any | the log ends here; an open context is incomplete and ignored |
//! | mount record | any | [`Case::Mount`]: a mount abandoned the open context |
//! | other nonce than the record before | any | [`Case::Disorder`]: damage |
//! | part 0 of a later context, or of the same one after an fsync record | none | [`Case::Begin`] |
//! | next part of the open context | open | [`Case::Continue`] |
//! | anything else | any | [`Case::Disorder`]: damage |
//!
//! A record with [`FLAG_LAST`] completes its context. Only complete contexts are replayed.

use super::FoundContext;
use super::reader::Reader;
use crate::journal::position::LogPosition;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault};
use cairnfs_disk::format::record::{FLAG_FSYNC, FLAG_LAST, FLAG_MOUNT, FLAG_ROOTS, RecordHeader};
use cairnfs_disk::format::superblock::Superblock;

/// What a valid record means after the records before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// It begins a context or an fsync record.
    Begin,
    /// It continues the open context.
    Continue,
    /// It is the record of a mount. A context that was open before it is never finished.
    Mount,
    /// No writer puts such a record here: damage.
    Disorder,
}

/// A context of which some records were found, and the last was not.
#[derive(Debug, Clone, Copy)]
struct OpenContext {
    seq: u64,
    start: LogPosition,
    next_part: u32,
}

/// The valid records from the log's tail on.
pub(super) struct Chain {
    /// The position after the last valid record.
    pub end: LogPosition,
    /// Complete contexts in order.
    pub contexts: Vec<FoundContext>,
    /// The largest sequence of complete and incomplete contexts.
    pub last_seq: u64,
    /// The largest LSN that the superblock or a record names as durable.
    pub durable: u64,
    /// The largest superblock generation that the superblock or a record names.
    pub generation: u64,
    open: Option<OpenContext>,
    nonce: Option<u64>,
}

impl Chain {
    /// The empty chain at the superblock's tail.
    pub fn at_tail(superblock: &Superblock) -> Self {
        Self {
            end: LogPosition {
                lsn: superblock.tail_lsn.get(),
                chain: superblock.tail_chain.get(),
            },
            contexts: Vec::new(),
            last_seq: superblock.merged_seq.get(),
            durable: superblock.required_lsn.get(),
            generation: superblock.generation.get(),
            open: None,
            nonce: None,
        }
    }

    /// Follows the chain up to the LSN `limit`.
    ///
    /// # Errors
    /// The device's failure; damage: a valid record in the wrong place.
    pub fn follow(&mut self, reader: &mut Reader<'_>, limit: u64) -> Result<()> {
        while let Some(header) = reader.record(self.end, limit)? {
            let start = match (self.case(&header), self.open) {
                (Case::Begin | Case::Mount, _) => self.end,
                (Case::Continue, Some(open)) => open.start,
                (Case::Continue, None) | (Case::Disorder, _) => {
                    return Err(self.disorder(reader, &header));
                }
            };
            self.append(&header, start);
        }
        self.drop_open();
        Ok(())
    }

    fn case(&self, header: &RecordHeader) -> Case {
        let (seq, part) = (header.seq.get(), header.part.get());
        let same_mount = self.nonce.is_none_or(|n| n == header.nonce.get());
        match self.open {
            _ if header.flags.get() & FLAG_MOUNT != 0 => match part {
                0 => Case::Mount,
                _ => Case::Disorder,
            },
            _ if !same_mount => Case::Disorder,
            Some(open) if seq == open.seq && part == open.next_part => Case::Continue,
            None if part == 0 && seq >= self.least_seq() => Case::Begin,
            _ => Case::Disorder,
        }
    }

    /// The smallest valid sequence of the next context. The sequence of an fsync record is also
    /// valid for the rest of its context.
    fn least_seq(&self) -> u64 {
        let next = |last: &FoundContext| last.seq + u64::from(!last.fsync);
        self.contexts.last().map_or(1, next)
    }

    fn append(&mut self, header: &RecordHeader, start: LogPosition) {
        let (seq, flags) = (header.seq.get(), header.flags.get());
        self.nonce = Some(header.nonce.get());
        self.last_seq = self.last_seq.max(seq);
        self.durable = self.durable.max(header.durable_lsn.get());
        self.generation = self.generation.max(header.generation.get());
        self.end = self.end.after(header);
        self.open = match flags & FLAG_LAST {
            0 => Some(OpenContext {
                seq,
                start,
                next_part: header.part.get() + 1,
            }),
            _ => None,
        };
        if self.open.is_none() {
            self.complete(seq, start, flags);
        }
    }

    /// Adds a context that ends where the chain ends now.
    fn complete(&mut self, seq: u64, start: LogPosition, flags: u32) {
        self.contexts.push(FoundContext {
            seq,
            start,
            end: self.end,
            fsync: flags & FLAG_FSYNC != 0,
            mount: flags & FLAG_MOUNT != 0,
            roots: flags & FLAG_ROOTS != 0,
        });
    }

    /// Leaves out an incomplete context at the end.
    pub fn drop_open(&mut self) {
        if let Some(open) = self.open.take() {
            fault::inject(InjectedFault::HalfContextCounts, || {
                self.complete(open.seq, open.start, 0)
            });
        }
    }

    fn disorder(&self, reader: &Reader<'_>, header: &RecordHeader) -> Error {
        Error::corrupt(
            reader.block_of(self.end.lsn),
            "log record order",
            "the next part of its context, written by the same mount",
            format!(
                "context {} part {} at LSN {}",
                header.seq, header.part, self.end.lsn
            ),
        )
    }
}
