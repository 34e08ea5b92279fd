//! Times and owners as words of requests.

use cairnfs_channel::call::{NONE, NOW, OMIT};
use libc::{timespec, timeval};

/// An owner or group as a word.
pub fn id(id: u32) -> u64 {
    if id == u32::MAX { NONE } else { id.into() }
}

/// The times of utimensat(2) as words; `None` if they are none.
///
/// # Safety
/// `times` is null or two times.
pub unsafe fn time_words(times: *const timespec) -> Option<[u64; 4]> {
    if times.is_null() {
        return Some([0, NOW, 0, NOW]);
    }
    // SAFETY: as demanded.
    let times = unsafe { *times.cast::<[timespec; 2]>() };
    let [a, m] = times.map(|time| {
        let nanos = match time.tv_nsec {
            libc::UTIME_NOW => Some(NOW),
            libc::UTIME_OMIT => Some(OMIT),
            nanos => u64::try_from(nanos)
                .ok()
                .filter(|nanos| *nanos < 1_000_000_000),
        };
        nanos.map(|nanos| (time.tv_sec.cast_unsigned(), nanos))
    });
    let ((a, an), (m, mn)) = (a?, m?);
    Some([a, an, m, mn])
}

/// The times of utimes(2) as words; `None` if they are none.
///
/// # Safety
/// `times` is null or two times.
pub unsafe fn timeval_words(times: *const timeval) -> Option<[u64; 4]> {
    if times.is_null() {
        return Some([0, NOW, 0, NOW]);
    }
    // SAFETY: as demanded.
    let times = unsafe { *times.cast::<[timeval; 2]>() };
    let [a, m] = times.map(|time| {
        let micros = u64::try_from(time.tv_usec)
            .ok()
            .filter(|micros| *micros < 1_000_000);
        micros.map(|micros| (time.tv_sec.cast_unsigned(), micros * 1000))
    });
    let ((a, an), (m, mn)) = (a?, m?);
    Some([a, an, m, mn])
}
