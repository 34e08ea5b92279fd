//! The functions of libc on descriptors of which some are served, for files that the kernel does not know.

use std::ffi::{c_int, c_void};
use std::slice;

use cairnfs_channel::call::{self, ANSWER, Lease, NONE, Op, Request, WRITE_MAX};
use libc::{gid_t, iovec, mode_t, off_t, off64_t, size_t, ssize_t, timespec, timeval, uid_t};
use rustix::fd::{BorrowedFd, IntoRawFd};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

use crate::files::{self, File};
use crate::life;
use crate::next::functions;
use crate::raw::{LARGEFILE, fail};
use crate::session::{self, Not};
use crate::times::{id, time_words, timeval_words};

/// Writes up to here are far from the largest size of a file.
const MOST_OFFSET: u64 = 1 << 40;

/// Has the daemon do something with the file of a placeholder. `None`: a descriptor of the kernel is there
/// now, or always was.
pub fn ask(
    fd: c_int,
    op: Op,
    args: [u64; 4],
    bytes: &[u8],
) -> Option<Result<[u64; ANSWER], c_int>> {
    if files::is_empty() {
        return None;
    }
    let File { mount, number } = files::get(fd)?;
    let [b, c, d, e] = args;
    let request = Request::of(op, [number, b, c, d, e], bytes);
    let session = session::get(mount);
    let lease = files::lease(fd).filter(|lease| cannot_fail(fd, *lease, &request));
    let done = match (session, lease) {
        (None, _) => Err(Not::Mine),
        (Some(session), None) if op == Op::Sync => session.call_long(&request),
        (Some(session), None) => session.call(&request),
        (Some(session), Some(lease)) => session.defer(lease, &request, bytes.len() as u64),
    };
    match done {
        Ok(words) => Some(Ok(words)),
        Err(Not::Failed(errno)) => Some(Err(fail(errno))),
        Err(Not::Mine) => match files::swap(fd) {
            Ok(()) => None,
            Err(errno) => Some(Err(fail(errno))),
        },
    }
}

/// Whether a call is one that a lease permits to defer, and cannot fail: the program has made the file, so it
/// owns it, and what might be refused for another reason is asked.
fn cannot_fail(fd: c_int, lease: Lease, request: &Request<'_>) -> bool {
    let [_, b, c, _, e] = request.args;
    let is_time = |nanos| nanos < 1_000_000_000 || nanos == call::NOW || nanos == call::OMIT;
    match request.op {
        Op::Write => files::is_writable(fd) && (b == NONE || b <= MOST_OFFSET),
        Op::FileChmod => b & !0o777 == 0,
        Op::FileChown => lease.owner && (b, c) != (NONE, NONE),
        Op::FileUtimens => is_time(c) && is_time(e) && (c, e) != (call::OMIT, call::OMIT),
        _ => false,
    }
}

/// As [`ask`], for a function that returns 0.
fn change(fd: c_int, op: Op, args: [u64; 4]) -> Option<c_int> {
    let done = ask(fd, op, args, &[])?;
    Some(done.map_or_else(|failed| failed, |_| 0))
}

/// Sets the permissions of a file; `None`: the kernel is to be asked.
pub fn set_mode(fd: c_int, mode: u64) -> Option<c_int> {
    change(fd, Op::FileChmod, [mode, 0, 0, 0])
}

/// Sets the times of a file.
pub fn set_times(fd: c_int, words: [u64; 4]) -> Option<c_int> {
    change(fd, Op::FileUtimens, words)
}

/// What a function returns that fails.
pub trait Failed {
    /// That.
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

impl Failed for i64 {
    const FAILED: Self = -1;
}

impl Failed for ssize_t {
    const FAILED: Self = -1;
}

impl Failed for *mut c_void {
    const FAILED: Self = libc::MAP_FAILED;
}

/// A call that is not served: a descriptor of the kernel takes the place of a placeholder. If it cannot, the
/// call fails.
pub fn swap<T: Failed>(fd: c_int) -> Option<T> {
    if files::is_empty() {
        return None;
    }
    files::swap(fd).err().map(|errno| {
        fail(errno);
        T::FAILED
    })
}

/// More parts are refused by the kernel.
const MOST_PARTS: c_int = 1024;

/// Most bytes of parts that are joined, on the stack, which may be a signal handler's.
const JOINED: usize = 2 << 10;

/// Writes bytes of this library at an offset, or where the file is; `None`: the kernel is to be asked.
pub fn write_here(fd: c_int, bytes: &[u8], at: Option<u64>) -> Option<ssize_t> {
    write_at(fd, bytes.as_ptr().cast(), bytes.len(), at.unwrap_or(NONE))
}

/// Writes bytes of the program, unless they are too many for one request.
fn write_at(fd: c_int, bytes: *const c_void, len: size_t, at: u64) -> Option<ssize_t> {
    if files::is_empty() {
        return None;
    }
    if len > WRITE_MAX || len == 0 || bytes.is_null() {
        return swap(fd);
    }
    // SAFETY: the function of libc demands as many bytes.
    let bytes = unsafe { slice::from_raw_parts(bytes.cast::<u8>(), len) };
    Some(match ask(fd, Op::Write, [at, 0, 0, 0], bytes)? {
        Ok([written, ..]) => written as ssize_t,
        Err(failed) => failed as ssize_t,
    })
}

#[inline(never)]
fn write_parts(fd: c_int, parts: *const iovec, count: c_int) -> Option<ssize_t> {
    let mut all = [0u8; JOINED];
    let mut len = 0usize;
    for n in 0..usize::try_from(count).ok()? {
        // SAFETY: the function of libc demands as many parts.
        let iovec { iov_base, iov_len } = unsafe { *parts.add(n) };
        let to = len
            .checked_add(iov_len)
            .and_then(|end| all.get_mut(len..end));
        let Some(to) = to else {
            return swap(fd);
        };
        if iov_len > 0 {
            // SAFETY: the function of libc demands as many bytes.
            to.copy_from_slice(unsafe { slice::from_raw_parts(iov_base.cast::<u8>(), iov_len) });
        }
        len += iov_len;
    }
    write_at(fd, all.as_ptr().cast(), len, NONE)
}

fn seek(fd: c_int, offset: i64, whence: c_int) -> Option<i64> {
    let words = [
        offset.cast_unsigned(),
        u64::try_from(whence).unwrap_or(NONE),
        0,
        0,
    ];
    Some(match ask(fd, Op::Seek, words, &[])? {
        Ok([at, ..]) => {
            is_at(fd, at);
            at.cast_signed()
        }
        Err(failed) => failed.into(),
    })
}

/// A write to a file may begin there from now on: if it could fail, none is deferred.
fn is_at(fd: c_int, offset: u64) {
    if offset > MOST_OFFSET {
        files::end_lease(fd);
    }
}

/// Makes a file or directory durable.
fn sync(fd: c_int, data_only: u64) -> Option<c_int> {
    change(fd, Op::Sync, [data_only, 0, 0, 0])
}

fn truncate(fd: c_int, size: i64) -> Option<c_int> {
    if let Ok(size) = u64::try_from(size) {
        is_at(fd, size);
    }
    match u64::try_from(size) {
        Ok(size) => change(fd, Op::Truncate, [size, 0, 0, 0]),
        Err(_) => swap(fd),
    }
}

/// What a descriptor of the program is closed with: one of this library is none for it.
fn close_one(fd: c_int) -> Option<c_int> {
    if session::is_own(fd) {
        return Some(fail(libc::EBADF));
    }
    files::close_placeholder(fd)
}

/// Makes another descriptor of a directory. `None`: the kernel does.
fn another(fd: c_int, least: c_int, closes: bool) -> Option<c_int> {
    let file = files::dir(fd)?;
    // SAFETY: the placeholder, which is only looked at.
    let placeholder = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = if closes {
        FdFlags::CLOEXEC
    } else {
        FdFlags::empty()
    };
    let made = fcntl_dupfd_cloexec(placeholder, least);
    let made = match made.and_then(|made| fcntl_setfd(&made, flags).map(|()| made)) {
        Ok(made) => made,
        Err(errno) => return Some(fail(errno.raw_os_error())),
    };
    if !files::add(&made, files::flags(fd), file, 0) {
        return None;
    }
    // The program may have closed the other one meanwhile.
    let new = made.into_raw_fd();
    (files::get(fd) == Some(file)).then_some(new).or_else(|| {
        files::close_placeholder(new);
        None
    })
}

/// `fcntl` of a placeholder.
fn controls(fd: c_int, command: c_int, arg: usize) -> Option<c_int> {
    if files::is_empty() || files::get(fd).is_none() {
        return None;
    }
    match command {
        // A placeholder has them, too.
        libc::F_GETFD | libc::F_SETFD => None,
        libc::F_GETFL => Some(files::flags(fd) | LARGEFILE),
        libc::F_DUPFD => another(fd, arg as c_int, false).or_else(|| swap(fd)),
        libc::F_DUPFD_CLOEXEC => another(fd, arg as c_int, true).or_else(|| swap(fd)),
        _ => swap(fd),
    }
}

/// Whether a descriptor is a placeholder of a file.
fn is_file(fd: c_int) -> bool {
    !files::is_empty() && files::get(fd).is_some() && files::dir(fd).is_none()
}

/// Advice on how a file will be used: there is nothing to do for a small one.
fn advises(fd: c_int, len: off64_t, advice: c_int) -> Option<c_int> {
    let is_valid = (libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE).contains(&advice);
    if is_file(fd) && is_valid && len >= 0 {
        return Some(0);
    }
    // It returns the number of its error.
    files::swap(fd).err()
}

/// Before a descriptor is put in the place of another one.
fn duplicates(old: c_int, new: c_int) -> Option<c_int> {
    if session::is_own(new) {
        life::disconnect();
    }
    swap(old).or_else(|| swap(new))
}

functions! {
    fn write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t {
        write_at(fd, bytes, len, NONE)
    }
    fn pwrite(fd: c_int, bytes: *const c_void, len: size_t, offset: off_t) -> ssize_t {
        u64::try_from(offset).map_or_else(|_| swap(fd), |at| write_at(fd, bytes, len, at))
    }
    fn pwrite64(fd: c_int, bytes: *const c_void, len: size_t, offset: off64_t) -> ssize_t {
        u64::try_from(offset).map_or_else(|_| swap(fd), |at| write_at(fd, bytes, len, at))
    }
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        match files::get(fd) {
            Some(_) if (1..=MOST_PARTS).contains(&count) => write_parts(fd, parts, count),
            Some(_) => swap(fd),
            None => None,
        }
    }
    fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
        seek(fd, offset, whence)
    }
    fn lseek64(fd: c_int, offset: off64_t, whence: c_int) -> off64_t {
        seek(fd, offset, whence)
    }
    fn ftruncate(fd: c_int, size: off_t) -> c_int {
        truncate(fd, size)
    }
    fn ftruncate64(fd: c_int, size: off64_t) -> c_int {
        truncate(fd, size)
    }
    fn fsync(fd: c_int) -> c_int {
        sync(fd, 0)
    }
    fn fdatasync(fd: c_int) -> c_int {
        sync(fd, 1)
    }
    fn fchmod(fd: c_int, mode: mode_t) -> c_int {
        change(fd, Op::FileChmod, [mode.into(), 0, 0, 0])
    }
    fn fchown(fd: c_int, uid: uid_t, gid: gid_t) -> c_int {
        change(fd, Op::FileChown, [id(uid), id(gid), 0, 0])
    }
    fn futimens(fd: c_int, times: *const timespec) -> c_int {
        // SAFETY: the function of libc demands two times or null.
        match unsafe { time_words(times) } {
            Some(words) => set_times(fd, words),
            None => swap(fd),
        }
    }
    fn futimes(fd: c_int, times: *const timeval) -> c_int {
        // SAFETY: the function of libc demands two times or null.
        match unsafe { timeval_words(times) } {
            Some(words) => set_times(fd, words),
            None => swap(fd),
        }
    }
    fn posix_fadvise(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> c_int {
        advises(fd, len, advice)
    }
    fn posix_fadvise64(fd: c_int, offset: off64_t, len: off64_t, advice: c_int) -> c_int {
        advises(fd, len, advice)
    }
    fn isatty(fd: c_int) -> c_int {
        if is_file(fd) {
            fail(libc::ENOTTY);
            Some(0)
        } else {
            files::swap(fd).err().map(|errno| {
                fail(errno);
                0
            })
        }
    }
    fn fcntl(fd: c_int, command: c_int, arg: size_t) -> c_int {
        controls(fd, command, arg)
    }
    fn fcntl64(fd: c_int, command: c_int, arg: size_t) -> c_int {
        controls(fd, command, arg)
    }
    fn dup(fd: c_int) -> c_int {
        another(fd, 0, false).or_else(|| swap(fd))
    }
    fn close(fd: c_int) -> c_int {
        close_one(fd)
    }
    fn dup2(old: c_int, new: c_int) -> c_int {
        duplicates(old, new)
    }
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        duplicates(old, new)
    }
}
