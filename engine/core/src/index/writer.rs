//! Joins writes of adjacent nodes into large writes, and optionally executes them in a separate
//! thread.
//!
//! Uses the device. A buffer is written when it is full, when a node does not follow the previous
//! one, or by [`Writer::flush`]. If a helper thread is allowed, it writes full buffers while more
//! nodes are collected. The first buffer is written by the caller, so that small merges start no
//! thread. The next call reports an error of the helper.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use cairnfs_disk::device::{AlignedBuf, Device};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::{BLOCK_SIZE, NODE_SIZE};
use cairnfs_disk::sync::thread::{self, JoinHandle};

/// Maximum size of a buffer in bytes.
const BUFFER: usize = 1 << 20;

/// Maximum number of buffers with the helper: queued or being written.
const MAX_QUEUED: usize = 2;

const HELPER_PANICKED: Error = Error::Invalid("the thread that writes the index panicked");

/// A buffer to be written.
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

/// The thread that writes buffers.
struct Helper {
    full: Sender<Full>,
    written: Receiver<(Full, Result<()>)>,
    /// Number of buffers it has.
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

    /// Waits until it has at most `most` buffers; returns one that it has written, for reuse.
    fn wait(&mut self, most: usize) -> Result<Option<AlignedBuf>> {
        let mut spare = None;
        while self.has > most {
            let (full, result) = self.written.recv().map_err(|_| HELPER_PANICKED)?;
            self.has -= 1;
            result?;
            spare = Some(full.buffer);
        }
        Ok(spare)
    }

    fn give(&mut self, full: Full) -> Result<()> {
        self.full.send(full).map_err(|_| HELPER_PANICKED)?;
        self.has += 1;
        Ok(())
    }
}

/// Collects nodes and writes them.
pub(super) struct Writer {
    device: Arc<dyn Device>,
    may_help: bool,
    /// The buffer being filled.
    full: Full,
    helper: Option<Helper>,
    /// Whether a buffer was written.
    wrote: bool,
}

impl Writer {
    /// An empty writer; `may_help` allows a helper thread.
    pub fn new(device: Arc<dyn Device>, may_help: bool) -> Self {
        Self {
            device,
            may_help,
            full: Full::default(),
            helper: None,
            wrote: false,
        }
    }

    /// Adds a node of 16 KiB to be written at `block`.
    ///
    /// # Errors
    /// A device error, possibly of a node added earlier.
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
        let end = full.len + bytes.len();
        full.buffer.ensure(end);
        if let Some(to) = full.buffer.get_mut(full.len..end) {
            to.copy_from_slice(bytes);
        }
        full.len = end;
        Ok(())
    }

    /// Writes the buffer, or passes it to the helper.
    fn pass_on(&mut self) -> Result<()> {
        if self.helper.is_none() && self.may_help && self.wrote {
            self.helper = Helper::start(self.device.clone());
            // If no thread can be started, the caller writes all buffers.
            self.may_help = self.helper.is_some();
        }
        self.wrote = true;
        let Some(helper) = &mut self.helper else {
            return self.write_here();
        };
        let spare = helper.wait(MAX_QUEUED - 1)?.unwrap_or_default();
        let next = Full {
            buffer: spare,
            ..Full::default()
        };
        helper.give(std::mem::replace(&mut self.full, next))
    }

    /// Writes the buffer and waits for all writes; does not flush the device.
    ///
    /// # Errors
    /// A device error.
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
    /// Waits for the helper: all writes passed to it have returned afterwards. So no write is in
    /// flight to blocks that the caller frees after an error.
    fn drop(&mut self) {
        if let Some(Helper { full, thread, .. }) = self.helper.take() {
            drop(full);
            // A panic of the helper was already reported by the call that waited for it.
            let _ = thread.join();
        }
    }
}
