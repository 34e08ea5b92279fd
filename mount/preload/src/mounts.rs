//! The mounts that are served, as `cairnfs run` has told them in the environment, and what the kernel shows
//! of them.
//!
//! `CAIRNFS_RUN` has an entry for each mount, separated by newlines: the path of the daemon's socket, the
//! device number (`MAJOR:MINOR`) and the directory of the mount, separated by tabs. It is copied when the
//! library is loaded, before the program can change it.

use std::ffi::CStr;
use std::fmt::Write;
use std::sync::OnceLock;

use rustix::fs::{AtFlags, StatxFlags, statx};

/// Mounts that are served; further ones are not.
pub const MOST: usize = 8;
/// Bytes of the environment variable, and of `CAIRNFS_RUN_STATS`.
const LONGEST: usize = 8192;

/// A text on the stack or in a static.
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    /// An empty one.
    pub const fn new() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }

    /// Adds bytes; false if they do not fit, with room for a NUL.
    pub fn push(&mut self, more: &[u8]) -> bool {
        let rest = self.bytes.get_mut(self.len..N - 1).unwrap_or_default();
        let Some(to) = rest.get_mut(..more.len()) else {
            return false;
        };
        to.copy_from_slice(more);
        self.len += more.len();
        true
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The bytes as a C string.
    pub fn c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.push(text.as_bytes()) {
            Ok(())
        } else {
            Err(std::fmt::Error)
        }
    }
}

/// A mount.
#[derive(Clone, Copy)]
pub struct Mount {
    /// Path of the socket.
    pub socket: &'static [u8],
    /// Device number.
    pub device: (u32, u32),
    /// The directory, without a slash at its end.
    pub dir: &'static [u8],
}

static TEXT: OnceLock<Text<LONGEST>> = OnceLock::new();
static MOUNTS: OnceLock<[Option<Mount>; MOST]> = OnceLock::new();

/// The value of an environment variable, copied.
pub fn variable(name: &CStr) -> Option<Text<LONGEST>> {
    // SAFETY: the name ends with NUL, and so does what is returned, if it is not null.
    let value = unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() {
            return None;
        }
        CStr::from_ptr(value)
    };
    let mut text = Text::new();
    text.push(value.to_bytes()).then_some(text)
}

/// Reads the environment.
pub fn begin() {
    let Some(text) = variable(c"CAIRNFS_RUN") else {
        return;
    };
    let text = TEXT.get_or_init(|| text).bytes();
    let mut mounts = [None; MOST];
    for (to, line) in mounts.iter_mut().zip(text.split(|byte| *byte == b'\n')) {
        *to = parse(line);
    }
    MOUNTS.get_or_init(|| mounts);
}

fn parse(line: &'static [u8]) -> Option<Mount> {
    let mut parts = line.splitn(3, |byte| *byte == b'\t');
    let (socket, device, dir) = (parts.next()?, parts.next()?, parts.next()?);
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    Some(Mount {
        socket,
        device: (major.parse().ok()?, minor.parse().ok()?),
        dir,
    })
}

/// All of them, with their numbers.
pub fn all() -> impl Iterator<Item = (usize, &'static Mount)> {
    let mounts = MOUNTS.get().into_iter().flatten().enumerate();
    mounts.filter_map(|(number, mount)| Some((number, mount.as_ref()?)))
}

/// An inode as the kernel shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The device.
    pub device: (u32, u32),
    /// The number of the inode.
    pub ino: u64,
    /// The number of the mount.
    pub mount: u64,
}

/// Looks at a path relative to a directory, or at the directory if the path is empty. Asks no daemon.
pub fn see(dir: i32, path: &CStr) -> Option<Seen> {
    see_all(dir, path).map(|(seen, _)| seen)
}

/// The same, and which attributes of statx(2) the file system tells.
pub fn see_all(dir: i32, path: &CStr) -> Option<(Seen, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
    // SAFETY: the number is only passed on, and what it means is the program's affair.
    let dir = unsafe { rustix::fd::BorrowedFd::borrow_raw(dir) };
    let seen = statx(dir, path, flags, wanted).ok()?;
    let has_mount = seen.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    let found = Seen {
        device: (seen.stx_dev_major, seen.stx_dev_minor),
        ino: seen.stx_ino,
        mount: seen.stx_mnt_id,
    };
    has_mount.then_some((found, seen.stx_attributes_mask.bits()))
}
