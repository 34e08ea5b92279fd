//! Data blocks: writing runs with checksums, reading them verified, keeping hot ones in memory.
//!
//! Floor 2: uses device, format, errors. Data is never overwritten in place, so a cached block is
//! found by its device address; writing to an address replaces what the cache holds of it.

mod cache;

use std::sync::Arc;

use crate::data::cache::BlockCache;
use crate::device::{AlignedBuf, DataStamp, Device, Page, Piece, Storage, Supply};
use crate::error::{Error, Result};
use crate::fault::{InjectedFault, is_injected};
use crate::format::{BLOCK_SIZE, checksum};

/// Reads and writes data blocks.
pub struct DataStore {
    storage: Arc<Storage>,
    cache: BlockCache,
}

impl DataStore {
    /// A store whose cache holds up to `cache_bytes`.
    pub fn new(storage: Arc<Storage>, cache_bytes: usize) -> Self {
        Self {
            storage,
            cache: BlockCache::new(cache_bytes / BLOCK_SIZE),
        }
    }

    /// Writes whole blocks at device block `block`; returns once the device took them.
    ///
    /// # Errors
    /// The device's failure.
    pub fn write(&self, block: u64, pages: Vec<Page>) -> Result<()> {
        self.storage.write_piece(&self.piece(block, pages))
    }

    /// Has whole blocks written together with the next record of the log.
    pub fn stage(&self, block: u64, pages: Vec<Page>) -> DataStamp {
        self.storage.stage(self.piece(block, pages))
    }

    fn piece(&self, block: u64, pages: Vec<Page>) -> Piece {
        self.cache.remove(block..block + pages.len() as u64);
        Piece::of_pages(block * BLOCK_SIZE as u64, pages)
    }

    /// Keeps adjacent blocks that were written.
    pub fn keep(&self, block: u64, pages: Vec<Page>) {
        self.cache.put_written(block, pages);
    }

    /// Reads one block, verified.
    ///
    /// # Errors
    /// The device's failure, or a checksum that does not fit.
    pub fn read_block(&self, block: u64, crc: u32) -> Result<Page> {
        if let Some(Some(page)) = self.cache.get(block..block + 1).pop() {
            return Ok(page);
        }
        let mut page = Page::zeroed();
        self.storage
            .read(block * BLOCK_SIZE as u64, page.bytes_mut())?;
        self.verify(block, page.bytes(), crc)?;
        self.cache.put(block, vec![page.clone()]);
        Ok(page)
    }

    /// Reads adjacent blocks, one for each checksum in `crcs`, and hands each to `each` by its
    /// position. Blocks that are not cached are read together.
    ///
    /// # Errors
    /// The device's failure, or a checksum that does not fit.
    pub fn read_run(
        &self,
        block: u64,
        crcs: &[u32],
        each: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        let cached = self.cache.get(block..block + crcs.len() as u64);
        let mut at = 0;
        for run in cached.chunk_by(|a, b| a.is_none() && b.is_none()) {
            if let [Some(page)] = run {
                each(at, page.bytes());
            } else {
                let sums = crcs.get(at..at + run.len()).unwrap_or_default();
                self.read_missing(block + at as u64, sums, &mut |i, bytes| each(at + i, bytes))?;
            }
            at += run.len();
        }
        Ok(())
    }

    fn read_missing(
        &self,
        block: u64,
        crcs: &[u32],
        each: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        let mut buffer = AlignedBuf::zeroed(crcs.len() * BLOCK_SIZE);
        self.storage.read(block * BLOCK_SIZE as u64, &mut buffer)?;
        let mut supply = Supply::new(crcs.len());
        let mut pages = Vec::with_capacity(crcs.len());
        let mut result = Ok(());
        for (i, (bytes, crc)) in buffer.chunks_exact(BLOCK_SIZE).zip(crcs).enumerate() {
            result = self.verify(block + i as u64, bytes, *crc);
            if result.is_err() {
                break;
            }
            pages.push(supply.page_with(0, bytes));
            each(i, bytes);
        }
        self.cache.put(block, pages);
        result
    }

    fn verify(&self, block: u64, bytes: &[u8], expected: u32) -> Result<()> {
        let found = checksum::crc(bytes);
        if found == expected || is_injected(InjectedFault::DataUnchecked) {
            return Ok(());
        }
        let damage = Error::corrupt(
            block,
            "data checksum",
            format!("{expected:08x}"),
            format!("{found:08x}"),
        );
        self.storage.note(&damage);
        Err(damage)
    }
}
