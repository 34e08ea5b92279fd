//! A disk with a volatile write cache, which records what it was asked and fails on demand.
//!
//! Reads see everything written. What a power cut may leave is not decided here: the recorded
//! events say what was written between which flushes, and [`crate::states`] enumerates from them.
//! A write that fails may still have reached the disk, in whole or in part: it is recorded, though
//! reads do not see it. A discarded range reads as a pattern that nobody wrote, for a disk may give
//! anything.

use std::io;
use std::sync::Arc;

use cairnfs::device::{Device, check_range};
use cairnfs::error::{Error, Result};
use cairnfs::format::geometry::Geometry;
use parking_lot::{Condvar, Mutex};

use crate::image::{BLOCK, Image};

/// What a discarded byte reads as.
const DISCARDED: u8 = 0xdb;

/// A call that may have changed the disk.
#[derive(Debug, Clone)]
pub enum Event {
    /// Bytes were written to the cache.
    Write {
        /// Byte offset.
        offset: u64,
        /// The bytes.
        data: Arc<[u8]>,
    },
    /// The cache was emptied onto the disk.
    Flush,
}

/// How a call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails, and so does every later call: the disk is gone.
    Gone,
    /// It is never made, nor is any later one: the process is dead.
    Killed,
    /// A write fails for want of space, and so does every later one, as in a file on a full file
    /// system that copies on write.
    Full,
    /// The same of writes to blocks that hold zeros behind the fixed areas, as in a sparse file. It
    /// begins with the write that is hit, which may not be such a one.
    HolesFull,
    /// It fails; later ones do not.
    Error,
    /// A write or flush reports success and does nothing.
    Lost,
    /// A write goes to the block behind the one it was meant for.
    Misdirected,
    /// One bit of what is written, or read, is another.
    Rot,
}

/// Which calls a fault may hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any call but a discard.
    Any,
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Flushes only.
    Flush,
}

/// Where a planned fault struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    /// What was asked.
    pub kind: Kind,
    /// Byte offset; 0 for a flush.
    pub offset: u64,
    /// Events recorded before.
    pub event: usize,
}

#[derive(Debug, Clone, Copy)]
struct Planned {
    kind: Kind,
    left: u64,
    fault: Fault,
}

struct State {
    cached: Image,
    recording: bool,
    events: Vec<Event>,
    calls: u64,
    planned: Option<Planned>,
    hit: Option<Hit>,
    gone: bool,
    full: Option<Fault>,
}

/// What a slow write waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// Nothing waits.
    Open,
    /// The write behind so many more will wait.
    Armed(u64),
    /// A write waits.
    Waiting,
}

/// A simulated disk.
pub struct SimDisk {
    size: u64,
    state: Mutex<State>,
    gate: Mutex<Gate>,
    gate_moved: Condvar,
}

impl SimDisk {
    /// A disk with these bytes, all durable. With `recording` it keeps what it is asked.
    pub fn new(image: Image, recording: bool) -> Self {
        Self {
            size: image.size(),
            state: Mutex::new(State {
                cached: image,
                recording,
                events: Vec::new(),
                calls: 0,
                planned: None,
                hit: None,
                gone: false,
                full: None,
            }),
            gate: Mutex::new(Gate::Open),
            gate_moved: Condvar::new(),
        }
    }

    /// Has the write behind `skip` more take until [`SimDisk::release`].
    pub fn hold_write(&self, skip: u64) {
        *self.gate.lock() = Gate::Armed(skip);
    }

    /// Returns when a write is being held.
    pub fn wait_held(&self) {
        let mut gate = self.gate.lock();
        while *gate != Gate::Waiting {
            self.gate_moved.wait(&mut gate);
        }
    }

    /// Lets the write that is held go on.
    pub fn release(&self) {
        *self.gate.lock() = Gate::Open;
        self.gate_moved.notify_all();
    }

    fn pass_gate(&self) {
        let mut gate = self.gate.lock();
        match *gate {
            Gate::Armed(0) => *gate = Gate::Waiting,
            Gate::Armed(n) => *gate = Gate::Armed(n - 1),
            // Only one write is slow.
            Gate::Open | Gate::Waiting => return,
        }
        if *gate == Gate::Waiting {
            self.gate_moved.notify_all();
            while *gate == Gate::Waiting {
                self.gate_moved.wait(&mut gate);
            }
        }
    }

    /// What the disk would read as now.
    pub fn image(&self) -> Image {
        self.state.lock().cached.clone()
    }

    /// Events recorded so far.
    pub fn recorded(&self) -> usize {
        self.state.lock().events.len()
    }

    /// Takes the recorded events.
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.state.lock().events)
    }

    /// Calls so far, discards not counted.
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Has the call behind `skip` more of this kind go wrong.
    pub fn plan(&self, kind: Kind, skip: u64, fault: Fault) {
        let mut state = self.state.lock();
        state.hit = None;
        state.planned = Some(Planned {
            kind,
            left: skip,
            fault,
        });
    }

    /// Where the fault that was planned last struck, if it did.
    pub fn hit(&self) -> Option<Hit> {
        self.state.lock().hit
    }

    /// Fails every call from now on, as for a process that was killed, or a disk pulled out.
    pub fn cut(&self) {
        self.state.lock().gone = true;
    }

    /// Undoes [`SimDisk::cut`], and drops a fault that was planned and not met.
    pub fn mend(&self) {
        let mut state = self.state.lock();
        state.gone = false;
        state.full = None;
        state.planned = None;
    }
}

impl State {
    /// Counts a call, and tells what goes wrong with it.
    fn call(&mut self, kind: Kind, offset: u64) -> Option<Fault> {
        if self.gone {
            return Some(Fault::Gone);
        }
        self.calls += 1;
        let planned = self.planned.as_mut()?;
        if planned.kind != Kind::Any && planned.kind != kind {
            return None;
        }
        if planned.left > 0 {
            planned.left -= 1;
            return None;
        }
        let fault = planned.fault;
        self.planned = None;
        self.hit = Some(Hit {
            kind,
            offset,
            event: self.events.len(),
        });
        if matches!(fault, Fault::Full | Fault::HolesFull) {
            self.full = Some(fault);
            return None;
        }
        self.gone |= matches!(fault, Fault::Gone | Fault::Killed);
        Some(fault)
    }

    /// Whether there is no space for a write.
    fn lacks_space(&self, offset: u64, len: usize) -> bool {
        let fixed = Geometry::for_size(self.cached.size(), None).map_or(0, |g| g.data_start());
        match self.full {
            Some(Fault::HolesFull) => {
                offset >= fixed * BLOCK as u64
                    && (offset..offset + len as u64)
                        .step_by(BLOCK)
                        .any(|block| self.cached.is_zero(block, BLOCK))
            }
            full => full.is_some(),
        }
    }

    fn put(&mut self, offset: u64, data: &[u8]) {
        self.cached.write(offset, data);
        self.record(offset, data);
    }

    fn record(&mut self, offset: u64, data: &[u8]) {
        if self.recording {
            self.events.push(Event::Write {
                offset,
                data: data.into(),
            });
        }
    }
}

fn failure(op: &'static str, offset: u64, len: usize) -> Error {
    Error::Io {
        op,
        offset,
        len,
        source: Arc::new(io::Error::other("simulated")),
    }
}

fn no_space(len: usize) -> Error {
    Error::HostFull {
        path: "simulated".into(),
        missing: len as u64,
    }
}

/// Flips a bit in the middle.
fn rot(bytes: &mut [u8]) {
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= 0x10;
    }
}

impl Device for SimDisk {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range("read", offset, buf.len() as u64, self.size)?;
        let mut state = self.state.lock();
        let fault = state.call(Kind::Read, offset);
        match fault {
            Some(Fault::Gone | Fault::Killed | Fault::Error) => {
                return Err(failure("read", offset, buf.len()));
            }
            _ => state.cached.read(offset, buf),
        }
        if fault == Some(Fault::Rot) {
            rot(buf);
        }
        Ok(())
    }

    /// They are made one after the other, and any of them may be lost.
    fn writes_together(&self) -> bool {
        true
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        check_range("write", offset, buf.len() as u64, self.size)?;
        self.pass_gate();
        let mut state = self.state.lock();
        let gone = state.gone;
        match state.call(Kind::Write, offset) {
            None if state.lacks_space(offset, buf.len()) => {
                state.record(offset, buf);
                return Err(no_space(buf.len()));
            }
            None => state.put(offset, buf),
            Some(Fault::Gone | Fault::Error) => {
                if !gone {
                    state.record(offset, buf);
                }
                return Err(failure("write", offset, buf.len()));
            }
            Some(Fault::Killed) => return Err(failure("write", offset, buf.len())),
            // These begin, and fail the writes they mean, without a call of their own.
            Some(Fault::Lost | Fault::Full | Fault::HolesFull) => {}
            Some(Fault::Misdirected) => {
                let behind = offset + BLOCK as u64;
                let room = self.size.saturating_sub(behind) as usize;
                state.put(behind, buf.get(..buf.len().min(room)).unwrap_or_default());
            }
            Some(Fault::Rot) => {
                let mut rotten = buf.to_vec();
                rot(&mut rotten);
                state.put(offset, &rotten);
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.state.lock();
        match state.call(Kind::Flush, 0) {
            Some(Fault::Gone | Fault::Killed | Fault::Error) => return Err(failure("flush", 0, 0)),
            Some(Fault::Lost) => {}
            _ if state.recording => state.events.push(Event::Flush),
            _ => {}
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range("discard", offset, len, self.size)?;
        let mut state = self.state.lock();
        if state.gone {
            return Err(failure("discard", offset, len as usize));
        }
        state.put(offset, &vec![DISCARDED; len as usize]);
        Ok(())
    }
}
