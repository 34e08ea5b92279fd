//! Storage below the engine: files, block devices, memory, or a custom [`Device`].
//!
//! All I/O of a volume goes through this module.
//!
//! Uses only `error`, `sync`, `metrics` and `fault`. Offsets and lengths are multiples of
//! 4 KiB. A write that has returned may still be in a volatile cache; [`Device::flush`] covers
//! exactly the writes that had returned when it was called.

mod buffer;
mod chunks;
#[cfg(shuttle)]
#[path = "tests/disk.rs"]
pub mod disk;
mod faults;
mod file;
mod held;
mod memory;
mod overlay;
mod page;
mod ring;
#[cfg(test)]
#[cfg(shuttle)]
#[path = "tests/schedules.rs"]
mod schedules;
mod staged;
mod storage;
pub mod waiting;

pub use file::{Access, FileDevice};
pub use memory::MemoryDevice;
pub use staged::Piece;

// Internal types of the engine.
#[doc(hidden)]
pub use buffer::AlignedBuf;
#[doc(hidden)]
pub use faults::{Fault, FaultCounts, FaultKind};
#[doc(hidden)]
pub use file::{HostFile, HostRoom};
#[doc(hidden)]
pub use overlay::Overlay;
#[doc(hidden)]
pub use page::{Page, Supply};
#[doc(hidden)]
pub use staged::{DataStamp, Pieces, Stamps};
#[doc(hidden)]
pub use storage::{Guard, Storage};

use std::io;
use std::sync::Arc;

use crate::error::{Error, Result};

/// Alignment of offsets and lengths, in bytes.
const SECTOR: u64 = 4096;

/// Checks that `len` bytes at `offset` are whole 4 KiB blocks within a device of `size` bytes.
///
/// # Errors
/// [`Error::Io`] of kind `InvalidInput`.
pub fn check_range(op: &'static str, offset: u64, len: u64, size: u64) -> Result<()> {
    let why = if !offset.is_multiple_of(SECTOR) || !len.is_multiple_of(SECTOR) {
        "not a multiple of 4096 bytes".to_owned()
    } else if offset.checked_add(len).is_none_or(|end| end > size) {
        format!("beyond the end of the device, which has {size} bytes")
    } else {
        return Ok(());
    };
    Err(io_error(
        op,
        offset,
        len,
        io::Error::new(io::ErrorKind::InvalidInput, why),
    ))
}

/// Bytes that decide whether a device is empty.
const FIRST: u64 = 1 << 20;

/// Whether the first megabyte is zeros, which means no volume, no other file system and no
/// partition table. A smaller device must have whole blocks of zeros only.
pub fn looks_empty(device: &dyn Device) -> Result<bool> {
    let len = device.size().min(FIRST);
    if !len.is_multiple_of(SECTOR) {
        return Ok(false);
    }
    let mut bytes = AlignedBuf::zeroed(len as usize);
    device.read(0, &mut bytes)?;
    Ok(bytes.iter().all(|b| *b == 0))
}

fn io_error(op: &'static str, offset: u64, len: u64, source: io::Error) -> Error {
    Error::Io {
        op,
        offset,
        len: usize::try_from(len).unwrap_or(usize::MAX),
        source: Arc::new(source),
    }
}

/// A block device of fixed size.
///
/// Offsets and lengths are in bytes and multiples of 4 KiB.
pub trait Device: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// Reads `buf.len()` bytes at `offset`.
    ///
    /// # Errors
    /// A range beyond the end, or an I/O error of the device.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// As [`Self::read`], but what was read before may come from a cache of the host, which keeps it
    /// until it is written: also if it was read wrongly.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read(offset, buf)
    }

    /// Writes `buf` at `offset`.
    ///
    /// # Errors
    /// A range beyond the end, or an I/O error of the device; part may have been written.
    /// [`Error::HostFull`] if the host file system has no space for it at the moment: the caller
    /// may retry the write.
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()>;

    /// Whether the device executes several writes at once faster than one after the other.
    fn writes_together(&self) -> bool {
        false
    }

    /// Executes several writes, in any order or in parallel; returns when all are done.
    ///
    /// # Errors
    /// As [`Self::write`]; any of the writes may have been executed.
    fn write_all(&self, pieces: &[Piece]) -> Result<()> {
        pieces
            .iter()
            .try_for_each(|piece| self.write(piece.offset, &piece.bytes()))
    }

    /// Makes all writes that returned before this call durable.
    ///
    /// # Errors
    /// An I/O error of the device; it is then unknown which of the writes are durable.
    fn flush(&self) -> Result<()>;

    /// Discards (TRIM) the range; its content is undefined afterwards.
    ///
    /// # Errors
    /// An I/O error of the device. A device that cannot discard does nothing and succeeds.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// Whether the device supports discard, as far as is known.
    fn discards(&self) -> bool {
        true
    }

    /// Free space of the host file system; `None` if the device is not a file.
    ///
    /// # Errors
    /// The system call failed.
    fn host_room(&self) -> Result<Option<HostRoom>> {
        Ok(None)
    }

    /// The file that holds the device, with its current name; `None` if the device is not a file.
    fn host_file(&self) -> Option<HostFile> {
        None
    }

    /// Bytes that the host file system can still allocate for the device; `None` if it has space
    /// for the whole device, or if this is unknown.
    ///
    /// # Errors
    /// The system call failed.
    fn room(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// The error for a change that needs `missing` bytes more than [`Self::room`] returned.
    fn no_room(&self, _missing: u64) -> Error {
        Error::NoSpace
    }

    /// Checks that the device has not shrunk since it was opened. Each flush checks this, too.
    ///
    /// # Errors
    /// The device is smaller, or the system call failed.
    fn check_length(&self) -> Result<()> {
        Ok(())
    }
}
