//! Opening, creating and locking the file or device.
//!
//! A probe read detects whether direct I/O works. The lock (`flock`) is exclusive for writers and
//! shared for readers. An existing image is truncated only under the lock.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat, major, minor};
use rustix::io::Errno;

use super::{Access, FileDevice, Lock, attached, backing, here, name, retry, room};
use crate::device::{AlignedBuf, SECTOR, looks_empty, ring};
use crate::error::{Error, InUse, Result};
use crate::sync::atomic::AtomicBool;

/// How long to wait for a lock. The kernel keeps the lock of a killed process until its writes in
/// flight are over, which may be after the process has exited; so these writes never mix with those
/// of a later opener.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay between two attempts to take the lock.
const PAUSE: Duration = Duration::from_millis(2);

impl FileDevice {
    /// Opens a regular file or block device and locks it.
    ///
    /// # Errors
    /// [`Error::InUse`] if it is open elsewhere or in this process, or the block device is mounted; for writing,
    /// [`Error::Attached`] if a loop device on it is in use; [`Error::Open`] if it does not exist,
    /// cannot be opened or is of another file type.
    pub fn open(path: &Path, access: Access) -> Result<Self> {
        let block_device = Self::is_block_device_at(path)?;
        let mut flags = OFlags::CLOEXEC
            | match access {
                Access::ReadOnly => OFlags::RDONLY,
                Access::ReadWrite => OFlags::RDWR,
            };
        if block_device && access == Access::ReadWrite {
            // O_EXCL without O_CREAT, on block devices only: the open fails while it is mounted.
            flags |= OFlags::EXCL;
        }
        Self::open_locked(path, flags, access, block_device)
    }

    /// Whether a path names a block device (`true`) or a regular file (`false`). Nothing is opened.
    ///
    /// # Errors
    /// [`Error::Open`] if it does not exist or is of another file type.
    pub fn is_block_device_at(path: &Path) -> Result<bool> {
        let kind = rustix::fs::stat(path)
            .map(|s| FileType::from_raw_mode(s.st_mode))
            .map_err(|e| open_error(path, e.into()))?;
        check_kind(path, kind)
    }

    /// Creates a sparse image file of `size` bytes; the content of an existing file is lost. A new
    /// file is readable and writable by its owner only, because access to the image bypasses all
    /// permissions inside the volume. An existing file keeps its permissions.
    ///
    /// # Errors
    /// As [`Self::open`]; a block device is refused.
    pub fn create(path: &Path, size: u64) -> Result<Self> {
        Self::create_over(path, size, true)
    }

    /// The same, but a file whose first megabyte is not zeros is left as it is.
    ///
    /// # Errors
    /// As [`Self::create`]; [`Error::Exists`].
    pub fn create_new(path: &Path, size: u64) -> Result<Self> {
        Self::create_over(path, size, false)
    }

    fn create_over(path: &Path, size: u64, contents_too: bool) -> Result<Self> {
        if let Ok(stat) = rustix::fs::stat(path)
            && check_kind(path, FileType::from_raw_mode(stat.st_mode))?
        {
            return Err(open_error(
                path,
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "is a block device, not a file that can be created",
                ),
            ));
        }
        let flags = OFlags::CLOEXEC | OFlags::RDWR | OFlags::CREATE;
        let mut device = Self::open_locked(path, flags, Access::ReadWrite, false)?;
        if !device.is_at(path)? {
            // Its creator removed it after a failure, while this call waited for the lock.
            return Err(in_use(path));
        }
        // Decided and truncated only under the lock: another process may have this volume open, or
        // may have made one since the caller looked.
        if device.size > 0 && !contents_too && !looks_empty(&device)? {
            return Err(Error::Exists);
        }
        rustix::fs::ftruncate(&*device.file, 0)
            .and_then(|()| rustix::fs::ftruncate(&*device.file, size))
            .map_err(|e| open_error(path, e.into()))?;
        device.size = size;
        device.probe_direct_io(path)?;
        Ok(device)
    }

    /// Whether `path` leads to the file that is open.
    fn is_at(&self, path: &Path) -> Result<bool> {
        let error = |e: Errno| open_error(path, e.into());
        let open = rustix::fs::fstat(&*self.file).map_err(error)?;
        let named = rustix::fs::stat(path).map_err(error)?;
        Ok((open.st_dev, open.st_ino) == (named.st_dev, named.st_ino))
    }

    /// Opens and locks. Retries for [`LOCK_TIMEOUT`], which is enough for the lock of a killed
    /// process.
    fn open_locked(path: &Path, flags: OFlags, access: Access, block_device: bool) -> Result<Self> {
        let start = Instant::now();
        loop {
            match Self::try_open_locked(path, flags, access, block_device) {
                Err(Error::InUse(_) | Error::Attached { .. }) if start.elapsed() < LOCK_TIMEOUT => {
                    std::thread::sleep(PAUSE);
                }
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
        let (file, direct) = open_direct_or_not(path, flags, block_device)?;
        let stat = rustix::fs::fstat(&file).map_err(|e| open_error(path, e.into()))?;
        if check_kind(path, FileType::from_raw_mode(stat.st_mode))? != block_device {
            return Err(open_error(
                path,
                io::Error::other("was replaced while it was being opened"),
            ));
        }
        if access == Access::ReadWrite && is_read_only_device(&stat) {
            return Err(write_protected(path));
        }
        lock(path, &file, access)?;
        let below = lock_below(path, &stat, access)?;
        let size = room::length(&file).map_err(|e| open_error(path, e.into()))?;
        if access == Access::ReadWrite {
            refuse_attached(path, &stat, &below, size)?;
        }
        let named = name::of(&file);
        let file = Arc::new(file);
        let mut files = vec![Arc::clone(&file)];
        files.extend(below.into_iter().map(Arc::new));
        let process = rustix::process::getpid();
        let _noted = here::Noted::new(files.iter().map(|file| &**file), process);
        let mut device = Self {
            named,
            file,
            _lock: Lock {
                files,
                process,
                _noted,
            },
            path: path.to_path_buf(),
            size,
            access,
            block_device,
            direct,
            cached: None,
            rings: false,
            discards: AtomicBool::new(true),
        };
        device.probe_direct_io(path)?;
        device.rings = device.direct && access == Access::ReadWrite && ring::is_there();
        Ok(device)
    }

    /// Falls back to buffered I/O if the file accepts `O_DIRECT` but refuses direct reads.
    fn probe_direct_io(&mut self, path: &Path) -> Result<()> {
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
}

/// Whether it is a block device; an error if it is neither a block device nor a regular file.
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

/// Whether it is a block device that refuses all writes. It can be opened for writing nevertheless.
fn is_read_only_device(stat: &Stat) -> bool {
    let (major, minor) = (major(stat.st_rdev), minor(stat.st_rdev));
    FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice
        && std::fs::read(format!("/sys/dev/block/{major}:{minor}/ro"))
            .is_ok_and(|value| value.trim_ascii_end() == b"1")
}

fn write_protected(path: &Path) -> Error {
    let source = io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "is write-protected");
    open_error(path, source)
}

fn open_direct_or_not(path: &Path, flags: OFlags, block_device: bool) -> Result<(OwnedFd, bool)> {
    let mode = Mode::RUSR | Mode::WUSR;
    let opened = match retry(|| rustix::fs::open(path, flags | OFlags::DIRECT, mode)) {
        Err(Errno::INVAL) => retry(|| rustix::fs::open(path, flags, mode)).map(|f| (f, false)),
        other => other.map(|f| (f, true)),
    };
    opened.map_err(|e| match e {
        Errno::BUSY => in_use(path),
        Errno::ROFS => write_protected(path),
        // The file is immutable or append-only (chattr). A device is refused so by control groups.
        Errno::PERM if !block_device => write_protected(path),
        e => open_error(path, e.into()),
    })
}

fn lock(path: &Path, file: &OwnedFd, access: Access) -> Result<()> {
    let operation = match access {
        Access::ReadOnly => FlockOperation::NonBlockingLockShared,
        Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
    };
    retry(|| rustix::fs::flock(file, operation)).map_err(|e| match e {
        Errno::WOULDBLOCK => in_use(path),
        e => open_error(path, e.into()),
    })
}

/// Locks the file that the loop device at `path` is attached to, and what is below that.
fn lock_below(path: &Path, stat: &Stat, access: Access) -> Result<Vec<OwnedFd>> {
    let mut locked = Vec::new();
    let mut stat = *stat;
    while let Some(below) = backing::path_below(&stat)
        && locked.len() < backing::MAX_DEPTH
    {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = retry(|| rustix::fs::open(&below, flags, Mode::empty())) else {
            break;
        };
        stat = rustix::fs::fstat(&file).map_err(|e| open_error(path, e.into()))?;
        lock(path, &file, access)?;
        locked.push(file);
    }
    Ok(locked)
}

/// Refuses to write to a file while a loop device on it, or on one of the files `below`, is in use.
fn refuse_attached(path: &Path, stat: &Stat, below: &[OwnedFd], size: u64) -> Result<()> {
    let error = |e: Errno| open_error(path, e.into());
    let below = below.iter().map(rustix::fs::fstat);
    let files: Vec<Stat> = std::iter::once(Ok(*stat))
        .chain(below)
        .collect::<Result<_, _>>()
        .map_err(error)?;
    match files.iter().find_map(|f| attached::in_use(f, size, &files)) {
        Some(device) => Err(Error::Attached {
            path: path.display().to_string(),
            device: device.display().to_string(),
        }),
        None => Ok(()),
    }
}

fn in_use(path: &Path) -> Error {
    Error::InUse(InUse {
        path: path.display().to_string(),
        by_this_process: here::has_locked(path),
    })
}

fn open_error(path: &Path, source: io::Error) -> Error {
    Error::Open {
        path: path.display().to_string(),
        source: Arc::new(source),
    }
}
