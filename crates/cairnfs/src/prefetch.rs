//! Asks the processor for memory that is needed soon, so that it comes while other things are done.
//!
//! Floor 0: uses nothing. Much of what an operation takes is waiting for memory that has left the
//! processor's caches; waits that begin together end together. Nothing but time depends on it, and
//! where the instruction is not known nothing is done. One of the few places with `unsafe` code.

/// Bytes of a line of the processor's cache.
const LINE: usize = 64;

/// Lines asked for at once. Of what is longer the processor sees itself that it is read in order.
const MOST_LINES: usize = 16;

/// Asks for what a reference leads to.
#[inline]
pub fn prefetch<T: ?Sized>(of: &T) {
    let (first, len) = (std::ptr::from_ref(of).cast::<u8>(), size_of_val(of));
    let len = len.min(MOST_LINES * LINE);
    for at in (0..len).step_by(LINE) {
        ask(first.wrapping_add(at));
    }
    // It may begin within a line.
    if len > 0 {
        ask(first.wrapping_add(len - 1));
    }
}

#[inline(always)]
fn ask(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: each x86-64 processor has the instruction; it reads and changes nothing that a
        // program could see, and no address is wrong for it.
        #[allow(unsafe_code, reason = "there is no safe way to ask")]
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
    fn anything_can_be_asked_for() {
        prefetch(&());
        prefetch::<[u8]>(&[]);
        prefetch(&7_u8);
        let long = vec![3_u8; 1 << 20];
        prefetch(&long[..]);
        prefetch(&long[5..70]);
        assert!(long.iter().all(|b| *b == 3));
    }
}
