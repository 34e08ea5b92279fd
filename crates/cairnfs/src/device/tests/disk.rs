//! A disk for schedules: writes lie in its cache until a flush that began after them has ended.
//!
//! Each call has moments before and after it takes effect at which others may run. Its bytes can be
//! taken as a power cut would leave them, and put on another disk.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::device::{Device, check_range};
use crate::error::Result;
use crate::format::BLOCK_SIZE;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Blocks that are not zero.
pub type Image = HashMap<u64, Arc<[u8]>>;

#[derive(Default)]
struct Bytes {
    /// As readers see them.
    seen: Image,
    /// As a power cut would leave them at worst.
    durable: Image,
    /// Blocks written and not durable, in order, and how many came before them.
    cache: Vec<(u64, Arc<[u8]>)>,
    before: usize,
}

/// A disk whose cache a power cut empties.
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

    /// What a power cut leaves now: nothing but what was flushed.
    pub fn durable(&self) -> Image {
        self.bytes.lock().unwrap().durable.clone()
    }

    /// What is read from it now.
    pub fn seen(&self) -> Image {
        self.bytes.lock().unwrap().seen.clone()
    }

    /// Others may run now.
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
