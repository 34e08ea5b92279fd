//! A reference-counted 4 KiB page of file data, shared by the page cache and writes in flight.
//!
//! Pages are aligned to their size, as direct I/O needs. A shared page never changes: a change of a
//! shared page goes to a copy.

use std::sync::Arc;

use super::chunks::{BLOCK, Blank, CHUNKS};

/// The memory of a page; returned to the pool when dropped.
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

    /// A page that begins with `part`, truncated to the page size, and is zero behind it.
    pub fn with(part: &[u8]) -> Self {
        Supply(Vec::new()).page_with(0, part)
    }

    /// Drops pages. The memory of those not shared is returned to the pool in one call.
    pub fn let_go(pages: Vec<Self>) {
        let blanks = blanks(pages);
        if !blanks.is_empty() {
            CHUNKS.give(blanks);
        }
    }

    /// Drops the pages of a volume that is closed, and returns idle memory to the kernel.
    pub fn give_up(pages: Vec<Self>) {
        CHUNKS.give_up(blanks(pages));
    }

    /// Returns memory to the kernel that was idle since the previous call. Call it periodically.
    pub fn rest() {
        CHUNKS.rest();
    }

    /// The content.
    pub fn bytes(&self) -> &[u8] {
        self.0.0
    }

    /// The content for writing. A shared page is copied first.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.0).0
    }
}

/// The memory of the pages that are not shared.
fn blanks(pages: Vec<Page>) -> Vec<Blank> {
    let last = pages.into_iter().filter_map(|p| Arc::into_inner(p.0));
    last.map(|mut held| std::mem::take(&mut held.0)).collect()
}

/// Memory for a number of pages, allocated in one call.
pub struct Supply(Vec<Blank>);

impl Supply {
    /// Memory for `count` pages. Pages beyond `count` allocate their memory one by one.
    pub fn new(count: usize) -> Self {
        Self(CHUNKS.take(count))
    }

    /// A page that holds `part` at byte `skip` and is zero elsewhere.
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
    fn page_content_is_independent_of_reused_memory() {
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
    fn shared_page_is_copied_on_write() {
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
