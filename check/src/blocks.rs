//! Sets of blocks: one bit per block, with memory only for groups that have any in the set.

use cairnfs_disk::format::geometry::{GROUP_BLOCKS, Geometry};

/// 64-bit words in the bitmap of a group.
pub(crate) const GROUP_WORDS: usize = (GROUP_BLOCKS / 64) as usize;

type Words = [u64; GROUP_WORDS];

/// A set of blocks of one volume.
pub(crate) struct BlockSet {
    groups: Vec<Option<Box<Words>>>,
}

impl BlockSet {
    /// An empty set. The geometry has been checked, so it bounds the memory.
    pub(crate) fn new(geometry: &Geometry) -> Self {
        Self {
            groups: (0..geometry.groups()).map(|_| None).collect(),
        }
    }

    /// Adds a run of blocks. Returns the first one that was already in the set and how many were.
    pub(crate) fn insert(&mut self, block: u64, len: u64) -> Option<(u64, u64)> {
        let mut known = None;
        for b in block..block.saturating_add(len) {
            if !self.insert_one(b) {
                let (first, count) = known.unwrap_or((b, 0));
                known = Some((first, count + 1));
            }
        }
        known
    }

    /// Adds all blocks of another set of the same volume.
    pub(crate) fn add(&mut self, other: &Self) {
        for (group, more) in self.groups.iter_mut().zip(&other.groups) {
            let Some(more) = more else { continue };
            let words = group.get_or_insert_with(|| Box::new([0; GROUP_WORDS]));
            for (word, more) in words.iter_mut().zip(more.iter()) {
                *word |= more;
            }
        }
    }

    /// Whether a block is in the set.
    pub(crate) fn has(&self, block: u64) -> bool {
        let word = self.word(block / GROUP_BLOCKS, (block % GROUP_BLOCKS / 64) as usize);
        word >> (block % 64) & 1 == 1
    }

    /// Removes a run of blocks.
    pub(crate) fn remove(&mut self, block: u64, len: u64) {
        for b in block..block.saturating_add(len) {
            let group = self.groups.get_mut((b / GROUP_BLOCKS) as usize);
            let bit = b % GROUP_BLOCKS;
            let words = group.and_then(Option::as_mut);
            if let Some(word) = words.and_then(|w| w.get_mut((bit / 64) as usize)) {
                *word &= !(1 << (bit % 64));
            }
        }
    }

    fn insert_one(&mut self, block: u64) -> bool {
        let Some(group) = self.groups.get_mut((block / GROUP_BLOCKS) as usize) else {
            return true;
        };
        let words = group.get_or_insert_with(|| Box::new([0; GROUP_WORDS]));
        let bit = block % GROUP_BLOCKS;
        let Some(word) = words.get_mut((bit / 64) as usize) else {
            return true;
        };
        let mask = 1 << (bit % 64);
        let new = *word & mask == 0;
        *word |= mask;
        new
    }

    /// The 64 bits of word `word` of a group's bitmap.
    pub(crate) fn word(&self, group: u64, word: usize) -> u64 {
        let group = self.groups.get(group as usize).and_then(|g| g.as_deref());
        group.and_then(|w| w.get(word)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insert_returns_blocks_already_in_the_set() {
        let geometry = Geometry::for_size(1 << 30, None).unwrap();
        let mut set = BlockSet::new(&geometry);
        assert_eq!(set.insert(GROUP_BLOCKS - 2, 4), None);
        assert_eq!(set.insert(GROUP_BLOCKS, 4), Some((GROUP_BLOCKS, 2)));
        assert_eq!(set.word(0, GROUP_WORDS - 1), 3 << 62);
        assert_eq!(set.word(1, 0), 0b1111);
        set.remove(GROUP_BLOCKS - 1, 3);
        assert_eq!(set.word(0, GROUP_WORDS - 1), 1 << 62);
        assert_eq!(set.word(1, 0), 0b1100);
    }
}
