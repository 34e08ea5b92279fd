//! The engine's view of the device: write stamps, shared flushes, and a latch for the first
//! failure.
//!
//! A write gets a stamp once it has returned. A flush covers exactly the stamps assigned before it
//! was issued, so no flush acknowledges a write that did not return before it. A thread that needs
//! a flush leads one if none is running; threads that arrive meanwhile share the next flush. After
//! a failed write or flush the state of the device's cache is unknown, so every later write and
//! flush is refused.
//!
//! A full host file system is not such a failure: the write is held ([`super::held`]) and counts as
//! returned, and flushes fail until the device has accepted it. Ordering flushes do not fail in
//! this case, so that no operation of the engine is aborted halfway.

use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;

use crate::device::faults::{FaultCounts, Faults};
use crate::device::held::HeldWrites;
use crate::device::staged::{DataStamp, Piece, Stage, lay_over};
use crate::device::{Device, HostFile, HostRoom, waiting};
use crate::error::{Error, Result};
use crate::fault::{InjectedFault, is_injected};
use crate::group_commit::Watermark;
use crate::metrics::Latency;
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicU64, Ordering};

/// I/O counters since the volume was opened.
#[derive(Debug, Default)]
struct Traffic {
    writes: AtomicU64,
    write_bytes: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    flushes: AtomicU64,
    /// Duration of flushes that a leader executed.
    flush_times: Latency,
}

/// A device with write stamps, shared flushes and a latch for the first failure.
pub struct Storage {
    device: RwLock<Arc<dyn Device>>,
    /// Size of the device in bytes.
    size: u64,
    /// Stamp of the newest write that has returned.
    completed: CachePadded<AtomicU64>,
    /// All writes up to this stamp are durable.
    flushed: Watermark,
    failure: OnceLock<Arc<Error>>,
    stage: Stage,
    held: HeldWrites,
    faults: Faults,
    /// Whether staging data pays off: the device executes several writes at once faster.
    stages: bool,
    traffic: Traffic,
}

impl Storage {
    /// Storage on `device`.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self {
            size: device.size(),
            stages: device.writes_together(),
            stage: Stage::default(),
            held: HeldWrites::default(),
            faults: Faults::default(),
            device: RwLock::new(device),
            // Stamp 0 means "nothing written", so it counts as flushed from the start.
            completed: CachePadded::new(AtomicU64::new(0)),
            flushed: Watermark::default(),
            failure: OnceLock::new(),
            traffic: Traffic::default(),
        }
    }

    fn device(&self) -> Arc<dyn Device> {
        self.device.read().clone()
    }

    /// Drops the device, and with it the lock on the volume; every later call fails.
    pub fn release(&self) {
        self.held.forget();
        *self.device.write() = Arc::new(Released);
    }

    /// The stamp of the newest write that has returned.
    pub fn stamp(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    /// Whether all writes up to `stamp` are durable.
    pub fn is_flushed(&self, stamp: u64) -> bool {
        self.flushed.has_reached(stamp)
    }

    /// Waits until all writes up to `stamp` are durable.
    ///
    /// # Errors
    /// A failure of the device, also an earlier one; [`Error::HostFull`] while writes are held.
    pub fn flush_through(&self, stamp: u64) -> Result<()> {
        if !self.is_flushed(stamp) {
            waiting::announced();
        }
        self.flushed.reach(stamp, || self.lead_flush())?;
        self.check()
    }

    /// Orders all writes up to `stamp` before all later ones: once a later write reaches the
    /// device, they are durable. They are not necessarily durable when this returns.
    ///
    /// # Errors
    /// A failure of the device, also an earlier one.
    pub fn order_through(&self, stamp: u64) -> Result<()> {
        loop {
            if self.is_flushed(stamp) || self.held.barrier() {
                return self.check();
            }
            match self.flush_through(stamp) {
                // Writes are held since the check: retry with a barrier behind them.
                Err(Error::HostFull { .. }) => {}
                other => return other,
            }
        }
    }

    /// Flushes as the leader.
    fn lead_flush(&self) -> Result<()> {
        self.check()?;
        let covers = self.stamp();
        let guard = self.guard("a thread panicked in a flush");
        let device = self.device();
        let result = match self.held.drain(&*device) {
            // The device was not flushed, so its cache is in a known state.
            Err(full @ Error::HostFull { .. }) => {
                guard.done();
                return Err(full);
            }
            Ok(()) => self.traffic.flush_times.time(|| device.flush()),
            Err(e) => Err(e),
        };
        let result = result.map_err(|e| e.of_device("flush", 0, 0));
        guard.done();
        self.traffic.flushes.fetch_add(1, Ordering::Relaxed);
        match result {
            Ok(()) => {
                self.flushed.raise(covers);
                Ok(())
            }
            Err(e) => {
                self.fail(e);
                self.check()
            }
        }
    }

    /// Reads by `read`, and lays over it what is not on the device yet.
    fn read_by(
        &self,
        offset: u64,
        buf: &mut [u8],
        read: impl FnOnce(&dyn Device, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        waiting::before()?;
        self.traffic.reads.fetch_add(1, Ordering::Relaxed);
        self.traffic
            .read_bytes
            .fetch_add(buf.len() as u64, Ordering::Relaxed);
        let staged = self.stage.over(offset, buf.len());
        let held = self.held.over(offset, buf.len());
        let len = buf.len();
        let read = read(&*self.device(), buf);
        self.noted(read.map_err(|e| e.of_device("read", offset, len)))?;
        lay_over(&held, offset, buf);
        lay_over(&staged, offset, buf);
        Ok(())
    }

    /// Whether writes are held because the host file system is full.
    pub fn is_holding(&self) -> bool {
        self.held.is_active()
    }

    /// Tries to write the held writes; succeeds if there are none.
    ///
    /// # Errors
    /// [`Error::HostFull`] if there is still no space; a failure of the device.
    pub fn retry_held(&self) -> Result<()> {
        if !self.held.is_active() {
            return Ok(());
        }
        self.check()?;
        let guard = self.guard("a thread panicked while it wrote what was held");
        let result = self.held.try_drain(&*self.device());
        guard.done();
        match result {
            Err(e) if !matches!(e, Error::HostFull { .. }) => {
                self.fail(e.clone());
                Err(e)
            }
            other => other,
        }
    }

    /// Checks that the device was not truncated.
    ///
    /// # Errors
    /// The device is shorter than at open; the volume then accepts no more changes.
    pub fn check_whole(&self) -> Result<()> {
        self.check()?;
        let whole = self.device().check_length();
        whole.inspect_err(|e| self.fail(e.clone()))
    }

    /// Whether data may be staged for a log record that follows at once: the device benefits from
    /// it, and the stage is not full.
    pub fn stages(&self) -> bool {
        self.stages && self.has_room()
    }

    /// Whether the stage is not full.
    pub fn has_room(&self) -> bool {
        self.stage.has_room()
    }

    /// Whether no data is staged.
    pub fn has_none_staged(&self) -> bool {
        self.stage.is_empty()
    }

    /// Whether so much data is staged that a thread that stages more writes it first.
    pub fn has_much_staged(&self) -> bool {
        self.stage.has_much()
    }

    /// Stages data: the next thread that writes the log under its head's lock writes it, too. Call
    /// this before the change that refers to the data is committed.
    pub fn stage(&self, piece: Piece) -> DataStamp {
        self.stage.add(piece)
    }

    /// Stamp of the newest staged data that has been written.
    pub fn staged_stamp(&self) -> u64 {
        self.stage.newest()
    }

    /// Writes `pieces` together with all staged data. The caller holds the log head's lock.
    ///
    /// # Errors
    /// A failure of the device, also an earlier one.
    pub fn write_with_staged(&self, pieces: &[Piece]) -> Result<()> {
        self.check()?;
        let mut all = Piece::join(self.stage.take(), MAX_JOINED_WRITE);
        let staged = all.len();
        all.extend(pieces.iter().cloned());
        if all.is_empty() {
            return Ok(());
        }
        let stamp = self.write_pieces(&all)?;
        if staged > 0 {
            self.stage.written(stamp);
        }
        Ok(())
    }

    /// Writes pieces at the same time; returns when the device has accepted all.
    ///
    /// # Errors
    /// A failure of the device, also an earlier one.
    pub fn write_all(&self, pieces: &[Piece]) -> Result<()> {
        self.check()?;
        match pieces {
            [] => Ok(()),
            pieces => self.write_pieces(pieces).map(|_| ()),
        }
    }

    /// Writes pieces; returns their stamp.
    fn write_pieces(&self, pieces: &[Piece]) -> Result<u64> {
        waiting::announced();
        let bytes: usize = pieces.iter().map(Piece::len).sum();
        self.count_writes(pieces.len(), bytes);
        if self.held.write(|| pieces.to_vec()) {
            return self.stamped(Ok(()));
        }
        let written = self.device().write_all(pieces);
        let offset = pieces.first().map_or(0, |piece| piece.offset);
        let result = written.map_err(|e| e.of_device("write", offset, bytes));
        self.stamped(self.hold_if_full(result, || pieces.to_vec()))
    }

    /// Holds writes that failed because the host file system is full. Some of them may have been
    /// executed; they are then written twice.
    fn hold_if_full(&self, result: Result<()>, pieces: impl FnOnce() -> Vec<Piece>) -> Result<()> {
        if let Err(full @ Error::HostFull { .. }) = &result {
            self.note(full);
        }
        match result {
            Err(Error::HostFull { path, .. }) => {
                self.held.hold(&pieces(), path);
                Ok(())
            }
            other => other,
        }
    }

    fn count_writes(&self, writes: usize, bytes: usize) {
        let traffic = &self.traffic;
        traffic.writes.fetch_add(writes as u64, Ordering::Relaxed);
        let total = &traffic.write_bytes;
        total.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Assigns a stamp to writes that have returned, or latches their failure.
    fn stamped(&self, result: Result<()>) -> Result<u64> {
        match result {
            Ok(()) => Ok(self.completed.fetch_add(1, Ordering::AcqRel) + 1),
            Err(e) => {
                self.fail(e.clone());
                Err(e)
            }
        }
    }

    /// A guard for work that must not be left half done: stops the volume with the message
    /// `otherwise` unless [`Guard::done`] is called.
    pub fn guard(&self, otherwise: &'static str) -> Guard<'_> {
        Guard {
            storage: self,
            otherwise,
        }
    }

    /// Flushes the device's cache unconditionally, including writes made before the volume was
    /// opened.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn flush_now(&self) -> Result<()> {
        self.check()?;
        self.traffic.flushes.fetch_add(1, Ordering::Relaxed);
        let flushed = self.device().flush();
        self.noted(flushed.map_err(|e| e.of_device("flush", 0, 0)))
    }

    /// Counts an error that does not stop the volume, such as damage found by a reader.
    pub fn note(&self, error: &Error) {
        self.faults.note(error);
    }

    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| self.note(error))
    }

    /// Whether any error was counted so far.
    pub fn has_faults(&self) -> bool {
        self.faults.are_some()
    }

    /// Errors counted so far.
    pub fn faults(&self) -> FaultCounts {
        self.faults.get()
    }

    /// Latches the first failure; from then on nothing is written.
    pub fn fail(&self, error: Error) {
        if is_injected(InjectedFault::FailureForgotten) {
            return;
        }
        if self.failure.set(Arc::new(error)).is_ok()
            && let Some(kept) = self.failure.get()
        {
            // A failed read was already counted when it happened.
            if !matches!(**kept, Error::Io { op: "read", .. }) {
                self.note(kept);
            }
            tracing::error!("the volume has stopped: {kept}; {}", kept.next_step());
        }
    }

    /// The failure that stopped all changes.
    pub fn failure(&self) -> Option<&Arc<Error>> {
        self.failure.get()
    }

    /// Returns [`Error::Stopped`] if a failure stopped all changes.
    pub fn check(&self) -> Result<()> {
        match self.failure.get() {
            Some(e) => Err(Error::Stopped(e.clone())),
            None => Ok(()),
        }
    }

    /// Durations of flushes that a leader executed.
    pub fn flush_times(&self) -> &Latency {
        &self.traffic.flush_times
    }

    /// Counters: name and value.
    pub fn counters(&self) -> [(&'static str, u64); 6] {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        [
            ("device_writes", get(&self.traffic.writes)),
            ("device_write_bytes", get(&self.traffic.write_bytes)),
            ("device_reads", get(&self.traffic.reads)),
            ("device_read_bytes", get(&self.traffic.read_bytes)),
            ("device_flushes", get(&self.traffic.flushes)),
            ("held_bytes", self.held.bytes()),
        ]
    }
}

/// Maximum size of a write joined from staged data, in bytes: a device executes several long writes
/// in parallel faster than a single very long one.
const MAX_JOINED_WRITE: usize = 256 << 10;

/// Guards work that must not be left half done: if dropped early, by an error or a panic, it stops
/// the volume, because it is unknown how much of the work was done.
#[must_use = "a guard that is dropped at once stops the volume"]
pub struct Guard<'a> {
    storage: &'a Storage,
    otherwise: &'static str,
}

impl Guard<'_> {
    /// The work is done, or its failure has already been reported.
    pub fn done(self) {
        std::mem::forget(self);
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.storage.fail(Error::Invalid(self.otherwise));
    }
}

impl Device for Storage {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_by(offset, buf, |device, buf| device.read(offset, buf))
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_by(offset, buf, |device, buf| device.read_cached(offset, buf))
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.check()?;
        self.count_writes(1, buf.len());
        let piece = || vec![Piece::copied(offset, buf)];
        let write = || {
            let written = self.device().write(offset, buf);
            written.map_err(|e| e.of_device("write", offset, buf.len()))
        };
        let result = if self.held.write(piece) {
            Ok(())
        } else {
            self.hold_if_full(write(), piece)
        };
        self.stamped(result).map(|_| ())
    }

    fn flush(&self) -> Result<()> {
        self.flush_through(self.stamp())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check()?;
        if self.held.discard(offset, len) {
            Ok(())
        } else {
            let discarded = self.device().discard(offset, len);
            self.noted(discarded.map_err(|e| e.of_device("discard", offset, len as usize)))
        }
    }

    fn discards(&self) -> bool {
        self.device().discards()
    }

    fn host_file(&self) -> Option<HostFile> {
        self.device().host_file()
    }

    fn host_room(&self) -> Result<Option<HostRoom>> {
        self.device().host_room()
    }

    fn room(&self) -> Result<Option<u64>> {
        if self.held.is_active() {
            Ok(Some(0))
        } else {
            self.device().room()
        }
    }

    fn no_room(&self, missing: u64) -> Error {
        let device = self.device();
        if !self.held.is_active() {
            return device.no_room(missing);
        }
        // What is held is written first, and until then nothing counts as free.
        let free = device.room().ok().flatten().unwrap_or(0);
        self.held.error_beside(missing, free)
    }

    fn check_length(&self) -> Result<()> {
        self.device().check_length()
    }
}

/// Replaces the device of a closed volume; every call fails.
struct Released;

impl Released {
    fn error<T>() -> Result<T> {
        Err(Error::Invalid("the volume is closed"))
    }
}

impl Device for Released {
    fn size(&self) -> u64 {
        0
    }
    fn read(&self, _offset: u64, _buf: &mut [u8]) -> Result<()> {
        Self::error()
    }
    fn write(&self, _offset: u64, _buf: &[u8]) -> Result<()> {
        Self::error()
    }
    fn flush(&self) -> Result<()> {
        Self::error()
    }
    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Self::error()
    }
}
