//! A store of checkpoints, and what must be possible with it after a power cut.
//!
//! A checkpoint is begun by one step, read and stored by a later one. Whatever a cut leaves of the
//! volume, the next checkpoint is compared with the newest one that was stored before the cut, and
//! with what is stored of that it restores the volume as it was recovered.

use cairnfs::{Checkpoint, CheckpointId, Volume};

use crate::image::{BLOCK, Image};

/// A stored checkpoint.
#[derive(Clone)]
pub(crate) struct Stored {
    id: CheckpointId,
    /// The blocks of its image, and older ones that it does not have.
    blocks: Image,
    /// The number of events before it was begun, and when it was stored.
    pub begun: usize,
    pub stored: usize,
}

/// The checkpoints of a run.
#[derive(Default)]
pub(crate) struct Store {
    stored: Vec<Stored>,
    /// One that is not stored yet.
    open: Option<(Checkpoint, usize)>,
}

impl Store {
    /// Begins a checkpoint, after so many events.
    pub fn begin(&mut self, volume: &Volume, events: usize) -> cairnfs::Result<()> {
        self.open = None;
        let since = self.stored.last().map(|stored| stored.id);
        self.open = Some((volume.checkpoint(since)?, events));
        Ok(())
    }

    /// Stores it, after so many events, and tells the volume if `told`. Returns what is restored of it.
    pub fn store(&mut self, events: usize, told: bool) -> Result<Image, String> {
        let (checkpoint, begun) = self.open.take().ok_or("no checkpoint was begun")?;
        let blocks = with_gained(&checkpoint, &self.stored)?;
        let image = live_of(&checkpoint, &blocks)?;
        self.stored.push(Stored {
            id: checkpoint.id(),
            blocks,
            begun,
            stored: events,
        });
        if told {
            checkpoint.shipped().map_err(|e| e.to_string())?;
        }
        Ok(image)
    }

    /// Everything stored; what is not stored yet is lost.
    pub fn into_stored(self) -> Vec<Stored> {
        self.stored
    }
}

/// What is stored with the blocks that a checkpoint has gained since the last one that it knows.
fn with_gained(checkpoint: &Checkpoint, stored: &[Stored]) -> Result<Image, String> {
    let mut blocks = match (checkpoint.is_full(), stored.last()) {
        (false, Some(last)) => last.blocks.clone(),
        _ => Image::new(checkpoint.image_size()),
    };
    let each = |first: u64, count: u64| {
        let mut bytes = vec![0; count as usize * BLOCK];
        checkpoint.read(first, &mut bytes)?;
        blocks.write(first * BLOCK as u64, &bytes);
        Ok(())
    };
    checkpoint
        .for_each_gained(each)
        .map_err(|e| e.to_string())?;
    Ok(blocks)
}

/// What a recovered volume is restored to, from what was `stored` before a cut after so many events:
/// none if the next checkpoint is full, which is right only if nothing was stored.
pub(crate) fn restored(
    volume: &Volume,
    stored: &[Stored],
    events: usize,
) -> Result<Option<Image>, String> {
    let Some(last) = stored.last() else {
        return Ok(None);
    };
    let next = volume
        .checkpoint(Some(last.id))
        .map_err(|e| e.to_string())?;
    if next.is_full() {
        return if last.stored <= events {
            Err("the next checkpoint is full".into())
        } else {
            Ok(None)
        };
    }
    live_of(&next, &with_gained(&next, stored)?).map(Some)
}

/// The volume that the live blocks of a checkpoint are, of what is stored.
fn live_of(checkpoint: &Checkpoint, stored: &Image) -> Result<Image, String> {
    let mut image = Image::new(checkpoint.image_size());
    let live = |first: u64, count: u64| {
        let mut bytes = vec![0; count as usize * BLOCK];
        stored.read(first * BLOCK as u64, &mut bytes);
        image.write(first * BLOCK as u64, &bytes);
        Ok(())
    };
    checkpoint.for_each_live(live).map_err(|e| e.to_string())?;
    Ok(image)
}
