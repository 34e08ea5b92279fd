//! The umask of the process, which the kernel shows in a table only.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{CWD, Mode, OFlags, openat};

/// The umask. Programs change it by libc.
static UMASK: AtomicU32 = AtomicU32::new(0);

/// Reads the umask from the kernel's table. Returns false if it does not tell.
pub fn learn() -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(status) = openat(CWD, c"/proc/self/status", flags, Mode::empty()) else {
        return false;
    };
    let mut bytes = [0; 1024];
    let Ok(len) = rustix::io::read(&status, &mut bytes) else {
        return false;
    };
    let lines = bytes
        .get(..len)
        .unwrap_or_default()
        .split(|byte| *byte == b'\n');
    let umask = lines
        .filter_map(|line| line.strip_prefix(b"Umask:\t"))
        .next();
    let umask = umask.and_then(|text| u32::from_str_radix(std::str::from_utf8(text).ok()?, 8).ok());
    UMASK.store(umask.unwrap_or_default(), Ordering::Relaxed);
    umask.is_some()
}

/// The umask.
pub fn get() -> u32 {
    UMASK.load(Ordering::Relaxed)
}

/// The program has changed it.
pub fn set(mode: u32) {
    UMASK.store(mode & 0o777, Ordering::Relaxed);
}
