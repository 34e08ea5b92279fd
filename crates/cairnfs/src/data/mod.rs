//! Data blocks: writing runs with checksums, reading them verified, keeping hot ones in memory.
//!
//! Floor 2: uses device, format, errors. Data is never overwritten in place, so a cached block is
//! found by its device address; writing to an address replaces what the cache holds of it.

mod cache;

use std::sync::Arc;

use crate::data::cache::BlockCache;
use crate::deliberate::{Deliberate, happens};
use crate::device::{AlignedBuf, DataStamp, Device, Piece, Storage};
use crate::error::{Error, Result};
use crate::format::{BLOCK_SIZE, checksum};
use crate::sync::Mutex;

/// Reads and writes data blocks.
pub struct DataStore {
    storage: Arc<Storage>,
    cache: BlockCache,
    /// Memory of writes that are over, or soon will be.
    buffers: Mutex<Vec<Arc<AlignedBuf>>>,
}

/// How many buffers are kept for the next writes, and up to which size.
const BUFFERS: usize = 16;
const BUFFER: usize = 128 << 10;

impl DataStore {
    /// A store whose cache holds up to `cache_bytes`.
    pub fn new(storage: Arc<Storage>, cache_bytes: usize) -> Self {
        Self {
            storage,
            cache: BlockCache::new(cache_bytes / BLOCK_SIZE),
            buffers: Mutex::default(),
        }
    }

    /// Writes whole blocks at device block `block`; returns once the device took them. `fill` puts
    /// them into a buffer of `blocks` blocks.
    ///
    /// # Errors
    /// The device's failure.
    pub fn write(&self, block: u64, blocks: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let piece = self.piece(block, blocks, fill);
        self.storage.write(piece.offset, piece.bytes())
    }

    /// Has whole blocks written together with the next record of the log.
    pub fn stage(&self, block: u64, blocks: usize, fill: impl FnOnce(&mut [u8])) -> DataStamp {
        self.storage.stage(self.piece(block, blocks, fill))
    }

    fn piece(&self, block: u64, blocks: usize, fill: impl FnOnce(&mut [u8])) -> Piece {
        let bytes = blocks * BLOCK_SIZE;
        let mut buffer = self.buffer(bytes);
        fill(buffer.get_mut(..bytes).unwrap_or_default());
        let buffer = Arc::new(buffer);
        if bytes <= BUFFER {
            let mut buffers = self.buffers.lock();
            if buffers.len() < BUFFERS {
                buffers.push(buffer.clone());
            }
        }
        (0..blocks as u64).for_each(|i| self.cache.remove(block + i));
        Piece::new(block * BLOCK_SIZE as u64, buffer, 0..bytes)
    }

    /// A buffer that nobody else has; one of a write that is over, if there is any.
    fn buffer(&self, bytes: usize) -> AlignedBuf {
        let mut buffers = self.buffers.lock();
        let free = buffers
            .iter_mut()
            .position(|b| Arc::get_mut(b).is_some_and(|b| b.len() >= bytes));
        free.and_then(|i| Arc::into_inner(buffers.swap_remove(i)))
            .unwrap_or_else(|| AlignedBuf::zeroed(bytes))
    }

    /// Keeps a block that was written.
    pub fn keep(&self, block: u64, bytes: Box<[u8; BLOCK_SIZE]>) {
        self.cache.put(block, bytes);
    }

    /// Reads one block into `out`, verified.
    ///
    /// # Errors
    /// The device's failure, or a checksum that does not fit.
    pub fn read_block(&self, block: u64, crc: u32, out: &mut [u8; BLOCK_SIZE]) -> Result<()> {
        if self.cache.get(block, out) {
            return Ok(());
        }
        let mut buffer = AlignedBuf::zeroed(BLOCK_SIZE);
        self.storage.read(block * BLOCK_SIZE as u64, &mut buffer)?;
        verify(block, &buffer, crc)?;
        out.copy_from_slice(&buffer);
        self.cache.put(block, Box::new(*out));
        Ok(())
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
        each: &mut dyn FnMut(usize, &[u8; BLOCK_SIZE]),
    ) -> Result<()> {
        let mut scratch = [0; BLOCK_SIZE];
        let mut missing: Option<usize> = None;
        for i in 0..=crcs.len() {
            let cached = i < crcs.len() && self.cache.get(block + i as u64, &mut scratch);
            if (cached || i == crcs.len())
                && let Some(first) = missing.take()
            {
                let sums = crcs.get(first..i).unwrap_or_default();
                self.read_missing(block + first as u64, sums, &mut |at, bytes| {
                    each(first + at, bytes);
                })?;
            }
            if cached {
                each(i, &scratch);
            } else if missing.is_none() {
                missing = Some(i);
            }
        }
        Ok(())
    }

    fn read_missing(
        &self,
        block: u64,
        crcs: &[u32],
        each: &mut dyn FnMut(usize, &[u8; BLOCK_SIZE]),
    ) -> Result<()> {
        let mut buffer = AlignedBuf::zeroed(crcs.len() * BLOCK_SIZE);
        self.storage.read(block * BLOCK_SIZE as u64, &mut buffer)?;
        let (blocks, _) = buffer.as_chunks::<BLOCK_SIZE>();
        for (i, (bytes, crc)) in blocks.iter().zip(crcs).enumerate() {
            verify(block + i as u64, bytes, *crc)?;
            self.cache.put(block + i as u64, Box::new(*bytes));
            each(i, bytes);
        }
        Ok(())
    }
}

fn verify(block: u64, bytes: &[u8], expected: u32) -> Result<()> {
    let found = checksum::crc(bytes);
    if found == expected || happens(Deliberate::DataUnchecked) {
        return Ok(());
    }
    Err(Error::corrupt(
        block,
        "data checksum",
        format!("{expected:08x}"),
        format!("{found:08x}"),
    ))
}
