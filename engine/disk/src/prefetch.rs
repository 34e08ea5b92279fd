//! Prefetches memory into the processor's cache ahead of its use.
//!
//! Uses nothing. Operations spend much of their time waiting for memory that has left the
//! processor's caches; prefetches overlap these waits. Only timing depends on it, and on processors
//! without a known instruction it does nothing. One of the few places with `unsafe` code.

/// Bytes of a cache line.
const LINE: usize = 64;

/// Most lines prefetched at once. The hardware prefetcher handles longer sequential reads.
const MOST_LINES: usize = 16;

/// Prefetches the referenced value.
#[inline]
pub fn prefetch<T: ?Sized>(of: &T) {
    let (first, len) = (std::ptr::from_ref(of).cast::<u8>(), size_of_val(of));
    let len = len.min(MOST_LINES * LINE);
    for at in (0..len).step_by(LINE) {
        ask(first.wrapping_add(at));
    }
    // The value may begin within a line, so its last line may not be among these.
    if len > 0 {
        ask(first.wrapping_add(len - 1));
    }
}

#[inline(always)]
fn ask(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has the instruction; it has no effect that a program can
        // observe, and every address is allowed.
        #[allow(unsafe_code, reason = "there is no safe prefetch")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefetch_accepts_any_reference() {
        prefetch(&());
        prefetch::<[u8]>(&[]);
        prefetch(&7_u8);
        let long = vec![3_u8; 1 << 20];
        prefetch(&long[..]);
        prefetch(&long[5..70]);
        assert!(long.iter().all(|b| *b == 3));
    }
}
