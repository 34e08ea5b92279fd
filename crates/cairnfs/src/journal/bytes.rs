//! Buffer in which a log record is assembled: its header, followed by the payload, aligned so that
//! the device can write it without a copy.
//!
//! The memory for the largest record is allocated once and kept; pages that no record has reached
//! are never touched.

use std::sync::Arc;

use crate::device::AlignedBuf;
use crate::format::BLOCK_SIZE;
use crate::format::record::{HEADER_SIZE, MAX_RECORD_BLOCKS};

const MAX_BYTES: usize = MAX_RECORD_BLOCKS as usize * BLOCK_SIZE;

/// A record's bytes.
#[derive(Default)]
pub(super) struct RecordBytes {
    buffer: Arc<AlignedBuf>,
    /// Bytes of the payload so far.
    len: usize,
    /// Bytes of the first block in use; all bytes of it after these are zero.
    used: usize,
}

impl RecordBytes {
    /// Length of the payload in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The payload so far.
    pub fn payload(&self) -> &[u8] {
        let payload = self.buffer.get(HEADER_SIZE..HEADER_SIZE + self.len);
        payload.unwrap_or_default()
    }

    /// Empties the payload.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Free space after the payload. The caller reports the part it filled with [`Self::added`].
    pub fn room(&mut self) -> &mut [u8] {
        let from = HEADER_SIZE + self.len;
        self.whole().get_mut(from..).unwrap_or_default()
    }

    /// Extends the payload by `bytes` of the free space.
    pub fn added(&mut self, bytes: usize) {
        self.len += bytes;
    }

    /// Puts the header before the payload, and zeros after the payload up to `bytes`, the record's
    /// whole length. Returns the buffer to write.
    pub fn close(&mut self, header: &[u8], bytes: usize) -> &Arc<AlignedBuf> {
        let end = HEADER_SIZE + self.len;
        // Most records have one block and about the length of the previous one, so only the part
        // that the previous record used is zeroed.
        let zeros = match bytes {
            BLOCK_SIZE => end..self.used.max(end),
            _ => end..bytes,
        };
        self.used = end.min(BLOCK_SIZE);
        let whole = self.whole();
        if let Some(to) = whole.get_mut(..header.len()) {
            to.copy_from_slice(header);
        }
        whole.get_mut(zeros).unwrap_or_default().fill(0);
        &self.buffer
    }

    /// The whole buffer. A failed write may still hold the memory; then a new buffer is allocated,
    /// which happens only while the payload is empty.
    fn whole(&mut self) -> &mut [u8] {
        if Arc::get_mut(&mut self.buffer).is_none_or(|b| b.len() < MAX_BYTES) {
            self.buffer = Arc::new(AlignedBuf::zeroed(MAX_BYTES));
        }
        Arc::get_mut(&mut self.buffer).map_or(&mut [], |b| &mut **b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::record::blocks_for;

    #[test]
    fn record_has_header_payload_and_zero_padding() {
        let mut record = RecordBytes::default();
        assert_eq!(record.room().len(), MAX_BYTES - HEADER_SIZE);
        record.room()[..5000].fill(7);
        record.added(5000);
        record.close(&[1; HEADER_SIZE], 2 * BLOCK_SIZE);
        record.clear();
        record.room()[..3].fill(8);
        record.added(3);
        assert_eq!(record.payload(), [8; 3]);
        let bytes = record.close(&[2; HEADER_SIZE], BLOCK_SIZE);
        assert_eq!(bytes[..HEADER_SIZE], [2; HEADER_SIZE]);
        assert_eq!(bytes[HEADER_SIZE..HEADER_SIZE + 3], [8; 3]);
        let rest = &bytes[HEADER_SIZE + 3..BLOCK_SIZE];
        assert!(rest.iter().all(|byte| *byte == 0));
        for len in [100, 10, 50, 5000, 20] {
            record.clear();
            record.room()[..len].fill(9);
            record.added(len);
            let bytes = blocks_for(len) as usize * BLOCK_SIZE;
            let rest = &record.close(&[3; HEADER_SIZE], bytes)[HEADER_SIZE + len..bytes];
            assert!(rest.iter().all(|byte| *byte == 0), "behind {len}");
        }
        let held = Arc::clone(record.close(&[2; HEADER_SIZE], BLOCK_SIZE));
        record.clear();
        record.room()[..4].fill(8);
        assert_eq!(held[HEADER_SIZE], 9, "what is being written stays");
    }
}
