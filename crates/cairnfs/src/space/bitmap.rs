//! A group's bitmap: 32768 bits, set for a block in use, handled by words of 64.

use crate::format::BLOCK_SIZE;

/// Words of a bitmap.
pub const WORDS: usize = BLOCK_SIZE / 8;
const NIBBLES: u64 = 0x1111_1111_1111_1111;

/// The bits of a group.
#[derive(Clone)]
pub struct Bitmap(Box<[u64; WORDS]>);

impl Bitmap {
    /// All blocks free.
    pub fn empty() -> Self {
        Self(Box::new([0; WORDS]))
    }

    /// The bits of a bitmap block.
    pub fn decode(bytes: &[u8]) -> Self {
        let mut words = [0; WORDS];
        let (chunks, _) = bytes.as_chunks::<8>();
        for (word, chunk) in words.iter_mut().zip(chunks) {
            *word = u64::from_le_bytes(*chunk);
        }
        Self(Box::new(words))
    }

    /// The block's bytes.
    pub fn encode(&self, out: &mut [u8]) {
        let (chunks, _) = out.as_chunks_mut::<8>();
        for (chunk, word) in chunks.iter_mut().zip(self.0.iter()) {
            *chunk = word.to_le_bytes();
        }
    }

    /// A word; all set behind the end.
    pub fn word(&self, i: usize) -> u64 {
        self.0.get(i).copied().unwrap_or(u64::MAX)
    }

    /// A word, to be changed.
    pub fn word_mut(&mut self, i: usize) -> Option<&mut u64> {
        self.0.get_mut(i)
    }

    /// Number of free blocks.
    pub fn free(&self) -> u32 {
        self.0.iter().map(|w| w.count_zeros()).sum()
    }

    /// Number of whole free units.
    pub fn units(&self) -> u32 {
        self.0.iter().map(|w| whole_units(*w).count_ones()).sum()
    }

    /// The words that `len` blocks from `at` touch, with the bits in each.
    pub fn masks(at: u64, len: u64) -> impl Iterator<Item = (usize, u64)> {
        let end = at + len;
        let mut at = at;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let bit = at % 64;
            let n = (64 - bit).min(end - at);
            let ones = if n == 64 { u64::MAX } else { (1 << n) - 1 };
            let item = ((at / 64) as usize, ones << bit);
            at += n;
            Some(item)
        })
    }

    /// The first free block in `from..to`, and how many free ones follow it, at most `most`.
    pub fn next_free(&self, from: u64, to: u64, most: u64) -> Option<(u64, u64)> {
        let start = self.next_with(from, to, false)?;
        let end = to.min(start.saturating_add(most));
        let end = self.next_with(start, end, true).unwrap_or(end);
        Some((start, end - start))
    }

    /// The first block in `from..to` that is in use, or free.
    fn next_with(&self, from: u64, to: u64, used: bool) -> Option<u64> {
        let mut at = from;
        while at < to {
            let word = self.word((at / 64) as usize);
            let bits = if used { word } else { !word } >> (at % 64);
            if bits != 0 {
                let found = at + u64::from(bits.trailing_zeros());
                return (found < to).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

/// A bit at the first block of each whole free unit of a word.
pub fn whole_units(word: u64) -> u64 {
    let free = !word;
    free & (free >> 1) & (free >> 2) & (free >> 3) & NIBBLES
}

/// The free blocks of a word that are in no whole free unit.
pub fn broken_free(word: u64) -> u64 {
    !word & !(whole_units(word) * 0xf)
}
