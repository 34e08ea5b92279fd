//! A closed standard output fails the commands that write to it.
//!
//! Before `main`, the runtime of Rust opens /dev/null in place of a closed standard descriptor, so
//! that results would vanish and the exit code be 0. A function that runs before the runtime
//! notes whether the descriptor was open.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::stdio::{dup2_stdout, stdout};

static CLOSED: AtomicBool = AtomicBool::new(false);

/// The loader calls the functions of this section before it calls the runtime.
#[expect(
    unsafe_code,
    reason = "only a function in this section runs before the runtime"
)]
// SAFETY: the section holds pointers to functions of this type. The function makes a system call
// and writes an atomic, and needs nothing that the runtime sets up.
#[unsafe(link_section = ".init_array")]
#[used]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    CLOSED.store(fcntl_getfd(stdout()).is_err(), Ordering::Relaxed);
}

/// Whether the caller closed standard output.
pub fn is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// Puts a file that refuses writes in the place of a standard output that the caller closed. (The
/// standard library ignores EBADF there.) It stays closed for programs that are started here.
///
/// # Errors
/// The system lacks a resource.
pub fn set_up() -> io::Result<()> {
    if is_closed() {
        let sealed = memfd_create(c"closed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        fcntl_add_seals(&sealed, SealFlags::WRITE | SealFlags::GROW)?;
        dup2_stdout(sealed)?;
        fcntl_setfd(stdout(), FdFlags::CLOEXEC)?;
    }
    Ok(())
}
