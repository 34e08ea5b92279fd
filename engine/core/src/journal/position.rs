//! Positions in the log, shared by writing and reading it.

use cairnfs_disk::format::record::RecordHeader;

/// Log blocks after which a push flushes, which bounds the part of the log that recovery must
/// search.
pub const FLUSH_EVERY: u64 = 4096;

/// A position between two records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// LSN of the record that begins here.
    pub lsn: u64,
    /// The value its chain field must have.
    pub chain: u64,
}

impl LogPosition {
    /// The position after the record with this header, which begins here.
    pub fn after(self, header: &RecordHeader) -> Self {
        Self {
            lsn: self.lsn + header.blocks(),
            chain: header.checksum.get(),
        }
    }
}
