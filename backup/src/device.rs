//! A moment as a device that can be read: for `cairnfs mount --at`, for the check, and for compaction.
//!
//! Blocks without contents are zeros. What was read is kept in a [`Cache`]; several readers of one frame
//! wait for one request. Uses the image and the cache.

use std::collections::HashSet;

use cairnfs_disk::device::{Device, check_range};
use parking_lot::{Condvar, Mutex};

use crate::cache::Cache;
use crate::error::Result;
use crate::format::{BLOCK, FRAME_BLOCKS};
use crate::image::{Extent, FrameId, Image, OBJECT_FRAMES};

/// How much is fetched for a block that is not in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetch {
    /// Its frame: for reads here and there.
    Frame,
    /// All frames of its object that the image needs: for reading everything in order.
    Object,
}

/// A moment, to be read.
pub struct MomentDevice {
    image: Image,
    cache: Cache,
    fetch: Fetch,
    /// What is being fetched.
    pending: Mutex<HashSet<(u32, u64)>>,
    fetched: Condvar,
    /// The frames that the image needs, in order; only to fetch objects.
    needed: Vec<FrameId>,
}

impl MomentDevice {
    /// A device over an image.
    pub fn new(image: Image, cache: Cache, fetch: Fetch) -> Self {
        let needed = match fetch {
            Fetch::Frame => Vec::new(),
            Fetch::Object => needed_frames(&image),
        };
        Self {
            image,
            cache,
            fetch,
            pending: Mutex::default(),
            fetched: Condvar::new(),
            needed,
        }
    }

    /// The image.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Reads blocks.
    ///
    /// # Errors
    /// They are missing or damaged, or the store fails.
    pub fn read_blocks(&self, start: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        let count = (buf.len() / BLOCK) as u64;
        self.image.for_each_in(start, count, |extent| {
            let from = (extent.start - start) as usize * BLOCK;
            let len = extent.count as usize * BLOCK;
            match buf.get_mut(from..from + len) {
                Some(part) => self.read_extent(extent, part),
                None => Ok(()),
            }
        })
    }

    fn read_extent(&self, extent: Extent, mut buf: &mut [u8]) -> Result<()> {
        let Some(layer) = extent.layer else {
            return Ok(());
        };
        let (mut ordinal, mut left) = (extent.ordinal, extent.count);
        while left > 0 {
            let (frame, within) = (ordinal / FRAME_BLOCKS, ordinal % FRAME_BLOCKS);
            let some = left.min(FRAME_BLOCKS - within);
            let (now, later) = buf.split_at_mut((some as usize * BLOCK).min(buf.len()));
            self.read_in_frame(FrameId { layer, frame }, within as usize * BLOCK, now)?;
            buf = later;
            ordinal += some;
            left -= some;
        }
        Ok(())
    }

    fn read_in_frame(&self, id: FrameId, offset: usize, buf: &mut [u8]) -> Result<()> {
        while !self.cache.read(id, offset, buf)? {
            let what = match self.fetch {
                Fetch::Frame => (id.layer, id.frame),
                Fetch::Object => (id.layer, id.object()),
            };
            if !self.claim(what) {
                continue;
            }
            let read = self.fetch(id, offset, buf);
            self.pending.lock().remove(&what);
            self.fetched.notify_all();
            return read;
        }
        Ok(())
    }

    /// Whether the caller has to fetch it; otherwise another one did meanwhile.
    fn claim(&self, what: (u32, u64)) -> bool {
        let mut pending = self.pending.lock();
        if pending.insert(what) {
            return true;
        }
        while pending.contains(&what) {
            self.fetched.wait(&mut pending);
        }
        false
    }

    fn fetch(&self, id: FrameId, offset: usize, buf: &mut [u8]) -> Result<()> {
        // Another one may have fetched it between the look into the cache and the claim.
        if self.cache.read(id, offset, buf)? {
            return Ok(());
        }
        let mut found = |of: FrameId, bytes: Result<Vec<u8>>| {
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(why) if of == id => return Err(why),
                // It is told when it is read itself.
                Err(_) => return Ok(()),
            };
            if let Some(part) = bytes.get(offset..offset + buf.len()).filter(|_| of == id) {
                buf.copy_from_slice(part);
            }
            self.cache.keep(of, &bytes)
        };
        match self.fetch {
            Fetch::Frame => found(id, self.image.read_frame(id)),
            Fetch::Object => self.image.read_frames(&self.needed_beside(id), found),
        }
    }

    /// The frames of the same object that are needed and not kept yet.
    fn needed_beside(&self, id: FrameId) -> Vec<FrameId> {
        let first = id.object() * OBJECT_FRAMES;
        let with = |frame| FrameId {
            layer: id.layer,
            frame,
        };
        let from = self.needed.partition_point(|other| *other < with(first));
        let rest = self.needed.get(from..).unwrap_or_default().iter();
        rest.take_while(|other| **other < with(first + OBJECT_FRAMES))
            .filter(|other| **other == id || !self.cache.has(**other))
            .copied()
            .collect()
    }
}

/// The frames that an image needs, by layer.
pub fn needed_frames(image: &Image) -> Vec<FrameId> {
    let mut needed = Vec::new();
    for extent in image.extents() {
        let Some(layer) = extent.layer else {
            continue;
        };
        let last = extent.ordinal + extent.count - 1;
        let frames = extent.ordinal / FRAME_BLOCKS..=last / FRAME_BLOCKS;
        needed.extend(frames.map(|frame| FrameId { layer, frame }));
    }
    needed.sort_unstable();
    needed.dedup();
    needed
}

impl Device for MomentDevice {
    fn size(&self) -> u64 {
        self.image.blocks() * BLOCK as u64
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> cairnfs::Result<()> {
        check_range("read", offset, buf.len() as u64, self.size())?;
        let read = self.read_blocks(offset / BLOCK as u64, buf);
        read.map_err(|why| why.of_device(offset, buf.len()))
    }

    fn write(&self, _offset: u64, _buf: &[u8]) -> cairnfs::Result<()> {
        Err(cairnfs::Error::ReadOnly)
    }

    fn flush(&self) -> cairnfs::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> cairnfs::Result<()> {
        Err(cairnfs::Error::ReadOnly)
    }

    fn discards(&self) -> bool {
        false
    }
}
