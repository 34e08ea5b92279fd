//! A disk with a volatile write cache. It records writes and flushes, and injects faults on
//! request.
//!
//! Reads see everything written. This module does not decide what a power failure may leave: the
//! recorded events give the order of writes and flushes, and [`crate::states`] enumerates from
//! them. A failed write may still have reached the disk in whole or in part, so it is recorded
//! although reads do not see it. A discarded range reads as a pattern that no caller writes,
//! because a real disk may return anything.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cairnfs_disk::device::{Device, check_range};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::geometry::Geometry;
use parking_lot::{Condvar, Mutex};

use crate::image::{BLOCK, Image};

/// The value of every byte of a discarded range.
const DISCARDED: u8 = 0xdb;

/// A call that may have changed the disk.
#[derive(Debug, Clone)]
pub enum Event {
    /// Bytes were written to the cache.
    Write {
        /// Byte offset on the disk.
        offset: u64,
        /// The bytes written.
        data: Arc<[u8]>,
    },
    /// The write cache was flushed to the disk.
    Flush,
}

/// How a call fails or misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call and every later one fail: the disk is gone. The call itself, if it is a write, is
    /// recorded.
    Gone,
    /// The call and every later one fail without being recorded: the process is dead.
    Killed,
    /// This write and every later one fail for lack of space, as in a file on a full copy-on-write
    /// file system.
    Full,
    /// As `Full`, but only for writes to blocks behind the fixed areas that hold zeros, as in a
    /// sparse file. It applies from the planned write on, which itself may be one that still
    /// succeeds.
    HolesFull,
    /// This call fails; later calls succeed.
    Error,
    /// A write or flush reports success and does nothing.
    Lost,
    /// A write goes to the next block instead of its own.
    Misdirected,
    /// One bit of the data written or read is flipped.
    Rot,
}

/// The calls that a fault may affect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any call except a discard.
    Any,
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Flushes only.
    Flush,
}

/// Where a planned fault was injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    /// The kind of the call.
    pub kind: Kind,
    /// Byte offset of the call; 0 for a flush.
    pub offset: u64,
    /// Number of events recorded before the call.
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

/// State of the gate that can hold one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// No write waits.
    Open,
    /// The write after this many more will wait.
    Armed(u64),
    /// A write waits.
    Waiting,
}

/// How often a slow call lets other threads run.
const YIELDS: usize = 8;

/// The writes that threads make at the same time.
#[derive(Default)]
struct Together {
    slow: AtomicBool,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Together {
    /// Lets other threads run for the time of a slow call.
    fn pause(&self) {
        if self.slow.load(Ordering::Relaxed) {
            (0..YIELDS).for_each(|_| std::thread::yield_now());
        }
    }

    /// Runs a write.
    fn count<R>(&self, write: impl FnOnce() -> R) -> R {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        self.pause();
        let result = write();
        self.now.fetch_sub(1, Ordering::Relaxed);
        result
    }
}

/// A simulated disk.
pub struct SimDisk {
    size: u64,
    state: Mutex<State>,
    gate: Mutex<Gate>,
    gate_moved: Condvar,
    together: Together,
}

impl SimDisk {
    /// A disk with these contents, all durable. If `recording` is set, it records writes and
    /// flushes.
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
            together: Together::default(),
        }
    }

    /// Lets other threads run before each write and within each flush from now on, so that calls of
    /// several threads overlap, on one processor also.
    pub fn slow_down(&self) {
        self.together.slow.store(true, Ordering::Relaxed);
    }

    /// Lets other threads run, as within a call, if the disk is slow.
    pub fn pause(&self) {
        self.together.pause();
    }

    /// Largest number of writes that were in progress at the same time.
    pub fn most_together(&self) -> usize {
        self.together.most.load(Ordering::Relaxed)
    }

    /// Blocks the write after `skip` more until [`SimDisk::release`].
    pub fn hold_write(&self, skip: u64) {
        *self.gate.lock() = Gate::Armed(skip);
    }

    /// Waits until a write is held.
    pub fn wait_held(&self) {
        let mut gate = self.gate.lock();
        while *gate != Gate::Waiting {
            self.gate_moved.wait(&mut gate);
        }
    }

    /// Releases the write that is held.
    pub fn release(&self) {
        *self.gate.lock() = Gate::Open;
        self.gate_moved.notify_all();
    }

    fn pass_gate(&self) {
        let mut gate = self.gate.lock();
        match *gate {
            Gate::Armed(0) => *gate = Gate::Waiting,
            Gate::Armed(n) => *gate = Gate::Armed(n - 1),
            // Only one write is held at a time.
            Gate::Open | Gate::Waiting => return,
        }
        if *gate == Gate::Waiting {
            self.gate_moved.notify_all();
            while *gate == Gate::Waiting {
                self.gate_moved.wait(&mut gate);
            }
        }
    }

    /// The contents as reads see them.
    pub fn image(&self) -> Image {
        self.state.lock().cached.clone()
    }

    /// Number of events recorded so far.
    pub fn recorded(&self) -> usize {
        self.state.lock().events.len()
    }

    /// Takes the recorded events.
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.state.lock().events)
    }

    /// Number of calls so far, without discards and without calls on a disk that was cut.
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Injects `fault` into the call of this kind after `skip` more.
    pub fn plan(&self, kind: Kind, skip: u64, fault: Fault) {
        let mut state = self.state.lock();
        state.hit = None;
        state.planned = Some(Planned {
            kind,
            left: skip,
            fault,
        });
    }

    /// Where the last planned fault was injected, if it was.
    pub fn hit(&self) -> Option<Hit> {
        self.state.lock().hit
    }

    /// Makes every later call fail, as for a killed process or a removed disk.
    pub fn cut(&self) {
        self.state.lock().gone = true;
    }

    /// Undoes [`SimDisk::cut`], ends a lack of space, and drops a planned fault that was not
    /// injected.
    pub fn mend(&self) {
        let mut state = self.state.lock();
        state.gone = false;
        state.full = None;
        state.planned = None;
    }
}

impl State {
    /// Counts a call, and returns the fault to inject into it.
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

    /// Whether a write of `len` bytes at `offset` fails for lack of space.
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

    /// The parts are written one by one, and a crash may lose any of them.
    fn writes_together(&self) -> bool {
        true
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        check_range("write", offset, buf.len() as u64, self.size)?;
        self.pass_gate();
        self.together.count(|| self.write_now(offset, buf))
    }

    fn flush(&self) -> Result<()> {
        let result = self.flush_now();
        self.together.pause();
        result
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

impl SimDisk {
    fn write_now(&self, offset: u64, buf: &[u8]) -> Result<()> {
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
            // A lost write does nothing. `State::call` returns neither of the other two: they fail
            // writes through `lacks_space`.
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

    fn flush_now(&self) -> Result<()> {
        let mut state = self.state.lock();
        match state.call(Kind::Flush, 0) {
            Some(Fault::Gone | Fault::Killed | Fault::Error) => return Err(failure("flush", 0, 0)),
            Some(Fault::Lost) => {}
            _ if state.recording => state.events.push(Event::Flush),
            _ => {}
        }
        Ok(())
    }
}
