//! The only way to storage.
//!
//! Floor 0: uses only [`crate::error`]. Offsets and lengths are multiples of 4 KiB. A write that
//! has returned may still be in a volatile cache; [`Device::flush`] covers the writes that had
//! returned when it was called, and no others.

mod buffer;
mod file;
mod memory;

pub use buffer::AlignedBuf;
pub use file::{Access, FileDevice};
pub use memory::MemoryDevice;

use crate::error::Result;

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
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()>;

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
}
