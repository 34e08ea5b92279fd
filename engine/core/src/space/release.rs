//! Freeing blocks, and discarding regions that became entirely free.
//!
//! The unit of a discard is a bitmap word (256 KiB) in which no block is in use after the release.
//! While the device discards it, the whole word is marked as in use, including blocks that were
//! free before, so that none can be allocated and written meanwhile. No lock is held during the
//! discard.

use super::bitmap::{WORD_BLOCKS, words};
use super::{BlockRun, Class, Space, block_of, parts};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::BLOCK_SIZE;

/// A bitmap word, and the bits in it to be cleared.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub word: usize,
    pub mask: u64,
}

impl Space {
    /// Frees blocks for reuse and empties `runs`. With `discard`, every 256 KiB that becomes
    /// entirely free is discarded.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a block is not in use, or is still in the image: the groups before its
    /// group are released then, its group and those behind it are not. A failed discard is logged
    /// as a warning only, because it has no effect on correctness.
    pub fn release(&self, runs: &mut Vec<BlockRun>, discard: bool) -> Result<()> {
        coalesce(runs)?;
        for run in runs.iter() {
            self.check_run(*run)?;
        }
        let mut parts = runs.drain(..).flat_map(parts).peekable();
        let mut masks = Vec::new();
        while let Some((index, bit, len)) = parts.next() {
            masks.clear();
            add_masks(&mut masks, bit, len);
            while let Some((_, bit, len)) = parts.next_if(|(g, ..)| *g == index) {
                add_masks(&mut masks, bit, len);
            }
            self.release_words(index, &mut masks, discard)?;
        }
        Ok(())
    }

    /// Frees blocks of a group, except those that are pinned.
    pub(super) fn release_words(
        &self,
        index: usize,
        masks: &mut Vec<Part>,
        discard: bool,
    ) -> Result<()> {
        let kept = self.clear_or_keep(index, masks, discard)?;
        if !kept.is_empty() {
            if let Err(error) = self.discard_words(index, &kept) {
                tracing::warn!(%error, "free space could not be discarded");
            }
            self.clear_words(index, &kept)?;
        }
        Ok(())
    }

    /// Clears the bits. In words to be discarded it sets all bits instead, and returns these words.
    fn clear_or_keep(
        &self,
        index: usize,
        masks: &mut Vec<Part>,
        discard: bool,
    ) -> Result<Vec<Part>> {
        let mut kept = Vec::new();
        let mut cleared = Vec::with_capacity(masks.len());
        let mut maps = self.lock(index)?;
        if maps.unread {
            return Ok(kept);
        }
        for part in masks.iter() {
            let (live, image) = (maps.live.word(part.word), maps.image.word(part.word));
            let (free, referred) = (part.mask & !live, part.mask & image);
            if free | referred != 0 {
                let bit = part.word as u32 * WORD_BLOCKS + (free | referred).trailing_zeros();
                return Err(Error::corrupt(
                    block_of(index, bit),
                    "free space",
                    "a block in use by nobody but who frees it",
                    if free != 0 {
                        "a free block"
                    } else {
                        "a block of the image"
                    },
                ));
            }
        }
        self.not_pinned(&mut maps, masks);
        for part in masks {
            let live = maps.live.word(part.word);
            let rest = (!live).count_ones();
            let units = maps.live.word_units(part.word);
            // No discard where space is short: the blocks taken for it could be needed meanwhile.
            let keep = discard
                && live == part.mask
                && (rest == 0
                    || self
                        .budget
                        .take_unpromised(rest.into(), units.into(), Class::Ordinary));
            if keep {
                maps.live.set_word(part.word, u64::MAX);
                self.group(index)?.count_taken(rest, units);
                kept.push(Part {
                    word: part.word,
                    mask: u64::MAX,
                });
            } else {
                cleared.push(*part);
            }
        }
        self.clear_in(index, &mut maps, &cleared)?;
        Ok(kept)
    }

    pub(super) fn clear_words(&self, index: usize, parts: &[Part]) -> Result<()> {
        let mut maps = self.lock(index)?;
        self.clear_in(index, &mut maps, parts)
    }

    fn clear_in(&self, index: usize, maps: &mut super::Maps, parts: &[Part]) -> Result<()> {
        let (mut blocks, mut units) = (0, 0);
        for part in parts {
            let before = maps.live.word_units(part.word);
            let live = maps.live.word(part.word);
            maps.live.set_word(part.word, live & !part.mask);
            units += maps.live.word_units(part.word) - before;
            blocks += part.mask.count_ones();
        }
        if blocks > 0 {
            self.group(index)?.count_given(blocks, units);
            self.budget.give(blocks.into(), units.into());
        }
        Ok(())
    }

    /// Discards words that are marked as in use, adjacent words with one call.
    fn discard_words(&self, index: usize, kept: &[Part]) -> Result<()> {
        let word_bytes = u64::from(WORD_BLOCKS) * BLOCK_SIZE as u64;
        let mut result = Ok(());
        for row in kept.chunk_by(|a, b| a.word + 1 == b.word) {
            let Some(first) = row.first() else { continue };
            let start = block_of(index, first.word as u32 * WORD_BLOCKS) * BLOCK_SIZE as u64;
            let done = self.device.discard(start, row.len() as u64 * word_bytes);
            result = result.and(done);
        }
        result
    }
}

/// Adds the words of `len` blocks from `bit`; the calls must be in ascending order.
fn add_masks(masks: &mut Vec<Part>, bit: u32, len: u32) {
    for (word, mask) in words(bit, len) {
        match masks.last_mut().filter(|last| last.word == word) {
            Some(last) => last.mask |= mask,
            None => masks.push(Part { word, mask }),
        }
    }
}

/// Sorts runs and joins adjacent ones; an error if they overlap.
fn coalesce(runs: &mut Vec<BlockRun>) -> Result<()> {
    runs.retain(|run| run.len > 0);
    runs.sort_unstable();
    for pair in runs.array_windows() {
        let [a, b] = pair;
        if a.end() > b.start {
            return Err(Error::corrupt(
                b.start,
                "free space",
                "a block freed once",
                "a block freed twice",
            ));
        }
    }
    runs.dedup_by(|next, last| {
        let joined = last.end() == next.start;
        if joined {
            last.len += next.len;
        }
        joined
    });
    Ok(())
}
