//! Trim: discards all free space, including space that earlier mounts did not discard.
//!
//! While the device discards blocks, they are marked as in use, so that they cannot be allocated
//! and written meanwhile. Only the trim lock is held during the discard; an allocation that finds
//! no space takes this lock, and so waits until the blocks are free again. Reserved space is never
//! taken.

use super::bitmap::WORD_BLOCKS;
use super::release::Part;
use super::{BlockRun, Class, Space, block_of};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::geometry::GROUP_BLOCKS;
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};
use cairnfs_disk::sync::{Mutex, MutexGuard};

/// Bitmap words that are trimmed in one step (4 MiB).
const TOGETHER: usize = 16;

/// The state of trimming.
#[derive(Default)]
pub(super) struct Trimming {
    /// The trim lock: held while blocks are marked as in use for a discard.
    turn: Mutex<()>,
    /// Number of these blocks.
    blocks: AtomicU64,
}

impl Space {
    /// Number of free blocks that are marked as in use while they are discarded.
    pub fn trimming(&self) -> u64 {
        self.trimming.blocks.load(Ordering::Acquire)
    }

    /// Waits until the blocks being discarded are free again, and stops trimming until the guard is
    /// dropped.
    pub fn hold_trimming(&self) -> MutexGuard<'_, ()> {
        self.trimming.turn.lock()
    }

    /// Discards all free blocks that are not reserved; returns the number of bytes.
    ///
    /// # Errors
    /// A damaged bitmap; a device error. In any case no block stays marked as in use.
    pub fn trim(&self) -> Result<u64> {
        let mut blocks = 0;
        for index in 0..self.groups.len() {
            let was_read = self.group(index)?.maps.lock().is_some();
            let words = (GROUP_BLOCKS / u64::from(WORD_BLOCKS)) as usize;
            for first in (0..words).step_by(TOGETHER) {
                blocks += self.trim_words(index, first)?;
            }
            if !was_read {
                self.forget_maps(index)?;
            }
        }
        Ok(blocks * BLOCK_SIZE as u64)
    }

    fn trim_words(&self, index: usize, first: usize) -> Result<u64> {
        let turn = self.trimming.turn.lock();
        let taken = self.take_free(index, first)?;
        let blocks = taken
            .iter()
            .map(|part| u64::from(part.mask.count_ones()))
            .sum();
        self.trimming.blocks.store(blocks, Ordering::Release);
        let mut done = Ok(());
        for run in runs(index, &taken) {
            let block = BLOCK_SIZE as u64;
            let discarded = self.device.discard(run.start * block, run.len * block);
            done = done.and(discarded);
        }
        let cleared = self.clear_words(index, &taken);
        self.trimming.blocks.store(0, Ordering::Release);
        drop(turn);
        cleared.and(done).map(|()| blocks)
    }

    /// Marks the free blocks of [`TOGETHER`] words as in use, except in words where this would take
    /// reserved space.
    fn take_free(&self, index: usize, first: usize) -> Result<Vec<Part>> {
        let mut maps = self.lock(index)?;
        let mut taken = Vec::new();
        for word in first..first + TOGETHER {
            let mask = !maps.live.word(word);
            let units = maps.live.word_units(word);
            let blocks = mask.count_ones();
            if mask != 0
                && self
                    .budget
                    .take_unpromised(blocks.into(), units.into(), Class::Delete)
            {
                maps.live.set_word(word, u64::MAX);
                self.group(index)?.count_taken(blocks, units);
                taken.push(Part { word, mask });
            }
        }
        Ok(taken)
    }

    /// Frees the bitmaps of a group if they are unchanged since the volume was opened, so that they
    /// can be read again from there.
    fn forget_maps(&self, index: usize) -> Result<()> {
        let image = self.image.lock();
        let mut maps = self.group(index)?.maps.lock();
        let unchanged = image.is_as_opened(index, &self.opened)
            && maps
                .as_ref()
                .is_some_and(|m| !m.image_changed && m.pinned.is_none() && m.live == m.image);
        if unchanged {
            *maps = None;
        }
        Ok(())
    }
}

/// The runs of contiguous blocks in masks of ascending words.
fn runs(group: usize, parts: &[Part]) -> Vec<BlockRun> {
    let mut runs: Vec<BlockRun> = Vec::new();
    for part in parts {
        let start = block_of(group, part.word as u32 * WORD_BLOCKS);
        let bits = (0..u64::from(WORD_BLOCKS)).filter(|bit| part.mask >> bit & 1 == 1);
        for block in bits.map(|bit| start + bit) {
            match runs.last_mut() {
                Some(last) if last.end() == block => last.len += 1,
                _ => runs.push(BlockRun::new(block, 1)),
            }
        }
    }
    runs
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn runs_continue_across_words() {
        let part = |word, mask| Part { word, mask };
        assert_eq!(
            runs(1, &[part(0, 0b1011), part(2, 1 << 63), part(3, u64::MAX)]),
            [
                BlockRun::new(GROUP_BLOCKS, 2),
                BlockRun::new(GROUP_BLOCKS + 3, 1),
                BlockRun::new(GROUP_BLOCKS + 191, 65),
            ]
        );
        assert!(runs(0, &[]).is_empty());
    }
}
