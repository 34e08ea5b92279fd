//! Counts the memory that a thread has in use, and the maximum since the last reset. What another
//! thread frees is counted there; nothing that is measured here uses other threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Bytes in use; negative in a thread that frees what another has allocated.
    static USED: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system allocator unchanged; the counters do not touch its
// memory.
#[allow(unsafe_code, reason = "an allocator cannot be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller fulfils the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

fn count(change: isize) {
    let used = USED.get() + change;
    USED.set(used);
    MOST.set(MOST.get().max(used));
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs a function; returns its result and the maximum memory in bytes beyond that in use before.
pub fn most_used<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let before = USED.get();
    MOST.set(before);
    let result = run();
    (result, (MOST.get() - before).unsigned_abs())
}
