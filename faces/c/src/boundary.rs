//! The boundary itself: where calls of C enter, and where their pointers become references.
//!
//! Every exported function with a result runs in [`call`]. The functions on pointers are unsafe by
//! the contract in the documentation of the crate, and lend what they make for the call only.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::error::{Failure, Outcome, keep};
use crate::fork;

const NULL: Failure = Failure::new(libc::EFAULT, "a pointer is null");
const TOO_SMALL: Failure = Failure::new(libc::ERANGE, "the buffer is too small");
const BROKEN: Failure = Failure::new(
    libc::EIO,
    "the call was broken off by a mistake in CairnFS: close the volume, and report the message on \
     standard error",
);

/// Runs a call; returns 0, or the errno value of its failure.
pub(crate) fn call(what: impl FnOnce() -> Outcome<()>) -> c_int {
    // What a panic may leave half done is inside the engine, whose locks do not poison.
    let checked = AssertUnwindSafe(|| fork::check().and_then(|()| what()));
    match catch_unwind(checked).unwrap_or(Err(BROKEN)) {
        Ok(()) => 0,
        Err(failure) => {
            keep(&failure.message);
            failure.errno
        }
    }
}

/// The bytes of a string, without its zero byte.
pub(crate) unsafe fn string<'a>(pointer: *const c_char) -> Outcome<&'a OsStr> {
    if pointer.is_null() {
        return Err(NULL);
    }
    // SAFETY: it is not null, so by the contract it is valid up to its zero byte.
    let string = unsafe { CStr::from_ptr(pointer) };
    Ok(OsStr::from_bytes(string.to_bytes()))
}

/// A path, of the volume or of the host.
pub(crate) unsafe fn path<'a>(pointer: *const c_char) -> Outcome<&'a Path> {
    // SAFETY: the same contract.
    Ok(Path::new(unsafe { string(pointer) }?))
}

/// A name that is text: a label, a snapshot.
pub(crate) unsafe fn text<'a>(pointer: *const c_char) -> Outcome<&'a str> {
    // SAFETY: the same contract.
    let string = unsafe { string(pointer) }?;
    let refused = Failure::new(libc::EILSEQ, "the name is not UTF-8");
    string.to_str().ok_or(refused)
}

/// Paths in an array.
pub(crate) unsafe fn paths(pointer: *const *const c_char, count: usize) -> Outcome<Vec<PathBuf>> {
    // SAFETY: the same contract.
    let strings = unsafe { slice(pointer, count) }?;
    // SAFETY: the same contract.
    let copy = |string: &*const c_char| unsafe { path(*string) }.map(Path::to_path_buf);
    strings.iter().map(copy).collect()
}

/// A descriptor of the caller, as one of the library's own with the same position.
pub(crate) fn descriptor(fd: c_int) -> Outcome<File> {
    // SAFETY: the call touches no memory; a number that is not open fails.
    let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    match own {
        0.. => {
            // SAFETY: it was made just now, and belongs to nobody else.
            Ok(unsafe { File::from_raw_fd(own) })
        }
        _ => {
            let why = io::Error::last_os_error().raw_os_error();
            let why = why.unwrap_or(libc::EBADF);
            Err(Failure::new(why, "the descriptor is not open"))
        }
    }
}

fn check_len(len: usize) -> Outcome<()> {
    match isize::try_from(len) {
        Ok(_) => Ok(()),
        Err(_) => Err(Failure::invalid("the length is over PTRDIFF_MAX")),
    }
}

/// `len` values to read; none of them at a null pointer.
pub(crate) unsafe fn slice<'a, T: Copy>(pointer: *const T, len: usize) -> Outcome<&'a [T]> {
    check_len(len.saturating_mul(size_of::<T>()))?;
    if len == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(NULL);
    }
    if !pointer.is_aligned() {
        return Err(Failure::invalid("a pointer is not aligned"));
    }
    // SAFETY: it is not null and aligned, the length fits, and by the contract the values are
    // valid.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// A buffer of `len` bytes to fill; none at a null pointer.
pub(crate) unsafe fn buffer<'a>(pointer: *mut u8, len: usize) -> Outcome<&'a mut [u8]> {
    check_len(len)?;
    if len == 0 {
        return Ok(&mut []);
    }
    if pointer.is_null() {
        return Err(NULL);
    }
    // SAFETY: it is not null, the length fits, and by the contract the bytes are valid and used by
    // nobody else.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
}

/// A place for a result, checked before the call does anything.
#[derive(Debug)]
pub(crate) struct Place<T>(*mut T);

impl<T: Copy> Place<T> {
    pub(crate) unsafe fn new(pointer: *mut T) -> Outcome<Self> {
        if pointer.is_null() {
            Err(NULL)
        } else {
            Ok(Self(pointer))
        }
    }

    pub(crate) fn put(self, value: T) {
        // SAFETY: by the contract of `new` it is valid for a value; it need not be aligned.
        unsafe { self.0.write_unaligned(value) }
    }
}

/// Copies strings behind each other into a buffer, each with a zero byte at its end.
pub(crate) unsafe fn give_strings(
    strings: &[&[u8]],
    pointer: *mut c_char,
    capacity: usize,
) -> Outcome<()> {
    // SAFETY: the same contract.
    let buffer = unsafe { buffer(pointer.cast(), capacity) }?;
    let bytes: Vec<u8> = strings
        .iter()
        .flat_map(|s| [*s, b"\0"])
        .flatten()
        .copied()
        .collect();
    let part = buffer.get_mut(..bytes.len()).ok_or(TOO_SMALL)?;
    part.copy_from_slice(&bytes);
    Ok(())
}

/// Copies a result of any length: its length is always told; with a capacity of 0 only that.
pub(crate) unsafe fn give(
    bytes: &[u8],
    pointer: *mut u8,
    capacity: usize,
    length: Place<usize>,
) -> Outcome<()> {
    length.put(bytes.len());
    if capacity == 0 {
        return Ok(());
    }
    // SAFETY: the same contract.
    let buffer = unsafe { buffer(pointer, capacity) }?;
    let part = buffer.get_mut(..bytes.len()).ok_or(TOO_SMALL)?;
    part.copy_from_slice(bytes);
    Ok(())
}

/// The failure of a buffer that is too small.
pub(crate) const fn too_small() -> Failure {
    TOO_SMALL
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;

    use super::*;
    use crate::error::cairnfs_message;

    #[test]
    fn panic_ends_at_the_boundary() {
        // Unwinds like a panic, but prints nothing.
        assert_eq!(call(|| resume_unwind(Box::new("a mistake"))), libc::EIO);
        // SAFETY: the message ends with a zero byte, and stays until the next failure.
        let message = unsafe { CStr::from_ptr(cairnfs_message()) };
        assert!(message.to_str().unwrap().contains("a mistake in CairnFS"));
        assert_eq!(call(|| Ok(())), 0);
    }

    #[test]
    fn zero_bytes_in_a_message_are_left_out() {
        let message = std::borrow::Cow::Borrowed("a\0b");
        assert_eq!(call(|| Err(Failure { errno: 5, message })), 5);
        // SAFETY: as above.
        let message = unsafe { CStr::from_ptr(cairnfs_message()) };
        assert_eq!(message, c"ab");
    }
}
