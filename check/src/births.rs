//! When the blocks that roots share were born.
//!
//! All roots that have a block must agree about that: what one of them gives up is free if its birth
//! says that no other has it, also after a root between them was dropped.

use std::collections::BTreeMap;
use std::ops::Range;

/// Births of blocks, in runs. Files written together lie together, so there are far fewer runs than
/// extents.
#[derive(Default)]
pub(crate) struct Births {
    /// By their first block: the block behind the last one, and the birth.
    runs: BTreeMap<u64, (u64, u64)>,
}

impl Births {
    /// Adds blocks that are not known yet.
    pub(crate) fn insert(&mut self, blocks: Range<u64>, birth: u64) {
        let Range { mut start, mut end } = blocks;
        if let Some((first, run)) = self.runs.range(..start).next_back()
            && *run == (start, birth)
        {
            start = *first;
        }
        if let Some((behind, other)) = self.runs.get(&end)
            && *other == birth
        {
            let behind = *behind;
            self.runs.remove(&end);
            end = behind;
        }
        self.runs.insert(start, (end, birth));
    }

    /// Adds what is known of other blocks.
    pub(crate) fn add(&mut self, other: Self) {
        for (start, (end, birth)) in other.runs {
            self.insert(start..end, birth);
        }
    }

    /// Another birth of one of these blocks, or `None` instead if one of them is not known; nothing
    /// if all of them have that birth.
    pub(crate) fn unlike(&self, blocks: Range<u64>, birth: u64) -> Option<Option<u64>> {
        let mut at = blocks.start;
        while at < blocks.end {
            let run = self.runs.range(..=at).next_back().map(|(_, run)| *run);
            match run.filter(|(end, _)| at < *end) {
                None => return Some(None),
                Some((_, other)) if other != birth => return Some(Some(other)),
                Some((end, _)) => at = end,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_and_tell_births() {
        let mut births = Births::default();
        births.insert(10..12, 3);
        births.insert(14..16, 3);
        births.insert(16..18, 4);
        let mut more = Births::default();
        more.insert(12..14, 3);
        births.add(more);
        assert_eq!(births.runs.len(), 2);
        assert_eq!(births.unlike(10..16, 3), None);
        assert_eq!(births.unlike(12..17, 3), Some(Some(4)));
        assert_eq!(births.unlike(17..19, 4), Some(None));
        assert_eq!(births.unlike(9..11, 3), Some(None));
    }
}
