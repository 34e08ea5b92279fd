//! Joins writes of adjacent nodes into large ones, and has them made beside the work.
//!
//! Uses the device. Nothing is written before [`Writer::flush`] or before a node that does not
//! follow the one before. If a thread may help, it writes what is full while more is collected, but
//! for the first buffer: who has no more needs no thread. Its failure is told by the next call.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::device::{AlignedBuf, Device};
use crate::error::{Error, Result};
use crate::format::{BLOCK_SIZE, NODE_SIZE};
use crate::sync::thread::{self, JoinHandle};

const BUFFER: usize = 1 << 20;

/// Buffers that wait to be written, or are being written.
const BEHIND: usize = 2;

const GONE: Error = Error::Invalid("the thread that writes the index panicked");

/// Bytes for the device.
#[derive(Default)]
struct Full {
    buffer: AlignedBuf,
    /// Byte offset on the device.
    start: u64,
    len: usize,
}

impl Full {
    fn write(&self, device: &dyn Device) -> Result<()> {
        match self.buffer.get(..self.len) {
            Some(bytes) if self.len > 0 => device.write(self.start, bytes),
            _ => Ok(()),
        }
    }
}

/// A thread that writes.
struct Helper {
    full: Sender<Full>,
    written: Receiver<(Full, Result<()>)>,
    /// Buffers it has.
    has: usize,
    thread: JoinHandle<()>,
}

impl Helper {
    fn start(device: Arc<dyn Device>) -> Option<Self> {
        let (full, coming) = channel::<Full>();
        let (done, written) = channel();
        let work = move || {
            for full in coming {
                let result = full.write(&*device);
                if done.send((full, result)).is_err() {
                    return;
                }
            }
        };
        let named = thread::Builder::new().name("cairnfs-index".into());
        Some(Self {
            full,
            written,
            has: 0,
            thread: named.spawn(work).ok()?,
        })
    }

    /// Waits until it has at most `most` buffers; one of those it had.
    fn wait(&mut self, most: usize) -> Result<Option<AlignedBuf>> {
        let mut spare = None;
        while self.has > most {
            let (full, result) = self.written.recv().map_err(|_| GONE)?;
            self.has -= 1;
            result?;
            spare = Some(full.buffer);
        }
        Ok(spare)
    }

    fn give(&mut self, full: Full) -> Result<()> {
        self.full.send(full).map_err(|_| GONE)?;
        self.has += 1;
        Ok(())
    }
}

/// Collects nodes and writes them.
pub(super) struct Writer {
    device: Arc<dyn Device>,
    may_help: bool,
    /// What is collected.
    full: Full,
    helper: Option<Helper>,
    /// Whether a buffer was written.
    wrote: bool,
}

impl Writer {
    /// A writer with nothing to write; `may_help` tells whether a thread may be started.
    pub fn new(device: Arc<dyn Device>, may_help: bool) -> Self {
        Self {
            device,
            may_help,
            full: Full::default(),
            helper: None,
            wrote: false,
        }
    }

    /// Takes the 16 KiB to be written at `block`.
    ///
    /// # Errors
    /// The device's, for nodes taken earlier.
    pub fn write(&mut self, block: u64, bytes: &[u8]) -> Result<()> {
        debug_assert_eq!(bytes.len(), NODE_SIZE);
        let at = block * BLOCK_SIZE as u64;
        let follows = at == self.full.start + self.full.len as u64;
        if self.full.len > 0 && (!follows || self.full.len + bytes.len() > BUFFER) {
            self.pass_on()?;
        }
        let full = &mut self.full;
        if full.len == 0 {
            full.start = at;
        }
        full.buffer.ensure(BUFFER);
        if let Some(to) = full.buffer.get_mut(full.len..full.len + bytes.len()) {
            to.copy_from_slice(bytes);
        }
        full.len += bytes.len();
        Ok(())
    }

    /// Writes what is collected, or has it written.
    fn pass_on(&mut self) -> Result<()> {
        if self.helper.is_none() && self.may_help && self.wrote {
            self.helper = Helper::start(self.device.clone());
            // Who gets no thread writes himself.
            self.may_help = self.helper.is_some();
        }
        self.wrote = true;
        let Some(helper) = &mut self.helper else {
            return self.write_here();
        };
        let spare = helper.wait(BEHIND - 1)?.unwrap_or_default();
        let next = Full {
            buffer: spare,
            ..Full::default()
        };
        helper.give(std::mem::replace(&mut self.full, next))
    }

    /// Writes what was collected and waits for all writes; it does not flush the device.
    ///
    /// # Errors
    /// The device's.
    pub fn flush(&mut self) -> Result<()> {
        if let Some(helper) = &mut self.helper {
            helper.wait(0)?;
        }
        self.write_here()
    }

    fn write_here(&mut self) -> Result<()> {
        let result = self.full.write(&*self.device);
        self.full.len = 0;
        result
    }
}

impl Drop for Writer {
    /// What was given to the thread is written, or has failed, when this returns: nobody finds a write
    /// under way to blocks that are given back.
    fn drop(&mut self) {
        if let Some(Helper { full, thread, .. }) = self.helper.take() {
            drop(full);
            // That it panicked was told to whoever waited for it.
            let _ = thread.join();
        }
    }
}
