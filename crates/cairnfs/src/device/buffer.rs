//! A byte buffer aligned to 4 KiB, as direct I/O needs.

use std::ops::{Deref, DerefMut};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

const ALIGN: usize = 4096;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; ALIGN]);

/// A buffer of zeros at first, aligned to 4 KiB, whose length is what was asked for.
#[derive(Default)]
pub struct AlignedBuf {
    pages: Vec<Page>,
    len: usize,
}

impl AlignedBuf {
    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        Self {
            // Memory that comes zeroed is not written again; without memory it panics like `vec!`.
            pages: Page::new_vec_zeroed(len.div_ceil(ALIGN))
                .unwrap_or_else(|_| vec![Page([0; ALIGN]); len.div_ceil(ALIGN)]),
            len,
        }
    }

    /// Makes it at least `len` bytes long; what it held is lost if it grows.
    pub fn ensure(&mut self, len: usize) {
        if self.len < len {
            *self = Self::zeroed(len);
        }
    }

    /// Whether direct I/O can use `bytes` as they lie in memory.
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
