//! Reclaiming space for a reservation that was refused.
//!
//! Space that is free in the end may still be reserved or in use: by unwritten data, by deletions
//! that no merge has taken, by index nodes that are not full. Before a call fails with ENOSPC, each
//! way to reclaim it is tried, and the reservation after each.

use crate::space::Space;
use cairnfs_disk::device::waiting;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::sync::Mutex;

/// Rounds of all ways for one call; other threads may take the space first.
const ROUNDS: usize = 8;

/// A way to reclaim space; returns whether there may have been something to reclaim.
pub(super) type Way<'a> = &'a dyn Fn() -> Result<bool>;

/// Reclaims space for one thread at a time, so that no thread takes what another has reclaimed.
#[derive(Default)]
pub(super) struct SpaceReclaimer {
    turn: Mutex<()>,
}

/// Whether a reservation was refused for want of space.
pub(super) fn is_short<T>(result: &Result<T>) -> bool {
    matches!(
        result,
        Err(Error::NoSpace | Error::HeldByRoots | Error::HostFull { .. })
    )
}

/// The result of work that may be left for the next opening: a want of space is logged only, as it must
/// not keep a volume from being opened. `what` was put off.
pub(super) fn done_or_later(result: Result<()>, what: &str) -> Result<()> {
    match result {
        Err(ref error) if is_short(&result) => {
            tracing::warn!(%error, "{what} was put off");
            Ok(())
        }
        done => done,
    }
}

impl SpaceReclaimer {
    /// Calls `reserve` until it finds space; between calls reclaims space, until no way reclaims
    /// any. The caller holds no inode state lock.
    ///
    /// # Errors
    /// The last error of `reserve`; an error of a way, except a want of space;
    /// [`Error::WouldWait`].
    pub fn retry<T>(
        &self,
        space: &Space,
        reserve: impl Fn() -> Result<T>,
        ways: &[Way<'_>],
    ) -> Result<T> {
        waiting::before()?;
        let _turn = self.turn.lock();
        let _whole = space.hold_trimming();
        let mut full = HostLacks::default();
        for _ in 0..ROUNDS {
            let mut reclaimed = false;
            for way in ways {
                let result = reserve();
                if !is_short(&result) {
                    return result;
                }
                full.note(&result);
                reclaimed |= match way() {
                    // A merge that finds no space does not end the attempts.
                    Err(Error::NoSpace) => false,
                    // While the host is full nothing is merged, but data is written back.
                    Err(error @ Error::HostFull { .. }) => {
                        full.note(&Err::<(), _>(error));
                        false
                    }
                    other => other?,
                };
            }
            if !reclaimed {
                break;
            }
        }
        let result = reserve();
        full.note(&result);
        match full.0 {
            Some(full) if is_short(&result) => Err(full),
            _ => result,
        }
    }
}

/// The error of a full host that names the most bytes. A reservation says what it lacks; a way, and
/// a reservation after it, may name only what the way could not write.
#[derive(Default)]
struct HostLacks(Option<Error>);

impl HostLacks {
    fn note<T>(&mut self, result: &Result<T>) {
        if let Err(error @ Error::HostFull { missing, .. }) = result
            && !matches!(&self.0, Some(Error::HostFull { missing: most, .. }) if most >= missing)
        {
            self.0 = Some(error.clone());
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::*;
    use crate::fs::{FileSystem, MakeOptions, Options, make_device};
    use cairnfs_disk::device::MemoryDevice;
    use cairnfs_disk::format::ROOT_INO;
    use cairnfs_disk::types::{Creds, Fallocate};

    fn volume() -> Arc<FileSystem> {
        let device = MemoryDevice::new(64 << 20);
        make_device(&device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        FileSystem::open_device(Arc::new(device), &Options::default()).unwrap()
    }

    /// The blocks of a removed file suffice, so data of another one stays unwritten.
    #[test]
    fn merge_comes_before_writeback() {
        let device = MemoryDevice::new(64 << 20);
        make_device(&device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let options = Options {
            durability_interval: None,
            workers: false,
            seed: Some(1),
            ..Options::default()
        };
        let fs = FileSystem::open_device(Arc::new(device), &options).unwrap();
        let make = |name: &[u8]| {
            let made = fs.mknod(ROOT_INO, name, 0o100_644, 0, Creds::default());
            made.unwrap().ino
        };
        let allocate = |ino| {
            let what = Fallocate::Allocate { keep_size: false };
            fs.fallocate(ino, 0, 32 << 20, what, false).unwrap();
        };
        let removed = make(b"removed");
        allocate(removed);
        fs.merge().unwrap();
        fs.unlink(ROOT_INO, b"removed").unwrap();
        fs.forget(removed, 1);
        fs.write(make(b"unwritten"), 0, b"data", false).unwrap();
        allocate(make(b"new"));
        assert!(fs.core().space().delayed_growth().0 > 0);
    }

    #[test]
    fn reservation_is_tried_after_each_way() {
        let fs = volume();
        let left = Cell::new(4);
        let reserve = || match left.get() {
            0 => Ok("reserved"),
            _ => Err(Error::NoSpace),
        };
        let reclaim = || {
            left.set(left.get() - 1);
            Ok(true)
        };
        let nothing = || Err(Error::NoSpace);
        let too_late = || -> Result<bool> { panic!("there was space before") };
        let reclaimer = SpaceReclaimer::default();
        let ways: [Way<'_>; 3] = [&nothing, &reclaim, &reclaim];
        let found = reclaimer.retry(fs.core().space(), reserve, &ways);
        assert_eq!(found.unwrap(), "reserved");
        left.set(1);
        let ways: [Way<'_>; 2] = [&reclaim, &too_late];
        reclaimer.retry(fs.core().space(), reserve, &ways).unwrap();
    }

    /// A full host file system ends no attempt, and is the answer if no other way helps.
    #[test]
    fn other_ways_are_tried_while_the_host_is_full() {
        let fs = volume();
        let reclaimer = SpaceReclaimer::default();
        let short = Cell::new(true);
        let reserve = || {
            if short.get() {
                Err(Error::NoSpace)
            } else {
                Ok(())
            }
        };
        let host_full = || {
            Err(Error::HostFull {
                path: "volume".into(),
                missing: 4096,
            })
        };
        let missing = |refused: Result<()>| match refused {
            Err(Error::HostFull { missing, .. }) => missing,
            other => panic!("{other:?}"),
        };
        let refused = reclaimer.retry(fs.core().space(), reserve, &[&host_full]);
        assert_eq!(missing(refused), 4096);
        let lacks_more = || {
            Err(Error::HostFull {
                path: "volume".into(),
                missing: 1 << 20,
            })
        };
        let refused = reclaimer.retry(fs.core().space(), lacks_more, &[&host_full]);
        assert_eq!(missing(refused), 1 << 20);
        let frees = || {
            short.set(false);
            Ok(true)
        };
        let ways: [Way<'_>; 2] = [&host_full, &frees];
        reclaimer.retry(fs.core().space(), reserve, &ways).unwrap();
    }

    #[test]
    fn attempts_end_when_nothing_is_reclaimed_or_a_way_fails() {
        let fs = volume();
        let reclaimer = SpaceReclaimer::default();
        let tried = Cell::new(0);
        let refuse = || -> Result<()> {
            tried.set(tried.get() + 1);
            Err(Error::NoSpace)
        };
        let attempt = |ways: &[Way<'_>]| {
            tried.set(0);
            (
                reclaimer.retry(fs.core().space(), refuse, ways),
                tried.get(),
            )
        };
        let (refused, tries) = attempt(&[&|| Ok(false), &|| Ok(false)]);
        assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
        assert_eq!(tries, 3);
        let (refused, tries) = attempt(&[&|| Ok(true)]);
        assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
        assert_eq!(tries, ROUNDS + 1);
        let (failed, tries) = attempt(&[&|| Err(Error::ReadOnly)]);
        assert!(matches!(failed, Err(Error::ReadOnly)), "{failed:?}");
        assert_eq!(tries, 1);
    }
}
