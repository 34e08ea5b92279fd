//! Operations on the contents of a file: reads and writes, space, copies, and what makes them durable.

use std::io;
use std::sync::Arc;

use cairnfs::Error;
use cairnfs::fs::FsyncRequest;
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::types::{KillPrivileges, SeekTo};

use crate::convert::{Refusal, fallocate_mode};
use crate::ops::{Caller, Ops, Outcome};
use crate::options::WriteMode;
use crate::syncs::{Answer, Durable};
use crate::trees::{Place, STALE};

/// Maximum number of bytes that one request copies: it occupies a thread, and its reply has 32
/// bits.
const COPY_MAX: u64 = 1 << 30;

/// A file with at most this much space, in bytes, is truncated in the event loop.
const LITTLE: u64 = 2 << 20;

impl Ops {
    /// Whether a change of a file's size may take long, so that it must not run in an event loop.
    pub fn resizes_slowly(&self, node: u64) -> bool {
        let attr = self.getattr(node, false);
        attr.is_ok_and(|attr| attr.blocks > LITTLE / 512)
    }

    /// Reads into `buf`; returns the number of bytes, fewer than `buf` holds only at the end of the
    /// file.
    pub fn read(&self, node: u64, offset: u64, buf: &mut [u8]) -> Outcome<usize> {
        let place = self.trees.place(node)?;
        let Place { fs, ino, .. } = &place;
        let read = fs.read(*ino, offset, buf).map_err(|error| {
            if Refusal::is_logged(&error) {
                let path = fs.path_hint(*ino);
                let end = offset.saturating_add(buf.len() as u64).saturating_sub(1);
                tracing::error!("reading bytes {offset} to {end} of {path:?}: {error}");
            }
            Refusal(error.errno())
        })?;
        if offset == 0 {
            self.becomes_stale(&place);
        }
        Ok(read)
    }

    /// Writes; returns the number of bytes. If `killer` (the writing process) is given, the kernel
    /// leaves clearing set-user-id and set-group-id to this function, and is notified that they are
    /// cleared.
    pub fn write(
        &self,
        node: u64,
        offset: u64,
        data: &[u8],
        killer: Option<Caller>,
    ) -> Outcome<usize> {
        let _arriving = self.arriving.read();
        self.on(node, |place| {
            let kill = match killer {
                Some(caller) => caller.kills_by_write(&place.fs.getattr(place.ino)?),
                None => KillPrivileges::No,
            };
            let len = match place.fs.write(place.ino, offset, data, kill) {
                Err(error) if error.errno() == libc::ENOSPC => return Err(self.refuse(node)),
                other => other?,
            };
            let bytes = offset..offset.saturating_add(len as u64);
            self.losses.written(place.file(), bytes);
            self.forget_killed(node, kill);
            Ok(len)
        })
    }

    /// Like [`Ops::write`], for data from the kernel's cache; data that is refused is recorded as
    /// lost. The kernel takes a short write for a complete one, so a short write is refused. The
    /// kernel continues with the file size that includes the refused data, so the file gets that
    /// size, with a hole; this also lets a program truncate the file on a full volume.
    pub fn write_cached(
        &self,
        node: u64,
        offset: u64,
        data: &[u8],
        killer: Option<Caller>,
    ) -> Outcome<usize> {
        let written = match self.write(node, offset, data, killer) {
            Ok(len) if len < data.len() => Err(self.refuse(node)),
            other => other,
        };
        let end = offset.saturating_add(data.len() as u64);
        if self.write == WriteMode::Back && written == Err(Error::NoSpace.into()) {
            self.extend(node, end);
        }
        match &written {
            // After `EAGAIN` it is served again.
            Err(why) if why.0 != libc::EAGAIN => {
                let place = self.trees.place(node)?;
                let replaced = || (!place.mounted).then(|| place.fs.path_hint(place.ino));
                let (file, range) = (place.file(), offset..end);
                if self.losses.refused(file, range, *why, replaced) {
                    let error = io::Error::from_raw_os_error(why.0);
                    // Its path may have to be read, which this thread must not wait for.
                    let ino = place.ino;
                    tracing::warn!(
                        "data that a program had written to the file with inode {ino} was refused: {error}; \
                         the next `cairnfs sync` tells whether there are more"
                    );
                }
            }
            _ => {}
        }
        written
    }

    fn extend(&self, node: u64, size: u64) {
        let _arriving = self.arriving.read();
        let extended = self.on(node, |place| Ok(place.fs.extend(place.ino, size)?));
        if let Err(Refusal(errno)) = extended {
            let error = io::Error::from_raw_os_error(errno);
            tracing::warn!("node {node} is shorter than the kernel has it ({size} bytes): {error}");
        }
    }

    /// A write found no space. With the writeback cache the file's writers must be refused from
    /// then on.
    fn refuse(&self, node: u64) -> Refusal {
        if self.write == WriteMode::Back {
            self.full.add(node);
            self.forget_attributes(node);
        }
        Error::NoSpace.into()
    }

    /// Allocates or frees the space of a range (bytes), with the modes of `fallocate(2)`.
    pub fn fallocate(
        &self,
        caller: Caller,
        node: u64,
        offset: u64,
        len: u64,
        mode: i32,
    ) -> Outcome<()> {
        let what = fallocate_mode(mode).ok_or(Refusal(libc::EOPNOTSUPP))?;
        self.on(node, |place| {
            let kill = caller.kills_by_change(&place.fs.getattr(place.ino)?);
            place.fs.fallocate(place.ino, offset, len, what, kill)?;
            self.forget_killed(node, kill);
            Ok(())
        })
    }

    /// Finds data or a hole, with the `whence` values of `lseek(2)`. Waits for the kernel.
    ///
    /// The kernel sends LSEEK without writing its cache back first. Without the writeback done
    /// here, data just written would be reported as a hole, and a copy would lose it.
    pub fn seek(&self, node: u64, offset: i64, whence: i32) -> Outcome<i64> {
        let to = match whence {
            libc::SEEK_DATA => SeekTo::Data,
            libc::SEEK_HOLE => SeekTo::Hole,
            _ => return Err(Refusal(libc::EINVAL)),
        };
        let offset = u64::try_from(offset).map_err(|_| Refusal(libc::ENXIO))?;
        self.drop_cached(node, offset);
        let place = self.trees.place(node)?;
        let found = place.fs.seek(place.ino, offset, to)?;
        i64::try_from(found).map_err(|_| Refusal(libc::EOVERFLOW))
    }

    /// Copies between files (node, offset in bytes); returns the number of bytes copied.
    ///
    /// # Errors
    /// `EXDEV` from a file of a tree that was replaced: the kernel then copies by reads and writes.
    pub fn copy_range(
        &self,
        caller: Caller,
        from: (u64, u64),
        to: (u64, u64),
        len: u64,
    ) -> Outcome<u32> {
        self.on(to.0, |target| {
            let source = self.trees.place(from.0)?;
            if !Arc::ptr_eq(&source.fs, &target.fs) {
                return Err(Refusal(libc::EXDEV));
            }
            let (fs, len) = (&target.fs, len.min(COPY_MAX));
            let kill = caller.kills_by_change(&fs.getattr(target.ino)?);
            let copied = fs.copy_range(source.ino, from.1, target.ino, to.1, len, kill)?;
            self.forget_killed(to.0, kill);
            u32::try_from(copied).map_err(|_| Refusal(libc::EIO))
        })
    }
}

impl Durable for Ops {
    fn write_out_at_once(&self, node: u64) -> Outcome<bool> {
        self.on(node, |place| Ok(place.fs.write_out_at_once(place.ino)?))
    }

    fn write_out(&self, node: u64) -> Outcome<()> {
        self.on(node, |place| Ok(place.fs.write_out(place.ino)?))
    }

    /// Those of files that stayed with a replaced tree fail: what was accepted for them is durable
    /// there, and is not in the tree that is mounted.
    fn fsync_each(&self, requests: &[FsyncRequest]) -> Vec<Outcome<()>> {
        let mut outcomes = vec![Err(STALE); requests.len()];
        let mut left: Vec<usize> = (0..requests.len()).collect();
        while !left.is_empty() {
            left = self.fsync_some(requests, left, &mut outcomes);
        }
        outcomes
    }

    fn answer(&self, answer: Answer) {
        match &self.await_backup {
            Some(wait) => wait(Box::new(move |stored| {
                answer(stored.then_some(()).ok_or(Refusal(libc::EIO)));
            })),
            None => answer(Ok(())),
        }
    }
}

impl Ops {
    /// Makes the files of some of the requests durable, if they are in the mounted tree. Returns the
    /// requests that are to be repeated because it was replaced meanwhile.
    fn fsync_some(
        &self,
        requests: &[FsyncRequest],
        some: Vec<usize>,
        outcomes: &mut [Outcome<()>],
    ) -> Vec<usize> {
        let root = match self.trees.place(ROOT_INO) {
            Ok(root) => root,
            Err(_) => return Vec::new(),
        };
        let (mut batch, mut again) = (Vec::new(), Vec::new());
        for at in some {
            let Some(request) = requests.get(at) else {
                continue;
            };
            match self.trees.place(request.ino) {
                Ok(place) if Arc::ptr_eq(&place.fs, &root.fs) => {
                    let ino = place.ino;
                    batch.push((at, FsyncRequest { ino, ..*request }));
                }
                // Another tree is mounted since.
                Ok(place) if place.mounted => again.push(at),
                _ => {}
            }
        }
        let (at, batch): (Vec<usize>, Vec<FsyncRequest>) = batch.into_iter().unzip();
        for (at, synced) in at.into_iter().zip(root.fs.fsync_each(&batch)) {
            let synced = synced.map_err(Refusal::from);
            if synced == Err(STALE) && self.trees.is_superseded(&root) == Ok(true) {
                again.push(at);
            }
            if let Some(outcome) = outcomes.get_mut(at) {
                *outcome = synced;
            }
        }
        again
    }
}
