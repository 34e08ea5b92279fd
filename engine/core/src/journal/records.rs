//! Formatting of records: items of a context or of an fsync are copied into the buffers of records.
//!
//! Takes each vector's own lock for its copy, and not the head's, so it may run before the records'
//! place in the log is known. What depends on the place is in the header, which
//! [`super::push`] adds.

use std::sync::Arc;

use crate::journal::bytes::{RecordBytes, Spares};
use crate::journal::vector::{LogVector, Logged};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::checksum;
use cairnfs_disk::format::record::{FLAG_FSYNC, FLAG_LAST, blocks_for};
use cairnfs_disk::prefetch::prefetch;

/// Vectors that are prefetched together.
const FETCHED: usize = 32;

/// A formatted record, without its header.
pub(super) struct Record {
    /// Sequence of its context.
    pub seq: u64,
    /// Number of the record in its context or fsync.
    pub part: u32,
    /// Number of its entries.
    pub entries: u32,
    /// Flags of its header.
    pub flags: u32,
    /// Bytes of checks at the payload's end.
    pub checks: u32,
    /// Checksum of its payload.
    pub crc: u32,
    /// Its payload.
    pub bytes: RecordBytes,
}

impl Record {
    /// Its length in blocks.
    pub fn blocks(&self) -> u64 {
        blocks_for(self.bytes.len())
    }

    /// Whether it is the last one of its context or fsync.
    pub fn is_last(&self) -> bool {
        self.flags & FLAG_LAST != 0
    }
}

/// The records that a list of items needs, in their order.
pub(super) struct Records<'v> {
    seq: u64,
    flags: u32,
    /// Number of the next record.
    part: u32,
    left: &'v [Arc<LogVector>],
    checks: &'v [u8],
    ended: bool,
    cancelled: u64,
}

impl<'v> Records<'v> {
    /// Records of a context or fsync with these items, and with `checks` at their end. Those of a
    /// context leave out the items that fsync records have logged.
    pub fn new(seq: u64, flags: u32, vectors: &'v [Arc<LogVector>], checks: &'v [u8]) -> Self {
        Self {
            seq,
            flags,
            part: 0,
            left: vectors,
            checks,
            ended: false,
            cancelled: 0,
        }
    }

    /// Whether all records were formatted.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Number of items found dead so far.
    pub fn cancelled(&self) -> u64 {
        self.cancelled
    }

    /// Formats the next record; none after the last, and none at all if no item must be logged.
    ///
    /// # Errors
    /// An item or the checks are larger than a record.
    pub fn next(&mut self, spares: &Spares) -> Result<Option<Record>> {
        if self.ended {
            return Ok(None);
        }
        let mut bytes = spares.take();
        let entries = self.fill(&mut bytes);
        if self.left.is_empty() && entries == 0 && self.part == 0 {
            self.ended = true;
            spares.put(bytes);
            return Ok(None);
        }
        let mut checks = 0;
        if self.left.is_empty() && self.add_checks(&mut bytes) {
            checks = self.checks.len() as u32;
            self.ended = true;
        } else if entries == 0 {
            return Err(Error::Invalid(
                "an item, or checks, larger than a log record",
            ));
        }
        let record = Record {
            seq: self.seq,
            part: self.part,
            entries,
            flags: self.flags | if self.ended { FLAG_LAST } else { 0 },
            checks,
            crc: checksum::crc(bytes.payload()),
            bytes,
        };
        self.part += 1;
        Ok(Some(record))
    }

    /// Puts as many items into a record as fit. Returns their number.
    fn fill(&mut self, bytes: &mut RecordBytes) -> u32 {
        let mut entries = 0;
        loop {
            let used = self.fill_room(bytes.room(), &mut entries);
            bytes.added(used);
            if self.left.is_empty() || !bytes.grow() {
                return entries;
            }
        }
    }

    /// Puts as many items into `room` as fit. Returns the bytes they take.
    fn fill_room(&mut self, mut room: &mut [u8], entries: &mut u32) -> usize {
        let (mut used, mut done) = (0, 0);
        let of_group = self.flags & FLAG_FSYNC != 0;
        'full: for some in self.left.chunks(FETCHED) {
            some.iter().for_each(|vector| prefetch(&**vector));
            for vector in some {
                if vector.is_logged() && !of_group {
                    done += 1;
                    continue;
                }
                match vector.log_to(room) {
                    Logged::Added(more) => {
                        room = room.get_mut(more..).unwrap_or_default();
                        used += more;
                        *entries += 1;
                    }
                    Logged::Nothing => self.cancelled += 1,
                    Logged::Full => break 'full,
                }
                done += 1;
            }
        }
        self.left = self.left.get(done..).unwrap_or_default();
        used
    }

    /// Adds the checks to the payload. Returns whether they fit.
    fn add_checks(&self, bytes: &mut RecordBytes) -> bool {
        while bytes.room().len() < self.checks.len() {
            if !bytes.grow() {
                return false;
            }
        }
        if let Some(room) = bytes.room().get_mut(..self.checks.len()) {
            room.copy_from_slice(self.checks);
        }
        bytes.added(self.checks.len());
        true
    }
}
