//! A regular file or a block device as a [`Device`].
//!
//! Direct I/O where the file takes it (found out by a probe), buffered otherwise. A lock
//! (`flock`) keeps a second opener away: exclusive for writers, shared for readers; it lasts as
//! long as the value or, if the process is killed, as its writes in flight. Callers' memory need
//! not be aligned: what is not goes through a bounce buffer of bounded size.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::{AlignedBuf, Device, Piece, SECTOR, check_range, io_error, ring};
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, Ordering};

/// How long a lock is waited for. The kernel keeps that of a killed process until its writes in flight
/// are over, which is after the process is gone; so they meet nobody else's.
const LINGER: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);

/// Most bytes that a bounce buffer holds.
const BOUNCE: usize = 1 << 20;

/// Most parts that the kernel takes with one write.
const SLICES: usize = 1024;

/// What a device is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only, beside other readers.
    ReadOnly,
    /// Reading and writing, alone.
    ReadWrite,
}

/// An open, locked file or block device.
#[derive(Debug)]
pub struct FileDevice {
    file: Arc<OwnedFd>,
    size: u64,
    access: Access,
    block_device: bool,
    direct: bool,
    rings: bool,
    discards: AtomicBool,
}

impl FileDevice {
    /// Opens a regular file or block device and locks it.
    ///
    /// # Errors
    /// [`Error::InUse`] if someone else has it open (or the kernel has the block device mounted);
    /// [`Error::Open`] if it does not exist, may not be opened or is of another kind.
    pub fn open(path: &Path, access: Access) -> Result<Self> {
        let kind = rustix::fs::stat(path)
            .map(|s| FileType::from_raw_mode(s.st_mode))
            .map_err(|e| open_error(path, e.into()))?;
        let block_device = check_kind(path, kind)?;
        let mut flags = OFlags::CLOEXEC
            | match access {
                Access::ReadOnly => OFlags::RDONLY,
                Access::ReadWrite => OFlags::RDWR,
            };
        if block_device && access == Access::ReadWrite {
            // Without O_CREAT, and on block devices only: refused while mounted.
            flags |= OFlags::EXCL;
        }
        Self::open_locked(path, flags, access, block_device)
    }

    /// Makes an image file of `size` bytes that takes no space yet; what the file held is lost. A
    /// new file is readable and writable by its owner only: an image shows all that is in it,
    /// whatever the permissions inside. An existing one keeps its permissions.
    ///
    /// # Errors
    /// As [`Self::open`]; a block device is refused.
    pub fn create(path: &Path, size: u64) -> Result<Self> {
        if let Ok(stat) = rustix::fs::stat(path)
            && check_kind(path, FileType::from_raw_mode(stat.st_mode))?
        {
            return Err(open_error(
                path,
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "is a block device, not a file that can be made",
                ),
            ));
        }
        let flags = OFlags::CLOEXEC | OFlags::RDWR | OFlags::CREATE;
        let mut device = Self::open_locked(path, flags, Access::ReadWrite, false)?;
        // Emptied only under the lock: it may be someone's volume.
        rustix::fs::ftruncate(&*device.file, 0)
            .and_then(|()| rustix::fs::ftruncate(&*device.file, size))
            .map_err(|e| open_error(path, e.into()))?;
        device.size = size;
        device.settle_direct(path)?;
        Ok(device)
    }

    /// Whether this is a block device, not a file.
    pub fn is_block_device(&self) -> bool {
        self.block_device
    }

    /// Whether reads and writes bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Bytes that the file takes on its file system; the size of a block device.
    ///
    /// # Errors
    /// The failure to ask.
    pub fn allocated_bytes(&self) -> Result<u64> {
        if self.block_device {
            return Ok(self.size);
        }
        let stat = rustix::fs::fstat(&*self.file).map_err(|e| io_error("stat", 0, 0, e.into()))?;
        Ok(u64::try_from(stat.st_blocks).unwrap_or_default() * 512)
    }

    /// Opens and locks; waits for what a killed process left, but not for one that lives.
    fn open_locked(path: &Path, flags: OFlags, access: Access, block_device: bool) -> Result<Self> {
        let start = Instant::now();
        loop {
            match Self::try_open_locked(path, flags, access, block_device) {
                Err(Error::InUse(_)) if start.elapsed() < LINGER => std::thread::sleep(PAUSE),
                other => return other,
            }
        }
    }

    fn try_open_locked(
        path: &Path,
        flags: OFlags,
        access: Access,
        block_device: bool,
    ) -> Result<Self> {
        let (file, direct) = open_direct_or_not(path, flags)?;
        let stat = rustix::fs::fstat(&file).map_err(|e| open_error(path, e.into()))?;
        if check_kind(path, FileType::from_raw_mode(stat.st_mode))? != block_device {
            return Err(open_error(
                path,
                io::Error::other("was replaced while it was being opened"),
            ));
        }
        lock(path, &file, access)?;
        let size =
            rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|e| open_error(path, e.into()))?;
        let mut device = Self {
            file: Arc::new(file),
            size,
            access,
            block_device,
            direct,
            rings: false,
            discards: AtomicBool::new(true),
        };
        device.settle_direct(path)?;
        device.rings = device.direct && access == Access::ReadWrite && ring::is_there();
        Ok(device)
    }

    /// Goes back to buffered I/O if the file accepts the flag but not the reads.
    fn settle_direct(&mut self, path: &Path) -> Result<()> {
        if !self.direct || self.size < SECTOR {
            return Ok(());
        }
        let mut probe = AlignedBuf::zeroed(SECTOR as usize);
        if rustix::io::pread(&*self.file, &mut *probe, 0) == Err(Errno::INVAL) {
            let flags =
                rustix::fs::fcntl_getfl(&*self.file).map_err(|e| open_error(path, e.into()))?;
            rustix::fs::fcntl_setfl(&*self.file, flags - OFlags::DIRECT)
                .map_err(|e| open_error(path, e.into()))?;
            self.direct = false;
        }
        Ok(())
    }

    /// How far a call that moved `n` bytes got. Direct I/O goes on at block boundaries only.
    fn progress(&self, n: usize) -> usize {
        if self.direct {
            n - n % SECTOR as usize
        } else {
            n
        }
    }

    fn read_aligned(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len() as u64;
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|r| !r.is_empty()) {
            let n = retry(|| rustix::io::pread(&*self.file, &mut *rest, offset + done as u64))
                .map_err(|e| io_error("read", offset, len, e.into()))?;
            let step = self.progress(n);
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

    /// Whether the device takes a piece as it lies in memory.
    fn lies_well(&self, piece: &Piece) -> bool {
        !self.direct || piece.parts().all(AlignedBuf::is_aligned)
    }

    /// Writes what a ring has not taken of a piece.
    fn finish_write(&self, piece: &Piece, taken: io::Result<usize>) -> Result<()> {
        // The kernel cancels a write that it has to hand to a thread if signals keep it from making one.
        let again = [Errno::INTR, Errno::AGAIN, Errno::CANCELED];
        let done = match taken {
            Ok(n) => self.progress(n),
            Err(e) if Errno::from_io_error(&e).is_some_and(|e| again.contains(&e)) => 0,
            Err(e) => {
                let len = piece.len() as u64;
                return Err(io_error("write", piece.offset, len, e));
            }
        };
        self.write_parts(piece, done)
    }

    /// Writes a piece from `done` on, as it lies in memory.
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
                .map_err(|e| io_error("write", offset, len as u64, e.into()))?;
            done += self.taken(n, offset, len as u64)?;
        }
        Ok(())
    }

    /// How far a write got, which must be somewhere.
    fn taken(&self, n: usize, offset: u64, len: u64) -> Result<usize> {
        match self.progress(n) {
            0 => {
                let nothing = io::Error::new(io::ErrorKind::WriteZero, "the device took nothing");
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
                .map_err(|e| io_error("write", offset, len, e.into()))?;
            done += self.taken(n, offset, len)?;
        }
        Ok(())
    }
}

/// Whether it is a block device; an error if it is neither that nor a regular file.
fn check_kind(path: &Path, kind: FileType) -> Result<bool> {
    let source = match kind {
        FileType::RegularFile => return Ok(false),
        FileType::BlockDevice => return Ok(true),
        FileType::Directory => io::Error::from(Errno::ISDIR),
        _ => io::Error::new(
            io::ErrorKind::InvalidInput,
            "is neither a regular file nor a block device",
        ),
    };
    Err(open_error(path, source))
}

fn open_direct_or_not(path: &Path, flags: OFlags) -> Result<(OwnedFd, bool)> {
    let mode = Mode::RUSR | Mode::WUSR;
    let opened = match retry(|| rustix::fs::open(path, flags | OFlags::DIRECT, mode)) {
        Err(Errno::INVAL) => retry(|| rustix::fs::open(path, flags, mode)).map(|f| (f, false)),
        other => other.map(|f| (f, true)),
    };
    opened.map_err(|e| match e {
        Errno::BUSY => Error::InUse(path.display().to_string()),
        e => open_error(path, e.into()),
    })
}

fn lock(path: &Path, file: &OwnedFd, access: Access) -> Result<()> {
    let operation = match access {
        Access::ReadOnly => FlockOperation::NonBlockingLockShared,
        Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
    };
    retry(|| rustix::fs::flock(file, operation)).map_err(|e| match e {
        Errno::WOULDBLOCK => Error::InUse(path.display().to_string()),
        e => open_error(path, e.into()),
    })
}

fn open_error(path: &Path, source: io::Error) -> Error {
    Error::Open {
        path: path.display().to_string(),
        source: Arc::new(source),
    }
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
            pieces.try_for_each(|piece| match self.lies_well(piece) {
                true => self.write_parts(piece, 0),
                false => self.write(piece.offset, &piece.bytes()),
            })
        };
        let together = pieces.len() > 1 && self.writes_together();
        if !together || !pieces.iter().all(|p| self.lies_well(p)) {
            return one_by_one(pieces);
        }
        for some in pieces.chunks(ring::MOST) {
            let len = some.iter().map(|p| p.len() as u64).sum();
            let error = |e| io_error("write", some.first().map_or(0, |p| p.offset), len, e);
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
        retry(|| rustix::fs::fdatasync(&*self.file)).map_err(|e| io_error("flush", 0, 0, e.into()))
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
            other => other.map_err(|e| io_error("discard", offset, len, e.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Page;

    const SIZE: u64 = 4 << 20;

    fn image() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        (dir, path)
    }

    #[test]
    fn unaligned_memory_reads_back() {
        let (_dir, path) = image();
        let device = FileDevice::create(&path, SIZE).unwrap();
        let bytes: Vec<u8> = (0..(3 << 20) + 4097u32).map(|i| (i / 7) as u8).collect();
        device.write(8192, &bytes[1..]).unwrap();
        device.flush().unwrap();
        let mut back = vec![0; bytes.len()];
        device.read(8192, &mut back[1..]).unwrap();
        assert!(back[1..] == bytes[1..]);
        let mut aligned = AlignedBuf::zeroed(3 << 20);
        device.read(8192, &mut aligned).unwrap();
        assert!(aligned[..] == bytes[1..=3 << 20]);
    }

    #[test]
    fn what_a_ring_has_not_taken_is_written() {
        let (_dir, path) = image();
        let device = FileDevice::create(&path, SIZE).unwrap();
        let missed = [Errno::INTR, Errno::AGAIN, Errno::CANCELED].map(|e| Err(e.into()));
        for (n, taken) in missed.into_iter().chain([Ok(0), Ok(4096)]).enumerate() {
            let piece = Piece::of_pages(0, vec![Page::with(&[n as u8 + 1; 4096]); 2]);
            let written = taken.as_ref().map_or(0, |n| *n);
            device.finish_write(&piece, taken).unwrap();
            let mut back = [0; 8192];
            device.read(0, &mut back).unwrap();
            assert!(back[written..].iter().all(|b| *b == n as u8 + 1), "{n}");
        }
        let piece = Piece::of_pages(0, vec![Page::with(&[9; 4096])]);
        let failed = device.finish_write(&piece, Err(Errno::IO.into()));
        assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
    }

    #[test]
    fn pages_are_written_one_behind_the_other() {
        let (_dir, path) = image();
        let device = FileDevice::create(&path, SIZE).unwrap();
        let pages = |from: u8, to: u8| (from..to).map(|n| Page::with(&[n; 4096])).collect();
        let mut unaligned = AlignedBuf::zeroed(8192);
        unaligned.fill(200);
        let pieces = [
            Piece::of_pages(4096, pages(1, 20)),
            Piece::of_pages(SIZE - 8192, pages(30, 32)),
            Piece::new(1 << 20, Arc::new(unaligned), 512..4608),
        ];
        device.write_all(&pieces[..1]).unwrap();
        device.write_all(&pieces).unwrap();
        let beyond = Piece::of_pages(SIZE - 8192, pages(0, 3));
        device.write_all(&[beyond]).unwrap_err();
        let mut all = vec![0; SIZE as usize];
        device.read(0, &mut all).unwrap();
        for (block, expected) in [(0, 0), (1, 1), (19, 19), (20, 0), (256, 200), (257, 0)] {
            assert!(all[block * 4096..][..4096].iter().all(|b| *b == expected));
        }
        assert_eq!(
            (all[SIZE as usize - 8192], all[SIZE as usize - 1]),
            (30, 31)
        );
    }

    #[test]
    fn what_was_written_is_there_after_reopening() {
        let (_dir, path) = image();
        let device = FileDevice::create(&path, SIZE).unwrap();
        device.write(4096, &[9; 4096]).unwrap();
        drop(device);
        let device = FileDevice::open(&path, Access::ReadWrite).unwrap();
        assert_eq!(device.size(), SIZE);
        assert!(!device.is_block_device());
        let mut block = [0; 4096];
        device.read(4096, &mut block).unwrap();
        assert_eq!(block, [9; 4096]);
    }

    #[test]
    fn a_second_opener_is_refused() {
        let (_dir, path) = image();
        let writer = FileDevice::create(&path, SIZE).unwrap();
        writer.write(0, &[1; 4096]).unwrap();
        for result in [
            FileDevice::open(&path, Access::ReadWrite),
            FileDevice::open(&path, Access::ReadOnly),
            FileDevice::create(&path, SIZE),
        ] {
            assert!(matches!(result, Err(Error::InUse(_))), "{result:?}");
        }
        let mut block = [0; 4096];
        writer.read(0, &mut block).unwrap();
        assert_eq!(block, [1; 4096], "the refused creation emptied it");
        drop(writer);
        let reader = FileDevice::open(&path, Access::ReadOnly).unwrap();
        let other = FileDevice::open(&path, Access::ReadOnly).unwrap();
        let result = FileDevice::open(&path, Access::ReadWrite);
        assert!(matches!(result, Err(Error::InUse(_))));
        drop((reader, other));
        FileDevice::open(&path, Access::ReadWrite).unwrap();
    }

    #[test]
    fn who_leaves_soon_is_waited_for() {
        let (_dir, path) = image();
        let writer = FileDevice::create(&path, SIZE).unwrap();
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| FileDevice::open(&path, Access::ReadWrite));
            drop(writer);
            opening.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_reader_cannot_change_anything() {
        let (_dir, path) = image();
        drop(FileDevice::create(&path, SIZE).unwrap());
        let reader = FileDevice::open(&path, Access::ReadOnly).unwrap();
        assert!(matches!(reader.write(0, &[0; 4096]), Err(Error::ReadOnly)));
        assert!(matches!(reader.discard(0, 4096), Err(Error::ReadOnly)));
        reader.flush().unwrap();
    }

    #[test]
    fn what_cannot_be_opened_says_why() {
        let (dir, path) = image();
        for (path, errno) in [
            (path.as_path(), libc::ENOENT),
            (dir.path(), libc::EISDIR),
            (Path::new("/dev/null"), libc::EIO),
        ] {
            let error = FileDevice::open(path, Access::ReadWrite).unwrap_err();
            assert!(matches!(error, Error::Open { .. }), "{error:?}");
            assert_eq!(error.errno(), errno);
            assert!(error.to_string().contains(&path.display().to_string()));
        }
    }

    #[test]
    fn ranges_are_checked() {
        let (_dir, path) = image();
        let device = FileDevice::create(&path, SIZE).unwrap();
        let mut block = [0; 4096];
        for result in [
            device.read(SIZE, &mut block),
            device.read(u64::MAX - 4095, &mut block),
            device.read(100, &mut block),
            device.write(0, &block[1..]),
            device.write(SIZE - 2048, &block),
            device.discard(SIZE, 4096),
        ] {
            let Err(Error::Io { source, .. }) = result else {
                panic!("{result:?}");
            };
            assert_eq!(source.kind(), io::ErrorKind::InvalidInput);
        }
        device.write(SIZE - 4096, &block).unwrap();
    }

    #[test]
    fn a_truncated_file_is_an_error_not_zeros() {
        let (_dir, path) = image();
        let device = FileDevice::create(&path, SIZE).unwrap();
        let other = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        other.set_len(8192 + 100).unwrap();
        let mut blocks = vec![0; 12288];
        device.read(0, &mut blocks[..8192]).unwrap();
        for offset in [0, 8192] {
            let Err(Error::Io { source, .. }) = device.read(offset, &mut blocks) else {
                panic!("read beyond the end");
            };
            assert_eq!(source.kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn images_are_sparse_and_discard_gives_space_back() {
        let (_dir, path) = image();
        let device = FileDevice::create(&path, 1 << 30).unwrap();
        let empty = device.allocated_bytes().unwrap();
        assert!(empty < 1 << 20);
        device.write(1 << 20, &vec![3; 1 << 20]).unwrap();
        device.flush().unwrap();
        assert!(device.allocated_bytes().unwrap() >= empty + (1 << 20));
        device.discard(1 << 20, 1 << 20).unwrap();
        device.flush().unwrap();
        if device.discards.load(Ordering::Relaxed) {
            assert!(device.allocated_bytes().unwrap() < empty + (1 << 20));
            let mut block = [1; 4096];
            device.read(1 << 20, &mut block).unwrap();
            assert_eq!(block, [0; 4096]);
        }
        device.discard(0, 0).unwrap();
    }

    #[test]
    fn creating_again_empties() {
        let (_dir, path) = image();
        let device = FileDevice::create(&path, SIZE).unwrap();
        device.write(0, &[5; 4096]).unwrap();
        drop(device);
        let device = FileDevice::create(&path, SIZE / 2).unwrap();
        assert_eq!(device.size(), SIZE / 2);
        let mut block = [1; 4096];
        device.read(0, &mut block).unwrap();
        assert_eq!(block, [0; 4096]);
    }
}
