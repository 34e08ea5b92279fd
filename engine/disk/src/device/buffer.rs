//! A byte buffer aligned to 4 KiB, as direct I/O needs.

use std::alloc::{Layout, handle_alloc_error};
use std::ops::{Deref, DerefMut};

use zerocopy::{FromZeros, IntoBytes};

use self::page::Page;

const ALIGN: usize = 4096;

mod page {
    use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

    /// Memory of one page. No function has one in its frame, so that it exists on the heap only: of a
    /// frame with that alignment, rustc 1.95 leaves out the beginning if it moves that behind an early
    /// return.
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(C, align(4096))]
    pub(super) struct Page([u8; super::ALIGN]);
}

/// A byte buffer aligned to 4 KiB, of any length, initially zero.
#[derive(Default)]
pub struct AlignedBuf {
    pages: Vec<Page>,
    len: usize,
}

/// Ends the program as any other failed allocation does.
fn no_memory<E>(_: E) -> ! {
    handle_alloc_error(Layout::new::<Page>())
}

impl AlignedBuf {
    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        Self {
            // Uses a zeroed allocation and writes nothing.
            pages: Page::new_vec_zeroed(len.div_ceil(ALIGN)).unwrap_or_else(|e| no_memory(e)),
            len,
        }
    }

    /// Makes it at least `len` bytes long; what it gains is zero. Growing in small steps copies each
    /// byte about once.
    pub fn ensure(&mut self, len: usize) {
        if self.len < len {
            let more = len.div_ceil(ALIGN) - self.pages.len();
            Page::extend_vec_zeroed(&mut self.pages, more).unwrap_or_else(|e| no_memory(e));
            self.len = len;
        }
    }

    /// Whether direct I/O can use `bytes` without a bounce buffer: address and length are aligned.
    pub fn is_aligned(bytes: &[u8]) -> bool {
        bytes.as_ptr().addr().is_multiple_of(ALIGN) && bytes.len().is_multiple_of(ALIGN)
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.pages.as_bytes().get(..self.len).unwrap_or_default()
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.pages
            .as_mut_bytes()
            .get_mut(..self.len)
            .unwrap_or_default()
    }
}
