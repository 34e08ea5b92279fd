//! Reading records: which bytes of the ring are a valid record, and whether the data that a record
//! refers to is on the device.
//!
//! Uses the device and the format only, writes nothing. A record is valid if its header decodes,
//! it belongs to this volume, is where its LSN says, continues the chain and matches its checksum.

use zerocopy::little_endian::U32;

use super::FoundContext;
use crate::journal::position::LogPosition;
use cairnfs_disk::device::{AlignedBuf, Device};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{InjectedFault, is_injected};
use cairnfs_disk::format::geometry::LOG_START;
use cairnfs_disk::format::mark;
use cairnfs_disk::format::record::{self, HEADER_SIZE, RecordHeader};
use cairnfs_disk::format::superblock::Superblock;
use cairnfs_disk::format::{BLOCK_SIZE, checksum};

/// How often a block is read before its contents count as missing.
const READS: usize = 3;

/// Reads the ring of a volume, with a buffer for one record.
pub(super) struct Reader<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    log_blocks: u64,
    buffer: AlignedBuf,
}

impl<'a> Reader<'a> {
    pub fn new(device: &'a dyn Device, superblock: &'a Superblock) -> Self {
        Self {
            device,
            superblock,
            log_blocks: superblock.log_blocks.get(),
            buffer: AlignedBuf::zeroed(0),
        }
    }

    pub fn block_of(&self, lsn: u64) -> u64 {
        LOG_START + lsn % self.log_blocks
    }

    /// Reads `blocks` blocks of the ring from `lsn` into the beginning of the buffer; no record has
    /// more than [`record::MAX_RECORD_BLOCKS`].
    fn read(&mut self, lsn: u64, blocks: u64) -> Result<()> {
        let at = lsn % self.log_blocks;
        let first = blocks.min(self.log_blocks - at) as usize * BLOCK_SIZE;
        let all = blocks as usize * BLOCK_SIZE;
        self.buffer.ensure(all);
        let (head, tail) = self
            .buffer
            .get_mut(..all)
            .unwrap_or_default()
            .split_at_mut(first.min(all));
        self.device
            .read((LOG_START + at) * BLOCK_SIZE as u64, head)?;
        if !tail.is_empty() {
            self.device.read(LOG_START * BLOCK_SIZE as u64, tail)?;
        }
        Ok(())
    }

    /// Reads the record at `position`, its payload into the buffer. Returns `None` if it is not
    /// valid or not of this volume.
    pub fn record(&mut self, position: LogPosition, limit: u64) -> Result<Option<RecordHeader>> {
        let Some(header) = self.header(position.lsn, limit)? else {
            return Ok(None);
        };
        let chains =
            header.chain.get() == position.chain || is_injected(InjectedFault::ChainUnchecked);
        if !chains {
            return Ok(None);
        }
        let valid = self.read_payload(&header)? || is_injected(InjectedFault::PayloadUnchecked);
        Ok(valid.then_some(header))
    }

    /// Reads the header of a record of this volume at `lsn` that ends before `limit`, if there is
    /// one.
    pub fn header(&mut self, lsn: u64, limit: u64) -> Result<Option<RecordHeader>> {
        if lsn >= limit {
            return Ok(None);
        }
        self.read(lsn, 1)?;
        let header = RecordHeader::decode(&self.buffer);
        Ok(header.filter(|header| {
            header.uuid == self.superblock.uuid
                && header.lsn.get() == lsn
                && lsn + header.blocks() <= limit
        }))
    }

    /// Reads the payload of the record whose header was read last. Returns whether it has its
    /// checksum.
    pub fn read_payload(&mut self, header: &RecordHeader) -> Result<bool> {
        if header.blocks() > 1 {
            self.read(header.lsn.get(), header.blocks())?;
        }
        Ok(checksum::crc(self.payload(header)) == header.payload_crc.get())
    }

    /// The LSN up to which the durable mark says that the log was durable; 0 if there is no mark. A
    /// place beyond the end of a device that was cut off says nothing.
    pub fn marked(&mut self) -> Result<u64> {
        let device = self.device;
        mark::greatest(self.superblock, &mut |block, buffer| {
            let offset = block * BLOCK_SIZE as u64;
            if offset.saturating_add(BLOCK_SIZE as u64) > device.size() {
                buffer.fill(0);
                return Ok(());
            }
            device.read(offset, buffer)
        })
    }

    /// The record headers of this volume in `blocks` blocks of the ring from `lsn`, valid or not as
    /// records, each with the LSN of its block.
    pub fn headers(&mut self, lsn: u64, blocks: u64) -> Result<Vec<(u64, RecordHeader)>> {
        self.read(lsn, blocks)?;
        let each = self.buffer.chunks_exact(BLOCK_SIZE).zip(lsn..lsn + blocks);
        let decoded = each.filter_map(|(block, at)| Some((at, RecordHeader::decode(block)?)));
        Ok(decoded
            .filter(|(_, header)| header.uuid == self.superblock.uuid)
            .collect())
    }

    /// Whether two LSNs have the same block of the ring.
    pub fn is_same_block(&self, a: u64, b: u64) -> bool {
        self.block_of(a) == self.block_of(b)
    }

    fn payload(&self, header: &RecordHeader) -> &[u8] {
        let len = header.payload_len.get() as usize;
        self.buffer
            .get(HEADER_SIZE..HEADER_SIZE + len)
            .unwrap_or_default()
    }

    /// The entries and the checks of a record.
    pub fn parts(&self, header: &RecordHeader) -> (&[u8], &[u8]) {
        let payload = self.payload(header);
        let entries = payload
            .len()
            .saturating_sub(header.checks_len.get() as usize);
        payload.split_at(entries)
    }

    /// Whether the data is on the device that a context or fsync record refers to and that was not
    /// made durable before it: compares the checksums in its records.
    pub fn data_holds(&mut self, context: &FoundContext) -> Result<bool> {
        let mut position = context.start;
        while position.lsn < context.end.lsn {
            let Some(header) = self.record(position, context.end.lsn)? else {
                return Ok(false);
            };
            let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
            for check in record::checks(self.parts(&header).1) {
                let Some((first, crcs)) = check.filter(|c| self.in_data_area(c)) else {
                    return Err(Error::corrupt(
                        self.block_of(position.lsn),
                        "log record checks",
                        "blocks of the volume's data area",
                        "others",
                    ));
                };
                for (at, crc) in (first..).zip(crcs) {
                    if !self.block_holds(at, crc.get(), &mut block)? {
                        return Ok(is_injected(InjectedFault::DataNotCompared));
                    }
                }
            }
            position = position.after(&header);
        }
        Ok(true)
    }

    /// Whether a block has this checksum. On a mismatch the block is read again, so that a read
    /// error loses nothing.
    fn block_holds(&self, at: u64, crc: u32, block: &mut [u8]) -> Result<bool> {
        for _ in 0..READS {
            self.device.read(at * BLOCK_SIZE as u64, block)?;
            if checksum::crc(block) == crc {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn in_data_area(&self, (first, crcs): &(u64, &[U32])) -> bool {
        let end = first.checked_add(crcs.len() as u64);
        *first >= LOG_START + self.log_blocks
            && end.is_some_and(|e| e <= self.superblock.total_blocks.get())
    }
}
