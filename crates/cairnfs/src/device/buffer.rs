//! A byte buffer aligned to 4 KiB, as direct I/O needs.

use std::ops::{Deref, DerefMut};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

const ALIGN: usize = 4096;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; ALIGN]);

/// A byte buffer aligned to 4 KiB, of any length, initially zero.
#[derive(Default)]
pub struct AlignedBuf {
    pages: Vec<Page>,
    len: usize,
}

impl AlignedBuf {
    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        Self {
            // `new_vec_zeroed` uses a zeroed allocation and writes nothing. If the allocation
            // fails, the fallback fails like any `vec!`.
            pages: Page::new_vec_zeroed(len.div_ceil(ALIGN))
                .unwrap_or_else(|_| vec![Page([0; ALIGN]); len.div_ceil(ALIGN)]),
            len,
        }
    }

    /// Makes it at least `len` bytes long; what it gains is zero. Growing in small steps copies each
    /// byte about once.
    pub fn ensure(&mut self, len: usize) {
        if self.len < len {
            self.pages.resize(len.div_ceil(ALIGN), Page([0; ALIGN]));
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
