//! Damage to log records.

use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::record::ENTRY_HEADER_SIZE;

use super::{How, Mutator};
use crate::seal;

/// Offset and width in bytes of the fields of a record header, without its checksum.
const RECORD_FIELDS: [(usize, usize); 14] = [
    (8, 4),
    (12, 4),
    (16, 8),
    (32, 8),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 8),
    (72, 8),
    (80, 4),
    (84, 4),
    (88, 4),
    (92, 4),
    (96, 8),
];

impl Mutator<'_> {
    pub(super) fn some_record(&mut self) -> Option<usize> {
        match self.base.layout.records.len() {
            0 => None,
            n => Some(self.random.below(n)),
        }
    }

    pub(super) fn log_header(&mut self, sealed: bool) -> How {
        let i = self.some_record()?;
        let block = self.base.layout.log_block(self.base.layout.records[i].lsn);
        let mut how = format!("record {i}, ");
        for _ in 0..1 + self.random.below(2) {
            let (at, width) = *self.random.pick(&RECORD_FIELDS);
            how += &self.change_number(block, at, width);
        }
        if sealed {
            let payload = self.random.once_in(2);
            seal::log(&mut self.image, &self.base.layout, i, payload);
        }
        Some(how)
    }

    pub(super) fn log_payload(&mut self) -> How {
        let i = self.some_record()?;
        let record = self.base.layout.records[i];
        let range = seal::payload_range(&record);
        if range.is_empty() {
            return None;
        }
        let mut bytes = self.base.layout.record(&self.image, &record);
        let at = range.start + self.random.below(range.len());
        bytes[at] ^= 1 << self.random.below(8);
        self.base
            .layout
            .write_record(&mut self.image, record.lsn, &bytes);
        Some(format!("record {i}, byte {at}"))
    }

    /// Changes entries of a record: a field of an entry header, or bytes of a value.
    pub(super) fn log_entry(&mut self) -> How {
        let i = self.some_record()?;
        let record = self.base.layout.records[i];
        let mut bytes = self.base.layout.record(&self.image, &record);
        let mut entries = Vec::new();
        let range = seal::payload_range(&record);
        let mut at = range.start;
        while at + ENTRY_HEADER_SIZE <= range.end {
            let len = u32::from_le_bytes(*bytes[at..].first_chunk().unwrap()) >> 8;
            entries.push((at, len as usize));
            at += ENTRY_HEADER_SIZE + len as usize;
        }
        if entries.is_empty() {
            return None;
        }
        let mut how = format!("record {i}");
        for _ in 0..1 + self.random.below(3) {
            let (entry, len) = *self.random.pick(&entries);
            let fields = [(0, 1), (1, 3), (4, 4), (8, 8), (16, 8)];
            let (offset, width) = match self.random.below(3) {
                0 => *self.random.pick(&fields),
                _ if len == 0 => continue,
                1 => (ENTRY_HEADER_SIZE + self.random.below(len), 1),
                _ if len < 8 => continue,
                _ => (
                    ENTRY_HEADER_SIZE + self.random.below(len / 8) * 8,
                    *self.random.pick(&[1, 4, 8]),
                ),
            };
            let at = entry + offset;
            let mut old = [0; 8];
            old[..width].copy_from_slice(&bytes[at..at + width]);
            let new = self.likely_number(u64::from_le_bytes(old), width);
            bytes[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
            how += &format!(", entry at {entry}: {width} bytes at {offset} to {new:#x}");
        }
        self.base
            .layout
            .write_record(&mut self.image, record.lsn, &bytes);
        seal::log(&mut self.image, &self.base.layout, i, true);
        Some(how)
    }

    /// Removes the log from a record on, as if it was never written.
    pub(super) fn log_cut(&mut self) -> How {
        let i = self.some_record()?;
        let records = &self.base.layout.records;
        for record in &records[i..] {
            let zeros = vec![0; record.header.blocks() as usize * BLOCK_SIZE];
            self.base
                .layout
                .write_record(&mut self.image, record.lsn, &zeros);
        }
        Some(format!("the log ends before record {i}"))
    }

    /// Overwrites blocks between the log's tail and its end.
    pub(super) fn log_blocks(&mut self) -> How {
        let (first, last) = (
            self.base.layout.records.first()?,
            self.base.layout.records.last()?,
        );
        let (start, len) = (first.lsn, last.lsn + last.header.blocks() - first.lsn);
        let side_by_side = self.random.once_in(2);
        let from = self.random.number() % len;
        let mut how = "log blocks overwritten, LSN".to_owned();
        for i in 0..1 + self.random.number() % 6 {
            let at = if side_by_side {
                (from + i).min(len - 1)
            } else {
                self.random.number() % len
            };
            let mut bytes = vec![0; BLOCK_SIZE];
            match self.random.below(3) {
                0 => {}
                1 => bytes.fill(0xff),
                _ => self.random.fill(&mut bytes),
            }
            let lsn = start + at;
            self.image.write(self.base.layout.log_block(lsn), &bytes);
            how += &format!(" {lsn}");
        }
        Some(how)
    }
}
