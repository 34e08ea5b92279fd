//! The functions of libc that read, and map files, as far as they are served for files that the kernel does not
//! know.
//!
//! A private mapping of such a file is one of its contents at the time of the call, in memory: whether later
//! changes of the file are seen in it is not specified. All other mappings are the kernel's.

use std::ffi::{c_int, c_void};
use std::slice;

use cairnfs_channel::call::{NONE, Op, READ_MAX, Request};
use libc::{off_t, off64_t, size_t, ssize_t};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::pwrite;

use crate::descriptors::swap;
use crate::files::{self, File};
use crate::next::functions;
use crate::raw::fail;
use crate::session::{self, Not};

/// Largest part of a file that is mapped so.
const MOST_MAPPED: usize = 256 << 10;
/// Bytes that are copied at once for a mapping.
const COPIED: usize = 8 << 10;

/// Reads from the file of a placeholder where it is: at once, or not at all, as others may read by the same
/// descriptor. `Err(None)`: the kernel is to be asked, and nothing was read.
fn read_next(file: File, to: &mut [u8]) -> Result<usize, Option<i32>> {
    ask(file, NONE, to)
}

/// Reads from an offset on, until there are `to.len()` bytes or the file ends. Otherwise as [`read_next`].
fn read_all(file: File, to: &mut [u8], at: u64) -> Result<usize, Option<i32>> {
    let mut done = 0;
    loop {
        let rest = to.get_mut(done..).unwrap_or_default();
        let wanted = rest.len().min(READ_MAX);
        let read = ask(file, at.saturating_add(done as u64), rest)?;
        done += read;
        if read < wanted || done == to.len() {
            return Ok(done);
        }
    }
}

fn ask(file: File, at: u64, to: &mut [u8]) -> Result<usize, Option<i32>> {
    let session = session::get(file.mount).ok_or(None)?;
    let args = [file.number, at, to.len() as u64, 0, 0];
    let read = session.call_for_bytes(&Request::of(Op::Read, args, &[]), to);
    read.map_err(|not| match not {
        Not::Failed(errno) => Some(errno),
        Not::Mine => None,
    })
}

fn read_at(fd: c_int, to: *mut c_void, len: size_t, at: u64) -> Option<ssize_t> {
    if files::is_empty() {
        return None;
    }
    let file = files::get(fd)?;
    let is_served = files::dir(fd).is_none()
        && files::is_readable(fd)
        && !to.is_null()
        && len > 0
        && isize::try_from(len).is_ok()
        && (at == NONE || i64::try_from(at).is_ok());
    if !is_served {
        return swap(fd);
    }
    // SAFETY: the function of libc demands room for as many bytes.
    let to = unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), len) };
    let read = if at == NONE {
        read_next(file, to)
    } else {
        read_all(file, to, at)
    };
    match read {
        Ok(read) => Some(read as ssize_t),
        Err(Some(errno)) => Some(fail(errno) as ssize_t),
        Err(None) => swap(fd),
    }
}

/// An offset of the program; a negative one is refused by the kernel.
fn read_there(fd: c_int, to: *mut c_void, len: size_t, at: i64) -> Option<ssize_t> {
    match u64::try_from(at) {
        Ok(at) => read_at(fd, to, len, at),
        Err(_) => swap(fd),
    }
}

/// A file in memory with the contents of a file from an offset to its end, if they fill all pages of a mapping.
fn copied(file: File, len: usize, offset: u64) -> Option<OwnedFd> {
    let memory = memfd_create(c"cairnfs", MemfdFlags::CLOEXEC).ok()?;
    let mut bytes = [0; COPIED];
    let mut done = 0;
    loop {
        let read = read_all(file, &mut bytes, offset + done as u64).ok()?;
        let bytes = bytes.get(..read)?;
        if read > 0 && pwrite(memory.as_fd(), bytes, done as u64) != Ok(read) {
            return None;
        }
        done += read;
        if read < COPIED {
            break;
        }
        if done > MOST_MAPPED {
            return None;
        }
    }
    // What is behind the end of the last page of a file is not mapped.
    (done.next_multiple_of(page()) >= len).then_some(memory)
}

/// Bytes of a page.
fn page() -> usize {
    // SAFETY: it is only asked.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).map_or(4096, |bytes| bytes.max(1))
}

/// How a file is to be mapped.
struct Mapped {
    at: *mut c_void,
    len: usize,
    access: c_int,
    flags: c_int,
}

/// Maps a copy of a file. `None`: the kernel maps the file.
fn map_copy(fd: c_int, map: &Mapped, offset: u64) -> Option<*mut c_void> {
    const SERVED: c_int = libc::MAP_PRIVATE | libc::MAP_POPULATE | libc::MAP_NORESERVE;
    let is_served = (1..=MOST_MAPPED).contains(&map.len)
        && map.flags & !SERVED == 0
        && map.flags & libc::MAP_PRIVATE != 0
        && map.access & !(libc::PROT_READ | libc::PROT_WRITE) == 0
        && offset.is_multiple_of(page() as u64);
    let file = files::get(fd)?;
    if !is_served || files::dir(fd).is_some() || !files::is_readable(fd) {
        return None;
    }
    let memory = copied(file, map.len, offset)?;
    // SAFETY: a new mapping, where the program wants it; nothing is replaced without MAP_FIXED.
    let mapped = unsafe {
        rustix::mm::mmap(
            map.at,
            map.len,
            rustix::mm::ProtFlags::from_bits_retain(map.access as u32),
            rustix::mm::MapFlags::from_bits_retain(map.flags as u32),
            &memory,
            0,
        )
    };
    mapped.ok()
}

fn map(fd: c_int, map: &Mapped, offset: i64) -> Option<*mut c_void> {
    if files::is_empty() || map.flags & libc::MAP_ANONYMOUS != 0 {
        return None;
    }
    let offset = u64::try_from(offset).ok();
    offset
        .and_then(|offset| map_copy(fd, map, offset))
        .or_else(|| swap(fd))
}

functions! {
    fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
        read_at(fd, to, len, NONE)
    }
    fn __read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
        read_at(fd, to, len, NONE)
    }
    fn __read_chk(fd: c_int, to: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        if len > room { swap(fd) } else { read_at(fd, to, len, NONE) }
    }
    fn pread(fd: c_int, to: *mut c_void, len: size_t, at: off_t) -> ssize_t {
        read_there(fd, to, len, at)
    }
    fn pread64(fd: c_int, to: *mut c_void, len: size_t, at: off64_t) -> ssize_t {
        read_there(fd, to, len, at)
    }
    fn __pread64(fd: c_int, to: *mut c_void, len: size_t, at: off64_t) -> ssize_t {
        read_there(fd, to, len, at)
    }
    fn __pread_chk(
        fd: c_int, to: *mut c_void, len: size_t, at: off_t, room: size_t
    ) -> ssize_t {
        if len > room { swap(fd) } else { read_there(fd, to, len, at) }
    }
    fn __pread64_chk(
        fd: c_int, to: *mut c_void, len: size_t, at: off64_t, room: size_t
    ) -> ssize_t {
        if len > room { swap(fd) } else { read_there(fd, to, len, at) }
    }
    fn mmap(
        at: *mut c_void, len: size_t, access: c_int, flags: c_int, fd: c_int, offset: off_t
    ) -> *mut c_void {
        map(fd, &Mapped { at, len, access, flags }, offset)
    }
    fn mmap64(
        at: *mut c_void, len: size_t, access: c_int, flags: c_int, fd: c_int, offset: off64_t
    ) -> *mut c_void {
        map(fd, &Mapped { at, len, access, flags }, offset)
    }
}
