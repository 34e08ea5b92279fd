//! A regular file or a block device as a [`Device`].
//!
//! Uses direct I/O where the file supports it, buffered I/O otherwise; what may come from a cache is
//! read through the page cache on request ([`FileDevice::cache_reads`]). A lock excludes a second
//! opener until the value is dropped, also if a forked child has inherited the file, or, if the
//! process is killed, until its writes in flight are over. Callers' memory need not be aligned:
//! unaligned memory goes through a bounce buffer of bounded size. A write for which the host file
//! system has no space fails with [`Error::HostFull`] and may be retried.

mod attached;
mod backing;
mod cached;
mod here;
mod name;
mod open;
mod room;
#[cfg(test)]
mod tests;

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;
use rustix::process::Pid;
use smallvec::SmallVec;

use super::{AlignedBuf, Device, Piece, SECTOR, check_range, io_error, ring};
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, Ordering};

pub use name::HostFile;
pub use room::HostRoom;

/// Maximum size of a bounce buffer, in bytes.
const BOUNCE: usize = 1 << 20;

/// Maximum number of buffers in one `pwritev` (`IOV_MAX`).
const SLICES: usize = 1024;

/// Access mode of an open device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only; other readers may have the device open.
    ReadOnly,
    /// Reading and writing, exclusively.
    ReadWrite,
}

/// An open, locked file or block device.
#[derive(Debug)]
pub struct FileDevice {
    file: Arc<OwnedFd>,
    _lock: Lock,
    path: PathBuf,
    /// The path that the kernel reported for the open file when it was opened.
    named: Option<PathBuf>,
    /// Size in bytes when it was opened.
    size: u64,
    access: Access,
    block_device: bool,
    /// Whether direct I/O is used.
    direct: bool,
    /// The same file for reads through the page cache.
    cached: Option<OwnedFd>,
    /// Whether io_uring is available for parallel writes.
    rings: bool,
    /// Cleared when a discard turns out to be unsupported.
    discards: AtomicBool,
}

/// The locks of a device: of its file, and of what a loop device is attached to.
///
/// They belong to the open file, which a child process inherits by fork(), and would outlive it
/// here: so the process that took them releases them, and no other.
#[derive(Debug)]
struct Lock {
    files: Vec<Arc<OwnedFd>>,
    process: Pid,
    _noted: here::Noted,
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.process == rustix::process::getpid() {
            for file in &self.files {
                // If it fails, the lock ends when the last process closes the file.
                let _ = rustix::fs::flock(&**file, FlockOperation::Unlock);
            }
        }
    }
}

impl FileDevice {
    /// Whether this is a block device, not a file.
    pub fn is_block_device(&self) -> bool {
        self.block_device
    }

    /// The usable progress of a call that transferred `n` bytes: direct I/O can continue at block
    /// boundaries only.
    fn progress(&self, n: usize) -> usize {
        if self.direct {
            n - n % SECTOR as usize
        } else {
            n
        }
    }

    fn read_aligned(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        read_all(&self.file, offset, buf, |n| self.progress(n))
    }

    /// Whether a piece can be written without a bounce buffer.
    fn fits_direct_io(&self, piece: &Piece) -> bool {
        !self.direct || piece.parts().all(AlignedBuf::is_aligned)
    }

    /// Writes the rest of a piece of which io_uring has written `taken` bytes.
    fn finish_write(&self, piece: &Piece, taken: io::Result<usize>) -> Result<()> {
        // The kernel cancels a write that needs a worker thread if signals prevent it from creating
        // one.
        let again = [Errno::INTR, Errno::AGAIN, Errno::CANCELED];
        let done = match taken {
            Ok(n) => self.progress(n),
            Err(e) if Errno::from_io_error(&e).is_some_and(|e| again.contains(&e)) => 0,
            Err(e) => {
                let len = piece.len() as u64;
                return Err(self.write_error(piece.offset, len, e));
            }
        };
        self.write_parts(piece, done)
    }

    /// Writes a piece from byte `done` on, without a bounce buffer.
    fn write_parts(&self, piece: &Piece, mut done: usize) -> Result<()> {
        let (offset, len) = (piece.offset, piece.len());
        while done < len {
            let mut skip = done;
            let rest = piece.parts().filter_map(|part| {
                let from = part.get(skip..);
                skip = skip.saturating_sub(part.len());
                from.filter(|f| !f.is_empty()).map(IoSlice::new)
            });
            let slices: SmallVec<[IoSlice<'_>; 16]> = rest.take(SLICES).collect();
            let n = retry(|| rustix::io::pwritev(&*self.file, &slices, offset + done as u64))
                .map_err(|e| self.write_error(offset, len as u64, e.into()))?;
            done += self.taken(n, offset, len as u64)?;
        }
        Ok(())
    }

    /// The usable progress of a write of `n` bytes; an error if it is zero, because a retry could
    /// loop forever.
    fn taken(&self, n: usize, offset: u64, len: u64) -> Result<usize> {
        match self.progress(n) {
            0 => {
                let nothing = io::Error::new(io::ErrorKind::WriteZero, "the device wrote nothing");
                Err(io_error("write", offset, len, nothing))
            }
            step => Ok(step),
        }
    }

    fn write_aligned(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let len = buf.len() as u64;
        let mut done = 0;
        while let Some(rest) = buf.get(done..).filter(|r| !r.is_empty()) {
            let n = retry(|| rustix::io::pwrite(&*self.file, rest, offset + done as u64))
                .map_err(|e| self.write_error(offset, len, e.into()))?;
            done += self.taken(n, offset, len)?;
        }
        Ok(())
    }
}

/// Reads all of `buf`; `progress` is the usable progress of a call.
fn read_all(
    file: &OwnedFd,
    offset: u64,
    buf: &mut [u8],
    progress: impl Fn(usize) -> usize,
) -> Result<()> {
    let len = buf.len() as u64;
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|r| !r.is_empty()) {
        let n = retry(|| rustix::io::pread(file, &mut *rest, offset + done as u64))
            .map_err(|e| io_error("read", offset, len, e.into()))?;
        let step = progress(n);
        if step == 0 {
            return Err(io_error(
                "read",
                offset,
                len,
                io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the device ends before its size: it was truncated",
                ),
            ));
        }
        done += step;
    }
    Ok(())
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range("read", offset, buf.len() as u64, self.size)?;
        self.drop_cached(offset, buf.len() as u64);
        if !self.direct || AlignedBuf::is_aligned(buf) {
            return self.read_aligned(offset, buf);
        }
        let mut bounce = AlignedBuf::zeroed(buf.len().min(BOUNCE));
        let mut at = offset;
        for to in buf.chunks_mut(BOUNCE) {
            let part = bounce.get_mut(..to.len()).unwrap_or_default();
            self.read_aligned(at, part)?;
            to.copy_from_slice(part);
            at += to.len() as u64;
        }
        Ok(())
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let Some(cached) = &self.cached else {
            return self.read(offset, buf);
        };
        check_range("read", offset, buf.len() as u64, self.size)?;
        // It can fail where a direct one does not: for want of memory, or for a neighbour in its page.
        read_all(cached, offset, buf, |n| n).or_else(|_| self.read(offset, buf))
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        if self.access == Access::ReadOnly {
            return Err(Error::ReadOnly);
        }
        check_range("write", offset, buf.len() as u64, self.size)?;
        if !self.direct || AlignedBuf::is_aligned(buf) {
            return self.write_aligned(offset, buf);
        }
        let mut bounce = AlignedBuf::zeroed(buf.len().min(BOUNCE));
        let mut at = offset;
        for from in buf.chunks(BOUNCE) {
            let part = bounce.get_mut(..from.len()).unwrap_or_default();
            part.copy_from_slice(from);
            self.write_aligned(at, part)?;
            at += from.len() as u64;
        }
        Ok(())
    }

    fn writes_together(&self) -> bool {
        self.rings && self.direct
    }

    fn write_all(&self, pieces: &[Piece]) -> Result<()> {
        if self.access == Access::ReadOnly {
            return Err(Error::ReadOnly);
        }
        for piece in pieces {
            check_range("write", piece.offset, piece.len() as u64, self.size)?;
        }
        let one_by_one = |pieces: &[Piece]| {
            let mut pieces = pieces.iter();
            pieces.try_for_each(|piece| {
                if self.fits_direct_io(piece) {
                    self.write_parts(piece, 0)
                } else {
                    self.write(piece.offset, &piece.bytes())
                }
            })
        };
        let together = pieces.len() > 1 && self.writes_together();
        if !together || !pieces.iter().all(|p| self.fits_direct_io(p)) {
            return one_by_one(pieces);
        }
        for some in pieces.chunks(ring::MOST) {
            let len = some.iter().map(|p| p.len() as u64).sum();
            let error = |e| self.write_error(some.first().map_or(0, |p| p.offset), len, e);
            let Some(taken) = ring::write(&self.file, some) else {
                one_by_one(some)?;
                continue;
            };
            for (piece, taken) in some.iter().zip(taken.map_err(error)?) {
                self.finish_write(piece, taken)?;
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        retry(|| rustix::fs::fdatasync(&*self.file))
            .map_err(|e| io_error("flush", 0, 0, e.into()))?;
        self.check_length()
    }

    fn no_room(&self, missing: u64) -> Error {
        self.host_full(missing)
    }

    fn check_length(&self) -> Result<()> {
        self.still_whole()
    }

    fn discards(&self) -> bool {
        self.discards.load(Ordering::Relaxed)
    }

    fn host_room(&self) -> Result<Option<HostRoom>> {
        self.room_below()
    }

    fn host_file(&self) -> Option<HostFile> {
        self.file_now()
    }

    fn room(&self) -> Result<Option<u64>> {
        let room = self.host_room()?;
        Ok(room.filter(|r| r.shortfall() > 0).map(|r| r.free))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        if self.access == Access::ReadOnly {
            return Err(Error::ReadOnly);
        }
        check_range("discard", offset, len, self.size)?;
        if len == 0 || !self.discards.load(Ordering::Relaxed) {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry(|| rustix::fs::fallocate(&*self.file, flags, offset, len)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV) => {
                self.discards.store(false, Ordering::Relaxed);
                Ok(())
            }
            // A copy-on-write file system may need space to free space. The discard is only a hint.
            Err(Errno::NOSPC | Errno::DQUOT) => Ok(()),
            other => other.map_err(|e| io_error("discard", offset, len, e.into())),
        }
    }
}
