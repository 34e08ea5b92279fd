//! Writing the image of a moment into a file.
//!
//! Each object is read once, by several threads; blocks without contents stay holes. The file gets its
//! name, if it is to have one, from the caller. Uses the image.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::device::needed_frames;
use crate::error::{Error, Result};
use crate::format::{BLOCK, FRAME_BLOCKS};
use crate::image::{Extent, FrameId, Image};
use crate::losses::Unreadable;
use crate::runs::Blocks;
use crate::watch::Watch;

/// Threads that read objects and write blocks.
const THREADS: usize = 4;

/// Writes all blocks of the image into an empty file, and makes them durable.
///
/// # Errors
/// Something is missing or damaged, the store fails, or the file cannot be written; it is incomplete
/// then.
pub fn restore(image: &Image, file: &File, watch: &dyn Watch) -> Result<()> {
    write_all(image, file, watch, None)
}

/// The same, but what is missing or damaged stays a hole, and is returned. The volume's own checksums keep
/// that from being read as its contents.
///
/// # Errors
/// The store fails, or the file cannot be written; it is incomplete then.
pub fn restore_readable(image: &Image, file: &File, watch: &dyn Watch) -> Result<Unreadable> {
    let lost = Mutex::new(Holes::default());
    write_all(image, file, watch, Some(&lost))?;
    let lost = lost.into_inner();
    Ok(Unreadable {
        blocks: Blocks::of(lost.runs),
        whys: lost.whys.into_iter().collect(),
    })
}

/// What could not be read.
#[derive(Default)]
struct Holes {
    runs: Vec<(u64, u64)>,
    whys: BTreeSet<String>,
}

fn write_all(
    image: &Image,
    file: &File,
    watch: &dyn Watch,
    holes: Option<&Mutex<Holes>>,
) -> Result<()> {
    let wrong = Error::host("the restored file");
    file.set_len(image.blocks() * BLOCK as u64)
        .map_err(&wrong)?;
    let work = Work::new(image, file, watch, holes);
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
    /// Takes what cannot be read; otherwise that ends the work.
    holes: Option<&'a Mutex<Holes>>,
    frames: Vec<FrameId>,
    /// Where the frames of each object begin in `frames`.
    objects: Vec<(usize, usize)>,
    /// The image's extents with contents, by layer and number.
    extents: Vec<Extent>,
    next: AtomicUsize,
    has_failed: AtomicBool,
}

impl<'a> Work<'a> {
    fn new(
        image: &'a Image,
        file: &'a File,
        watch: &'a dyn Watch,
        holes: Option<&'a Mutex<Holes>>,
    ) -> Self {
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
            holes,
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
                    .read_frames(frames, |id, bytes| self.take(id, bytes))
            });
            if done.is_err() {
                self.has_failed.store(true, Ordering::Relaxed);
                return done;
            }
        }
        Ok(())
    }

    fn take(&self, id: FrameId, bytes: Result<Vec<u8>>) -> Result<()> {
        match (bytes, self.holes) {
            (Ok(bytes), _) => self.write(id, &bytes),
            (Err(why), Some(holes)) if why.is_damage() => {
                let parts = self.parts(id).map(|(part, _)| (part.start, part.count));
                let mut holes = holes.lock();
                holes.runs.extend(parts);
                if holes.whys.len() < Unreadable::WHYS {
                    holes.whys.insert(why.to_string());
                }
                Ok(())
            }
            (Err(why), _) => Err(why),
        }
    }

    /// What the image has from a frame, with the number of the first block in the frame.
    fn parts(&self, id: FrameId) -> impl Iterator<Item = (Extent, u64)> {
        let first = id.frame * FRAME_BLOCKS;
        let end = first + FRAME_BLOCKS;
        let place = |extent: &Extent| (extent.layer, extent.ordinal + extent.count);
        let from = self
            .extents
            .partition_point(|e| place(e) <= (Some(id.layer), first));
        let rest = self.extents.get(from..).unwrap_or_default().iter();
        let inside = rest.take_while(move |e| e.layer == Some(id.layer) && e.ordinal < end);
        inside.map(move |extent| {
            let begin = extent.ordinal.max(first);
            let stop = (extent.ordinal + extent.count).min(end);
            let part = Extent {
                start: extent.start + (begin - extent.ordinal),
                count: stop - begin,
                layer: extent.layer,
                ordinal: begin,
            };
            (part, begin - first)
        })
    }

    /// Writes the blocks of a frame that the image has from it.
    fn write(&self, id: FrameId, bytes: &[u8]) -> Result<()> {
        for (part, at) in self.parts(id) {
            let range = at as usize * BLOCK..(at + part.count) as usize * BLOCK;
            let bytes = bytes.get(range).unwrap_or_default();
            let written = self.file.write_all_at(bytes, part.start * BLOCK as u64);
            written.map_err(Error::host("the restored file"))?;
            self.watch.done(bytes.len() as u64);
            self.watch.go_on()?;
        }
        Ok(())
    }
}
