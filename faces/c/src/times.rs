//! Calls that set times.

use std::ffi::{c_char, c_int};
use std::time::SystemTime;

use cairnfs::{FileTimes, Time};

use crate::boundary::{self, call};
use crate::error::{Failure, Outcome};
use crate::handles::{self, cairnfs_file, cairnfs_volume};
use crate::is_true;
use crate::structs::cairnfs_timespec;

/// A time to set; `None` to leave it as it is.
fn chosen(time: &cairnfs_timespec) -> Outcome<Option<SystemTime>> {
    match time.nsec {
        libc::UTIME_NOW => Ok(Some(SystemTime::now())),
        libc::UTIME_OMIT => Ok(None),
        0..1_000_000_000 => Ok(Some(SystemTime::from(Time {
            secs: time.sec,
            nanos: time.nsec as u32,
        }))),
        _ => Err(Failure::invalid("nsec is not below 1000000000")),
    }
}

/// Times of access and modification to set; both are the present if the pointer is null.
unsafe fn times_of(times: *const cairnfs_timespec) -> Outcome<FileTimes> {
    let (accessed, modified) = if times.is_null() {
        let now = SystemTime::now();
        (Some(now), Some(now))
    } else {
        // SAFETY: the contract of the crate: two values.
        match unsafe { boundary::slice(times, 2) }? {
            [accessed, modified] => (chosen(accessed)?, chosen(modified)?),
            _ => (None, None),
        }
    };
    let mut set = FileTimes::new();
    if let Some(time) = accessed {
        set = set.set_accessed(time);
    }
    if let Some(time) = modified {
        set = set.set_modified(time);
    }
    Ok(set)
}

/// Sets the times of access and modification, the first and the second of two, as utimensat(2);
/// both to the present if times is null. If follow is 0, a symbolic link at the end of the path is
/// not followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_utimens(
    volume: cairnfs_volume,
    path: *const c_char,
    times: *const cairnfs_timespec,
    follow: c_int,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        let (path, times) = (boundary::path(path)?, times_of(times)?);
        let done = if is_true(follow) {
            volume.volume.set_times(path, times)
        } else {
            volume.volume.set_times_nofollow(path, times)
        };
        Ok(done?)
    })
}

/// Sets the times of an open file, as cairnfs_utimens().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_futimens(
    file: cairnfs_file,
    times: *const cairnfs_timespec,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let file = handles::file(file)?;
        Ok(file.part.set_times(times_of(times)?)?)
    })
}
