//! Frames that were read, in a temporary file of bounded size.
//!
//! The file has no name, so nothing is left of it. Frames that have not been used since the hand went by
//! give way (a clock). Uses frames' numbers only.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::format::FRAME;
use crate::image::FrameId;

/// Where a frame is kept.
struct Slot {
    id: FrameId,
    used: bool,
    /// Reads going on, during which it must stay.
    readers: u32,
    /// Whether its bytes are there.
    is_filled: bool,
}

#[derive(Default)]
struct Table {
    places: HashMap<FrameId, usize>,
    slots: Vec<Slot>,
    hand: usize,
}

/// A cache of frames.
pub struct Cache {
    file: File,
    most: usize,
    table: Mutex<Table>,
}

impl Cache {
    /// One of at most `bytes` bytes in a directory, or where temporary files are.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn new(bytes: u64, dir: Option<&Path>) -> Result<Self> {
        let file = match dir {
            Some(dir) => tempfile::tempfile_in(dir),
            None => tempfile::tempfile(),
        };
        Ok(Self {
            file: file.map_err(Error::host("the file of the cache"))?,
            most: usize::try_from(bytes / FRAME as u64)
                .unwrap_or(usize::MAX)
                .max(8),
            table: Mutex::default(),
        })
    }

    /// Reads bytes of a frame; `false` if it is not kept.
    pub fn read(&self, id: FrameId, offset: usize, buf: &mut [u8]) -> Result<bool> {
        let Some(place) = self.pin(id) else {
            return Ok(false);
        };
        let read = self.file.read_exact_at(buf, at(place) + offset as u64);
        if let Some(slot) = self.table.lock().slots.get_mut(place) {
            slot.readers -= 1;
        }
        read.map_err(Error::host("the file of the cache"))?;
        Ok(true)
    }

    /// Whether a frame is kept.
    pub fn has(&self, id: FrameId) -> bool {
        let table = self.table.lock();
        let slot = table
            .places
            .get(&id)
            .and_then(|place| table.slots.get(*place));
        slot.is_some_and(|slot| slot.is_filled)
    }

    fn pin(&self, id: FrameId) -> Option<usize> {
        let mut table = self.table.lock();
        let place = *table.places.get(&id)?;
        let slot = table.slots.get_mut(place).filter(|slot| slot.is_filled)?;
        slot.used = true;
        slot.readers += 1;
        Some(place)
    }

    /// Keeps a frame. If all others are being read, it is not kept.
    pub fn keep(&self, id: FrameId, bytes: &[u8]) -> Result<()> {
        let Some(place) = self.table.lock().place_for(id, self.most) else {
            return Ok(());
        };
        let written = self.file.write_all_at(bytes, at(place));
        let mut table = self.table.lock();
        if let Some(slot) = table.slots.get_mut(place) {
            slot.is_filled = written.is_ok();
            slot.readers -= 1;
        }
        if written.is_err() {
            table.places.remove(&id);
        }
        written.map_err(Error::host("the file of the cache"))
    }
}

fn at(place: usize) -> u64 {
    place as u64 * FRAME as u64
}

impl Table {
    /// A slot for a frame that is not there, pinned.
    fn place_for(&mut self, id: FrameId, most: usize) -> Option<usize> {
        if self.places.contains_key(&id) {
            return None;
        }
        let slot = Slot {
            id,
            used: true,
            readers: 1,
            is_filled: false,
        };
        let place = if self.slots.len() < most {
            self.slots.push(slot);
            self.slots.len() - 1
        } else {
            let place = self.free()?;
            let old = self.slots.get_mut(place)?;
            if self.places.get(&old.id) == Some(&place) {
                self.places.remove(&old.id);
            }
            *old = slot;
            place
        };
        self.places.insert(id, place);
        Some(place)
    }

    /// A slot that was not used since the hand went by, within two rounds.
    fn free(&mut self) -> Option<usize> {
        for _ in 0..2 * self.slots.len() {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = self.slots.get_mut(place)?;
            if slot.readers == 0 {
                if !slot.used {
                    return Some(place);
                }
                slot.used = false;
            }
        }
        None
    }
}
