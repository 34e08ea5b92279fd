//! Where times and random numbers come from: the system, or a seed.
//!
//! Floor 2: uses errors and types. With a seed both are functions of it and of how often they were
//! asked for, so that the same calls put the same bytes on the device. Of the system's clocks a
//! volume uses one: times taken one after the other never decrease, unless the clock is set.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, MemfdFlags, StatxFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens,
    memfd_create, statx,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::Time;

/// Second at which the clock of a seeded source begins: in March 2026.
const SEEDED_EPOCH: i64 = 1_772_600_000;

/// A source of times and random numbers.
#[derive(Debug)]
pub enum Source {
    /// The system's; times from its finest clock.
    System,
    /// The system's; times are those that the kernel gives to files at that moment.
    Kernel(Stamp),
    /// A function of the seed.
    Seeded {
        /// The seed.
        seed: u64,
        /// How often it was asked; each time the clock advances by a microsecond.
        asked: AtomicU64,
    },
}

impl Source {
    /// Of the system, or of a seed.
    pub fn new(seed: Option<u64>) -> Self {
        match seed {
            None => Source::System,
            Some(seed) => Source::Seeded {
                seed,
                asked: AtomicU64::new(0),
            },
        }
    }

    /// The same with the kernel's times instead of those of the system's finest clock.
    ///
    /// # Errors
    /// The system has no memory for a file to be stamped.
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
            Source::Kernel(stamp) => stamp.now(),
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
    /// The system gives none.
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

/// A file in memory that the kernel stamps with its time.
///
/// The kernel's file systems stamp files with the time of the last tick, or with a later one that a
/// file system with finer times has given out since (Linux 6.13). No clock that programs can read
/// tells the second, so a stamp is made and read. The access time is read because reading the
/// others would make the kernel's next stamps finer.
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

    /// The kernel's time. Neither call fails for a file in memory that is open.
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

    fn memory_file() -> OwnedFd {
        memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap()
    }

    /// Has the kernel stamp `file` with its finest time, and gives that.
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
    fn the_kernel_and_its_clock_give_times_in_order() {
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
    fn the_finest_clock_gives_times_in_order() {
        let clock = Source::new(None);
        let mut last = clock.now();
        for _ in 0..20_000 {
            let now = clock.now();
            assert!(last <= now, "{now:?} after {last:?}");
            last = now;
        }
    }

    #[test]
    fn a_seed_gives_the_same_again() {
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
    fn the_clock_of_a_seed_advances() {
        let source = Source::new(Some(7));
        let first = source.now();
        assert!(source.now() > first);
    }
}
