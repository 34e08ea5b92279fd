//! The functions of libc that tell something about a name or a descriptor, and change nothing.
//!
//! The kernel answers what it has looked up before faster than the daemon can, and what it looks up it knows from
//! then on, so that changes of it are its own. So the daemon is asked by programs that change something, as they
//! have a channel, and only as long as it answers ([`worth::LOOKS`]): then names that do not exist yet, and what
//! was made by such programs, stay unknown to the kernel.

use std::ffi::{c_char, c_int, c_uint};

use cairnfs_channel::call::{OMIT, Op, Request, Stat};

use crate::descriptors::ask;
use crate::files::{self, File};
use crate::names::{HERE, Starts, is_look_worth_asking, may_lead_here, or_kernel, resolve_for};
use crate::next::functions;
use crate::raw::fail;
use crate::session::{self, Not};
use crate::worth;

/// What a look found: attributes in a mount, or an error number.
type Found = Result<(usize, Stat), i32>;

/// Looks at a path; `None` leaves it to the kernel.
fn look(dir: c_int, path: *const c_char, follows: bool, wanted: u64) -> Option<Found> {
    may_lead_here(path);
    if !is_look_worth_asking(dir) {
        return None;
    }
    let at = resolve_for(dir, path, Starts::No)?;
    let args = [at.base, follows.into(), wanted, 0, 0];
    let done = at.session.call(&Request::of(Op::StatAt, args, at.rest));
    worth::LOOKS.note(done != Err(Not::Mine));
    match done {
        Ok(words) => Some(Ok((at.number, Stat::of(&words)))),
        Err(Not::Failed(errno)) => Some(Err(errno)),
        Err(Not::Mine) => None,
    }
}

/// Looks at a path, and returns what `put` makes of what was found.
fn look_and(
    dir: c_int,
    path: *const c_char,
    (follows, wanted): (bool, u64),
    put: impl FnOnce(usize, &Stat) -> Option<c_int>,
) -> Option<c_int> {
    let done = match look(dir, path, follows, wanted) {
        Some(Ok((mount, stat))) => put(mount, &stat),
        Some(Err(errno)) => Some(fail(errno)),
        None => None,
    };
    or_kernel(dir, done)
}

/// Leaves a look to the kernel.
fn leave(dir: c_int, path: *const c_char) -> Option<c_int> {
    may_lead_here(path);
    or_kernel(dir, None)
}

fn stat_at(dir: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> Option<c_int> {
    let follows = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    if to.is_null() || flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT) != 0 {
        return leave(dir, path);
    }
    look_and(dir, path, (follows, 0), |mount, stat| {
        put_status(mount, stat, to)
    })
}

/// Whether the user of the program may do something; all its ids are the same.
fn access_at(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> Option<c_int> {
    let follows = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let is_known = mode & !(libc::R_OK | libc::W_OK | libc::X_OK) == 0
        && flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EACCESS) == 0;
    if !is_known {
        return leave(dir, path);
    }
    look_and(dir, path, (follows, mode as u64), |_, _| Some(0))
}

/// Returns what `put` makes of the attributes of a placeholder.
fn describe(fd: c_int, put: impl FnOnce(usize, &Stat) -> Option<c_int>) -> Option<c_int> {
    if files::is_empty() {
        return None;
    }
    let File { mount, .. } = files::get(fd)?;
    match ask(fd, Op::Stat, [0; 4], &[])? {
        Ok(words) => put(mount, &Stat::of(&words)),
        Err(failed) => Some(failed),
    }
}

/// Fills in what fstat(2) tells; on these systems it is the same for 64 bits.
fn status(fd: c_int, to: *mut libc::stat) -> Option<c_int> {
    if to.is_null() {
        return None;
    }
    describe(fd, |mount, stat| put_status(mount, stat, to))
}

/// Fills in attributes of something in a mount.
fn put_status(mount: usize, words: &Stat, to: *mut libc::stat) -> Option<c_int> {
    let (major, minor) = session::get(mount)?.root.device;
    let [a, an, m, mn, c, cn, ..] = words.times.map(u64::cast_signed);
    // SAFETY: the function of libc demands room for it, and any bytes are a value of it.
    unsafe {
        let mut new: libc::stat = std::mem::zeroed();
        new.st_dev = libc::makedev(major, minor);
        new.st_ino = words.ino;
        new.st_mode = words.mode as u32;
        new.st_nlink = words.nlink as _;
        new.st_uid = words.uid as u32;
        new.st_gid = words.gid as u32;
        new.st_size = words.size.cast_signed();
        new.st_blksize = words.blksize as _;
        new.st_blocks = words.blocks.cast_signed();
        (new.st_atime, new.st_atime_nsec) = (a, an);
        (new.st_mtime, new.st_mtime_nsec) = (m, mn);
        (new.st_ctime, new.st_ctime_nsec) = (c, cn);
        *to = new;
    }
    Some(0)
}

/// The fields of statx(2) that are answered here. Newer kernels clear mtime and ctime in the mask if neither is
/// requested, so such a request goes to the kernel.
const TOLD: c_uint = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_MNT_ID;

fn extended(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    to: *mut libc::statx,
) -> Option<c_int> {
    const SERVED: c_int = libc::AT_SYMLINK_NOFOLLOW
        | libc::AT_NO_AUTOMOUNT
        | libc::AT_EMPTY_PATH
        | libc::AT_STATX_SYNC_TYPE;
    let is_empty = path.is_null() || {
        // SAFETY: the function of libc demands a C string.
        (unsafe { *path }) == 0
    };
    let shows_times = mask & (libc::STATX_MTIME | libc::STATX_CTIME) != 0;
    if to.is_null() || mask & !TOLD != 0 || !shows_times || flags & !SERVED != 0 {
        return leave(dir, path);
    }
    if flags & libc::AT_EMPTY_PATH != 0 && is_empty {
        return describe(dir, |mount, stat| put_extended(mount, stat, mask, to));
    }
    let follows = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    look_and(dir, path, (follows, 0), |mount, stat| {
        put_extended(mount, stat, mask, to)
    })
}

/// Fills in attributes as [`put_status`] does.
fn put_extended(mount: usize, words: &Stat, mask: c_uint, to: *mut libc::statx) -> Option<c_int> {
    let session = session::get(mount)?;
    let root = session.root;
    let time = |secs: u64, nanos: u64| {
        // SAFETY: any bytes are a value of it.
        let mut time: libc::statx_timestamp = unsafe { std::mem::zeroed() };
        (time.tv_sec, time.tv_nsec) = (secs.cast_signed(), nanos as u32);
        time
    };
    let [a, an, m, mn, c, cn, b, bn] = words.times;
    // SAFETY: any bytes are a value of it.
    let mut new: libc::statx = unsafe { std::mem::zeroed() };
    new.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_MNT_ID;
    new.stx_mnt_id = root.mount;
    new.stx_attributes_mask = session.attributes;
    (new.stx_dev_major, new.stx_dev_minor) = root.device;
    new.stx_ino = words.ino;
    new.stx_mode = words.mode as u16;
    new.stx_nlink = words.nlink as u32;
    new.stx_uid = words.uid as u32;
    new.stx_gid = words.gid as u32;
    new.stx_size = words.size;
    new.stx_blksize = words.blksize as u32;
    new.stx_blocks = words.blocks;
    new.stx_atime = time(a, an);
    new.stx_mtime = time(m, mn);
    new.stx_ctime = time(c, cn);
    if mask & libc::STATX_BTIME != 0 && bn != OMIT {
        new.stx_mask |= libc::STATX_BTIME;
        new.stx_btime = time(b, bn);
    }
    // SAFETY: the function of libc demands room for it.
    unsafe { *to = new };
    Some(0)
}

const LINK: c_int = libc::AT_SYMLINK_NOFOLLOW;

functions! {
    fn stat(path: *const c_char, to: *mut libc::stat) -> c_int {
        stat_at(HERE, path, to, 0)
    }
    fn stat64(path: *const c_char, to: *mut libc::stat) -> c_int {
        stat_at(HERE, path, to, 0)
    }
    fn lstat(path: *const c_char, to: *mut libc::stat) -> c_int {
        stat_at(HERE, path, to, LINK)
    }
    fn lstat64(path: *const c_char, to: *mut libc::stat) -> c_int {
        stat_at(HERE, path, to, LINK)
    }
    fn __xstat(version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
        stat_at(HERE, path, to, 0)
    }
    fn __xstat64(version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
        stat_at(HERE, path, to, 0)
    }
    fn __lxstat(version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
        stat_at(HERE, path, to, LINK)
    }
    fn __lxstat64(version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
        stat_at(HERE, path, to, LINK)
    }
    fn fstatat(dir: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int {
        stat_at(dir, path, to, flags)
    }
    fn fstatat64(dir: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int {
        stat_at(dir, path, to, flags)
    }
    fn __fxstatat(
        version: c_int, dir: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int
    ) -> c_int {
        stat_at(dir, path, to, flags)
    }
    fn __fxstatat64(
        version: c_int, dir: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int
    ) -> c_int {
        stat_at(dir, path, to, flags)
    }
    fn statx(
        dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut libc::statx
    ) -> c_int {
        extended(dir, path, flags, mask, to)
    }
    fn access(path: *const c_char, mode: c_int) -> c_int {
        access_at(HERE, path, mode, 0)
    }
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
        access_at(HERE, path, mode, 0)
    }
    fn eaccess(path: *const c_char, mode: c_int) -> c_int {
        access_at(HERE, path, mode, 0)
    }
    fn faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        access_at(dir, path, mode, flags)
    }
    fn fstat(fd: c_int, to: *mut libc::stat) -> c_int {
        status(fd, to)
    }
    fn fstat64(fd: c_int, to: *mut libc::stat) -> c_int {
        status(fd, to)
    }
    fn __fxstat(version: c_int, fd: c_int, to: *mut libc::stat) -> c_int {
        status(fd, to)
    }
    fn __fxstat64(version: c_int, fd: c_int, to: *mut libc::stat) -> c_int {
        status(fd, to)
    }
}
