//! The contents of a volume: a shared base and the blocks that differ from it.
//!
//! As a [`Device`] it counts calls and bytes and fails all calls beyond a limit, so that an endless
//! loop of a reader is detected without a clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairnfs::{Error, Result};
use cairnfs_disk::device::{Device, check_range};
use cairnfs_disk::format::BLOCK_SIZE;
use parking_lot::RwLock;

/// A number of calls that no correct use of a volume of this size exceeds.
const MOST_CALLS: u64 = 200_000;
/// A number of bytes read that no correct use of a volume of this size exceeds.
const MOST_BYTES: u64 = 2 << 30;

/// The contents of a volume.
#[derive(Clone)]
pub struct Image {
    base: Arc<[u8]>,
    blocks: u64,
    changed: BTreeMap<u64, Box<[u8]>>,
}

impl Image {
    /// The image of a base.
    pub fn new(base: Arc<[u8]>) -> Self {
        Self {
            blocks: (base.len() / BLOCK_SIZE) as u64,
            base,
            changed: BTreeMap::new(),
        }
    }

    /// Size in blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Truncates the image to at most this many blocks.
    pub fn truncate(&mut self, blocks: u64) {
        self.blocks = self.blocks.min(blocks);
    }

    fn block(&self, block: u64) -> &[u8] {
        let at = block as usize * BLOCK_SIZE;
        match self.changed.get(&block) {
            Some(bytes) => bytes,
            None => &self.base[at..at + BLOCK_SIZE],
        }
    }

    /// Reads `count` blocks.
    pub fn read(&self, block: u64, count: u64) -> Vec<u8> {
        let blocks = (block..block + count).flat_map(|b| self.block(b));
        blocks.copied().collect()
    }

    /// Writes whole blocks.
    pub fn write(&mut self, block: u64, bytes: &[u8]) {
        for (i, bytes) in (0..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            self.changed.insert(block + i, bytes.into());
        }
    }

    /// Changes bytes at `offset` from the start of `block`.
    pub fn patch(&mut self, block: u64, offset: usize, bytes: &[u8]) {
        let first = block + (offset / BLOCK_SIZE) as u64;
        let within = offset % BLOCK_SIZE;
        let count = (within + bytes.len()).div_ceil(BLOCK_SIZE) as u64;
        let mut all = self.read(first, count);
        all[within..within + bytes.len()].copy_from_slice(bytes);
        self.write(first, &all);
    }

    /// Whether a block has a nonzero byte.
    pub fn holds_something(&self, block: u64) -> bool {
        self.block(block).iter().any(|b| *b != 0)
    }

    /// Whether the contents differ from those of an image with the same base.
    pub fn differs_from(&self, other: &Image) -> bool {
        let blocks = self.changed.keys().chain(other.changed.keys());
        self.blocks != other.blocks || { blocks }.any(|b| self.block(*b) != other.block(*b))
    }
}

/// The contents of a device.
pub(crate) fn copy(device: &dyn Device) -> Image {
    let mut bytes = vec![0; device.size() as usize];
    device.read(0, &mut bytes).unwrap();
    Image::new(bytes.into())
}

/// An image as a device with a limit on calls and bytes.
pub struct Bounded {
    image: RwLock<Image>,
    calls: AtomicU64,
    bytes: AtomicU64,
}

impl Bounded {
    /// A device with a copy of the image.
    pub fn new(image: &Image) -> Arc<Self> {
        Arc::new(Self {
            image: RwLock::new(image.clone()),
            calls: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Whether the limit was exceeded, so that the reader is probably in an endless loop.
    pub fn exceeded(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > MOST_CALLS
            || self.bytes.load(Ordering::Relaxed) > MOST_BYTES
    }

    /// The current contents.
    pub fn image(&self) -> Image {
        self.image.read().clone()
    }

    fn count(&self, op: &'static str, offset: u64, len: usize) -> Result<()> {
        check_range(op, offset, len as u64, self.size())?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
        if self.exceeded() {
            return Err(Error::Invalid(
                "more reads than a volume of this size needs",
            ));
        }
        Ok(())
    }
}

impl Device for Bounded {
    fn size(&self) -> u64 {
        self.image.read().blocks * BLOCK_SIZE as u64
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.count("read", offset, buf.len())?;
        let image = self.image.read();
        let at = offset as usize;
        buf.copy_from_slice(&image.base[at..at + buf.len()]);
        let first = offset / BLOCK_SIZE as u64;
        let end = first + (buf.len() / BLOCK_SIZE) as u64;
        for (block, bytes) in image.changed.range(first..end) {
            let at = (block - first) as usize * BLOCK_SIZE;
            buf[at..at + BLOCK_SIZE].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.count("write", offset, buf.len())?;
        self.image.write().write(offset / BLOCK_SIZE as u64, buf);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range("discard", offset, len, self.size())
    }
}
