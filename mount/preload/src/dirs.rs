//! Listings of directories that the daemon has open: what libc has a `DIR` for.
//!
//! A `DIR` of this library is a place in a table. When its descriptor has become the kernel's, or the daemon
//! lists no more, it goes on with one of libc at the same place in the listing, as cookies are the same there.
//!
//! | From | To | By |
//! |---|---|---|
//! | free | listing | [`fdopendir`], of a placeholder of which there is no other listing |
//! | listing | the kernel's | [`Listing::fill`], if the daemon does not list |
//! | any | free | [`closedir`] |

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use cairnfs_channel::call::{self, NONE, Op, Request};
use libc::{DIR, dirent64};
use rustix::fd::BorrowedFd;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::thread::sched_yield;

use crate::files::{self, File};
use crate::next::functions;
use crate::raw::fail;
use crate::session;

/// Listings at one time; further ones are libc's.
const MOST: usize = 16;
/// Bytes of entries that are asked for at a time, with the status before them.
const BYTES: usize = 8 << 10;

const FREE: u32 = 0;
const TAKEN: u32 = 1;

struct Listing {
    fd: c_int,
    file: Option<File>,
    /// That of libc, which it goes on with.
    real: *mut DIR,
    /// Where it is; [`NONE`]: where its descriptor is.
    cookie: u64,
    /// Entries behind that which the daemon has told, from `at` to `len`.
    entries: [u8; BYTES],
    at: usize,
    len: usize,
    given: dirent64,
}

struct Place {
    state: AtomicU32,
    /// Held while a thread uses the listing.
    busy: AtomicBool,
    listing: UnsafeCell<Listing>,
}

// SAFETY: the listing is used only by the thread that has set `busy`.
unsafe impl Sync for Place {}

static PLACES: [Place; MOST] = [const {
    Place {
        state: AtomicU32::new(FREE),
        busy: AtomicBool::new(false),
        listing: UnsafeCell::new(Listing {
            fd: -1,
            file: None,
            real: ptr::null_mut(),
            cookie: 0,
            entries: [0; BYTES],
            at: 0,
            len: 0,
            given: dirent64 {
                d_ino: 0,
                d_off: 0,
                d_reclen: 0,
                d_type: 0,
                d_name: [0; 256],
            },
        }),
    }
}; MOST];

/// Calls a function of libc with the arguments that it has.
macro_rules! call_next {
    ($next:ident($($type:ty: $arg:expr),*) -> $result:ty, else $without:expr) => {{
        let next = next::$next.address();
        if next.is_null() {
            $without
        } else {
            // SAFETY: the function of that name has these arguments.
            unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(
                    next,
                )($($arg),*)
            }
        }
    }};
}

/// A listing that this thread uses.
struct Held(&'static Place);

impl Held {
    fn lock(place: &'static Place) -> Self {
        while place.busy.swap(true, Ordering::Acquire) {
            sched_yield();
        }
        Self(place)
    }

    /// The listing of this library at an address.
    fn of(dir: *mut DIR) -> Option<Self> {
        let place = PLACES.iter().find(|place| ptr::eq(*place, dir.cast()))?;
        let held = Self::lock(place);
        (place.state.load(Ordering::Relaxed) == TAKEN).then_some(held)
    }

    fn listing(&mut self) -> &mut Listing {
        // SAFETY: this thread has set `busy`.
        unsafe { &mut *self.0.listing.get() }
    }

    fn dir(&self) -> *mut DIR {
        ptr::from_ref(self.0).cast_mut().cast()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

/// Takes a free place for the listing of a placeholder; `None` if it has one, or there is no place.
fn take(fd: c_int, file: File) -> Option<Held> {
    let mut taken = None;
    for place in &PLACES {
        let mut held = Held::lock(place);
        if place.state.load(Ordering::Relaxed) == FREE {
            taken = taken.or(Some(held));
        } else if held.listing().file == Some(file) {
            return None;
        }
    }
    let mut held = taken?;
    held.0.state.store(TAKEN, Ordering::Relaxed);
    let listing = held.listing();
    (listing.fd, listing.file, listing.real) = (fd, Some(file), ptr::null_mut());
    listing.begin_at(NONE);
    Some(held)
}

impl Listing {
    fn begin_at(&mut self, cookie: u64) {
        (self.cookie, self.at, self.len) = (cookie, 0, 0);
    }

    /// Goes on from a cookie, with its descriptor.
    fn seek(&mut self, cookie: u64) {
        self.begin_at(cookie);
        let Some(file) = self.file else { return };
        if let Some(session) = session::get(file.mount) {
            session.post(&Request::of(
                Op::Seek,
                [file.number, cookie, libc::SEEK_SET as u64, 0, 0],
                &[],
            ));
        }
    }

    /// Asks for further entries. Returns false if libc lists from now on.
    fn fill(&mut self) -> bool {
        let cookie = self.cookie;
        self.begin_at(cookie);
        let asked = self.file.and_then(|file| {
            let request = Request::of(Op::List, [file.number, cookie, BYTES as u64, 0, 0], &[]);
            let session = session::get(file.mount)?;
            let reply = session.call_into(&request, &mut self.entries).ok()?;
            Some(8 + reply.len())
        });
        // The status is before them.
        if let Some(len) = asked {
            (self.at, self.len) = (8, len);
        }
        asked.is_some()
    }

    /// The next entry that the daemon has told.
    fn next_entry(&mut self) -> Option<*mut dirent64> {
        let entries = self.entries.get(self.at..self.len)?;
        let (entry, rest) = call::entry(entries)?;
        let to = &mut self.given;
        let (name, end) = to.d_name.split_at_mut_checked(entry.name.len())?;
        *end.first_mut()? = 0;
        for (to, from) in name.iter_mut().zip(entry.name) {
            *to = from.cast_signed();
        }
        to.d_ino = entry.ino;
        to.d_off = entry.cookie.cast_signed();
        to.d_type = entry.kind;
        let head = std::mem::offset_of!(dirent64, d_name);
        to.d_reclen = (head + entry.name.len() + 1).next_multiple_of(8) as u16;
        self.at = self.len - rest.len();
        self.cookie = entry.cookie;
        Some(&raw mut self.given)
    }

    /// libc lists from now on.
    fn becomes_real(&mut self) -> Result<(), c_int> {
        files::swap(self.fd)?;
        let real = call_next!(fdopendir(c_int: self.fd) -> *mut DIR, else ptr::null_mut());
        if real.is_null() {
            return Err(libc::EBADF);
        }
        if self.cookie != NONE {
            let at = self.cookie.cast_signed();
            call_next!(seekdir(*mut DIR: real, c_long: at) -> (), else ());
        }
        self.real = real;
        Ok(())
    }

    fn read(&mut self) -> *mut dirent64 {
        if self.real.is_null() {
            if self.at == self.len && !self.fill() {
                if let Err(errno) = self.becomes_real() {
                    fail(errno);
                    return ptr::null_mut();
                }
            } else {
                return self.next_entry().unwrap_or(ptr::null_mut());
            }
        }
        call_next!(readdir64(*mut DIR: self.real) -> *mut dirent64, else ptr::null_mut())
    }
}

/// What is read by `readdir_r`.
fn read_to(dir: *mut DIR, entry: *mut dirent64, result: *mut *mut dirent64) -> Option<c_int> {
    let mut held = Held::of(dir)?;
    let found = held.listing().read();
    // SAFETY: the function of libc demands room for an entry, and for a pointer to it.
    unsafe {
        if !found.is_null() {
            let len = usize::from((*found).d_reclen).min(size_of::<dirent64>());
            ptr::copy_nonoverlapping(found.cast::<u8>(), entry.cast::<u8>(), len);
        }
        *result = if found.is_null() { found } else { entry };
    }
    Some(0)
}

/// Closes a listing, with its descriptor.
fn close(dir: *mut DIR) -> Option<c_int> {
    let mut held = Held::of(dir)?;
    let listing = held.listing();
    let (fd, real) = (listing.fd, listing.real);
    listing.file = None;
    held.0.state.store(FREE, Ordering::Relaxed);
    drop(held);
    if !real.is_null() {
        return Some(call_next!(closedir(*mut DIR: real) -> c_int, else fail(libc::ENOSYS)));
    }
    // SAFETY: the descriptor of the listing, which the program closes, or has closed.
    files::close_placeholder(fd).or_else(|| Some(unsafe { libc::close(fd) }))
}

fn open(fd: c_int) -> Option<*mut DIR> {
    let Some(held) = files::dir(fd).and_then(|file| take(fd, file)) else {
        // What fails is told by the function of libc.
        let _ = files::swap(fd);
        return None;
    };
    // SAFETY: the placeholder, as the program has it.
    let placeholder = unsafe { BorrowedFd::borrow_raw(fd) };
    // As libc does.
    let _ = fcntl_setfd(placeholder, FdFlags::CLOEXEC);
    Some(held.dir())
}

fn seek(dir: *mut DIR, to: c_long) -> Option<c_int> {
    let mut held = Held::of(dir)?;
    let listing = held.listing();
    if listing.real.is_null() {
        listing.seek(to.cast_unsigned());
    } else {
        call_next!(seekdir(*mut DIR: listing.real, c_long: to) -> (), else ());
    }
    Some(0)
}

fn tell(dir: *mut DIR) -> Option<c_long> {
    let mut held = Held::of(dir)?;
    let listing = held.listing();
    Some(if listing.real.is_null() {
        // Nobody has listed it before.
        let at = if listing.cookie == NONE {
            0
        } else {
            listing.cookie
        };
        at.cast_signed()
    } else {
        call_next!(telldir(*mut DIR: listing.real) -> c_long, else -1)
    })
}

/// A forked child has no other threads that could use a listing.
pub fn free_all() {
    for place in &PLACES {
        place.busy.store(false, Ordering::Release);
    }
}

// Two of them return nothing, which nobody sees.
functions! {
    fn fdopendir(fd: c_int) -> *mut DIR {
        if files::is_empty() { None } else { open(fd) }
    }
    fn readdir(dir: *mut DIR) -> *mut dirent64 {
        Held::of(dir).map(|mut held| held.listing().read())
    }
    fn readdir64(dir: *mut DIR) -> *mut dirent64 {
        Held::of(dir).map(|mut held| held.listing().read())
    }
    fn readdir_r(dir: *mut DIR, to: *mut dirent64, result: *mut *mut dirent64) -> c_int {
        read_to(dir, to, result)
    }
    fn readdir64_r(dir: *mut DIR, to: *mut dirent64, result: *mut *mut dirent64) -> c_int {
        read_to(dir, to, result)
    }
    fn closedir(dir: *mut DIR) -> c_int {
        close(dir)
    }
    fn dirfd(dir: *mut DIR) -> c_int {
        Held::of(dir).map(|mut held| held.listing().fd)
    }
    fn rewinddir(dir: *mut DIR) -> c_int {
        seek(dir, 0)
    }
    fn seekdir(dir: *mut DIR, to: c_long) -> c_int {
        seek(dir, to)
    }
    fn telldir(dir: *mut DIR) -> c_long {
        tell(dir)
    }
}
