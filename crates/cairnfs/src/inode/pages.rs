//! Written data that is not on the device yet: whole blocks, by file block.
//!
//! Bytes behind the file's size are zero in every page, so a page can go to the device as it is.

use std::collections::BTreeMap;

use crate::device::Page;

/// Unwritten pages of a file.
#[derive(Default)]
pub struct Pages {
    /// The pages.
    pub dirty: BTreeMap<u64, Page>,
    /// Blocks of space set aside for them: one each, but for those that go to space allocated
    /// before. Memory has far fewer pages than this can count.
    pub reserved: u32,
    /// Twice the number of pages without an extent, and one more if the contents must go to blocks.
    unplaced: u32,
}

impl Pages {
    /// Of the pages those whose file block no extent covers: `st_blocks` counts them.
    pub fn unplaced(&self) -> u64 {
        u64::from(self.unplaced / 2)
    }

    /// Notes pages that came to blocks without an extent.
    pub fn add_unplaced(&mut self, pages: u64) {
        self.set(self.unplaced().saturating_add(pages), self.not_inline());
    }

    /// Notes that pages without an extent left, or got one.
    pub fn sub_unplaced(&mut self, pages: u64) {
        self.set(self.unplaced().saturating_sub(pages), self.not_inline());
    }

    /// However small the file is, its contents go to blocks: it is about to get extents.
    pub fn not_inline(&self) -> bool {
        self.unplaced % 2 == 1
    }

    /// Says so.
    pub fn set_not_inline(&mut self, not_inline: bool) {
        self.set(self.unplaced(), not_inline);
    }

    fn set(&mut self, unplaced: u64, not_inline: bool) {
        let pages = u32::try_from(unplaced)
            .unwrap_or(u32::MAX)
            .min(u32::MAX / 2);
        self.unplaced = pages * 2 + u32::from(not_inline);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_and_the_mark_share_a_number() {
        let mut pages = Pages::default();
        pages.set_not_inline(true);
        pages.add_unplaced(7);
        assert!(pages.not_inline() && pages.unplaced() == 7);
        pages.sub_unplaced(2);
        pages.set_not_inline(false);
        assert!(!pages.not_inline() && pages.unplaced() == 5);
        pages.sub_unplaced(9);
        assert_eq!(pages.unplaced(), 0);
        pages.add_unplaced(u64::MAX);
        assert!(!pages.not_inline() && pages.unplaced() == u64::from(u32::MAX / 2));
    }
}
