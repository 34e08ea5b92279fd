//! Writing the image of a moment into a file.
//!
//! Each object is read once, by several threads; blocks without contents stay holes. The file gets its
//! name, if it is to have one, from whoever calls. Uses the image.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::device::needed_frames;
use crate::error::{Error, Result};
use crate::format::{BLOCK, FRAME_BLOCKS};
use crate::image::{Extent, FrameId, Image};
use crate::watch::Watch;

/// Threads that read objects and write blocks.
const THREADS: usize = 4;

/// Writes all blocks of the image into an empty file, and makes them durable.
///
/// # Errors
/// Something is missing or damaged, the store fails, or the file cannot be written; it is incomplete
/// then.
pub fn restore(image: &Image, file: &File, watch: &dyn Watch) -> Result<()> {
    let wrong = Error::host("the restored file");
    file.set_len(image.blocks() * BLOCK as u64)
        .map_err(&wrong)?;
    let work = Work::new(image, file, watch);
    watch.expect(image.live()?.count() * BLOCK as u64);
    let failed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| work.go_on())).collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.fold(Ok(()), Result::and)
    });
    failed?;
    file.sync_all().map_err(wrong)
}

struct Work<'a> {
    image: &'a Image,
    file: &'a File,
    watch: &'a dyn Watch,
    frames: Vec<FrameId>,
    /// Where the frames of each object begin in `frames`.
    objects: Vec<(usize, usize)>,
    /// The image's extents with contents, by layer and number.
    extents: Vec<Extent>,
    next: AtomicUsize,
    has_failed: AtomicBool,
}

impl<'a> Work<'a> {
    fn new(image: &'a Image, file: &'a File, watch: &'a dyn Watch) -> Self {
        let frames = needed_frames(image);
        let mut objects: Vec<(usize, usize)> = Vec::new();
        for (i, pair) in frames.iter().enumerate() {
            let before = i.checked_sub(1).and_then(|before| frames.get(before));
            let is_same =
                |other: &FrameId| other.layer == pair.layer && other.object() == pair.object();
            match objects.last_mut().filter(|_| before.is_some_and(is_same)) {
                Some(object) => object.1 = i + 1,
                None => objects.push((i, i + 1)),
            }
        }
        let with = image
            .extents()
            .iter()
            .filter(|extent| extent.layer.is_some());
        let mut extents: Vec<Extent> = with.copied().collect();
        extents.sort_unstable_by_key(|extent| (extent.layer, extent.ordinal));
        Self {
            image,
            file,
            watch,
            frames,
            objects,
            extents,
            next: AtomicUsize::new(0),
            has_failed: AtomicBool::new(false),
        }
    }

    fn go_on(&self) -> Result<()> {
        while !self.has_failed.load(Ordering::Relaxed) {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(&(from, to)) = self.objects.get(next) else {
                break;
            };
            let frames = self.frames.get(from..to).unwrap_or_default();
            let done = self.watch.go_on().and_then(|()| {
                self.image
                    .read_frames(frames, |id, bytes| self.write(id, &bytes))
            });
            if done.is_err() {
                self.has_failed.store(true, Ordering::Relaxed);
                return done;
            }
        }
        Ok(())
    }

    /// Writes the blocks of a frame that the image has from it.
    fn write(&self, id: FrameId, bytes: &[u8]) -> Result<()> {
        let first = id.frame * FRAME_BLOCKS;
        let end = first + FRAME_BLOCKS;
        let place = |extent: &Extent| (extent.layer, extent.ordinal + extent.count);
        let from = self
            .extents
            .partition_point(|e| place(e) <= (Some(id.layer), first));
        let rest = self.extents.get(from..).unwrap_or_default().iter();
        let inside = rest.take_while(|e| e.layer == Some(id.layer) && e.ordinal < end);
        for extent in inside {
            let begin = extent.ordinal.max(first);
            let stop = (extent.ordinal + extent.count).min(end);
            let part = (begin - first) as usize * BLOCK..(stop - first) as usize * BLOCK;
            let part = bytes.get(part).unwrap_or_default();
            let block = extent.start + (begin - extent.ordinal);
            let written = self.file.write_all_at(part, block * BLOCK as u64);
            written.map_err(Error::host("the restored file"))?;
            self.watch.done(part.len() as u64);
            self.watch.go_on()?;
        }
        Ok(())
    }
}
