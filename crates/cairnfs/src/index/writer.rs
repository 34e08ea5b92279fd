//! Joins writes of adjacent nodes into large ones.
//!
//! Uses the device. Nothing is written before [`Writer::flush`] or before a node that does not
//! follow the one before.

use crate::device::{AlignedBuf, Device};
use crate::error::Result;
use crate::format::{BLOCK_SIZE, NODE_SIZE};

const BUFFER: usize = 1 << 20;

/// Collects nodes and writes them.
pub(super) struct Writer<'a> {
    device: &'a dyn Device,
    buffer: Option<AlignedBuf>,
    /// Byte offset on the device of what is in the buffer.
    start: u64,
    len: usize,
}

impl<'a> Writer<'a> {
    /// A writer with nothing to write.
    pub fn new(device: &'a dyn Device) -> Self {
        Self {
            device,
            buffer: None,
            start: 0,
            len: 0,
        }
    }

    /// Takes the 16 KiB to be written at `block`.
    ///
    /// # Errors
    /// The device's, for nodes taken earlier.
    pub fn write(&mut self, block: u64, bytes: &[u8]) -> Result<()> {
        debug_assert_eq!(bytes.len(), NODE_SIZE);
        let at = block * BLOCK_SIZE as u64;
        let follows = at == self.start + self.len as u64;
        if self.len > 0 && (!follows || self.len + bytes.len() > BUFFER) {
            self.flush()?;
        }
        if self.len == 0 {
            self.start = at;
        }
        let buffer = self
            .buffer
            .get_or_insert_with(|| AlignedBuf::zeroed(BUFFER));
        if let Some(to) = buffer.get_mut(self.len..self.len + bytes.len()) {
            to.copy_from_slice(bytes);
        }
        self.len += bytes.len();
        Ok(())
    }

    /// Writes what was collected; it does not flush the device.
    ///
    /// # Errors
    /// The device's.
    pub fn flush(&mut self) -> Result<()> {
        let len = std::mem::take(&mut self.len);
        match self.buffer.as_ref().and_then(|b| b.get(..len)) {
            Some(bytes) if len > 0 => self.device.write(self.start, bytes),
            _ => Ok(()),
        }
    }
}
