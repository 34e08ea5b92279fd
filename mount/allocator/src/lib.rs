//! The memory allocator of the programs `cairnfs` and `cairnfs-bench`: mimalloc with small pages and a long purge delay.
//!
//! One thread makes inodes and log vectors, another one frees them. For this pattern the C
//! library's allocator takes locks and asks the kernel for memory in small steps. The kernel clears
//! two mebibytes at the first touch of a huge page. Where a virtual machine gets them anew from its
//! host each time, that costs more than huge pages save, and a short command needs less memory than
//! one: so mimalloc is built not to ask for them.
//! Committers reuse within seconds the memory that a merge frees. When the purge delay ends,
//! however, mimalloc returns all memory that is free at that moment, also memory that was freed
//! shortly before. The delay is therefore a minute: with a shorter one the kernel would clear
//! each page once more.

use libmimalloc_sys as sys;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of the purge delay option in `mimalloc.h`; the bindings have no name for it.
const PURGE_DELAY: sys::mi_option_t = 15;

/// Default purge delay of mimalloc, in milliseconds.
const USUAL_DELAY: std::ffi::c_long = 1000;

/// Purge delay of these programs, in milliseconds.
const DELAY: std::ffi::c_long = 60_000;

/// Sets up the process. Must run before other threads are started.
pub fn set_up() {
    // Failure is harmless: everything works, only more slowly.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    keep_longer();
}

/// Sets the longer purge delay, unless `MIMALLOC_PURGE_DELAY` sets another one.
#[expect(
    unsafe_code,
    reason = "the allocator's options are set by a C function"
)]
fn keep_longer() {
    // SAFETY: both functions read and write plain numbers, and refuse an unknown option number.
    // The comparison with the default value confirms that the option is the intended one.
    unsafe {
        if sys::mi_option_get(PURGE_DELAY) == USUAL_DELAY {
            sys::mi_option_set(PURGE_DELAY, DELAY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(
        unsafe_code,
        reason = "the allocator's options are read by a C function"
    )]
    fn purge_delay_option_number_is_right() {
        // SAFETY: reads a number.
        assert_eq!(unsafe { sys::mi_option_get(PURGE_DELAY) }, USUAL_DELAY);
        keep_longer();
        // SAFETY: reads a number.
        assert_eq!(unsafe { sys::mi_option_get(PURGE_DELAY) }, DELAY);
    }
}
