//! Data blocks: writes of runs, verified reads, and a cache of hot blocks.
//!
//! Uses device, format, errors. Written data is never overwritten in place, and
//! preallocated blocks are written once, so cached blocks are keyed by device address; a write to
//! an address drops the cached block.

mod cache;

use std::sync::Arc;

use crate::data::cache::BlockCache;
use cairnfs_disk::device::{AlignedBuf, DataStamp, Device, Page, Piece, Pieces, Storage, Supply};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{InjectedFault, is_injected};
use cairnfs_disk::format::{BLOCK_SIZE, checksum};

/// Reads and writes data blocks.
pub struct DataStore {
    storage: Arc<Storage>,
    cache: BlockCache,
}

impl DataStore {
    /// A store with a cache of at most `cache_bytes`, until more are lent to it.
    pub fn new(storage: Arc<Storage>, cache_bytes: usize) -> Self {
        Self {
            storage,
            cache: BlockCache::new(cache_bytes / BLOCK_SIZE),
        }
    }

    /// Lets the cache have `bytes` more than its own, and no longer what it was lent before.
    pub fn lend(&self, bytes: usize) {
        self.cache.lend(bytes / BLOCK_SIZE);
    }

    /// Writes runs of whole blocks, each at its device block, at the same time; returns when the
    /// device has accepted all. They are durable after the next flush.
    ///
    /// # Errors
    /// A device failure.
    pub fn write(&self, runs: impl IntoIterator<Item = (u64, Vec<Page>)>) -> Result<()> {
        let runs = runs.into_iter();
        let pieces: Pieces = runs.map(|(at, pages)| self.piece(at, pages)).collect();
        self.storage.write_all(&pieces)
    }

    /// Stages whole blocks, to be written together with the next log record.
    pub fn stage(&self, block: u64, pages: Vec<Page>) -> DataStamp {
        self.storage.stage(self.piece(block, pages))
    }

    fn piece(&self, block: u64, pages: Vec<Page>) -> Piece {
        self.cache.remove(block..block + pages.len() as u64);
        Piece::of_pages(block * BLOCK_SIZE as u64, pages)
    }

    /// Caches adjacent blocks that were written.
    pub fn keep(&self, block: u64, pages: Vec<Page>) {
        self.cache.put_written(block, pages);
    }

    /// Reads one block and verifies its checksum.
    ///
    /// # Errors
    /// A device failure, or a checksum mismatch.
    pub fn read_block(&self, block: u64, crc: u32) -> Result<Page> {
        if let Some(Some(page)) = self.cache.get(block..block + 1).pop() {
            return Ok(page);
        }
        let mut page = Page::zeroed();
        self.storage
            .read_cached(block * BLOCK_SIZE as u64, page.bytes_mut())?;
        self.verify(block, page.bytes_mut(), crc)?;
        self.cache.put(block, vec![page.clone()]);
        Ok(page)
    }

    /// Reads adjacent blocks, one for each checksum in `crcs`, and passes each to `each` with its
    /// position. Uncached blocks are read together.
    ///
    /// # Errors
    /// A device failure, or a checksum mismatch.
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
        self.storage
            .read_cached(block * BLOCK_SIZE as u64, &mut buffer)?;
        let mut supply = Supply::new(crcs.len());
        let mut pages = Vec::with_capacity(crcs.len());
        let mut result = Ok(());
        for (i, (bytes, crc)) in buffer.chunks_exact_mut(BLOCK_SIZE).zip(crcs).enumerate() {
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

    /// Checks what was read of a block. If it does not fit, the block is read again, directly: if it
    /// was read wrongly once, a cache of the host has it so.
    fn verify(&self, block: u64, bytes: &mut [u8], expected: u32) -> Result<()> {
        let mut found = checksum::crc(bytes);
        if found != expected && !is_injected(InjectedFault::DataUnchecked) {
            self.storage.read(block * BLOCK_SIZE as u64, bytes)?;
            found = checksum::crc(bytes);
        }
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
