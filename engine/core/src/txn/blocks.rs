//! Sets of blocks, a bit for each block of a group that has any in the set.
//!
//! Uses the geometry only. A set takes at most 4 KiB for each group of 128 MiB, half of what the
//! allocator keeps of a group that it has loaded, however many runs there are.

use std::collections::BTreeMap;

use crate::space::BlockRun;
use cairnfs_disk::format::geometry::GROUP_BLOCKS;

const WORDS: usize = (GROUP_BLOCKS / 64) as usize;

type Words = [u64; WORDS];

/// A set of blocks.
#[derive(Default)]
pub(super) struct BlockSet(BTreeMap<u64, Box<Words>>);

/// The words of a group that a run touches, with the bits of the run.
fn masks(from: u64, to: u64) -> impl Iterator<Item = (usize, u64)> {
    (from / 64..to.div_ceil(64)).map(move |word| {
        let (start, end) = (word * 64, word * 64 + 64);
        let low = u64::MAX << from.saturating_sub(start);
        let high = u64::MAX >> end.saturating_sub(to);
        (word as usize, low & high)
    })
}

/// Calls `part` with the group and the positions within it of each part of a run.
fn by_group(run: BlockRun, mut part: impl FnMut(u64, u64, u64)) {
    let mut at = run.start;
    while at < run.end() {
        let group = at / GROUP_BLOCKS;
        let end = run.end().min((group + 1) * GROUP_BLOCKS);
        part(group, at - group * GROUP_BLOCKS, end - group * GROUP_BLOCKS);
        at = end;
    }
}

impl BlockSet {
    /// Adds the blocks of a run, which lies within the volume.
    pub fn insert(&mut self, run: BlockRun) {
        by_group(run, |group, from, to| {
            let words = self.0.entry(group).or_insert_with(|| Box::new([0; WORDS]));
            for (word, mask) in masks(from, to) {
                if let Some(word) = words.get_mut(word) {
                    *word |= mask;
                }
            }
        });
    }

    /// Removes all blocks of `other`.
    pub fn subtract(&mut self, other: &Self) {
        self.change_by(other, |word, other| *word &= !other);
    }

    /// Adds all blocks of `other`.
    pub fn add(&mut self, other: &Self) {
        for group in other.0.keys() {
            self.0.entry(*group).or_insert_with(|| Box::new([0; WORDS]));
        }
        self.change_by(other, |word, other| *word |= other);
    }

    fn change_by(&mut self, other: &Self, change: impl Fn(&mut u64, u64)) {
        for (group, words) in &mut self.0 {
            let others = other
                .0
                .get(group)
                .into_iter()
                .flat_map(|words| words.iter());
            words
                .iter_mut()
                .zip(others)
                .for_each(|(word, other)| change(word, *other));
        }
    }

    /// Number of blocks.
    pub fn len(&self) -> u64 {
        let words = self.0.values().flat_map(|words| words.iter());
        words.map(|word| u64::from(word.count_ones())).sum()
    }

    /// The blocks of each group as runs, in ascending order.
    pub fn groups(&self) -> impl Iterator<Item = Vec<BlockRun>> {
        self.0
            .iter()
            .map(|(group, words)| runs(group * GROUP_BLOCKS, words))
    }
}

fn runs(first: u64, words: &Words) -> Vec<BlockRun> {
    let mut runs: Vec<BlockRun> = Vec::new();
    for (at, word) in (first..).step_by(64).zip(words) {
        let mut bits = *word;
        while bits != 0 {
            let skipped = bits.trailing_zeros();
            let len = (bits >> skipped).trailing_ones();
            let run = BlockRun::new(at + u64::from(skipped), u64::from(len));
            match runs.last_mut().filter(|last| last.end() == run.start) {
                Some(last) => last.len += run.len,
                None => runs.push(run),
            }
            bits &= u64::MAX.checked_shl(skipped + len).unwrap_or(0);
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sets_are_those_of_a_model(
            added in proptest::collection::vec((0..3 * GROUP_BLOCKS, 1..200_u64), 0..20),
            removed in proptest::collection::vec((0..3 * GROUP_BLOCKS, 1..200_u64), 0..20),
            again in proptest::collection::vec((0..3 * GROUP_BLOCKS, 1..200_u64), 0..20),
        ) {
            let set = |runs: &[(u64, u64)]| {
                let mut set = BlockSet::default();
                runs.iter().for_each(|(start, len)| set.insert(BlockRun::new(*start, *len)));
                set
            };
            let all = |runs: &[(u64, u64)]| -> std::collections::BTreeSet<u64> {
                runs.iter().flat_map(|(start, len)| *start..start + len).collect()
            };
            let mut found = set(&added);
            found.subtract(&set(&removed));
            found.add(&set(&again));
            let expected = &(&all(&added) - &all(&removed)) | &all(&again);
            let blocks = found.groups().flatten().flat_map(|run| run.start..run.end());
            prop_assert_eq!(blocks.collect::<Vec<u64>>(), expected.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(found.len(), expected.len() as u64);
        }
    }
}
