//! The only way to storage: files, block devices, memory, or a [`Device`] of your own.
//!
//! Floor 0: uses only `error`, `sync`, `metrics` and `fault`. Offsets and lengths are multiples of
//! 4 KiB. A write that has returned may still be in a volatile cache; [`Device::flush`] covers the
//! writes that had returned when it was called, and no others.

mod buffer;
mod chunks;
#[cfg(test)]
#[cfg(shuttle)]
#[path = "tests/disk.rs"]
pub(crate) mod disk;
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

pub use file::{Access, FileDevice};
pub use memory::MemoryDevice;
pub use staged::Piece;

// What the engine makes of a device.
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
pub use staged::{DataStamp, Stamps};
#[doc(hidden)]
pub use storage::{Guard, Storage};

use std::io;
use std::sync::Arc;

use crate::error::{Error, Result};

/// Offsets and lengths are multiples of this.
const SECTOR: u64 = 4096;

/// Checks that `len` bytes from `offset` are whole blocks of a device of `size` bytes.
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

/// An [`Error::Io`].
fn io_error(op: &'static str, offset: u64, len: u64, source: io::Error) -> Error {
    Error::Io {
        op,
        offset,
        len: usize::try_from(len).unwrap_or(usize::MAX),
        source: Arc::new(source),
    }
}

/// A device of fixed size.
pub trait Device: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// A range beyond the end, or the device's failure.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Writes `buf` at `offset`.
    ///
    /// # Errors
    /// A range beyond the end, or the device's failure; part may have been written.
    /// [`Error::HostFull`] if what lies below the device has no space for it now: the write may be
    /// made again.
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()>;

    /// Whether several writes at once take less time than one after the other.
    fn writes_together(&self) -> bool {
        false
    }

    /// Makes several writes, in any order or at once; returns when all are done.
    ///
    /// # Errors
    /// As [`Self::write`]; the others may have been written.
    fn write_all(&self, pieces: &[Piece]) -> Result<()> {
        pieces
            .iter()
            .try_for_each(|piece| self.write(piece.offset, &piece.bytes()))
    }

    /// Makes all writes that returned before this call durable.
    ///
    /// # Errors
    /// The device's failure; nothing is known of the writes then.
    fn flush(&self) -> Result<()>;

    /// Tells that the bytes are not needed any more; they may read as anything afterwards.
    ///
    /// # Errors
    /// The device's failure. A device that cannot discard does nothing and succeeds.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// Whether a discard does anything, as far as is known.
    fn discards(&self) -> bool {
        true
    }

    /// What the file system that holds the device's file has left; `None` if there is none.
    ///
    /// # Errors
    /// The failure to ask.
    fn host_room(&self) -> Result<Option<HostRoom>> {
        Ok(None)
    }

    /// The file that holds the device, and its name now; `None` if there is none.
    fn host_file(&self) -> Option<HostFile> {
        None
    }

    /// Bytes that what lies below the device can still take; `None` if it has space for the whole
    /// device, or does not tell.
    ///
    /// # Errors
    /// The failure to ask.
    fn room(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// The error for a change that needs `missing` bytes more than [`Self::room`] has.
    fn no_room(&self, _missing: u64) -> Error {
        Error::NoSpace
    }

    /// Checks that the device is as large as it was when it was opened; each flush does that, too.
    ///
    /// # Errors
    /// It is smaller, or the failure to ask.
    fn check_length(&self) -> Result<()> {
        Ok(())
    }
}
