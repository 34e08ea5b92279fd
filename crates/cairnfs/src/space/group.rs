//! An allocation group: its two bitmaps and the search for free blocks in it.

use crate::device::{AlignedBuf, Device};
use crate::error::{Error, Result};
use crate::format::geometry::{GROUP_BLOCKS, Geometry};
use crate::format::group::GroupEntry;
use crate::format::{BLOCK_SIZE, NODE_BLOCKS, checksum};
use crate::space::bitmap::{Bitmap, WORDS, broken_free, whole_units};

/// Requests shorter than this take blocks of broken units first.
const SMALL: u64 = NODE_BLOCKS;

/// What an allocation looks for.
pub struct Search {
    /// Most blocks.
    pub want: u64,
    /// Most whole units that it may break.
    pub spare: u64,
}

struct Bitmaps {
    live: Bitmap,
    image: Bitmap,
}

/// An allocation group.
pub struct Group {
    bitmaps: Option<Box<Bitmaps>>,
    free: u32,
    /// Whole free units; a lower bound while the bitmaps are not loaded.
    units: u32,
    /// Units that the last change of the live bitmap broke.
    broken: u32,
    /// Where the next search for a run begins, for single blocks, and for units.
    hint: u64,
    small_hint: usize,
    unit_hint: usize,
    /// The image differs from what is on disk.
    pub changed: bool,
}

impl Group {
    /// A group of which only the number of free blocks is known.
    pub fn unloaded(free: u32) -> Self {
        let used = (GROUP_BLOCKS as u32).saturating_sub(free);
        Self {
            bitmaps: None,
            free,
            units: (GROUP_BLOCKS as u32 / NODE_BLOCKS as u32).saturating_sub(used),
            broken: 0,
            hint: 0,
            small_hint: 0,
            unit_hint: WORDS / 2,
            changed: false,
        }
    }

    /// Free blocks.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Whole free units, or a lower bound.
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Whether the bitmaps are in memory.
    pub fn is_loaded(&self) -> bool {
        self.bitmaps.is_some()
    }

    /// Units broken by the last change; asked once.
    pub fn take_broken(&mut self) -> u32 {
        std::mem::take(&mut self.broken)
    }

    /// Reads and checks the bitmap.
    pub fn load(
        &mut self,
        device: &dyn Device,
        geometry: &Geometry,
        number: u64,
        entry: &GroupEntry,
    ) -> Result<()> {
        let block = geometry.bitmap_block(number, entry.copy);
        let mut bytes = AlignedBuf::zeroed(BLOCK_SIZE);
        device.read(block * BLOCK_SIZE as u64, &mut bytes)?;
        let crc = checksum::crc(&bytes);
        if crc != entry.crc.get() {
            let want = format!("{:08x}", entry.crc.get());
            return Err(Error::corrupt(
                block,
                "bitmap checksum",
                want,
                format!("{crc:08x}"),
            ));
        }
        let image = Bitmap::decode(&bytes);
        if image.free() != u32::from(entry.free.get()) {
            return Err(Error::corrupt(
                block,
                "bitmap",
                format!("{} free blocks, as the group table says", entry.free),
                image.free(),
            ));
        }
        let first = number * GROUP_BLOCKS;
        let fixed = fixed_parts(geometry, first);
        for (at, len) in fixed {
            if Bitmap::masks(at, len).any(|(i, mask)| image.word(i) & mask != mask) {
                return Err(Error::corrupt(
                    block,
                    "bitmap",
                    "the volume's own areas, and what is behind its end, in use",
                    "free blocks there",
                ));
            }
        }
        self.free = image.free();
        self.units = image.units();
        self.bitmaps = Some(Box::new(Bitmaps {
            live: image.clone(),
            image,
        }));
        Ok(())
    }

    /// Sets live bits; returns how many were clear.
    fn set_live(&mut self, at: u64, len: u64) -> u64 {
        let Some(bitmaps) = &mut self.bitmaps else {
            return 0;
        };
        let mut set = 0;
        for (i, mask) in Bitmap::masks(at, len) {
            if let Some(word) = bitmaps.live.word_mut(i) {
                let before = whole_units(*word).count_ones();
                set += u64::from((mask & !*word).count_ones());
                *word |= mask;
                self.broken += before - whole_units(*word).count_ones();
            }
        }
        self.free -= set as u32;
        self.units -= self.broken;
        set
    }

    /// Takes free blocks from `at` on, if the block there is free and enough follow.
    pub fn take_at(&mut self, at: u64, search: &Search) -> Option<(u64, u64)> {
        let live = &self.bitmaps.as_ref()?.live;
        let (start, len) = live.next_free(at, GROUP_BLOCKS, search.want)?;
        if start != at || len < search.want.min(8) {
            return None;
        }
        self.take(start, len, search)
    }

    /// Takes a run of at least `least` blocks, `search.want` if there is one.
    pub fn take_run(&mut self, least: u64, search: &Search) -> Option<(u64, u64)> {
        if search.want < SMALL || search.spare == 0 {
            if let Some(found) = self.take_broken_block(search) {
                return Some(found);
            }
            if search.spare == 0 {
                return None;
            }
        }
        let live = &self.bitmaps.as_ref()?.live;
        let mut best: Option<(u64, u64)> = None;
        let ranges = [(self.hint, GROUP_BLOCKS), (0, self.hint)];
        'found: for (from, to) in ranges {
            let mut at = from;
            while let Some((start, len)) = live.next_free(at, to, search.want) {
                if best.is_none_or(|(_, l)| l < len) {
                    best = Some((start, len));
                }
                if len == search.want {
                    break 'found;
                }
                at = start + len;
            }
        }
        let (start, len) = best.filter(|(_, len)| *len >= least)?;
        self.hint = start + len;
        self.take(start, len, search)
    }

    /// Takes `len` blocks, fewer if they would break more units than may be.
    fn take(&mut self, start: u64, len: u64, search: &Search) -> Option<(u64, u64)> {
        let live = &self.bitmaps.as_ref()?.live;
        let mut len = len.min(search.want);
        while len > 0 && breaks(live, start, len) > search.spare {
            len -= 1;
        }
        if len == 0 {
            return None;
        }
        self.set_live(start, len);
        Some((start, len))
    }

    /// Takes free blocks of one broken unit.
    fn take_broken_block(&mut self, search: &Search) -> Option<(u64, u64)> {
        let live = &self.bitmaps.as_ref()?.live;
        let order = (self.small_hint..WORDS).chain(0..self.small_hint);
        for i in order {
            let free = broken_free(live.word(i));
            if free == 0 {
                continue;
            }
            let bit = u64::from(free.trailing_zeros());
            let len = u64::from((free >> bit).trailing_ones()).min(search.want);
            self.small_hint = i;
            let at = i as u64 * 64 + bit;
            self.set_live(at, len);
            return Some((at, len));
        }
        None
    }

    /// Takes a whole unit.
    pub fn take_unit(&mut self) -> Option<u64> {
        let live = &self.bitmaps.as_ref()?.live;
        let order = (self.unit_hint..WORDS).chain(0..self.unit_hint);
        for i in order {
            let units = whole_units(live.word(i));
            if units != 0 {
                let at = i as u64 * 64 + u64::from(units.trailing_zeros());
                self.unit_hint = i;
                self.set_live(at, NODE_BLOCKS);
                return Some(at);
            }
        }
        None
    }

    /// Sets live bits whether they are set or not; returns how many were not.
    pub fn claim(&mut self, at: u64, len: u64) -> u64 {
        self.set_live(at, len)
    }

    /// Clears live bits that must be set, and that the image does not hold. With `keep`, a word
    /// that would become wholly free is taken as a whole instead and told to `kept`. Returns by how
    /// much free blocks and units grow; `None` if a bit was not as it must be.
    pub fn release(
        &mut self,
        at: u64,
        len: u64,
        keep: bool,
        kept: &mut dyn FnMut(u64),
    ) -> Option<(i64, i64)> {
        let bitmaps = self.bitmaps.as_mut()?;
        let (mut blocks, mut units) = (0, 0);
        for (i, mask) in Bitmap::masks(at, len) {
            let in_image = bitmaps.image.word(i) & mask;
            let word = bitmaps.live.word_mut(i)?;
            if *word & mask != mask || in_image != 0 {
                return None;
            }
            let (free, whole) = (word.count_zeros(), whole_units(*word).count_ones());
            if keep && *word == mask {
                *word = u64::MAX;
                kept(i as u64 * 64);
            } else {
                *word &= !mask;
            }
            blocks += i64::from(word.count_zeros()) - i64::from(free);
            units += i64::from(whole_units(*word).count_ones()) - i64::from(whole);
        }
        self.free = (i64::from(self.free) + blocks) as u32;
        self.units = (i64::from(self.units) + units) as u32;
        Some((blocks, units))
    }

    /// Clears whole words that [`Self::release`] kept.
    pub fn free_words(&mut self, at: u64, len: u64) -> (u64, u64) {
        let Some(bitmaps) = &mut self.bitmaps else {
            return (0, 0);
        };
        for (i, mask) in Bitmap::masks(at, len) {
            if let Some(word) = bitmaps.live.word_mut(i) {
                *word &= !mask;
            }
        }
        let units = len / NODE_BLOCKS;
        self.free += len as u32;
        self.units += units as u32;
        (len, units)
    }

    /// Sets or clears image bits, each of which must change; what is set must be live.
    pub fn change_image(&mut self, at: u64, len: u64, used: bool) -> bool {
        let Some(bitmaps) = &mut self.bitmaps else {
            return false;
        };
        for (i, mask) in Bitmap::masks(at, len) {
            let live = bitmaps.live.word(i);
            let Some(word) = bitmaps.image.word_mut(i) else {
                return false;
            };
            let sound = if used {
                *word & mask == 0 && live & mask == mask
            } else {
                *word & mask == mask
            };
            if !sound {
                return false;
            }
            *word ^= mask;
        }
        self.changed = true;
        true
    }

    /// The image's bytes and its number of free blocks.
    pub fn encode_image(&self, out: &mut [u8]) -> u32 {
        match &self.bitmaps {
            Some(b) => {
                b.image.encode(out);
                b.image.free()
            }
            None => self.free,
        }
    }
}

/// Whole units that taking `len` blocks from `start` breaks.
fn breaks(live: &Bitmap, start: u64, len: u64) -> u64 {
    Bitmap::masks(start, len)
        .map(|(i, mask)| {
            let word = live.word(i);
            u64::from(whole_units(word).count_ones() - whole_units(word | mask).count_ones())
        })
        .sum()
}

/// Blocks of the group that begins at block `first` that are never free: position and length.
pub fn fixed_parts(geometry: &Geometry, first: u64) -> [(u64, u64); 2] {
    let fixed = geometry
        .data_start()
        .saturating_sub(first)
        .min(GROUP_BLOCKS);
    let end = geometry
        .total_blocks
        .saturating_sub(first)
        .min(GROUP_BLOCKS);
    [(0, fixed), (end, GROUP_BLOCKS - end)]
}
