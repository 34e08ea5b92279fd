//! Written data that is not on the device yet: whole blocks, by file block.
//!
//! Bytes behind the file's size are zero in every page, so a page can go to the device as it is.

use std::collections::BTreeMap;

use crate::format::BLOCK_SIZE;

/// A block of data.
pub type Page = Box<[u8; BLOCK_SIZE]>;

/// A page of zeros.
pub fn zero_page() -> Page {
    Box::new([0; BLOCK_SIZE])
}

/// A page that holds `part` from `skip` on, and zeros.
pub fn page_with(skip: usize, part: &[u8]) -> Page {
    let whole = (part.len() == BLOCK_SIZE).then(|| Box::<[u8]>::from(part).try_into().ok());
    whole.flatten().unwrap_or_else(|| {
        let mut page = zero_page();
        if let Some(to) = page.get_mut(skip..skip + part.len()) {
            to.copy_from_slice(part);
        }
        page
    })
}

/// Unwritten pages of a file.
#[derive(Default)]
pub struct Pages {
    /// The pages.
    pub dirty: BTreeMap<u64, Page>,
    /// Blocks of space set aside for them: one each, but for those that go to space allocated
    /// before.
    pub reserved: u64,
    /// However small the file is, its contents go to blocks: it is about to get extents.
    pub not_inline: bool,
}
