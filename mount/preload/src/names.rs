//! The functions of libc that make, remove and change names, and attributes by name.

use std::ffi::{CStr, c_char, c_int, c_uint};

use cairnfs_channel::call::{NOW, OPENED, Op, Request, Why};
use libc::{gid_t, mode_t, timespec, timeval, uid_t, utimbuf};
use rustix::fd::{AsRawFd, IntoRawFd, OwnedFd};
use rustix::fs::{self, CWD, Mode, OFlags};

use crate::files::{self, File};
use crate::mounts::{self, Mount, Seen, Text};
use crate::next::functions;
use crate::raw::{LARGEFILE, fail};
use crate::session::{self, Not, Session};
use crate::times::{id, time_words, timeval_words};
use crate::{counters, limits, umask, worth};

/// Flags of open(2) with which a new file is made by the daemon; with others it is made by the kernel.
const SERVED: c_int = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_CLOEXEC
    | libc::O_NOFOLLOW
    | libc::O_NONBLOCK
    | libc::O_NOCTTY
    | libc::O_NOATIME
    | LARGEFILE;

/// Flags with which a directory is opened by the daemon.
const SERVED_DIR: c_int = libc::O_DIRECTORY
    | libc::O_CLOEXEC
    | libc::O_NOFOLLOW
    | libc::O_NONBLOCK
    | libc::O_NOCTTY
    | LARGEFILE;

/// Longer paths are refused by the kernel.
const PATH_MAX: usize = 4096;

/// Where a path begins for the daemon, and the rest of it.
pub struct Resolved<'p> {
    /// The number of the mount.
    pub number: usize,
    /// The channel to it.
    pub session: &'static Session,
    /// See [`Op`].
    pub base: u64,
    /// The rest of the path.
    pub rest: &'p [u8],
}

/// Whether a channel is made for a path, if there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starts {
    /// It is.
    Yes,
    /// Nothing is made: what is asked for is not worth it.
    No,
}

/// Whether it is worth to ask the daemon about a name. In an open directory of the daemon it always is.
fn is_worth_asking(dir: c_int) -> bool {
    files::dir(dir).is_some() || worth::NAMES.asks()
}

/// The same for a call that changes nothing, for which no channel is made.
pub fn is_look_worth_asking(dir: c_int) -> bool {
    files::dir(dir).is_some() || session::is_any_ready() && worth::LOOKS.asks()
}

/// Finds the mount that a path is in. `None`: in none, or only the kernel can tell. The caller has asked
/// [`may_lead_here`] before.
fn resolve(dir: c_int, path: *const c_char) -> Option<Resolved<'static>> {
    resolve_for(dir, path, Starts::Yes)
}

/// The same, for a call that makes a channel or not.
pub fn resolve_for(dir: c_int, path: *const c_char, starts: Starts) -> Option<Resolved<'static>> {
    if path.is_null() || mounts::all().next().is_none() || !session::is_here() {
        return None;
    }
    // SAFETY: the function of libc demands a C string, which stays as long as its call.
    let path: &'static [u8] = unsafe { CStr::from_ptr(path) }.to_bytes();
    if path.len() >= PATH_MAX {
        return None;
    }
    let absolute = path.first() == Some(&b'/');
    if let Some(dir) = files::dir(dir).filter(|_| !absolute) {
        return below_placeholder(dir, path);
    }
    let seen = if absolute { None } else { Some(see_base(dir)?) };
    let inside = |seen: &Seen| mounts::all().find(|(_, mount)| mount.device == seen.device);
    let (seen, (number, mount), rest) = match seen.and_then(|seen| Some((seen, inside(&seen)?))) {
        Some((seen, mount)) => (Some(seen), mount, path),
        None if absolute => {
            let found = mounts::all().find_map(|at| Some((at, below(path, at.1.dir)?)));
            let (mount, rest) = found?;
            (None, mount, rest)
        }
        None if dir == libc::AT_FDCWD => {
            let (mount, rest) = from_outside(path)?;
            (None, mount, rest)
        }
        None => return None,
    };
    let session = match starts {
        Starts::Yes => session::get_or_start(number, mount)?,
        Starts::No => session::get(number)?,
    };
    let base = match seen {
        Some(seen) => seen,
        None => see_dir(mount.dir).filter(|seen| *seen == session.root)?,
    };
    if base.mount != session.root.mount || !session.is_whole() {
        counters::left(Why::Path);
        return None;
    }
    Some(Resolved {
        number,
        session,
        base: base.ino,
        rest,
    })
}

/// A path that begins in an open directory of the daemon.
fn below_placeholder(dir: File, path: &'static [u8]) -> Option<Resolved<'static>> {
    let session = session::get(dir.mount)?;
    if !session.is_whole() {
        counters::left(Why::Path);
        return None;
    }
    Some(Resolved {
        number: dir.mount,
        session,
        base: OPENED | dir.number,
        rest: path,
    })
}

/// What follows a directory in a path.
fn below<'p>(path: &'p [u8], dir: &[u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(dir)?;
    rest.first().filter(|slash| **slash == b'/')?;
    let names = rest.iter().position(|byte| *byte != b'/')?;
    rest.get(names..)
}

/// A path that leads from the working directory into a mount.
#[inline(never)]
fn from_outside(path: &[u8]) -> Option<((usize, &'static Mount), &[u8])> {
    // The first name is in the path of a mount, or no system call is needed to know.
    let first = path.split(|byte| *byte == b'/').next()?;
    let has = |dir: &[u8]| dir.split(|byte| *byte == b'/').any(|name| name == first);
    mounts::all().find(|(_, mount)| has(mount.dir))?;
    let mut text = [0u8; 4096];
    // SAFETY: the buffer has as many bytes.
    let cwd = unsafe {
        if libc::getcwd(text.as_mut_ptr().cast(), text.len()).is_null() {
            return None;
        }
        CStr::from_ptr(text.as_ptr().cast()).to_bytes()
    };
    mounts::all().find_map(|at| {
        let dir = at.1.dir.strip_prefix(cwd)?;
        let dir = if cwd == b"/" {
            dir
        } else {
            dir.strip_prefix(b"/")?
        };
        (!dir.is_empty()).then_some(())?;
        Some((at, below(path, dir)?))
    })
}

/// The directory of a relative path.
fn see_base(dir: c_int) -> Option<Seen> {
    // A placeholder is no directory for the program.
    if dir != libc::AT_FDCWD && (dir < 0 || files::get(dir).is_some()) {
        return None;
    }
    mounts::see(dir, c"")
}

#[inline(never)]
fn see_dir(dir: &[u8]) -> Option<Seen> {
    let mut text = Text::<4096>::new();
    text.push(dir).then_some(())?;
    mounts::see(libc::AT_FDCWD, text.c_str())
}

/// Has the daemon do something with a path; `None` leaves it to the kernel.
fn ask(at: &Resolved<'_>, op: Op, args: [u64; 4], other: &[u8]) -> Option<c_int> {
    let [b, c, d, e] = args;
    let request = Request {
        op,
        args: [at.base, b, c, d, e],
        text: at.rest,
        other,
    };
    let done = at.session.call(&request);
    worth::NAMES.note(done != Err(Not::Mine));
    match done {
        Ok(_) => Some(0),
        Err(Not::Mine) => None,
        Err(Not::Failed(errno)) => Some(fail(errno)),
    }
}

fn by_path(dir: c_int, path: *const c_char, op: Op, args: [u64; 4]) -> Option<c_int> {
    may_lead_here(path);
    if !is_worth_asking(dir) {
        return or_kernel(dir, None);
    }
    let at = resolve(dir, path);
    or_kernel(dir, at.and_then(|at| ask(&at, op, args, &[])))
}

/// What is not done is the kernel's, and needs a directory of the kernel.
pub fn or_kernel(dir: c_int, done: Option<c_int>) -> Option<c_int> {
    done.or_else(|| files::swapped(dir))
}

/// Makes a file or opens a directory.
fn open_at(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> Option<c_int> {
    may_lead_here(path);
    let opened = match () {
        () if flags & libc::O_DIRECTORY != 0 => open_dir(dir, path, flags),
        () if flags & libc::O_CREAT != 0 => create(dir, path, flags, mode),
        () => open_file(dir, path, flags),
    };
    or_kernel(dir, opened)
}

/// Opens a directory that the program may be about to list.
fn open_dir(dir: c_int, path: *const c_char, flags: c_int) -> Option<c_int> {
    if flags & !SERVED_DIR != 0 || !files::serves_dirs() || !is_worth_asking(dir) {
        return None;
    }
    let at = resolve(dir, path)?;
    let placeholder = door(&at, flags)?;
    let opened = opened(&at, placeholder, Op::OpenDir, [0; 4], flags);
    worth::NAMES.note(opened.is_some());
    opened
}

/// Has the daemon open something, and makes its placeholder.
fn opened(
    at: &Resolved<'_>,
    placeholder: OwnedFd,
    op: Op,
    [b, c, d, e]: [u64; 4],
    flags: c_int,
) -> Option<c_int> {
    let request = Request::of(op, [at.base, b, c, d, e], at.rest);
    match at.session.call(&request) {
        Ok([number, lease, ..]) => {
            let mount = at.number;
            files::add(&placeholder, flags, File { mount, number }, lease);
            Some(placeholder.into_raw_fd())
        }
        Err(Not::Mine) => None,
        Err(Not::Failed(errno)) => Some(fail(errno)),
    }
}

/// Makes a file, and a placeholder for it.
fn create(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> Option<c_int> {
    if flags & !SERVED != 0 || !worth::FILES.asks() {
        return None;
    }
    let at = resolve(dir, path)?;
    let placeholder = if limits::are_sizes_unlimited() {
        placeholder(&at, flags)
    } else {
        None
    };
    let Some(placeholder) = placeholder else {
        counters::left(Why::Call);
        return None;
    };
    let umask = umask::get().into();
    let args = [flags as u64, mode.into(), umask, 0];
    let opened = opened(&at, placeholder, Op::Create, args, flags);
    if opened.is_none() {
        worth::FILES.note(false);
    }
    opened
}

/// Opens a file that is there. For that alone it is not worth to make a channel.
fn open_file(dir: c_int, path: *const c_char, flags: c_int) -> Option<c_int> {
    let only_reads = flags & (libc::O_ACCMODE | libc::O_TRUNC) == libc::O_RDONLY;
    let is_served = flags & !SERVED == 0 && (only_reads || limits::are_sizes_unlimited());
    if !is_served || !is_look_worth_asking(dir) {
        return None;
    }
    let at = resolve_for(dir, path, Starts::No)?;
    let placeholder = placeholder(&at, flags)?;
    let opened = opened(&at, placeholder, Op::Open, [flags as u64, 0, 0, 0], flags);
    worth::LOOKS.note(opened.is_some());
    opened
}

/// A descriptor of the root of a mount that nothing can be done with.
fn placeholder(at: &Resolved<'_>, flags: c_int) -> Option<OwnedFd> {
    let (fd, seen) = in_root(at, &[], flags)?;
    (seen == at.session.root).then_some(fd)
}

/// A descriptor of the door, for a directory: no name leads from there to anything.
fn door(at: &Resolved<'_>, flags: c_int) -> Option<OwnedFd> {
    let (fd, seen) = in_root(at, at.session.door.bytes(), flags)?;
    let root = at.session.root;
    ((seen.device, seen.mount) == (root.device, root.mount) && seen.ino != root.ino).then_some(fd)
}

/// A directory in the root of a mount, or the root, opened so that nothing can be done with it.
#[inline(never)]
fn in_root(at: &Resolved<'_>, name: &[u8], flags: c_int) -> Option<(OwnedFd, Seen)> {
    let (_, mount) = mounts::all().find(|(number, _)| *number == at.number)?;
    let mut dir = Text::<4096>::new();
    (dir.push(mount.dir) && dir.push(b"/") && dir.push(name)).then_some(())?;
    let mut how = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    if flags & libc::O_CLOEXEC != 0 {
        how |= OFlags::CLOEXEC;
    }
    let fd = fs::openat(CWD, dir.c_str(), how, Mode::empty()).ok()?;
    let seen = mounts::see(fd.as_raw_fd(), c"")?;
    files::has_room(&fd).then_some((fd, seen))
}

/// Before a path is used: it may lead to a descriptor of this process, which is the kernel's then.
pub fn may_lead_here(path: *const c_char) {
    if files::is_empty() || path.is_null() {
        return;
    }
    // SAFETY: as in `resolve`.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if [&b"/proc/"[..], b"/dev/"]
        .iter()
        .any(|dir| path.starts_with(dir))
    {
        files::swap_all();
    }
}

fn rename_served(
    (from, old): (c_int, *const c_char),
    (to, new): (c_int, *const c_char),
    flags: c_uint,
) -> Option<c_int> {
    let (from, to) = (resolve(from, old)?, resolve(to, new)?);
    if from.number != to.number {
        return None;
    }
    ask(&from, Op::Rename, [to.base, flags.into(), 0, 0], to.rest)
}

fn rename_at(
    old: (c_int, *const c_char),
    new: (c_int, *const c_char),
    flags: c_uint,
) -> Option<c_int> {
    may_lead_here(old.1);
    may_lead_here(new.1);
    let done = rename_served(old, new, flags);
    or_kernel(new.0, or_kernel(old.0, done))
}

fn symlink_served(target: *const c_char, dir: c_int, path: *const c_char) -> Option<c_int> {
    let ask_for_link = |at| {
        if target.is_null() {
            return None;
        }
        // SAFETY: as in `resolve`.
        let target = unsafe { CStr::from_ptr(target) }.to_bytes();
        ask(&at, Op::Symlink, [0; 4], target)
    };
    may_lead_here(path);
    or_kernel(dir, resolve(dir, path).and_then(ask_for_link))
}

fn mkdir_at(dir: c_int, path: *const c_char, mode: mode_t) -> Option<c_int> {
    let umask = umask::get().into();
    by_path(dir, path, Op::Mkdir, [mode.into(), umask, 0, 0])
}

/// Where relative paths begin.
pub const HERE: c_int = libc::AT_FDCWD;
const NEW: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

functions! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(HERE, path, flags, mode)
    }
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(HERE, path, flags, mode)
    }
    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(dir, path, flags, mode)
    }
    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(dir, path, flags, mode)
    }
    fn creat(path: *const c_char, mode: mode_t) -> c_int {
        open_at(HERE, path, NEW, mode)
    }
    fn creat64(path: *const c_char, mode: mode_t) -> c_int {
        open_at(HERE, path, NEW, mode)
    }
    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        open_at(HERE, path, flags, 0)
    }
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        open_at(HERE, path, flags, 0)
    }
    fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(dir, path, flags, 0)
    }
    fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(dir, path, flags, 0)
    }
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
        mkdir_at(HERE, path, mode)
    }
    fn mkdirat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int {
        mkdir_at(dir, path, mode)
    }
    fn symlink(target: *const c_char, path: *const c_char) -> c_int {
        symlink_served(target, HERE, path)
    }
    fn symlinkat(target: *const c_char, dir: c_int, path: *const c_char) -> c_int {
        symlink_served(target, dir, path)
    }
    fn unlink(path: *const c_char) -> c_int {
        by_path(HERE, path, Op::Remove, [0; 4])
    }
    fn rmdir(path: *const c_char) -> c_int {
        by_path(HERE, path, Op::Remove, [1, 0, 0, 0])
    }
    fn unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        match flags {
            0 => by_path(dir, path, Op::Remove, [0; 4]),
            libc::AT_REMOVEDIR => by_path(dir, path, Op::Remove, [1, 0, 0, 0]),
            _ => files::swapped(dir),
        }
    }
    fn rename(old: *const c_char, new: *const c_char) -> c_int {
        rename_at((HERE, old), (HERE, new), 0)
    }
    fn renameat(from: c_int, old: *const c_char, to: c_int, new: *const c_char) -> c_int {
        rename_at((from, old), (to, new), 0)
    }
    fn renameat2(
        from: c_int, old: *const c_char, to: c_int, new: *const c_char, flags: c_uint
    ) -> c_int {
        rename_at((from, old), (to, new), flags)
    }
    fn chmod(path: *const c_char, mode: mode_t) -> c_int {
        by_path(HERE, path, Op::Chmod, [mode.into(), 0, 0, 0])
    }
    fn fchmodat(dir: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
        match flags {
            0 | libc::AT_SYMLINK_NOFOLLOW => by_path(dir, path, Op::Chmod, [mode.into(), 0, 0, 0]),
            _ => files::swapped(dir),
        }
    }
    fn chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        by_path(HERE, path, Op::Chown, [id(uid), id(gid), 0, 0])
    }
    fn lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        by_path(HERE, path, Op::Chown, [id(uid), id(gid), 0, 0])
    }
    fn fchownat(dir: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int {
        match flags {
            0 | libc::AT_SYMLINK_NOFOLLOW => {
                by_path(dir, path, Op::Chown, [id(uid), id(gid), 0, 0])
            }
            _ => files::swapped(dir),
        }
    }
    fn utimensat(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
        // SAFETY: the function of libc demands two times or null.
        let words = unsafe { time_words(times) };
        match (words, flags) {
            (Some(words), _) if path.is_null() => crate::descriptors::set_times(dir, words),
            (Some(words), 0 | libc::AT_SYMLINK_NOFOLLOW) => by_path(dir, path, Op::Utimens, words),
            _ => files::swapped(dir),
        }
    }
    fn utimes(path: *const c_char, times: *const timeval) -> c_int {
        // SAFETY: the function of libc demands two times or null.
        unsafe { timeval_words(times) }.and_then(|words| by_path(HERE, path, Op::Utimens, words))
    }
    fn lutimes(path: *const c_char, times: *const timeval) -> c_int {
        // SAFETY: the function of libc demands two times or null.
        unsafe { timeval_words(times) }.and_then(|words| by_path(HERE, path, Op::Utimens, words))
    }
    fn utime(path: *const c_char, times: *const utimbuf) -> c_int {
        let words = if times.is_null() {
            [0, NOW, 0, NOW]
        } else {
            // SAFETY: the function of libc demands a pair of times or null.
            let times = unsafe { &*times };
            [times.actime.cast_unsigned(), 0, times.modtime.cast_unsigned(), 0]
        };
        by_path(HERE, path, Op::Utimens, words)
    }
    fn umask(mode: mode_t) -> mode_t {
        if session::is_here() {
            umask::set(mode);
        }
        None
    }
}
