//! Sets of blocks, as runs in ascending order.

use crate::error::{Error, Result};
use crate::format::MAX_BLOCKS;
use crate::format::layer::Run;

/// A set of blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blocks {
    /// First block and number of blocks: ascending, not empty, and not touching each other.
    runs: Vec<(u64, u64)>,
}

impl Blocks {
    /// Adds a run behind all others.
    ///
    /// # Errors
    /// The run does not begin after the ones before it: the runs are not in ascending order.
    pub fn push(&mut self, start: u64, count: u64) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let end = self.runs.last().map_or(0, |(start, count)| start + count);
        let fits = start
            .checked_add(count)
            .is_some_and(|end| end <= MAX_BLOCKS);
        if start < end || !fits {
            return Err(Error::TooLarge(
                "the volume names blocks out of order, or behind its end".into(),
            ));
        }
        match self.runs.last_mut() {
            Some((_, before)) if start == end && end > 0 => *before += count,
            _ => self.runs.push((start, count)),
        }
        Ok(())
    }

    /// The runs.
    pub fn runs(&self) -> &[(u64, u64)] {
        &self.runs
    }

    /// How many blocks.
    pub fn count(&self) -> u64 {
        self.runs.iter().map(|(_, count)| count).sum()
    }

    /// The blocks from `start` on that are among `count`, as runs.
    pub fn within(&self, start: u64, count: u64) -> impl Iterator<Item = (u64, u64)> {
        let end = start.saturating_add(count);
        let first = self.runs.partition_point(|(at, len)| at + len <= start);
        let rest = self.runs.get(first..).unwrap_or_default().iter();
        rest.take_while(move |(at, _)| *at < end)
            .map(move |(at, len)| {
                let from = start.max(*at);
                (from, end.min(at + len) - from)
            })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The blocks that are not in `others`.
    pub fn without(&self, others: &Self) -> Self {
        let mut left = Self::default();
        let mut taken = others.runs.iter().copied().peekable();
        for &(start, count) in &self.runs {
            let (mut at, end) = (start, start + count);
            while taken
                .next_if(|(start, count)| start + count <= at)
                .is_some()
            {}
            while let Some(&(cut, length)) = taken.peek().filter(|(cut, _)| *cut < end) {
                if cut > at {
                    left.runs.push((at, cut - at));
                }
                at = at.max(cut + length);
                if at >= end {
                    break;
                }
                taken.next();
            }
            if at < end {
                left.runs.push((at, end - at));
            }
        }
        left
    }

    /// The blocks that are in `others`, too.
    pub fn and(&self, others: &Self) -> Self {
        self.without(&self.without(others))
    }

    /// The blocks of both.
    #[must_use]
    pub fn with(&self, others: &Self) -> Self {
        Self::of([self.runs.as_slice(), others.runs.as_slice()].concat())
    }

    /// Those of runs in any order, which may overlap.
    pub fn of(mut all: Vec<(u64, u64)>) -> Self {
        all.sort_unstable();
        let mut both: Vec<(u64, u64)> = Vec::with_capacity(all.len());
        for (start, count) in all {
            match both.last_mut() {
                Some((first, length)) if start <= *first + *length => {
                    *length = (*length).max(start + count - *first);
                }
                _ => both.push((start, count)),
            }
        }
        Self { runs: both }
    }
}

/// The runs of a layer: `gained` with contents, `dropped` without.
///
/// # Errors
/// A block is in both.
pub fn layer_runs(gained: &Blocks, dropped: &Blocks) -> Result<Vec<Run>> {
    let with = |has_data| {
        move |&(start, count): &(u64, u64)| Run {
            start,
            count,
            has_data,
        }
    };
    let gained = gained.runs.iter().map(with(true));
    let mut runs: Vec<Run> = gained.chain(dropped.runs.iter().map(with(false))).collect();
    runs.sort_unstable_by_key(|run| run.start);
    if runs.is_sorted_by(|a, b| a.end() <= b.start) {
        Ok(runs)
    } else {
        Err(Error::TooLarge(
            "the volume names a block as changed that it does not have".into(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn blocks(set: &BTreeSet<u64>) -> Blocks {
        let mut blocks = Blocks::default();
        for block in set {
            blocks.push(*block, 1).unwrap();
        }
        blocks
    }

    fn set(blocks: &Blocks) -> BTreeSet<u64> {
        blocks
            .runs()
            .iter()
            .flat_map(|(start, count)| *start..start + count)
            .collect()
    }

    proptest! {
        #[test]
        fn differences_are_those_of_sets(
            a in proptest::collection::btree_set(0_u64..60, 0..40),
            b in proptest::collection::btree_set(0_u64..60, 0..40),
        ) {
            let left = blocks(&a).without(&blocks(&b));
            prop_assert_eq!(set(&left), &a - &b);
            prop_assert_eq!(left.count(), (&a - &b).len() as u64);
            prop_assert_eq!(set(&blocks(&a).with(&blocks(&b))), &a | &b);
            for start in 0..60 {
                let some = Blocks::of(blocks(&a).within(start, 7).collect());
                prop_assert_eq!(set(&some), a.range(start..start + 7).copied().collect());
            }
        }
    }

    #[test]
    fn runs_out_of_order_are_refused() {
        let mut blocks = Blocks::default();
        blocks.push(4, 2).unwrap();
        blocks.push(6, 1).unwrap();
        assert_eq!(blocks.runs(), [(4, 3)]);
        assert!(blocks.push(6, 1).is_err());
        assert!(blocks.push(u64::MAX, 2).is_err());
    }
}
