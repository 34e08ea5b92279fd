//! Ranges of a file whose blocks differ, from the extent items that differ.
//!
//! Uses only the extents. Extents of one file may be split differently in two trees, so blocks are
//! compared and not items. The items come in ascending order; all that begins before the offset of
//! the next one is known by then, so at most one extent of each tree is held.

use std::ops::Range;

use crate::diff::tree::Extent;
use cairnfs_disk::format::BLOCK_SIZE;

/// Compares the extents of a file in two trees.
#[derive(Default)]
pub(super) struct Sweep {
    /// All blocks before this one have been compared.
    at: u64,
    old: Option<Extent>,
    new: Option<Extent>,
}

impl Sweep {
    /// Takes the extents that begin at file block `offset`, and returns the ranges of bytes before
    /// that differ, in ascending order.
    pub fn take(
        &mut self,
        offset: u64,
        (old, new): (Option<Extent>, Option<Extent>),
    ) -> Vec<Range<u64>> {
        let ranges = self.advance(offset);
        self.old = old.or_else(|| self.old.take());
        self.new = new.or_else(|| self.new.take());
        ranges
    }

    /// The remaining ranges.
    pub fn end(&mut self) -> Vec<Range<u64>> {
        self.advance(u64::MAX)
    }

    fn advance(&mut self, to: u64) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let end = |extent: &Option<Extent>| extent.as_ref().map_or(0, |e| e.end);
        let last = end(&self.old).max(end(&self.new)).min(to);
        for block in self.at..last {
            let place = |extent: &Option<Extent>| extent.as_ref().and_then(|e| e.at(block));
            if place(&self.old) == place(&self.new) {
                continue;
            }
            let bytes = block * BLOCK_SIZE as u64..(block + 1) * BLOCK_SIZE as u64;
            match ranges.last_mut() {
                Some(range) if range.end == bytes.start => range.end = bytes.end,
                _ => ranges.push(bytes),
            }
        }
        self.at = to;
        for side in [&mut self.old, &mut self.new] {
            side.take_if(|extent| extent.end <= to);
        }
        ranges
    }
}
