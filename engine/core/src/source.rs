//! Source of times and random numbers: the system, or a seed.
//!
//! Uses errors and types. With a seed both depend only on the seed and the number of
//! requests, so that the same calls write the same bytes to the device. A volume uses only one of
//! the system's clocks: successive times never decrease, unless the clock is set. A thread that does
//! many things which were all asked for before may do them [at one time](at_one_time).

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, MemfdFlags, StatxFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens,
    memfd_create, statx,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};
use cairnfs_disk::types::Time;

/// First second of a seeded clock, in March 2026.
const SEEDED_EPOCH: i64 = 1_772_600_000;

thread_local! {
    static ONE_TIME: Cell<OneTime> = const { Cell::new(OneTime::Off) };
}

#[derive(Debug, Clone, Copy)]
enum OneTime {
    /// Each request is told the time.
    Off,
    /// The next request is told the time, and those after it the same.
    Next,
    Is(Time),
}

/// Until the returned value is dropped, the kernel's clock tells this thread one time, that of its first
/// request: reading that clock takes two system calls. Nothing may be done meanwhile that was asked for later.
pub fn at_one_time() -> AtOneTime {
    ONE_TIME.set(OneTime::Next);
    AtOneTime(())
}

/// See [`at_one_time`].
pub struct AtOneTime(());

impl Drop for AtOneTime {
    fn drop(&mut self) {
        ONE_TIME.set(OneTime::Off);
    }
}

/// A source of times and random numbers.
#[derive(Debug)]
pub enum Source {
    /// The system; times from its finest clock.
    System,
    /// The system; times from the clock that the kernel uses for file timestamps.
    Kernel(Stamp),
    /// A seed.
    Seeded {
        /// The seed.
        seed: u64,
        /// Number of requests; each advances the clock by a microsecond.
        asked: AtomicU64,
    },
}

impl Source {
    /// A source with the system's finest clock, or a seeded one.
    pub fn new(seed: Option<u64>) -> Self {
        match seed {
            None => Source::System,
            Some(seed) => Source::Seeded {
                seed,
                asked: AtomicU64::new(0),
            },
        }
    }

    /// Replaces the system's finest clock by the kernel's timestamp clock.
    ///
    /// # Errors
    /// The system has no memory for the file used as clock.
    pub fn with_kernel_clock(self) -> Result<Self> {
        Ok(match self {
            Source::System => Source::Kernel(Stamp::new()?),
            other => other,
        })
    }

    /// The current time.
    pub fn now(&self) -> Time {
        match self {
            Source::System => Time::now(),
            Source::Kernel(stamp) => match ONE_TIME.get() {
                OneTime::Is(time) => time,
                OneTime::Off => stamp.now(),
                OneTime::Next => {
                    let time = stamp.now();
                    ONE_TIME.set(OneTime::Is(time));
                    time
                }
            },
            Source::Seeded { asked, .. } => {
                let micros = asked.fetch_add(1, Ordering::Relaxed);
                Time {
                    secs: SEEDED_EPOCH + (micros / 1_000_000) as i64,
                    nanos: (micros % 1_000_000) as u32 * 1000,
                }
            }
        }
    }

    /// A random number.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn random(&self) -> Result<u64> {
        match self {
            Source::System | Source::Kernel(_) => {
                let mut bytes = [0; 8];
                getrandom::fill(&mut bytes)
                    .map_err(|_| Error::Unsupported("the system gives no random numbers"))?;
                Ok(u64::from_le_bytes(bytes))
            }
            Source::Seeded { seed, asked } => {
                let nth = asked.fetch_add(1, Ordering::Relaxed);
                Ok(xxh3_64_with_seed(&nth.to_le_bytes(), *seed))
            }
        }
    }
}

/// A file in memory whose timestamps serve as the kernel's clock.
///
/// The kernel's file systems use the time of the last tick for timestamps, or a later time that a
/// file system with fine-grained timestamps has used since (Linux 6.13). No clock readable by
/// programs returns the latter, so a file is stamped and its timestamp read. The access time is
/// used because reading the other times would make the kernel's next timestamps fine-grained.
#[derive(Debug)]
pub struct Stamp(OwnedFd);

impl Stamp {
    fn new() -> Result<Self> {
        match memfd_create(c"cairnfs-clock", MemfdFlags::CLOEXEC) {
            Ok(file) => Ok(Self(file)),
            Err(e) => Err(Error::Open {
                path: "a file in memory for the kernel's time".into(),
                source: Arc::new(e.into()),
            }),
        }
    }

    /// The kernel's time. Neither call fails for an open file in memory.
    fn now(&self) -> Time {
        let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
        let times = Timestamps {
            last_access: special(UTIME_NOW),
            last_modification: special(UTIME_OMIT),
        };
        let stamped = futimens(&self.0, &times)
            .and_then(|()| statx(&self.0, c"", AtFlags::EMPTY_PATH, StatxFlags::ATIME));
        stamped.map_or_else(
            |_| Time::now(),
            |s| Time {
                secs: s.stx_atime.tv_sec,
                nanos: s.stx_atime.tv_nsec,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_before_has_one_time() {
        let source = Source::new(None).with_kernel_clock().unwrap();
        let before = source.now();
        let held = at_one_time();
        let first = source.now();
        // Until the clock goes on.
        let other = Source::new(None).with_kernel_clock().unwrap();
        while std::thread::scope(|s| s.spawn(|| other.now()).join().unwrap()) == first {}
        assert_eq!(source.now(), first);
        drop(held);
        assert!(before <= first && first < source.now());
    }

    fn memory_file() -> OwnedFd {
        memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap()
    }

    /// Makes the kernel stamp `file` with a fine-grained time, and returns that.
    fn fine_stamp(file: &OwnedFd) -> Time {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        };
        let times = Timestamps {
            last_access: now,
            last_modification: now,
        };
        futimens(file, &times).unwrap();
        let stat = rustix::fs::fstat(file).unwrap();
        Time {
            secs: stat.st_mtime,
            nanos: stat.st_mtime_nsec as u32,
        }
    }

    #[test]
    fn kernel_clock_is_ordered_with_file_timestamps() {
        let clock = Source::new(None).with_kernel_clock().unwrap();
        let file = memory_file();
        let mut last = clock.now();
        for round in 0..20_000 {
            let now = match round % 3 {
                0 => clock.now(),
                _ => fine_stamp(&file),
            };
            assert!(last <= now, "round {round}: {now:?} after {last:?}");
            last = now;
        }
    }

    #[test]
    fn system_clock_is_monotonic() {
        let clock = Source::new(None);
        let mut last = clock.now();
        for _ in 0..20_000 {
            let now = clock.now();
            assert!(last <= now, "{now:?} after {last:?}");
            last = now;
        }
    }

    #[test]
    fn same_seed_gives_same_numbers_and_times() {
        let draw = |seed| {
            let source = Source::new(Some(seed));
            (
                source.random().unwrap(),
                source.now(),
                source.random().unwrap(),
            )
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1).0, draw(2).0);
        assert_ne!(draw(1).0, draw(1).2);
    }

    #[test]
    fn seeded_clock_advances() {
        let source = Source::new(Some(7));
        let first = source.now();
        assert!(source.now() > first);
    }
}
