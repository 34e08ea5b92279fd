//! Begin and end of the service in a process, and its forks.

use std::ffi::{c_int, c_void};

use rustix::process::getpid;

use crate::{counters, dirs, files, mounts, session, umask};

unsafe extern "C" {
    fn __register_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
        library: *const c_void,
    ) -> c_int;
}

/// Reads what `cairnfs run` has told, and prepares for forks.
pub fn begin() {
    mounts::begin();
    if mounts::all().next().is_none() {
        return;
    }
    if let Some(path) = mounts::variable(c"CAIRNFS_RUN_STATS") {
        counters::begin(path.c_str());
    }
    if !umask::learn() {
        return;
    }
    // SAFETY: the functions stay loaded as long as the process lives.
    let registered =
        unsafe { __register_atfork(Some(prepare), None, Some(child), std::ptr::null()) };
    if registered == 0 {
        session::serve(getpid().as_raw_nonzero().get());
    }
}

/// Before a fork all files get descriptors of the kernel, which the child may use, too.
extern "C" fn prepare() {
    files::swap_all();
}

/// The child has no channel yet.
extern "C" fn child() {
    if session::is_begun() {
        files::forget_all();
        dirs::free_all();
        // SAFETY: this thread is alone.
        unsafe { session::forget_all() };
        session::serve(getpid().as_raw_nonzero().get());
    }
}

/// Ends all service in this process and those that it forks: what the daemon knows of it will not hold.
pub fn end() {
    if session::is_here() {
        files::swap_all();
        session::serve(0);
    }
}

/// Ends all channels of this process: the program is about to close what it does not know.
pub fn disconnect() {
    if session::is_here() {
        files::swap_all();
        session::turn_off();
    }
}
