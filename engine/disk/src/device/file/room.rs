//! Free space of the host file system below an image, and the check that the image has not shrunk.
//!
//! An image is sparse: its size is larger than its allocated space. Each call queries the kernel
//! for the free space of the host; frequent callers must cache the result.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FileType, SeekFrom, Stat, StatVfs};

use super::FileDevice;
use crate::device::io_error;
use crate::error::{Error, Result};

/// How much an image may still grow, and the free space of its host file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostRoom {
    /// Bytes of the image that are not allocated yet.
    pub holes: u64,
    /// Bytes that the host file system has free for unprivileged users.
    pub free: u64,
}

impl HostRoom {
    /// The values for the file at `path`, which need not be open; `None` if it is not a regular
    /// file or if the file system does not report its size.
    ///
    /// # Errors
    /// `stat` or `statvfs` failed.
    pub fn of(path: &Path) -> io::Result<Option<Self>> {
        let stat = rustix::fs::stat(path)?;
        Ok(Self::from(&stat, &rustix::fs::statvfs(path)?))
    }

    fn from(stat: &Stat, host: &StatVfs) -> Option<Self> {
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !regular || host.f_blocks == 0 {
            return None;
        }
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        Some(Self {
            holes: size.saturating_sub(allocated(stat)),
            free: host.f_bavail.saturating_mul(host.f_frsize),
        })
    }

    /// Bytes that the host file system lacks for a fully allocated image; 0 if all of it fits.
    pub fn shortfall(&self) -> u64 {
        self.holes.saturating_sub(self.free)
    }

    /// The warning shown for an image that may outgrow its host file system.
    pub fn warning(&self, image: &dyn fmt::Display) -> String {
        format!(
            "{image} may grow by {} MiB, but the file system that holds it has {} MiB left: writes \
             are refused when that is full",
            self.holes >> 20,
            self.free >> 20
        )
    }
}

/// Allocated bytes of a file.
fn allocated(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or_default() * 512
}

/// Size of a file or block device in bytes. Moves the file offset, which no code here uses.
pub(super) fn length(file: impl AsFd) -> rustix::io::Result<u64> {
    rustix::fs::seek(file, SeekFrom::End(0))
}

impl FileDevice {
    /// Allocated bytes of the file; the size of a block device.
    ///
    /// # Errors
    /// `fstat` failed.
    pub fn allocated_bytes(&self) -> Result<u64> {
        if self.block_device {
            Ok(self.size)
        } else {
            Ok(allocated(&self.stat()?))
        }
    }

    /// As [`HostRoom::of`], for the open file.
    pub(super) fn room_below(&self) -> Result<Option<HostRoom>> {
        if self.block_device {
            return Ok(None);
        }
        let host = rustix::fs::fstatvfs(&*self.file);
        let host = host.map_err(|e| io_error("statvfs", 0, 0, e.into()))?;
        Ok(HostRoom::from(&self.stat()?, &host))
    }

    pub(super) fn stat(&self) -> Result<Stat> {
        rustix::fs::fstat(&*self.file).map_err(|e| io_error("stat", 0, 0, e.into()))
    }

    /// Returns an error if the file or device has become shorter since it was opened.
    pub(super) fn still_whole(&self) -> Result<()> {
        let now = length(&*self.file).map_err(|e| io_error("stat", 0, 0, e.into()))?;
        if now >= self.size {
            return Ok(());
        }
        let why = format!(
            "{} was truncated from {} to {now} bytes while it was open: the data beyond is lost",
            self.path.display(),
            self.size
        );
        let source = io::Error::new(io::ErrorKind::UnexpectedEof, why);
        Err(io_error("flush", now, self.size - now, source))
    }

    /// The error for `missing` bytes for which the host file system has no space.
    pub(super) fn host_full(&self, missing: u64) -> Error {
        Error::HostFull {
            path: self.path.display().to_string(),
            missing,
        }
    }

    /// Classifies a failed write: the host file system is full, or the device failed.
    pub(super) fn write_error(&self, offset: u64, len: u64, source: io::Error) -> Error {
        let full = matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        );
        // A block device that shrank returns ENOSPC for writes beyond its end, too.
        if full && (!self.block_device || self.still_whole().is_ok()) {
            self.host_full(len)
        } else {
            io_error("write", offset, len, source)
        }
    }
}
