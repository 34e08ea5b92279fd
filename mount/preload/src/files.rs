//! The descriptors that are placeholders: for each the number of its file or directory at the daemon. Those
//! that a program has made of one directory have the same number, and become the kernel's together.
//!
//! | From | To | By |
//! |---|---|---|
//! | free | open | [`add`], before the program has the number |
//! | open | busy | [`swap`], with all signals blocked: others wait |
//! | busy | free | a descriptor of the kernel is there |
//! | busy | open | there is none, which fails as the kernel said |
//! | open | free | [`close`]: the descriptor is closed behind that; or it was found to be another one |

use std::fmt::Write;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use cairnfs_channel::call::{Lease, NONE, Op, Request};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, SeekFrom, fcntl_getfl, openat, seek};
use rustix::io::{DupFlags, Errno, FdFlags, dup3, fcntl_getfd};
use rustix::thread::sched_yield;

use crate::mounts::Text;
use crate::raw::{fail, system_call};
use crate::session;
use crate::worth;

/// Descriptors with larger numbers are never placeholders.
pub const MOST: usize = 1 << 14;

/// Nor are those with smaller numbers, which libc itself reads and writes for `stdin`, `stdout` and `stderr`.
const LEAST: i32 = 3;

/// The number of the file, above the number of the mount and the state.
const FILE: u32 = 8;
const OPEN: u64 = 1;
const BUSY: u64 = 2;
const STATE: u64 = 3;

static FILES: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// The flags of open(2) of each.
static FLAGS: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
/// The words of their leases.
static LEASES: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// How many there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// All have smaller numbers.
static END: AtomicUsize = AtomicUsize::new(0);
/// Directories that were needed for calls that are not served.
static DIRS_LEFT: AtomicUsize = AtomicUsize::new(0);

/// So many of them are opened by the daemon in vain; then the program is one that looks into files, which the
/// kernel serves better.
const IN_VAIN: usize = 4;

/// How often a directory is looked for that is moved meanwhile.
const ATTEMPTS: usize = 3;

/// Flags that a descriptor of the kernel gets.
const KEPT: i32 = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_NOATIME
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW;

/// A file that the daemon has open for a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// The number of its mount.
    pub mount: usize,
    /// Its number at the daemon.
    pub number: u64,
}

impl File {
    fn of(entry: u64) -> Self {
        Self {
            mount: (entry >> 2 & 0x3f) as usize,
            number: entry >> FILE,
        }
    }

    fn entry(self) -> u64 {
        self.number << FILE | (self.mount as u64) << 2 | OPEN
    }
}

fn at(fd: i32) -> Option<&'static AtomicU64> {
    FILES.get(usize::try_from(fd).ok()?)
}

/// A descriptor becomes a placeholder. Returns false if its number cannot be that of one.
pub fn add(fd: &OwnedFd, flags: i32, file: File, lease: u64) -> bool {
    let number = fd.as_raw_fd();
    if number < LEAST {
        return false;
    }
    let places = (FLAGS.get(number as usize), LEASES.get(number as usize));
    let (Some(at), (Some(kept), Some(leased))) = (at(number), places) else {
        return false;
    };
    leased.store(lease, Ordering::Relaxed);
    kept.store((flags & KEPT) as u32, Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::AcqRel);
    END.fetch_max(number as usize + 1, Ordering::AcqRel);
    at.store(file.entry(), Ordering::Release);
    true
}

/// Whether a number can be that of a placeholder.
pub fn has_room(fd: &OwnedFd) -> bool {
    fd.as_raw_fd() >= LEAST && at(fd.as_raw_fd()).is_some()
}

/// Whether there is none.
pub fn is_empty() -> bool {
    COUNT.load(Ordering::Acquire) == 0
}

/// The entry of a placeholder, when nobody is busy with it.
fn entry(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    if is_empty() {
        return None;
    }
    let at = at(fd)?;
    loop {
        match at.load(Ordering::Acquire) {
            0 => return None,
            entry if entry & STATE == BUSY => {
                if !session::is_here() {
                    return None;
                }
                sched_yield();
            }
            entry => return session::is_here().then_some((at, entry)),
        }
    }
}

fn remove(at: &AtomicU64, entry: u64) -> bool {
    let order = (Ordering::AcqRel, Ordering::Relaxed);
    let removed = at.compare_exchange(entry, 0, order.0, order.1).is_ok();
    if removed {
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }
    removed
}

/// The file of a descriptor, if that is a placeholder. One that is not what it was is none any more: the
/// program has closed it by a system call of its own.
pub fn get(fd: i32) -> Option<File> {
    let (at, entry) = entry(fd)?;
    // SAFETY: only looked at, and what is there is checked.
    let there = unsafe { BorrowedFd::borrow_raw(fd) };
    let file = File::of(entry);
    if fcntl_getfl(there).is_ok_and(|flags| flags.contains(OFlags::PATH)) {
        return Some(file);
    }
    if remove(at, entry) {
        tell_closed(file);
    }
    None
}

/// The flags of a placeholder, as the kernel would tell them.
pub fn flags(fd: i32) -> i32 {
    let flags = usize::try_from(fd).ok().and_then(|fd| FLAGS.get(fd));
    flags.map_or(0, |flags| flags.load(Ordering::Relaxed) as i32)
}

/// The directory of a descriptor, if that is a placeholder of one.
pub fn dir(fd: i32) -> Option<File> {
    if is_empty() || flags(fd) & libc::O_DIRECTORY == 0 {
        return None;
    }
    get(fd)
}

/// Whether another directory is to be opened by the daemon.
pub fn serves_dirs() -> bool {
    DIRS_LEFT.load(Ordering::Relaxed) < IN_VAIN
}

/// What may be deferred on the file of a placeholder.
pub fn lease(fd: i32) -> Option<Lease> {
    let word = LEASES.get(usize::try_from(fd).ok()?)?;
    Lease::of(word.load(Ordering::Relaxed))
}

/// Nothing more is deferred on the file of a placeholder.
pub fn end_lease(fd: i32) {
    if let Some(word) = usize::try_from(fd).ok().and_then(|fd| LEASES.get(fd)) {
        word.store(0, Ordering::Relaxed);
    }
}

/// Whether a placeholder can be written to.
pub fn is_writable(fd: i32) -> bool {
    [libc::O_WRONLY, libc::O_RDWR].contains(&(flags(fd) & libc::O_ACCMODE))
}

/// Whether a placeholder can be read from.
pub fn is_readable(fd: i32) -> bool {
    [libc::O_RDONLY, libc::O_RDWR].contains(&(flags(fd) & libc::O_ACCMODE))
}

/// Whether each write to a placeholder goes to the end of its file.
pub fn appends(fd: i32) -> bool {
    flags(fd) & libc::O_APPEND != 0
}

/// The daemon closes a file, unless another placeholder has it.
fn tell_closed(file: File) {
    if all_of(file).next().is_some() {
        return;
    }
    // Without a daemon nothing is open.
    if let Some(session) = session::get(file.mount) {
        session.post(&Request::of(Op::Close, [file.number, 0, 0, 0, 0], &[]));
    }
}

/// The placeholders of a file.
fn all_of(file: File) -> impl Iterator<Item = (i32, &'static AtomicU64)> {
    let all = FILES.iter().take(END.load(Ordering::Acquire));
    let entries = (0..).zip(all);
    entries.filter(move |(_, at)| {
        let entry = at.load(Ordering::Acquire);
        entry != 0 && File::of(entry) == file
    })
}

/// What it was worth to have the file of a placeholder opened by the daemon: nothing, if the kernel has to.
fn note_worth(fd: i32, served: bool) {
    let kind = if flags(fd) & libc::O_ACCMODE == libc::O_RDONLY {
        &worth::LOOKS
    } else {
        &worth::FILES
    };
    kind.note(served);
}

/// A descriptor is about to be closed: it is a placeholder no more. Returns its file.
fn close(fd: i32) -> Option<File> {
    let (at, entry) = entry(fd)?;
    note_worth(fd, true);
    remove(at, entry).then(|| File::of(entry))
}

/// Closes a descriptor if it is a placeholder.
pub fn close_placeholder(fd: i32) -> Option<i32> {
    if is_empty() {
        return None;
    }
    let file = close(fd)?;
    // SAFETY: the program closes its descriptor.
    unsafe { rustix::io::close(fd) };
    tell_closed(file);
    Some(0)
}

/// Puts a descriptor of the kernel in the place of a placeholder.
///
/// # Errors
/// The kernel's; the placeholder stays.
pub fn swap(fd: i32) -> Result<(), i32> {
    while let Some((at, entry)) = entry(fd) {
        let signals = Blocked::all();
        let busy = entry & !STATE | BUSY;
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        if at.compare_exchange(entry, busy, order.0, order.1).is_err() {
            continue;
        }
        let file = File::of(entry);
        let is_dir = flags(fd) & libc::O_DIRECTORY != 0;
        let swapped = if is_dir {
            DIRS_LEFT.fetch_add(1, Ordering::Relaxed);
            replace_dir(fd, file)
        } else {
            note_worth(fd, false);
            replace(fd, file)
        };
        match swapped {
            Ok(()) => {
                remove(at, busy);
                if is_dir {
                    share(fd, file);
                }
                tell_closed(file);
            }
            Err(_) => at.store(entry, Ordering::Release),
        }
        drop(signals);
        return swapped.map_err(Errno::raw_os_error);
    }
    Ok(())
}

/// As [`swap`], for a call that is not served; what it returns if that fails.
pub fn swapped(fd: i32) -> Option<i32> {
    swap(fd).err().map(fail)
}

/// Swaps all placeholders. What cannot be swapped stays, and fails loudly.
pub fn swap_all() {
    for fd in 0..MOST as i32 {
        if is_empty() {
            return;
        }
        if at(fd).is_some_and(|at| at.load(Ordering::Acquire) != 0) {
            let _ = swap(fd);
        }
    }
}

/// Forgets all placeholders: they are the parent's.
pub fn forget_all() {
    for at in FILES.iter().take_while(|_| !is_empty()) {
        if at.swap(0, Ordering::AcqRel) != 0 {
            COUNT.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn replace(fd: i32, file: File) -> Result<(), Errno> {
    let leave = || {
        let left = session::call(file.mount, Op::Leave, [file.number, 0, 0, 0, 0], &[]);
        left.map_err(|_| Errno::NOTCONN)
    };
    let mut left = leave()?;
    if left.first() == Some(&NONE) {
        // Behind what other threads have deferred.
        left = leave()?;
    }
    let [offset, ..] = left;
    let session = session::get(file.mount).ok_or(Errno::NOTCONN)?;
    let mut path = Text::<96>::new();
    let fits = path.push(session.door.bytes()) && write!(path, "/{}", file.number).is_ok();
    if !fits {
        return Err(Errno::NAMETOOLONG);
    }
    let kept = OFlags::from_bits_retain(flags(fd) as u32);
    let flags = kept | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let flags = flags | OFlags::LARGEFILE;
    // SAFETY: the placeholder, which nobody closes while its entry is busy.
    let placeholder = unsafe { BorrowedFd::borrow_raw(fd) };
    let open = || openat(placeholder, path.c_str(), flags, Mode::RUSR | Mode::WUSR);
    let put = |real: OwnedFd| {
        seek(&real, SeekFrom::Start(offset))?;
        put_in_place(real.as_fd(), fd)
    };
    match open() {
        Err(Errno::MFILE) => {
            session::with_spare(file.mount, || open().and_then(put)).unwrap_or(Err(Errno::MFILE))
        }
        opened => opened.and_then(put),
    }
}

/// Puts a descriptor in the place of a placeholder, which nobody closes meanwhile.
fn put_in_place(real: BorrowedFd<'_>, fd: i32) -> Result<(), Errno> {
    // SAFETY: as demanded.
    let placeholder = unsafe { BorrowedFd::borrow_raw(fd) };
    let closes = fcntl_getfd(placeholder)?.contains(FdFlags::CLOEXEC);
    let how = if closes {
        DupFlags::CLOEXEC
    } else {
        DupFlags::empty()
    };
    // SAFETY: the number is replaced, and stays the program's.
    let mut to = unsafe { OwnedFd::from_raw_fd(fd) };
    let put = dup3(real, &mut to, how);
    std::mem::forget(to);
    put
}

/// As [`replace`], for a directory: by its path, which may change meanwhile.
fn replace_dir(fd: i32, file: File) -> Result<(), Errno> {
    // A symbolic link that takes its place is found out by what it leads to.
    let flags = OFlags::from_bits_retain(flags(fd) as u32) | OFlags::CLOEXEC;
    let open = || {
        let mut last = Errno::NOENT;
        for _ in 0..ATTEMPTS {
            let mut path = Text::<4096>::new();
            let (ino, offset) = session::locate(file.mount, file.number, &mut path)?;
            match openat(CWD, path.c_str(), flags, Mode::empty()) {
                Ok(real) if session::is_at(file.mount, &real, ino) => {
                    seek(&real, SeekFrom::Start(offset))?;
                    return Ok(real);
                }
                Ok(_) => {}
                Err(error) => last = error,
            }
        }
        Err(last)
    };
    let put = |real: OwnedFd| put_in_place(real.as_fd(), fd);
    match open() {
        Err(Errno::MFILE) => {
            session::with_spare(file.mount, || open().and_then(put)).unwrap_or(Err(Errno::MFILE))
        }
        opened => opened.and_then(put),
    }
}

/// Puts what has taken the place of a placeholder of a directory in those of the others, too.
fn share(fd: i32, file: File) {
    // SAFETY: it was just put there.
    let real = unsafe { BorrowedFd::borrow_raw(fd) };
    for (other, at) in all_of(file) {
        let entry = file.entry();
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let busy = entry & !STATE | BUSY;
        if at.compare_exchange(entry, busy, order.0, order.1).is_err() {
            // It is being closed, or comes here by itself.
            continue;
        }
        match put_in_place(real, other) {
            Ok(()) => drop(remove(at, busy)),
            Err(_) => at.store(entry, Ordering::Release),
        }
    }
}

/// Keeps signals from this thread, so that no handler waits for what the thread does.
struct Blocked(u64);

impl Blocked {
    fn all() -> Self {
        Self(set_mask(libc::SIG_BLOCK, u64::MAX))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        set_mask(libc::SIG_SETMASK, self.0);
    }
}

/// Changes the signal mask of this thread; returns the old one.
fn set_mask(how: i32, mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: both sets have the kernel's size. libc's own signals are among them, which libc's function
    // leaves out.
    unsafe {
        system_call(
            libc::SYS_rt_sigprocmask,
            [
                how as usize,
                &raw const mask as usize,
                &raw mut old as usize,
                size_of::<u64>(),
            ],
        );
    }
    old
}
