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
    /// before. Those of a small file that has none become an inline item. Memory has far fewer
    /// pages than this can count.
    pub reserved: u32,
    /// Bytes of index growth set aside for the items that writeback may make.
    pub growth: u32,
}
