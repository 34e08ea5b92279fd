//! A simulated disk for schedule tests: writes stay in its volatile cache until a flush that began
//! after them has ended.
//!
//! Each call has scheduling points before and after it takes effect. The content that a power cut
//! would leave can be taken as an image and used for another disk.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::device::{Device, check_range};
use crate::error::Result;
use crate::format::BLOCK_SIZE;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The nonzero blocks, by block number.
pub type Image = HashMap<u64, Arc<[u8]>>;

#[derive(Default)]
struct Bytes {
    /// The content that reads return.
    seen: Image,
    /// The content after a power cut that loses the whole cache.
    durable: Image,
    /// Block writes that are not durable, in order.
    cache: Vec<(u64, Arc<[u8]>)>,
    /// Number of block writes that have left the cache.
    before: usize,
}

/// A simulated disk with a volatile cache.
pub struct Disk {
    size: u64,
    bytes: Mutex<Bytes>,
    moments: AtomicU64,
}

fn put(image: &mut Image, block: u64, bytes: &Arc<[u8]>) {
    if bytes.iter().all(|b| *b == 0) {
        image.remove(&block);
    } else {
        image.insert(block, bytes.clone());
    }
}

impl Disk {
    /// A disk of `size` bytes that holds `image`, all of it durable.
    pub fn new(size: u64, image: &Image) -> Arc<Self> {
        let bytes = Bytes {
            seen: image.clone(),
            durable: image.clone(),
            ..Bytes::default()
        };
        Arc::new(Self {
            size,
            bytes: Mutex::new(bytes),
            moments: AtomicU64::new(0),
        })
    }

    /// The content after a power cut at this moment: flushed writes only.
    pub fn durable(&self) -> Image {
        self.bytes.lock().unwrap().durable.clone()
    }

    /// The content that reads return.
    ///
    /// It includes writes that are only in the cache.
    pub fn seen(&self) -> Image {
        self.bytes.lock().unwrap().seen.clone()
    }

    /// A scheduling point: another thread may run here.
    fn moment(&self) {
        self.moments.fetch_add(1, Ordering::Relaxed);
    }
}

impl Device for Disk {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range("read", offset, buf.len() as u64, self.size)?;
        self.moment();
        let bytes = self.bytes.lock().unwrap();
        let first = offset / BLOCK_SIZE as u64;
        for (block, to) in (first..).zip(buf.chunks_mut(BLOCK_SIZE)) {
            match bytes.seen.get(&block) {
                Some(from) => to.copy_from_slice(from),
                None => to.fill(0),
            }
        }
        Ok(())
    }

    fn writes_together(&self) -> bool {
        true
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        check_range("write", offset, buf.len() as u64, self.size)?;
        self.moment();
        {
            let mut bytes = self.bytes.lock().unwrap();
            let first = offset / BLOCK_SIZE as u64;
            for (block, from) in (first..).zip(buf.chunks(BLOCK_SIZE)) {
                let from: Arc<[u8]> = from.into();
                put(&mut bytes.seen, block, &from);
                bytes.cache.push((block, from));
            }
        }
        self.moment();
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let covers = {
            let bytes = self.bytes.lock().unwrap();
            bytes.before + bytes.cache.len()
        };
        self.moment();
        let mut bytes = self.bytes.lock().unwrap();
        let Bytes {
            durable,
            cache,
            before,
            ..
        } = &mut *bytes;
        let covered = covers.saturating_sub(*before);
        for (block, from) in cache.drain(..covered) {
            put(durable, block, &from);
        }
        *before += covered;
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        self.moment();
        Ok(())
    }
}
