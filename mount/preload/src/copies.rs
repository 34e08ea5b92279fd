//! The calls by which programs copy a file without reading it, and its access control list. To a file that
//! only its program knows they are refused where the kernel refuses them, so that the program reads and
//! writes; or that is done here. A list that says no more than a mode sets the mode, as in the kernel.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};

use libc::{off64_t, size_t, ssize_t};

use crate::descriptors::{set_mode, write_here};
use crate::files::{self, File};
use crate::next::functions;
use crate::raw::fail;
use crate::session;

/// Files up to here are copied by reading them; larger ones by the kernel, in the daemon.
const SMALL: i64 = 64 << 10;
/// Bytes that are read at a time, on the stack.
const PIECE: usize = 16 << 10;

/// Whether a file is on the mount of a placeholder, and its size if it is a regular one; an error number if
/// there is none.
fn source(from: c_int, mount: usize) -> Result<(bool, Option<i64>), c_int> {
    // SAFETY: any bytes are a value of it, and the function fills it in.
    let mut found: libc::stat64 = unsafe { std::mem::zeroed() };
    // SAFETY: the number is only passed on.
    if unsafe { libc::fstat64(from, &raw mut found) } != 0 {
        return Err(libc::EBADF);
    }
    let device = session::get(mount).map(|session| session.root.device);
    let of = |(major, minor)| libc::makedev(major, minor) == found.st_dev;
    let is_file = found.st_mode & libc::S_IFMT == libc::S_IFREG;
    Ok((device.is_some_and(of), is_file.then_some(found.st_size)))
}

/// Whether a descriptor can be read from.
fn is_readable(fd: c_int) -> bool {
    // SAFETY: the number is only passed on.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & (libc::O_ACCMODE | libc::O_PATH) != libc::O_WRONLY
}

/// A clone to a placeholder. FUSE has none. `None`: the kernel refuses it for another reason.
fn clone(to: c_int, from: c_int) -> Option<c_int> {
    let File { mount, .. } = files::get(to)?;
    match source(from, mount) {
        Ok((false, _)) => Some(fail(libc::EXDEV)),
        Ok((true, Some(_))) if takes(to) && is_readable(from) => Some(fail(libc::EOPNOTSUPP)),
        Ok((true, _)) => None,
        Err(errno) => Some(fail(errno)),
    }
}

/// Whether what is copied may be written to a placeholder.
fn takes(to: c_int) -> bool {
    files::is_writable(to) && !files::appends(to)
}

/// Copies to a placeholder from another file. `None`: the kernel does, or refuses.
#[inline(never)]
fn copy(
    (from, from_at): (c_int, *mut off64_t),
    (to, to_at): (c_int, *mut off64_t),
    len: size_t,
) -> Option<ssize_t> {
    let File { mount, .. } = files::get(to)?;
    if files::get(from).is_some() || !takes(to) || !is_readable(from) {
        return None;
    }
    match source(from, mount) {
        Ok((true, Some(size))) if size <= SMALL => {}
        Ok((false, Some(_))) => return Some(fail(libc::EXDEV) as ssize_t),
        _ => return None,
    }
    // SAFETY: null, or offsets of the program.
    let (mut read_at, write_at) = unsafe { (from_at.as_mut(), to_at.as_mut()) };
    let mut bytes = [0u8; PIECE];
    let wanted = len.min(PIECE);
    let at = read_at.as_deref().copied();
    // SAFETY: the buffer has as many bytes.
    let read = unsafe {
        let to: *mut c_void = bytes.as_mut_ptr().cast();
        match at {
            Some(at) => libc::pread64(from, to, wanted, at),
            None => libc::read(from, to, wanted),
        }
    };
    let read = usize::try_from(read)
        .ok()
        .and_then(|len| bytes.get(..len))?;
    if read.is_empty() {
        return Some(0);
    }
    let offset = write_at.as_deref().map(|at| at.cast_unsigned());
    let written = write_here(to, read, offset).unwrap_or(-1);
    let copied = written.max(0);
    match &mut read_at {
        Some(at) => **at += copied as off64_t,
        // What was read and not written is read again.
        None => {
            // SAFETY: the number is only passed on.
            unsafe {
                libc::lseek64(
                    from,
                    copied as off64_t - read.len() as off64_t,
                    libc::SEEK_CUR,
                )
            };
        }
    }
    if let Some(at) = write_at {
        *at += copied as off64_t;
    }
    (written >= 0).then_some(written)
}

/// The mode that an access control list stands for, if it has the entries of owner, group and others only: a
/// version, and for each its kind, permissions, and no id, in this order.
fn mode_of_list(list: &[u8; 28]) -> Option<u64> {
    let mut mode = 0;
    let entries = list.strip_prefix(&[2, 0, 0, 0])?.chunks_exact(8);
    for (entry, kind) in entries.zip([1, 4, 0x20]) {
        let permissions = *entry.get(2)?;
        if entry != [kind, 0, permissions, 0, 255, 255, 255, 255] || permissions > 7 {
            return None;
        }
        mode = mode << 3 | u64::from(permissions);
    }
    Some(mode)
}

fn set_list(fd: c_int, name: *const c_char, list: *const c_void, len: size_t) -> Option<c_int> {
    if name.is_null() || list.is_null() || len != size_of::<[u8; 28]>() {
        return None;
    }
    // SAFETY: the function of libc demands a C string, and as many bytes.
    let (name, list) = unsafe { (CStr::from_ptr(name), list.cast::<[u8; 28]>().read()) };
    let mode = mode_of_list(&list).filter(|_| name == c"system.posix_acl_access")?;
    set_mode(fd, mode)
}

functions! {
    fn fsetxattr(
        fd: c_int, name: *const c_char, value: *const c_void, len: size_t, flags: c_int
    ) -> c_int {
        if files::is_empty() {
            None
        } else {
            let set = if flags == 0 { set_list(fd, name, value, len) } else { None };
            set.or_else(|| files::swapped(fd))
        }
    }
    fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
        match request as u64 {
            _ if files::is_empty() => None,
            CLONE => clone(fd, arg as usize as c_int).or_else(|| files::swapped(fd)),
            _ => files::swapped(fd),
        }
    }
    fn copy_file_range(
        from: c_int, from_at: *mut off64_t, to: c_int, to_at: *mut off64_t, len: size_t, flags: c_uint
    ) -> ssize_t {
        if files::is_empty() {
            None
        } else {
            let copied = if flags == 0 { copy((from, from_at), (to, to_at), len) } else { None };
            copied.or_else(|| {
                let first = files::swapped(from);
                first.or_else(|| files::swapped(to)).map(|failed| failed as ssize_t)
            })
        }
    }
}

/// `FICLONE` of ioctl_ficlone(2).
const CLONE: u64 = 0x4004_9409;
