//! The device as the engine uses it: writes are counted, flushes shared, the first failure kept.
//!
//! A write gets a stamp once it has returned; a flush covers exactly the stamps given out before it
//! was issued, so nobody is acknowledged by a flush that his write did not precede. Who needs a
//! flush leads it if none is running; those who come meanwhile share the next one. After a failed
//! write or flush nothing is known of the cache below, so every later write and flush is refused.
//!
//! A full file system below the device is no such failure: the write is held ([`super::held`]) and
//! counts as returned, and flushes fail until the device has taken it. Flushes that only keep an
//! order do not fail for that, so no work of the engine is broken off half done.

use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;

use crate::device::faults::{FaultCounts, Faults};
use crate::device::held::HeldWrites;
use crate::device::staged::{DataStamp, Piece, Stage, lay_over};
use crate::device::{Device, HostFile, HostRoom};
use crate::error::{Error, Result};
use crate::fault::{InjectedFault, is_injected};
use crate::metrics::Latency;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, RwLock};

/// What went to the device since the volume was opened.
#[derive(Debug, Default)]
struct Traffic {
    writes: AtomicU64,
    write_bytes: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    flushes: AtomicU64,
    /// Flushes that callers waited for; others shared them.
    flush_times: Latency,
}

#[derive(Default)]
struct FlushState {
    running: bool,
    flushed: u64,
}

/// A device with write stamps, shared flushes and a latch for the first failure.
pub struct Storage {
    device: RwLock<Arc<dyn Device>>,
    size: u64,
    completed: CachePadded<AtomicU64>,
    flushed: CachePadded<AtomicU64>,
    state: CachePadded<Mutex<FlushState>>,
    done: Condvar,
    failure: OnceLock<Arc<Error>>,
    stage: Stage,
    held: HeldWrites,
    faults: Faults,
    /// Whether data may wait for the record that tells of it.
    stages: bool,
    traffic: Traffic,
}

impl Storage {
    /// Takes over a device.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self {
            size: device.size(),
            stages: device.writes_together(),
            stage: Stage::default(),
            held: HeldWrites::default(),
            faults: Faults::default(),
            device: RwLock::new(device),
            // Stamp 0 means "nothing written": a fresh storage has it flushed.
            completed: CachePadded::new(AtomicU64::new(0)),
            flushed: CachePadded::new(AtomicU64::new(0)),
            state: CachePadded::new(Mutex::new(FlushState::default())),
            done: Condvar::new(),
            failure: OnceLock::new(),
            traffic: Traffic::default(),
        }
    }

    fn device(&self) -> Arc<dyn Device> {
        self.device.read().clone()
    }

    /// Lets the device go, and with it the lock on the volume; every later call fails.
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
        self.flushed.load(Ordering::Acquire) >= stamp
    }

    /// Returns once all writes up to `stamp` are durable.
    ///
    /// # Errors
    /// The device's failure, now or earlier; [`Error::HostFull`] while writes are held.
    pub fn flush_through(&self, stamp: u64) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            self.check()?;
            if state.flushed >= stamp {
                return Ok(());
            }
            if state.running {
                self.done.wait(&mut state);
                continue;
            }
            state.running = true;
            let covers = self.stamp();
            drop(state);
            self.lead_flush(covers)?;
            state = self.state.lock();
        }
    }

    /// Keeps all writes up to `stamp` before all that are made after this call: when one of those is
    /// on the device, they are durable. They may not be yet when this returns.
    ///
    /// # Errors
    /// The device's failure, now or earlier.
    pub fn order_through(&self, stamp: u64) -> Result<()> {
        loop {
            if self.is_flushed(stamp) || self.held.barrier() {
                return self.check();
            }
            match self.flush_through(stamp) {
                // Something is held since: a barrier behind it does.
                Err(Error::HostFull { .. }) => {}
                other => return other,
            }
        }
    }

    /// Flushes, and lets those go on who wait for it, however it ends.
    fn lead_flush(&self, covers: u64) -> Result<()> {
        let _lead = Lead(self);
        let guard = self.guard("a thread panicked in a flush");
        let device = self.device();
        let result = match self.held.drain(&*device) {
            // Nothing was asked of the device's cache.
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
                let mut state = self.state.lock();
                state.flushed = state.flushed.max(covers);
                self.flushed.fetch_max(covers, Ordering::Release);
                Ok(())
            }
            Err(e) => {
                self.fail(e);
                self.check()
            }
        }
    }

    /// Whether writes are held for want of space below the device.
    pub fn is_holding(&self) -> bool {
        self.held.is_active()
    }

    /// Tries to give the device what is held; succeeds if nothing is.
    ///
    /// # Errors
    /// [`Error::HostFull`] if there is no space for it yet; the device's failure.
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

    /// Checks that the device was not cut off.
    ///
    /// # Errors
    /// It was; from then on the volume accepts no changes.
    pub fn check_whole(&self) -> Result<()> {
        self.check()?;
        let whole = self.device().check_length();
        whole.inspect_err(|e| self.fail(e.clone()))
    }

    /// Whether data may be staged: the device gains by it, and not too much waits already.
    pub fn stages(&self) -> bool {
        self.stages && self.stage.has_room()
    }

    /// Has data written by whoever writes the log next. Before a change that refers to it is committed.
    pub fn stage(&self, piece: Piece) -> DataStamp {
        self.stage.add(piece)
    }

    /// Stamp of the newest data that was staged and has been written.
    pub fn staged_stamp(&self) -> u64 {
        self.stage.newest()
    }

    /// Writes `pieces` together with all staged data. Only who holds the log head's lock.
    ///
    /// # Errors
    /// The device's failure, now or earlier.
    pub fn write_with_staged(&self, pieces: &[Piece]) -> Result<()> {
        self.check()?;
        let mut all = Piece::join(self.stage.take(), AT_ONCE);
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

    /// Writes one piece.
    ///
    /// # Errors
    /// The device's failure, now or earlier.
    pub fn write_piece(&self, piece: &Piece) -> Result<()> {
        self.check()?;
        self.write_pieces(std::slice::from_ref(piece)).map(|_| ())
    }

    /// Writes pieces; returns the stamp of that.
    fn write_pieces(&self, pieces: &[Piece]) -> Result<u64> {
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

    /// Holds writes that failed for want of space below the device. Some may have been made: they are
    /// made again then.
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

    /// The stamp of writes that have returned.
    fn stamped(&self, result: Result<()>) -> Result<u64> {
        match result {
            Ok(()) => Ok(self.completed.fetch_add(1, Ordering::AcqRel) + 1),
            Err(e) => {
                self.fail(e.clone());
                Err(e)
            }
        }
    }

    /// Stops the volume unless the guard is told that what began here was done.
    pub fn guard(&self, otherwise: &'static str) -> Guard<'_> {
        Guard {
            storage: self,
            otherwise,
        }
    }

    /// Flushes whatever the device's cache holds, also what others wrote before us.
    ///
    /// # Errors
    /// The device's failure.
    pub fn flush_now(&self) -> Result<()> {
        self.check()?;
        self.traffic.flushes.fetch_add(1, Ordering::Relaxed);
        let flushed = self.device().flush();
        self.noted(flushed.map_err(|e| e.of_device("flush", 0, 0)))
    }

    /// Counts an error that stops nothing, such as damage that a reader met.
    pub fn note(&self, error: &Error) {
        self.faults.note(error);
    }

    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| self.note(error))
    }

    /// Errors met so far.
    pub fn faults(&self) -> FaultCounts {
        self.faults.get()
    }

    /// Keeps the first failure; from then on nothing is written.
    pub fn fail(&self, error: Error) {
        if is_injected(InjectedFault::FailureForgotten) {
            return;
        }
        if self.failure.set(Arc::new(error)).is_ok()
            && let Some(kept) = self.failure.get()
        {
            // A read that failed was counted when it did.
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

    /// An error if a failure stopped all changes.
    pub fn check(&self) -> Result<()> {
        match self.failure.get() {
            Some(e) => Err(Error::Stopped(e.clone())),
            None => Ok(()),
        }
    }

    /// Flushes that callers waited for, with their times.
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

/// Most bytes of staged data that are one write: a device takes several long ones beside each other
/// sooner than one.
const AT_ONCE: usize = 256 << 10;

/// The flush that this thread leads.
struct Lead<'a>(&'a Storage);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.0.state.lock().running = false;
        self.0.done.notify_all();
    }
}

/// Half-done work: dropped before it is done, by an error or a panic, it stops the volume, for what
/// was done of it is not known.
#[must_use = "a guard that is dropped at once stops the volume"]
pub struct Guard<'a> {
    storage: &'a Storage,
    otherwise: &'static str,
}

impl Guard<'_> {
    /// The work is done, or has told its failure itself.
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
        self.traffic.reads.fetch_add(1, Ordering::Relaxed);
        self.traffic
            .read_bytes
            .fetch_add(buf.len() as u64, Ordering::Relaxed);
        let staged = self.stage.over(offset, buf.len());
        let held = self.held.over(offset, buf.len());
        let len = buf.len();
        let read = self.device().read(offset, buf);
        self.noted(read.map_err(|e| e.of_device("read", offset, len)))?;
        lay_over(&held, offset, buf);
        lay_over(&staged, offset, buf);
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.check()?;
        self.count_writes(1, buf.len());
        let piece = || vec![Piece::copied(offset, buf)];
        let write = || {
            let written = self.device().write(offset, buf);
            written.map_err(|e| e.of_device("write", offset, buf.len()))
        };
        let result = match self.held.write(piece) {
            true => Ok(()),
            false => self.hold_if_full(write(), piece),
        };
        self.stamped(result).map(|_| ())
    }

    fn flush(&self) -> Result<()> {
        self.flush_through(self.stamp())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check()?;
        match self.held.discard(offset, len) {
            true => Ok(()),
            false => {
                let discarded = self.device().discard(offset, len);
                self.noted(discarded.map_err(|e| e.of_device("discard", offset, len as usize)))
            }
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
        match self.held.is_active() {
            true => Ok(Some(0)),
            false => self.device().room(),
        }
    }

    fn no_room(&self, missing: u64) -> Error {
        match self.held.is_active() {
            true => self.held.error(),
            false => self.device().no_room(missing),
        }
    }

    fn check_length(&self) -> Result<()> {
        self.device().check_length()
    }
}

/// What stands for the device of a closed volume.
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
