//! An open file: a position, an access mode, and a use of the inode.
//!
//! Uses only the engine. The inode exists while a `File` refers to it, also after its last name is
//! removed. The position's lock is held during `Read`, `Write` and `Seek`, so these calls on one
//! open file are serialized; positioned calls take no lock here.

use std::fmt;
use std::fs::Permissions;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::Arc;

use super::handle::Handle;
use super::metadata::{FileTimes, Metadata};
use super::options::Synced;
use cairnfs_core::fs::FileSystem;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::types::{Creds, Fallocate, KillPrivileges, SeekTo, SetAttr, SetTime, Time};

/// Access mode of an open file.
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

/// An open file of a [`Volume`](crate::Volume), like [`std::fs::File`].
///
/// `Send + Sync`; [`Read`], [`Write`] and [`Seek`] work on `&File` too. There is no buffer.
/// Dropping it does not make anything durable: call [`sync_all`](File::sync_all) for that. It stays
/// usable when the file's name is removed; the file's space is freed with the last `File`.
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

/// State shared by the clones of a file.
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

    /// Reads at a byte offset without moving the position; returns the number of bytes, fewer than
    /// `buf` holds only at the end of the file.
    ///
    /// # Errors
    /// [`Error::NotOpenFor`], [`Error::IsDirectory`], or an error of the engine.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let file = self.reading()?;
        file.fs().read(file.ino(), offset, buf)
    }

    /// Fills `buf` from a byte offset without moving the position.
    ///
    /// # Errors
    /// [`Error::UnexpectedEnd`] if the file ends before; otherwise as [`read_at`](Self::read_at).
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

    /// Writes at a byte offset without moving the position, also in a file opened for appending;
    /// returns the number of bytes. A gap beyond the old end reads as zeros and takes no space.
    ///
    /// # Errors
    /// [`Error::NotOpenFor`], [`Error::NoSpace`], [`Error::FileTooLarge`], or an error of the
    /// engine.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        let file = self.writing()?;
        let kill = self.open.mode.kill_privileges;
        let written = file.fs().write(file.ino(), offset, data, kill)?;
        self.written()?;
        Ok(written)
    }

    /// Makes a write durable if the file was opened with a sync option.
    fn written(&self) -> Result<()> {
        match self.open.mode.sync {
            None => Ok(()),
            Some(Synced::Data) => self.sync_data(),
            Some(Synced::All) => self.sync_all(),
        }
    }

    /// Writes all of `data` at a byte offset without moving the position.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at); a part may have been written.
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

    /// Truncates or extends the file to `size` bytes; new bytes read as zeros.
    ///
    /// # Errors
    /// [`Error::NotOpenFor`], [`Error::FileTooLarge`], or an error of the engine.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.writing()?;
        self.set(&SetAttr {
            size: Some(size),
            kill_privileges: self.open.mode.kill_privileges,
            ..SetAttr::default()
        })
    }

    /// Returns the file's metadata.
    ///
    /// # Errors
    /// An error of the engine.
    pub fn metadata(&self) -> Result<Metadata> {
        let file = &self.open.handle;
        file.fs().getattr(file.ino()).map(Metadata::new)
    }

    /// Sets the permissions, including set-id and sticky bits.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], or an error of the engine.
    pub fn set_permissions(&self, permissions: Permissions) -> Result<()> {
        self.set(&SetAttr {
            mode: Some(permissions.mode()),
            ..SetAttr::default()
        })
    }

    /// Sets access and modification times.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], or an error of the engine.
    pub fn set_times(&self, times: FileTimes) -> Result<()> {
        self.set(&times.to_set())
    }

    /// Sets the modification time.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], or an error of the engine.
    pub fn set_modified(&self, time: std::time::SystemTime) -> Result<()> {
        self.set(&SetAttr {
            mtime: Some(SetTime::At(Time::from(time))),
            ..SetAttr::default()
        })
    }

    pub(super) fn set(&self, set: &SetAttr) -> Result<()> {
        let file = &self.open.handle;
        file.fs().setattr(file.ino(), set)?;
        Ok(())
    }

    /// The use of the inode.
    pub(super) fn handle(&self) -> &Handle {
        &self.open.handle
    }

    /// The inode number, if the file belongs to this tree.
    pub(super) fn ino_in(&self, fs: &FileSystem) -> Option<u64> {
        let file = &self.open.handle;
        file.fs().is_same_root(fs).then(|| file.ino())
    }

    /// Makes data, attributes and extended attributes durable, and all names of the file with the
    /// directories on their paths; for a directory also all its entries.
    ///
    /// # Errors
    /// [`Error::Stopped`] or a device failure: the changes may be lost.
    pub fn sync_all(&self) -> Result<()> {
        let file = &self.open.handle;
        file.fs().fsync(file.ino(), false)
    }

    /// Makes the data durable and the attributes needed to read it, like `fdatasync`.
    ///
    /// # Errors
    /// As [`sync_all`](Self::sync_all).
    pub fn sync_data(&self) -> Result<()> {
        let file = &self.open.handle;
        file.fs().fsync(file.ino(), true)
    }

    /// Allocates blocks for a range, so that later writes to it need no more data blocks; the
    /// growth of the index by such writes is limited, see the contract. The file grows if the range
    /// ends beyond its end. Unwritten bytes read as zeros.
    ///
    /// # Errors
    /// [`Error::NotOpenFor`], [`Error::NoSpace`], or an error of the engine.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.fallocate(offset, len, Fallocate::Allocate { keep_size: false })
    }

    /// Makes a range read as zeros and frees its space; the size stays.
    ///
    /// # Errors
    /// [`Error::NotOpenFor`], or an error of the engine.
    pub fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        self.fallocate(offset, len, Fallocate::PunchHole)
    }

    /// Makes a range read as zeros and allocates its space; the file grows if the range ends beyond
    /// its end.
    ///
    /// # Errors
    /// [`Error::NotOpenFor`], [`Error::NoSpace`], or an error of the engine.
    pub fn zero_range(&self, offset: u64, len: u64) -> Result<()> {
        self.fallocate(offset, len, Fallocate::ZeroRange { keep_size: false })
    }

    /// Changes the space of a range, like `fallocate(2)`.
    ///
    /// # Errors
    /// [`Error::NotOpenFor`], [`Error::NoSpace`], or an error of the engine.
    pub fn fallocate(&self, offset: u64, len: u64, what: Fallocate) -> Result<()> {
        let file = self.writing()?;
        let kill = self.open.mode.kill_privileges;
        file.fs().fallocate(file.ino(), offset, len, what, kill)
    }

    /// Copies up to `len` bytes to another file of the volume, or to another range of this one, like
    /// `copy_file_range(2)`; returns how many, fewer only at the end of this file.
    ///
    /// # Errors
    /// [`Error::NotOpenFor`]; [`Error::Invalid`] for a file of another volume or branch, and for overlapping
    /// ranges of one file; otherwise as [`write_at`](Self::write_at).
    pub fn copy_range(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<u64> {
        let from = self.reading()?;
        to.writing()?;
        let other = Error::Invalid("a file of another volume or branch");
        let ino = to.ino_in(from.fs()).ok_or(other)?;
        let kill = to.open.mode.kill_privileges;
        let copied = (from.fs()).copy_range(from.ino(), offset, ino, to_offset, len, kill)?;
        to.written()?;
        Ok(copied)
    }

    /// The byte offset of the next data at or after `offset`; `None` if there is none, or if
    /// `offset` is not within the file.
    ///
    /// # Errors
    /// An error of the engine.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.seek_to(offset, SeekTo::Data)
    }

    /// The byte offset of the next hole at or after `offset`, where the end of the file counts as a
    /// hole; `None` if `offset` is not within the file.
    ///
    /// # Errors
    /// An error of the engine.
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

    /// Another `File` of the same open file, with a shared position, like
    /// [`std::fs::File::try_clone`].
    ///
    /// # Errors
    /// None.
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

    /// Does nothing, because nothing is buffered. [`File::sync_all`] makes data durable.
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

/// For code that is generic over files. The methods of [`File`] itself take precedence, and return
/// an [`Error`].
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
