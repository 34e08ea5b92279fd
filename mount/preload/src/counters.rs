//! Counts of calls for `cairnfs run --stats`: in a file that all processes of the command map.

use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use cairnfs_channel::call::{COUNTERS, LEFT, Op, Why};
use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use rustix::mm::{MapFlags, ProtFlags, mmap};

type Counters = [AtomicU64; COUNTERS];

static AT: AtomicPtr<Counters> = AtomicPtr::new(ptr::null_mut());

/// Maps the file at this path.
pub fn begin(path: &CStr) {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(file) = openat(CWD, path, flags, Mode::empty()) else {
        return;
    };
    if fstat(&file).map_or(0, |stat| stat.st_size) != size_of::<Counters>() as i64 {
        return;
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of the file's size, which is never unmapped.
    let at = unsafe {
        mmap(
            ptr::null_mut(),
            size_of::<Counters>(),
            access,
            MapFlags::SHARED,
            &file,
            0,
        )
    };
    if let Ok(at) = at {
        AT.store(at.cast(), Ordering::Release);
    }
}

fn count(counter: usize) {
    // SAFETY: null, or mapped for the rest of the process; atomics have any value.
    let counters = unsafe { AT.load(Ordering::Acquire).as_ref() };
    if let Some(counter) = counters.and_then(|counters| counters.get(counter)) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A call was answered.
pub fn served(op: Op) {
    count(op as usize);
}

/// A call was left to the kernel.
pub fn left(why: Why) {
    count(LEFT + why as usize);
}
