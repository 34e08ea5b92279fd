//! Buffers in which log records are assembled: the header, followed by the payload, aligned so that
//! the device can write it without a copy.
//!
//! A buffer grows with its records up to the size of the largest. A few are kept for later records.

use std::sync::Arc;

use cairnfs_disk::device::AlignedBuf;
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::record::{HEADER_SIZE, MAX_RECORD_BLOCKS};
use cairnfs_disk::sync::Mutex;

/// Fewest buffers that are kept while the volume is busy: those of several pushes, and of an fsync.
const SPARES: usize = 8;

/// Size of a new buffer.
const FIRST_BYTES: usize = 16 * BLOCK_SIZE;

/// By how much a buffer grows at once.
const GROWTH: usize = 4;

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

    /// Makes the free space larger, unless the record has the largest size.
    pub fn grow(&mut self) -> bool {
        let buffer = Arc::get_mut(&mut self.buffer);
        let Some(buffer) = buffer.filter(|b| b.len() < MAX_BYTES) else {
            return false;
        };
        buffer.ensure((buffer.len() * GROWTH).min(MAX_BYTES));
        true
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
        if Arc::get_mut(&mut self.buffer).is_none_or(|b| b.is_empty()) {
            self.buffer = Arc::new(AlignedBuf::zeroed(FIRST_BYTES));
        }
        Arc::get_mut(&mut self.buffer).map_or(&mut [], |b| &mut **b)
    }
}

/// Buffers that no record uses. The one used last is the first to be taken: its memory is in the
/// processor's cache.
pub(super) struct Spares {
    most: usize,
    buffers: Mutex<Vec<RecordBytes>>,
}

impl Spares {
    /// None yet. While the volume is busy, as many are kept as a push needs that formats `ahead`
    /// records before its turn.
    pub fn new(ahead: usize) -> Self {
        Self {
            most: ahead.max(SPARES),
            buffers: Mutex::default(),
        }
    }

    /// An empty buffer.
    pub fn take(&self) -> RecordBytes {
        self.buffers.lock().pop().unwrap_or_default()
    }

    /// Keeps a buffer for a later record.
    pub fn put(&self, mut bytes: RecordBytes) {
        bytes.clear();
        let mut spares = self.buffers.lock();
        if spares.len() < self.most {
            spares.push(bytes);
        }
    }

    /// Frees all buffers but one.
    pub fn free(&self) {
        self.buffers.lock().truncate(1);
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use cairnfs_disk::format::record::blocks_for;

    #[test]
    fn buffer_grows_with_its_payload_to_the_largest_record() {
        let mut record = RecordBytes::default();
        let mut filled = 0;
        loop {
            let room = record.room();
            room.fill(7);
            let added = room.len();
            filled += added;
            record.added(added);
            if !record.grow() {
                break;
            }
        }
        assert_eq!(record.len(), MAX_BYTES - HEADER_SIZE);
        assert_eq!(record.len(), filled);
        assert!(record.payload().iter().all(|byte| *byte == 7));
        assert_eq!(record.close(&[1; HEADER_SIZE], MAX_BYTES).len(), MAX_BYTES);
    }

    #[test]
    fn few_buffers_are_kept_and_one_at_rest() {
        let most = 2 * SPARES;
        let spares = Spares::new(most);
        let mut used = RecordBytes::default();
        used.room()[0] = 1;
        used.added(1);
        spares.put(used);
        assert_eq!(spares.take().len(), 0, "an empty payload");
        for _ in 0..2 * most {
            spares.put(RecordBytes::default());
        }
        assert_eq!(spares.buffers.lock().len(), most);
        spares.free();
        assert_eq!(spares.buffers.lock().len(), 1);
    }

    #[test]
    fn record_has_header_payload_and_zero_padding() {
        let mut record = RecordBytes::default();
        assert_eq!(record.room().len(), FIRST_BYTES - HEADER_SIZE);
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
