//! How the command gets memory: by an allocator made for many threads, and in small pages.
//!
//! Inodes and log vectors are made by one thread and freed by another, for which the C library's
//! allocator takes locks and asks the kernel for memory in small steps. With huge pages, which mimalloc
//! asks for, the kernel clears two mebibytes at a first touch; where a virtual machine gets them anew
//! from its host each time, that costs more than all that they save. What a merge frees the committers
//! take again within seconds; but when the time is up, mimalloc gives back all that is free at that moment,
//! however short it has been. So it is a minute: given back sooner, each page would be cleared by the kernel
//! once more.

use libmimalloc_sys as sys;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of the option in `mimalloc.h`, which the bindings do not name.
const PURGE_DELAY: sys::mi_option_t = 15;

/// Milliseconds until unused memory goes back, as mimalloc has it.
const USUAL_DELAY: std::ffi::c_long = 1000;

/// And as we want it.
const DELAY: std::ffi::c_long = 60_000;

/// Sets the process up; before threads are started.
pub fn set_up() {
    // Without it everything works, only more slowly.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    keep_longer();
}

/// Has memory that nobody uses kept longer, unless `MIMALLOC_PURGE_DELAY` tells otherwise.
#[expect(
    unsafe_code,
    reason = "the allocator's options are set by a C function"
)]
fn keep_longer() {
    // SAFETY: both functions read and write plain numbers, and refuse an option that there is not. That
    // it is the one we mean is seen by its value.
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
    fn the_option_is_the_one_that_is_meant() {
        // SAFETY: reads a number.
        assert_eq!(unsafe { sys::mi_option_get(PURGE_DELAY) }, USUAL_DELAY);
        keep_longer();
        // SAFETY: reads a number.
        assert_eq!(unsafe { sys::mi_option_get(PURGE_DELAY) }, DELAY);
    }
}
