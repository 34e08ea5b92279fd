//! `File`: an open file of a volume, which `cairnfs.FileIO` makes an `io.RawIOBase`.
//!
//! Positions and lengths are those of the system calls: negative ones are refused with EINVAL. A
//! closed file, and a file of a closed volume, raise `ValueError`, as everywhere in `io`.

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cairnfs::Error;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::data::{Data, byte_view, part};
use crate::error::os_error;
use crate::process::Owned;
use crate::shared::Shared;
use crate::stat::Stat;

/// Bytes that are read at once for a buffer of the caller.
const STEP: usize = 256 << 10;

/// An open file; see `cairnfs.FileIO`.
#[pyclass(frozen, module = "cairnfs._native")]
pub struct File {
    volume: Arc<Shared>,
    file: Owned<Mutex<Option<cairnfs::File>>>,
}

impl File {
    pub fn new(volume: Arc<Shared>, file: cairnfs::File) -> Self {
        Self {
            volume,
            file: Owned::new(Mutex::new(Some(file))),
        }
    }

    fn locked(&self) -> PyResult<MutexGuard<'_, Option<cairnfs::File>>> {
        let file = self.file.here()?;
        Ok(file.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The library's file, if it is open.
    fn opened(&self) -> PyResult<cairnfs::File> {
        self.volume.open()?;
        let clone = self.locked()?.as_ref().map(cairnfs::File::try_clone);
        match clone {
            Some(Ok(file)) => Ok(file),
            _ => Err(PyValueError::new_err("I/O operation on closed file")),
        }
    }

    /// Calls `what` without the GIL.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        what: impl FnOnce(cairnfs::File) -> cairnfs::Result<T> + Send,
    ) -> PyResult<T> {
        let file = self.opened()?;
        py.detach(|| what(file)).map_err(|e| os_error(py, &e, None))
    }

    /// At most `len` bytes, read into a new `bytes` by `read`.
    fn read_bytes<'py>(
        &self,
        py: Python<'py>,
        len: u64,
        read: impl Fn(&cairnfs::File, &mut [u8]) -> cairnfs::Result<usize> + Sync + Send,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.opened()?;
        read_to_bytes(py, len, |buf| read(&file, buf))
    }
}

/// A new `bytes` of `len` bytes at most, filled by `read` without the GIL.
pub fn read_to_bytes<'py>(
    py: Python<'py>,
    len: u64,
    read: impl FnOnce(&mut [u8]) -> cairnfs::Result<usize> + Send,
) -> PyResult<Bound<'py, PyBytes>> {
    let len = usize::try_from(len)
        .ok()
        .filter(|n| *n < isize::MAX as usize / 2);
    let len = len.ok_or_else(|| PyMemoryError::new_err("the file is larger than memory"))?;
    let mut got = 0;
    let bytes = PyBytes::new_with(py, len, |buf| {
        got = py
            .detach(|| read(buf))
            .map_err(|e| os_error(py, &e, None))?;
        Ok(())
    })?;
    match bytes.as_bytes().get(..got) {
        Some(part) if got < len => Ok(PyBytes::new(py, part)),
        _ => Ok(bytes),
    }
}

/// A position or a length, which must not be negative.
fn unsigned(py: Python<'_>, n: i64) -> PyResult<u64> {
    u64::try_from(n).map_err(|_| os_error(py, &Error::Invalid("a negative number"), None))
}

/// Moves to where data or a hole begins.
fn seek_to(file: &cairnfs::File, found: Option<u64>) -> cairnfs::Result<u64> {
    let found = found.ok_or(Error::NoSuchOffset)?;
    let mut file = file;
    Ok(file.seek(SeekFrom::Start(found))?)
}

#[pymethods]
impl File {
    /// Reads into a buffer; the number of bytes, 0 at the end of the file.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let file = self.opened()?;
        let view = byte_view(buffer)?;
        let whole = PyBuffer::<u8>::get(&view)?;
        if whole.readonly() {
            let message = "readinto() argument must be read-write bytes-like object";
            return Err(PyTypeError::new_err(message));
        }
        let len = whole.item_count();
        let mut bytes = vec![0; len.min(STEP)];
        let mut done = 0;
        while done < len {
            let want = bytes.get_mut(..STEP.min(len - done)).unwrap_or_default();
            let got = py
                .detach(|| (&file).read(want).map_err(Error::from))
                .map_err(|e| os_error(py, &e, None))?;
            let got_all = got == want.len();
            let read = bytes.get(..got).unwrap_or_default();
            if got == len {
                whole.copy_from_slice(py, read)?;
            } else if got > 0 {
                PyBuffer::<u8>::get(&part(&view, done, done + got)?)?.copy_from_slice(py, read)?;
            }
            done += got;
            if !got_all {
                break;
            }
        }
        Ok(done)
    }

    /// Reads at most `size` bytes; all to the end if it is negative.
    fn read<'py>(&self, py: Python<'py>, size: i64) -> PyResult<Bound<'py, PyBytes>> {
        let left = self.call(py, |file| {
            let position = (&file).stream_position()?;
            Ok(file.metadata()?.len().saturating_sub(position))
        })?;
        let len = u64::try_from(size).map_or(left, |size| left.min(size));
        self.read_bytes(py, len, |mut file, buf| Ok(file.read(buf)?))
    }

    /// Reads at most `size` bytes at an offset, like `os.pread`.
    fn pread<'py>(&self, py: Python<'py>, size: i64, offset: i64) -> PyResult<Bound<'py, PyBytes>> {
        let (size, offset) = (unsigned(py, size)?, unsigned(py, offset)?);
        let left = self.call(py, |file| Ok(file.metadata()?.len().saturating_sub(offset)))?;
        self.read_bytes(py, left.min(size), |file, buf| file.read_at(buf, offset))
    }

    /// Writes at the position, or at the end if the file is open for appending; the number of
    /// bytes, which may be smaller than the buffer.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let data = Data::beginning(data)?;
        self.call(py, |file| Ok((&file).write(&data)?))
    }

    /// Writes at an offset, like `os.pwrite`.
    fn pwrite(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        let (data, offset) = (Data::beginning(data)?, unsigned(py, offset)?);
        self.call(py, |file| file.write_at(&data, offset))
    }

    /// Moves the position, like `os.lseek`, also with `SEEK_DATA` and `SEEK_HOLE`.
    #[pyo3(signature = (offset, whence = 0))]
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let to = match whence {
            0 => SeekFrom::Start(unsigned(py, offset)?),
            1 => SeekFrom::Current(offset),
            2 => SeekFrom::End(offset),
            3 | 4 => {
                let offset = unsigned(py, offset)?;
                return self.call(py, |file| match whence {
                    3 => seek_to(&file, file.seek_data(offset)?),
                    _ => seek_to(&file, file.seek_hole(offset)?),
                });
            }
            _ => return Err(os_error(py, &Error::Invalid("whence"), None)),
        };
        self.call(py, |file| Ok((&file).seek(to)?))
    }

    /// The position.
    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.call(py, |file| Ok((&file).stream_position()?))
    }

    /// Cuts or extends the file.
    fn truncate(&self, py: Python<'_>, size: i64) -> PyResult<()> {
        let size = unsigned(py, size)?;
        self.call(py, |file| file.set_len(size))
    }

    /// Metadata of the file, like `os.fstat`.
    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        let metadata = self.call(py, |file| file.metadata())?;
        Ok(Stat::new(metadata, self.volume.dev))
    }

    /// Makes data, attributes and names durable.
    fn fsync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |file| file.sync_all())
    }

    /// Makes the data durable.
    fn fdatasync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |file| file.sync_data())
    }

    /// Allocates space for a range, like `os.posix_fallocate`.
    fn allocate(&self, py: Python<'_>, offset: i64, len: i64) -> PyResult<()> {
        let (offset, len) = (unsigned(py, offset)?, unsigned(py, len)?);
        self.call(py, |file| file.allocate(offset, len))
    }

    /// Makes a range a hole.
    fn punch_hole(&self, py: Python<'_>, offset: i64, len: i64) -> PyResult<()> {
        let (offset, len) = (unsigned(py, offset)?, unsigned(py, len)?);
        self.call(py, |file| file.punch_hole(offset, len))
    }

    /// Closes the file. Does nothing in a child process, and if it is closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.file.get().is_none() {
            return Ok(());
        }
        let file = self.locked()?.take();
        py.detach(|| drop(file));
        Ok(())
    }
}
