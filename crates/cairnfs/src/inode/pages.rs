//! Written data that is not on the device yet: whole blocks, by file block.
//!
//! Bytes behind the file's size are zero in every page, so a page can go to the device as it is.

use std::collections::BTreeMap;

use crate::device::Page;

/// Marks a reservation for an inline item; the other bits are bytes of index growth.
const INLINE: u32 = 1 << 31;

/// What the pages of a file have reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageReservation {
    /// Blocks of space: one for each page, but for those that go to space allocated before.
    Blocks(u64),
    /// Bytes of index growth: the contents will become an inline item.
    Inline(u64),
}

/// Unwritten pages of a file.
#[derive(Default)]
pub struct Pages {
    /// The pages.
    pub dirty: BTreeMap<u64, Page>,
    /// As [`PageReservation`]. Memory has far fewer pages than this can count.
    held: u32,
    /// Of the pages those whose file block no extent covers.
    unplaced: u32,
}

impl Pages {
    /// What is reserved for them.
    pub fn held(&self) -> PageReservation {
        match self.held & INLINE {
            0 => PageReservation::Blocks(self.held.into()),
            _ => PageReservation::Inline((self.held & !INLINE).into()),
        }
    }

    /// Sets what is reserved for them.
    pub fn hold(&mut self, held: PageReservation) {
        let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX) & !INLINE;
        self.held = match held {
            PageReservation::Blocks(blocks) => count(blocks),
            PageReservation::Inline(growth) => count(growth) | INLINE,
        };
    }

    /// Blocks reserved for them.
    pub fn blocks(&self) -> u64 {
        match self.held() {
            PageReservation::Blocks(blocks) => blocks,
            PageReservation::Inline(_) => 0,
        }
    }

    /// Of the pages those whose file block no extent covers: `st_blocks` counts them.
    pub fn unplaced(&self) -> u64 {
        self.unplaced.into()
    }

    /// Notes pages that came to blocks without an extent.
    pub fn add_unplaced(&mut self, pages: u64) {
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        self.unplaced = self.unplaced.saturating_add(pages);
    }

    /// Notes that pages without an extent left, or got one.
    pub fn sub_unplaced(&mut self, pages: u64) {
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        self.unplaced = self.unplaced.saturating_sub(pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_and_unplaced_comes_back() {
        let mut pages = Pages::default();
        assert_eq!(pages.held(), PageReservation::Blocks(0));
        for held in [
            PageReservation::Blocks(7),
            PageReservation::Inline(2080),
            PageReservation::Inline(0),
        ] {
            pages.hold(held);
            assert_eq!(pages.held(), held);
        }
        pages.add_unplaced(5);
        pages.sub_unplaced(9);
        assert_eq!((pages.unplaced(), pages.blocks()), (0, 0));
        pages.add_unplaced(u64::MAX);
        assert_eq!(pages.unplaced(), u32::MAX.into());
    }
}
