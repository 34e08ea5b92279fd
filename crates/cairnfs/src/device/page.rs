//! A block of file data in memory, shared by all who need it: those who write it, and who keep it.
//!
//! Aligned to its size, as direct I/O needs. Nobody sees it change: who changes one that others have
//! gets a copy.

use std::sync::Arc;

use super::chunks::{BLOCK, Blank, CHUNKS};

/// The memory of a page, given back with it.
struct PageMemory(Blank);

impl PageMemory {
    fn with(fill: impl FnOnce(&mut [u8])) -> Self {
        Self::of(CHUNKS.take(1).pop(), fill)
    }

    fn of(blank: Option<Blank>, fill: impl FnOnce(&mut [u8])) -> Self {
        let blank = blank.unwrap_or_default();
        fill(blank);
        Self(blank)
    }
}

impl Clone for PageMemory {
    fn clone(&self) -> Self {
        Self::with(|to| to.copy_from_slice(self.0))
    }
}

impl Drop for PageMemory {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            CHUNKS.give([std::mem::take(&mut self.0)]);
        }
    }
}

/// 4 KiB of file data.
#[derive(Clone)]
pub struct Page(Arc<PageMemory>);

impl Page {
    /// A page of zeros.
    pub fn zeroed() -> Self {
        Self(Arc::new(PageMemory::with(|to| to.fill(0))))
    }

    /// A page that begins with `part`, of which it takes no more than fits; then come zeros.
    pub fn with(part: &[u8]) -> Self {
        Supply(Vec::new()).page_with(0, part)
    }

    /// Drops pages; the memory of those that nobody else has is given back at once.
    pub fn let_go(pages: Vec<Self>) {
        let blanks = blanks(pages);
        if !blanks.is_empty() {
            CHUNKS.give(blanks);
        }
    }

    /// Drops the pages of a volume that is closed.
    pub fn give_up(pages: Vec<Self>) {
        CHUNKS.give_up(blanks(pages));
    }

    /// Gives back memory that nobody has needed since this was called last.
    pub fn rest() {
        CHUNKS.rest();
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.0
    }

    /// The bytes, to be changed; of a copy if others have the page.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.0).0
    }
}

/// The memory of those that nobody else has.
fn blanks(pages: Vec<Page>) -> Vec<Blank> {
    let last = pages.into_iter().filter_map(|p| Arc::into_inner(p.0));
    last.map(|mut held| std::mem::take(&mut held.0)).collect()
}

/// Memory for a number of pages, taken at once.
pub struct Supply(Vec<Blank>);

impl Supply {
    /// Memory for `count` pages. For more, some is taken when it is needed.
    pub fn new(count: usize) -> Self {
        Self(CHUNKS.take(count))
    }

    /// A page that holds `part` from `skip` on, and zeros.
    pub fn page_with(&mut self, skip: usize, part: &[u8]) -> Page {
        let fill = |to: &mut [u8]| {
            let (before, rest) = to.split_at_mut(skip.min(BLOCK));
            let (own, behind) = rest.split_at_mut(part.len().min(rest.len()));
            before.fill(0);
            own.copy_from_slice(part.get(..own.len()).unwrap_or_default());
            behind.fill(0);
        };
        let held = match self.0.pop() {
            None => PageMemory::with(fill),
            blank => PageMemory::of(blank, fill),
        };
        Page(Arc::new(held))
    }
}

impl Drop for Supply {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            CHUNKS.give(self.0.drain(..));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_holds_what_it_was_made_with_whatever_its_memory_held() {
        let mut dirty = Supply::new(8);
        let pages: Vec<_> = (0..8).map(|_| dirty.page_with(0, &[9; BLOCK])).collect();
        Page::let_go(pages);
        for skip in [0, 1, 100, BLOCK - 1, BLOCK] {
            let part = &[5; 50][..50.min(BLOCK - skip)];
            let page = Supply::new(3).page_with(skip, part);
            let mut expected = [0; BLOCK];
            expected[skip..skip + part.len()].copy_from_slice(part);
            assert_eq!(page.bytes(), expected);
        }
        assert_eq!(Page::zeroed().bytes(), [0; BLOCK]);
        assert_eq!(Page::with(&[3; 2 * BLOCK]).bytes(), [3; BLOCK]);
    }

    #[test]
    fn a_shared_page_does_not_change() {
        let mut page = Page::with(b"old");
        let at = page.bytes().as_ptr();
        let other = page.clone();
        page.bytes_mut()[..3].copy_from_slice(b"new");
        assert_eq!(other.bytes()[..3], *b"old");
        assert_eq!(page.bytes()[..3], *b"new");
        drop(other);
        let own = page.bytes().as_ptr();
        page.bytes_mut()[0] = 0;
        assert_eq!(page.bytes().as_ptr(), own);
        assert_ne!(own, at);
    }
}
