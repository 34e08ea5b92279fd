//! An open file: a position, what it may do, and a use of the inode.
//!
//! Uses only the engine. The inode stays as long as a `File` refers to it, also when its last
//! name is removed. The position's lock is held during `Read`, `Write` and `Seek`, so those of
//! one open file follow one another; positioned calls take no lock here.

use std::fmt;
use std::fs::Permissions;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::Arc;

use super::handle::Handle;
use super::metadata::{FileTimes, Metadata};
use super::options::Synced;
use crate::error::{Error, Result};
use crate::fs::FileSystem;
use crate::sync::Mutex;
use crate::types::{Creds, Fallocate, KillPrivileges, SeekTo, SetAttr, SetTime, Time};

/// What an open file may be used for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mode {
    pub read: bool,
    pub write: bool,
    pub append: bool,
    pub sync: Option<Synced>,
    /// Set-id bits that the engine clears on a write.
    pub kill_privileges: KillPrivileges,
}

impl Mode {
    pub(super) fn kill_privileges_of(owner: Creds) -> KillPrivileges {
        match owner.uid {
            0 => KillPrivileges::No,
            _ => KillPrivileges::ByGroup(owner.gid),
        }
    }
}

/// An open file of a [`Volume`](crate::Volume), as [`std::fs::File`].
///
/// `Send + Sync`; [`Read`], [`Write`] and [`Seek`] work on `&File` too. Nothing is buffered here. Dropping it does not
/// make anything durable: call [`sync_all`](File::sync_all) for that. It stays usable when the
/// file's name is removed; its space is given back with the last `File`.
///
/// ```
/// use std::io::{Read, Seek, SeekFrom, Write};
/// use cairnfs::{OpenOptions, Volume};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let volume = Volume::in_memory(64 << 20)?;
/// let mut file = volume.open_with(
///     "greeting",
///     OpenOptions::new().read(true).write(true).create(true),
/// )?;
/// file.write_all(b"hello, world")?;
/// file.write_all_at(b"HELLO", 0)?;
/// file.seek(SeekFrom::Start(0))?;
/// let mut text = String::new();
/// file.read_to_string(&mut text)?;
/// assert_eq!(text, "HELLO, world");
/// file.sync_all()?;
/// # Ok(())
/// # }
/// ```
pub struct File {
    open: Arc<Open>,
}

/// What the clones of a file share.
struct Open {
    handle: Handle,
    mode: Mode,
    position: Mutex<u64>,
}

const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<File>();
};

impl File {
    pub(super) fn new(handle: Handle, mode: Mode) -> Self {
        Self {
            open: Arc::new(Open {
                handle,
                mode,
                position: Mutex::new(0),
            }),
        }
    }

    fn reading(&self) -> Result<&Handle> {
        if !self.open.mode.read {
            return Err(Error::NotOpenFor("reading"));
        }
        Ok(&self.open.handle)
    }

    fn writing(&self) -> Result<&Handle> {
        if !(self.open.mode.write || self.open.mode.append) {
            return Err(Error::NotOpenFor("writing"));
        }
        Ok(&self.open.handle)
    }

    /// Reads at a byte offset, leaving the position alone. Less than asked for only at the end.
    ///
    /// # Errors
    /// [`Error::NotOpenFor`], [`Error::IsDirectory`], or the engine's.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let file = self.reading()?;
        file.fs().read(file.ino(), offset, buf)
    }

    /// Fills `buf` from a byte offset, leaving the position alone.
    ///
    /// # Errors
    /// [`Error::UnexpectedEnd`] if the file ends before; else as [`read_at`](Self::read_at).
    pub fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> Result<()> {
        while !buf.is_empty() {
            let n = self.read_at(buf, offset)?;
            if n == 0 {
                return Err(Error::UnexpectedEnd);
            }
            buf = buf.get_mut(n..).unwrap_or_default();
            offset += n as u64;
        }
        Ok(())
    }

    /// Writes at a byte offset, leaving the position alone; also in a file opened for appending.
    /// The gap behind the old end, if any, reads as zeros and takes no space.
    ///
    /// # Errors
    /// [`Error::NotOpenFor`], [`Error::NoSpace`], [`Error::FileTooLarge`], or the engine's.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        let file = self.writing()?;
        let kill = self.open.mode.kill_privileges;
        let written = file.fs().write(file.ino(), offset, data, kill)?;
        self.written()?;
        Ok(written)
    }

    /// Makes what was written durable, if the file was opened so.
    fn written(&self) -> Result<()> {
        match self.open.mode.sync {
            None => Ok(()),
            Some(Synced::Data) => self.sync_data(),
            Some(Synced::All) => self.sync_all(),
        }
    }

    /// Writes all of `data` at a byte offset, leaving the position alone.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at); part may have been written then.
    pub fn write_all_at(&self, mut data: &[u8], mut offset: u64) -> Result<()> {
        while !data.is_empty() {
            let n = self.write_at(data, offset)?;
            if n == 0 {
                return Err(Error::NoSpace);
            }
            data = data.get(n..).unwrap_or_default();
            offset += n as u64;
        }
        Ok(())
    }

    /// Cuts the file or lets it grow to `size` bytes; what is new reads as zeros.
    ///
    /// # Errors
    /// [`Error::NotOpenFor`], [`Error::FileTooLarge`], or the engine's.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.writing()?;
        self.set(&SetAttr {
            size: Some(size),
            kill_privileges: self.open.mode.kill_privileges,
            ..SetAttr::default()
        })
    }

    /// What is known of the file.
    ///
    /// # Errors
    /// The engine's.
    pub fn metadata(&self) -> Result<Metadata> {
        let file = &self.open.handle;
        file.fs().getattr(file.ino()).map(Metadata::new)
    }

    /// Sets the permissions, with the set-id and sticky bits.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], or the engine's.
    pub fn set_permissions(&self, permissions: Permissions) -> Result<()> {
        self.set(&SetAttr {
            mode: Some(permissions.mode()),
            ..SetAttr::default()
        })
    }

    /// Sets times.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], or the engine's.
    pub fn set_times(&self, times: FileTimes) -> Result<()> {
        self.set(&times.to_set())
    }

    /// Sets the time of the last change of the contents.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], or the engine's.
    pub fn set_modified(&self, time: std::time::SystemTime) -> Result<()> {
        self.set(&SetAttr {
            mtime: Some(SetTime::At(Time::from(time))),
            ..SetAttr::default()
        })
    }

    fn set(&self, set: &SetAttr) -> Result<()> {
        let file = &self.open.handle;
        file.fs().setattr(file.ino(), set)?;
        Ok(())
    }

    /// Its inode, if it lies in this file system.
    pub(super) fn ino_in(&self, fs: &FileSystem) -> Option<u64> {
        let file = &self.open.handle;
        std::ptr::eq(file.fs(), fs).then(|| file.ino())
    }

    /// Makes data, attributes and extended attributes durable, and every name the file has with
    /// the directories that lead to it. Of a directory: also all its entries.
    ///
    /// # Errors
    /// [`Error::Stopped`] or the device's failure: the changes may be lost then.
    pub fn sync_all(&self) -> Result<()> {
        let file = &self.open.handle;
        file.fs().fsync(file.ino(), false)
    }

    /// Makes the data durable and the attributes needed to read it, as `fdatasync`.
    ///
    /// # Errors
    /// As [`sync_all`](Self::sync_all).
    pub fn sync_data(&self) -> Result<()> {
        let file = &self.open.handle;
        file.fs().fsync(file.ino(), true)
    }

    /// Gives a range blocks of its own, so that writing there needs no others; what the index grows
    /// by it is kept to a limit, which the contract tells. The file grows if the range ends behind
    /// it. Bytes never written read as zeros.
    ///
    /// # Errors
    /// [`Error::NotOpenFor`], [`Error::NoSpace`], or the engine's.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.fallocate(offset, len, Fallocate::Allocate { keep_size: false })
    }

    /// Makes a range read as zeros and gives its space back; the size stays.
    ///
    /// # Errors
    /// [`Error::NotOpenFor`], or the engine's.
    pub fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        self.fallocate(offset, len, Fallocate::PunchHole)
    }

    /// Makes a range read as zeros and gives it space; the file grows if the range ends behind
    /// it.
    ///
    /// # Errors
    /// [`Error::NotOpenFor`], [`Error::NoSpace`], or the engine's.
    pub fn zero_range(&self, offset: u64, len: u64) -> Result<()> {
        self.fallocate(offset, len, Fallocate::ZeroRange { keep_size: false })
    }

    fn fallocate(&self, offset: u64, len: u64, what: Fallocate) -> Result<()> {
        let file = self.writing()?;
        let kill = self.open.mode.kill_privileges;
        file.fs().fallocate(file.ino(), offset, len, what, kill)
    }

    /// Where the next data begins at or behind a byte offset; `None` if only a hole is left, or
    /// the offset is not within the file.
    ///
    /// # Errors
    /// The engine's.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.seek_to(offset, SeekTo::Data)
    }

    /// Where the next hole begins at or behind a byte offset, the end of the file counting as
    /// one; `None` if the offset is not within the file.
    ///
    /// # Errors
    /// The engine's.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.seek_to(offset, SeekTo::Hole)
    }

    fn seek_to(&self, offset: u64, to: SeekTo) -> Result<Option<u64>> {
        let file = &self.open.handle;
        match file.fs().seek(file.ino(), offset, to) {
            Ok(found) => Ok(Some(found)),
            Err(Error::NoSuchOffset) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Another `File` of the same open file: the position is shared, as with
    /// [`std::fs::File::try_clone`].
    ///
    /// # Errors
    /// None today.
    pub fn try_clone(&self) -> Result<File> {
        Ok(File {
            open: Arc::clone(&self.open),
        })
    }

    fn append(&self, data: &[u8], position: &mut u64) -> Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        let file = self.writing()?;
        let kill = self.open.mode.kill_privileges;
        let offset = file.fs().append(file.ino(), data, kill)?;
        *position = offset + data.len() as u64;
        self.written()?;
        Ok(data.len())
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("ino", &self.open.handle.ino())
            .field("mode", &self.open.mode)
            .finish_non_exhaustive()
    }
}

impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut position = self.open.position.lock();
        let n = self.read_at(buf, *position)?;
        *position += n as u64;
        Ok(n)
    }
}

impl Write for &File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut position = self.open.position.lock();
        if self.open.mode.append {
            return Ok(self.append(data, &mut position)?);
        }
        let n = self.write_at(data, *position)?;
        *position += n as u64;
        Ok(n)
    }

    /// Does nothing: nothing is buffered here. [`File::sync_all`] makes data durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let mut position = self.open.position.lock();
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => position.checked_add_signed(by),
            SeekFrom::End(by) => self.metadata()?.len().checked_add_signed(by),
        };
        let target = target.ok_or(Error::Invalid("a position before the start"))?;
        *position = target;
        Ok(target)
    }
}

/// For code that is generic over files. The methods of [`File`] itself take precedence, and give an
/// [`Error`].
impl FileExt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(File::read_at(self, buf, offset)?)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        Ok(File::write_at(self, data, offset)?)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
