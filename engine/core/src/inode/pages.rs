//! Written data that is not on the device yet: whole blocks, by file block.
//!
//! Bytes beyond the file's size are zero in every page, so a page can be written to the device
//! unchanged.

use std::collections::BTreeMap;

use cairnfs_disk::device::Page;

/// Marks a reservation for an inline item; the other bits are bytes of index growth.
const INLINE: u32 = 1 << 31;

/// The reservation of a file's unwritten pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageReservation {
    /// Blocks of space: one for each page, except for pages whose blocks are allocated already.
    Blocks(u64),
    /// Bytes of index growth, because the contents will become an inline item.
    Inline(u64),
}

/// Unwritten pages of a file.
#[derive(Default)]
pub struct Pages {
    /// Pages by file block.
    pub dirty: BTreeMap<u64, Page>,
    /// Encoded [`PageReservation`]. Memory holds far fewer pages than this can count.
    held: u32,
    /// Number of pages whose file block no extent covers.
    unplaced: u32,
}

impl Pages {
    /// The reservation of the pages.
    pub fn held(&self) -> PageReservation {
        match self.held & INLINE {
            0 => PageReservation::Blocks(self.held.into()),
            _ => PageReservation::Inline((self.held & !INLINE).into()),
        }
    }

    /// Sets the reservation of the pages.
    pub fn hold(&mut self, held: PageReservation) {
        let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX) & !INLINE;
        self.held = match held {
            PageReservation::Blocks(blocks) => count(blocks),
            PageReservation::Inline(growth) => count(growth) | INLINE,
        };
    }

    /// Blocks that are reserved for the pages.
    pub fn blocks(&self) -> u64 {
        match self.held() {
            PageReservation::Blocks(blocks) => blocks,
            PageReservation::Inline(_) => 0,
        }
    }

    /// Number of pages whose file block no extent covers; `st_blocks` counts them.
    pub fn unplaced(&self) -> u64 {
        self.unplaced.into()
    }

    /// Adds pages whose file blocks have no extent.
    pub fn add_unplaced(&mut self, pages: u64) {
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        self.unplaced = self.unplaced.saturating_add(pages);
    }

    /// Subtracts pages without an extent that were dropped or got one.
    pub fn sub_unplaced(&mut self, pages: u64) {
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        self.unplaced = self.unplaced.saturating_sub(pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_keep_reservation_and_unplaced_count() {
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
        assert_eq!(pages.unplaced(), u64::from(u32::MAX));
    }
}
