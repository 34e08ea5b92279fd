//! The bitmap of one allocation group, and the searches in it.
//!
//! Uses only [`cairnfs_disk::format`]. A set bit is a block in use. On disk, block `i` of the group is
//! bit `i % 8` of byte `i / 8`; in memory the same bits are in words of 64 blocks (256 KiB).
//! A unit is 4 aligned blocks, so no unit crosses a word. Searches work on words; bits behind the
//! last one count as in use.

use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::geometry::GROUP_BLOCKS;

/// Blocks per word.
pub(super) const WORD_BLOCKS: u32 = 64;
/// Words per bitmap.
const WORDS: usize = (GROUP_BLOCKS / WORD_BLOCKS as u64) as usize;
/// Blocks per group, as the type of positions within a group.
pub(super) const BITS: u32 = GROUP_BLOCKS as u32;
/// Bit 0 of each unit of a word.
const UNIT_BITS: u64 = 0x1111_1111_1111_1111;
/// Minimum free units of a word in which the search for index nodes continues.
const ROOMY: u32 = 4;

/// Which free blocks a search considers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// All free blocks.
    Free,
    /// Free blocks of broken units only (units with a block in use).
    Loose,
}

/// A run of free blocks, by position within the group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub bit: u32,
    pub len: u32,
}

/// One bit per block of a group; set if in use.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Bitmap(Box<[u64; WORDS]>);

/// The first bit of each entirely free unit.
fn unit_bits(free: u64) -> u64 {
    free & (free >> 1) & (free >> 2) & (free >> 3) & UNIT_BITS
}

/// The words that contain the `len` blocks from `bit`, each with a mask of these blocks.
pub(super) fn words(bit: u32, len: u32) -> impl Iterator<Item = (usize, u64)> {
    let end = bit.saturating_add(len).min(BITS);
    let mut at = bit;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let within = at % WORD_BLOCKS;
        let count = (WORD_BLOCKS - within).min(end - at);
        let word = (at / WORD_BLOCKS) as usize;
        at += count;
        Some((word, (u64::MAX >> (WORD_BLOCKS - count)) << within))
    })
}

impl Bitmap {
    /// A bitmap with all blocks free.
    pub fn free() -> Self {
        Self(Box::new([0; WORDS]))
    }

    /// Decodes the bytes of a bitmap block.
    pub fn decode(bytes: &[u8]) -> Self {
        let mut map = Self(Box::new([u64::MAX; WORDS]));
        for (word, bytes) in map.0.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        map
    }

    /// Encodes the bitmap into a bitmap block.
    pub fn encode(&self, block: &mut [u8]) {
        debug_assert_eq!(block.len(), BLOCK_SIZE);
        for (word, bytes) in self.0.iter().zip(block.as_chunks_mut().0) {
            *bytes = word.to_le_bytes();
        }
    }

    /// A word of the bitmap; set bits are in use.
    pub fn word(&self, index: usize) -> u64 {
        self.0.get(index).copied().unwrap_or(u64::MAX)
    }

    /// Replaces a word.
    pub fn set_word(&mut self, index: usize, used: u64) {
        if let Some(word) = self.0.get_mut(index) {
            *word = used;
        }
    }

    /// The first block in use among `len` blocks from `bit`.
    pub fn first_used(&self, bit: u32, len: u32) -> Option<u32> {
        words(bit, len)
            .map(|(w, mask)| (w, self.word(w) & mask))
            .find(|(_, hit)| *hit != 0)
            .map(|(w, hit)| w as u32 * WORD_BLOCKS + hit.trailing_zeros())
    }

    /// The first free block among `len` blocks from `bit`.
    pub fn first_free(&self, bit: u32, len: u32) -> Option<u32> {
        words(bit, len)
            .map(|(w, mask)| (w, !self.word(w) & mask))
            .find(|(_, hit)| *hit != 0)
            .map(|(w, hit)| w as u32 * WORD_BLOCKS + hit.trailing_zeros())
    }

    /// Marks `len` blocks from `bit` as in use.
    pub fn set(&mut self, bit: u32, len: u32) {
        for (w, mask) in words(bit, len) {
            self.set_word(w, self.word(w) | mask);
        }
    }

    /// Marks `len` blocks from `bit` as free.
    pub fn clear(&mut self, bit: u32, len: u32) {
        for (w, mask) in words(bit, len) {
            self.set_word(w, self.word(w) & !mask);
        }
    }

    /// Number of free blocks.
    pub fn count_free(&self) -> u32 {
        self.0.iter().map(|w| w.count_zeros()).sum()
    }

    /// Number of entirely free units.
    pub fn count_units(&self) -> u32 {
        self.0.iter().map(|w| unit_bits(!w).count_ones()).sum()
    }

    /// Free units of a word.
    pub fn word_units(&self, index: usize) -> u32 {
        unit_bits(!self.word(index)).count_ones()
    }

    /// Number of free units that allocating `len` blocks from `bit` would break or use up.
    pub fn units_touched(&self, bit: u32, len: u32) -> u32 {
        words(bit, len)
            .map(|(w, mask)| {
                let touched = mask | mask >> 1 | mask >> 2 | mask >> 3;
                (unit_bits(!self.word(w)) & touched).count_ones()
            })
            .sum()
    }

    /// How many of the `len` blocks from `bit` can be allocated without touching more than `units`
    /// free units.
    pub fn fit_units(&self, bit: u32, len: u32, units: u32) -> u32 {
        let mut left = units;
        let mut at = bit;
        while at < bit + len {
            let next = (at / 4 + 1) * 4;
            let touched = self.units_touched(at, 1);
            if touched > left {
                return at - bit;
            }
            left -= touched;
            at = next;
        }
        len
    }

    /// Length of the free run at `bit`, at most `most`.
    pub fn free_at(&self, bit: u32, most: u32) -> u32 {
        let most = most.min(BITS.saturating_sub(bit));
        self.first_used(bit, most).map_or(most, |used| used - bit)
    }

    /// The first run of `want` blocks behind `hint`, else the first one before it, else the longest
    /// run.
    pub fn find(&self, kind: Kind, hint: u32, want: u32) -> Option<Span> {
        let hint = if hint < BITS { hint } else { 0 };
        let mut best = Span::default();
        let _found = self.scan(kind, hint, BITS, want, &mut best)
            || self.scan(kind, 0, hint, want, &mut best);
        (best.len > 0).then_some(best)
    }

    /// The first of the shortest free runs of at least `want` blocks, else the longest free run.
    pub fn find_tight(&self, want: u32) -> Option<Span> {
        let (mut tight, mut longest) = (Span::default(), Span::default());
        let mut at = 0;
        while let Some(bit) = self.first_free(at, BITS - at) {
            let end = self.first_used(bit, BITS - bit).unwrap_or(BITS);
            let run = Span {
                bit,
                len: end - bit,
            };
            if run.len == want {
                return Some(run);
            }
            if run.len > want && (tight.len == 0 || run.len < tight.len) {
                tight = run;
            }
            if run.len > longest.len {
                longest = run;
            }
            at = end;
        }
        let best = if tight.len > 0 { tight } else { longest };
        let len = best.len.min(want);
        (len > 0).then_some(Span { len, ..best })
    }

    /// Searches the words of `from..to`; true once `best` has `want` blocks.
    fn scan(&self, kind: Kind, from: u32, to: u32, want: u32, best: &mut Span) -> bool {
        let mut run = Span { bit: from, len: 0 };
        let mut mask = u64::MAX << (from % WORD_BLOCKS);
        for index in from / WORD_BLOCKS..to.div_ceil(WORD_BLOCKS) {
            let free = !self.word(index as usize);
            let seen = mask
                & match kind {
                    Kind::Free => free,
                    Kind::Loose => free & !(unit_bits(free) * 0xf),
                };
            mask = u64::MAX;
            if extend(&mut run, index * WORD_BLOCKS, seen, want, best) {
                return true;
            }
        }
        false
    }

    /// The first bit of a free unit: the next one in the word of `hint`, else one in the next word
    /// with at least [`ROOMY`] free units, else any.
    pub fn find_unit(&self, hint: u32) -> Option<u32> {
        let hint = if hint < BITS { hint } else { 0 };
        let (first, within) = ((hint / WORD_BLOCKS) as usize, hint % WORD_BLOCKS);
        let here = unit_bits(!self.word(first)) & (u64::MAX << within);
        if here != 0 {
            return Some(first as u32 * WORD_BLOCKS + here.trailing_zeros());
        }
        let order = || (first + 1..WORDS).chain(0..=first);
        order()
            .find(|w| self.word_units(*w) >= ROOMY)
            .or_else(|| order().find(|w| self.word_units(*w) > 0))
            .map(|w| w as u32 * WORD_BLOCKS + unit_bits(!self.word(w)).trailing_zeros())
    }
}

/// Continues `run` through the bits of the word that begins at position `base`; true once `best`
/// has `want` blocks.
fn extend(run: &mut Span, base: u32, seen: u64, want: u32, best: &mut Span) -> bool {
    let mut at = 0;
    while at < WORD_BLOCKS {
        let rest = seen >> at;
        let ones = (!rest).trailing_zeros().min(WORD_BLOCKS - at);
        if run.len == 0 {
            run.bit = base + at;
        }
        run.len += ones;
        if run.len > best.len {
            *best = Span {
                bit: run.bit,
                len: run.len.min(want),
            };
            if run.len >= want {
                return true;
            }
        }
        at += ones;
        if at < WORD_BLOCKS {
            run.len = 0;
            at += (seen >> at).trailing_zeros().clamp(1, WORD_BLOCKS - at);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(used: &[bool]) -> Bitmap {
        let mut map = Bitmap::free();
        for (i, _) in used.iter().enumerate().filter(|(_, u)| **u) {
            map.set(i as u32, 1);
        }
        map.set(used.len() as u32, BITS - used.len() as u32);
        map
    }

    fn is_loose(used: &[bool], i: usize) -> bool {
        let unit = &used[i / 4 * 4..(i / 4 * 4 + 4).min(used.len())];
        !used[i] && (unit.len() < 4 || unit.iter().any(|u| *u))
    }

    fn longest(seen: impl Iterator<Item = bool>) -> u32 {
        let (mut run, mut best) = (0, 0);
        for s in seen {
            run = if s { run + 1 } else { 0 };
            best = best.max(run);
        }
        best
    }

    proptest! {
        #[test]
        fn searches_agree_with_bits(
            runs in prop::collection::vec((any::<bool>(), 1..90usize), 1..30),
            hint in 0..900u32, want in 1..80u32, at in 0..900u32, len in 1..200u32, units in 0..9u32,
        ) {
            let used: Vec<bool> = runs.iter().flat_map(|(u, n)| vec![*u; *n]).collect();
            let map = map(&used);
            let size = used.len() as u32;
            prop_assert_eq!(map.count_free(), used.iter().filter(|u| !**u).count() as u32);
            let whole = |u: &[bool]| u.len() == 4 && !u.iter().any(|b| *b);
            let unit_count = used.chunks(4).filter(|u| whole(u)).count() as u32;
            prop_assert_eq!(map.count_units(), unit_count);
            for kind in [Kind::Free, Kind::Loose] {
                let seen = |i: usize| match kind {
                    Kind::Free => !used[i],
                    Kind::Loose => is_loose(&used, i),
                };
                let found = map.find(kind, 0, want);
                let most = longest((0..used.len()).map(seen));
                prop_assert_eq!(found.map_or(0, |s| s.len), most.min(want));
                for span in found.into_iter().chain(map.find(kind, hint, want)) {
                    prop_assert!(span.len > 0 && span.len <= want);
                    prop_assert!((span.bit..span.bit + span.len).all(|i| seen(i as usize)));
                }
                prop_assert_eq!(map.find(kind, hint, want).is_some(), most > 0);
            }
            let free: Vec<u32> = used
                .chunk_by(|a, b| a == b)
                .filter(|run| !run[0])
                .map(|run| run.len() as u32)
                .collect();
            let tightest = free.iter().filter(|len| **len >= want).min();
            let tight = map.find_tight(want);
            prop_assert_eq!(tight.map(|s| s.len), free.iter().max().map(|len| want.min(*len)));
            if let Some(span) = tight {
                let run = map.free_at(span.bit, BITS);
                prop_assert_eq!(Some(&run), tightest.or(free.iter().max()));
                prop_assert!(span.bit == 0 || used[span.bit as usize - 1], "a part of a run");
            }
            let unit = map.find_unit(hint);
            prop_assert_eq!(unit.is_some(), unit_count > 0);
            if let Some(bit) = unit {
                prop_assert!(bit.is_multiple_of(4) && whole(&used[bit as usize..bit as usize + 4]));
            }
            if at < size && !used[at as usize] {
                let run = map.free_at(at, len);
                prop_assert!((at..at + run).all(|i| !used[i as usize]));
                prop_assert!(run == len || at + run == size || used[(at + run) as usize]);
                let fit = map.fit_units(at, run, units);
                prop_assert!(map.units_touched(at, fit) <= units);
                prop_assert!(fit == run || map.units_touched(at, fit + 1) > units);
                let mut taken = map.clone();
                taken.set(at, run);
                prop_assert_eq!(
                    map.units_touched(at, run), map.count_units() - taken.count_units());
                taken.clear(at, run);
                prop_assert!(taken == map);
            }
            let mut block = vec![0; BLOCK_SIZE];
            map.encode(&mut block);
            prop_assert!(Bitmap::decode(&block) == map);
        }
    }

    #[test]
    fn find_unit_prefers_hint_word_then_roomy_words() {
        let mut map = Bitmap::free();
        map.set(0, BITS);
        map.clear(64, 4);
        map.clear(256, 16);
        assert_eq!(map.find_unit(0), Some(256));
        assert_eq!(map.find_unit(64), Some(64));
        map.set(256, 4);
        assert_eq!(map.find_unit(260), Some(260));
        assert_eq!(map.find_unit(0), Some(64));
    }
}
