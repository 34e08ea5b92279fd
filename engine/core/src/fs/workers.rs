//! The worker threads: one for the log (pushes, the durability interval, the division of
//! memory), with many processors more for pushes, and one for merges.
//!
//! They work for all open roots. A worker has no handle while it waits, so a dropped volume closes.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::fs::{Engine, FileSystem};
use crate::journal::signals::{LogWork, MergeWork, Signals};
use cairnfs_disk::device::Page;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::thread::JoinHandle;

/// How often memory is divided at least.
const PERIOD: Duration = Duration::from_secs(5);

/// The threads of an open volume.
#[derive(Default)]
pub(super) struct Workers {
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = cairnfs_disk::sync::thread::Builder::new()
            .name(name.into())
            .spawn(work)
            .map_err(|e| Error::Open {
                path: format!("thread {name}"),
                source: Arc::new(e),
            })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Waits for all threads to end, except the calling one.
    ///
    /// # Errors
    /// A thread panicked.
    fn join(&self) -> Result<()> {
        let this = cairnfs_disk::sync::thread::current().id();
        let mut result = Ok(());
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.thread().id() != this && thread.join().is_err() {
                result = Err(Error::Invalid("a worker thread panicked"));
            }
        }
        result
    }
}

impl FileSystem {
    pub(super) fn start_workers(&self, interval: Option<Duration>) -> Result<()> {
        let signals = self.core().signals();
        let (volume, requests) = (Arc::downgrade(&self.engine), signals.clone());
        self.engine.workers.spawn("cairnfs-log", move || {
            work_log(&volume, &requests, interval)
        })?;
        for _ in 0..self.core().limits().pushers {
            let (volume, requests) = (Arc::downgrade(&self.engine), signals.clone());
            self.engine
                .workers
                .spawn("cairnfs-push", move || work_pushes(&volume, &requests))?;
        }
        let (volume, requests) = (Arc::downgrade(&self.engine), signals.clone());
        self.engine
            .workers
            .spawn("cairnfs-merge", move || work_merges(&volume, &requests))?;
        signals.set_workers(true);
        if self.core().has_dropped() {
            signals.want_drop();
        }
        Ok(())
    }

    /// Ends the workers and waits for them, unless a worker itself closes the volume.
    pub(super) fn stop_workers(&self) {
        let signals = self.core().signals();
        signals.set_workers(false);
        signals.stop();
        self.core().journal().ring().wake();
        if let Err(panicked) = self.engine.workers.join() {
            self.core().storage().fail(panicked);
        }
    }

    /// Does what the log's worker found to do. `syncs` says whether an interval after which everything
    /// is made durable has passed.
    pub(super) fn work(&self, work: LogWork, syncs: bool) -> Result<()> {
        let (core, signals) = (self.core(), self.core().signals());
        match work {
            LogWork::Push(seq) => {
                let pushed = match core.fsyncs().in_progress() {
                    0 => core.journal().push(seq, core),
                    // The fsyncs wait for every closed context: one is better than several.
                    _ => core.journal().write_through(seq, core),
                };
                pushed.inspect_err(|_| signals.put_off(seq))
            }
            LogWork::Interval => {
                // Before idle pages are given back: it leaves some.
                self.divide_memory();
                core.journal().rest();
                Page::rest();
                if !syncs {
                    return core.state_durable();
                }
                match self.sync() {
                    // A read needed by the writeback of some file failed. Its data stays for the
                    // next round; an fsync of that file returns the error.
                    Err(_) if core.storage().failure().is_none() => {}
                    result => result?,
                }
                core.state_durable()?;
                // Logs a displaced volume file.
                let _ = self.host_file();
                if core.has_much_to_discard() || core.has_much_removed() {
                    core.signals().want_merge();
                } else if core.merger().has_rest() {
                    core.signals().want_settle();
                }
                // The last reader of a root without a name may be gone.
                if core.has_dropped() {
                    core.signals().want_drop();
                }
                Ok(())
            }
            LogWork::Stop => Ok(()),
        }
    }
}

/// A panic in a worker stops the volume, because its state is then unknown.
fn guarded(volume: &FileSystem, name: &'static str, work: impl FnOnce() -> Result<()>) {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    match result {
        // The first held write was reported already; each round tries again.
        Ok(Ok(()) | Err(Error::HostFull { .. })) => {}
        // Space is reserved by other threads for a moment; the next round finds it.
        Ok(Err(Error::NoSpace | Error::HeldByRoots)) => {
            tracing::warn!(name, "background work was put off: no space")
        }
        Ok(Err(error)) => {
            volume.core().storage().fail(error);
            volume.core().journal().ring().wake();
        }
        Err(_) => {
            let error = Error::Invalid("a worker thread panicked");
            tracing::error!(name, "a worker panicked");
            volume.core().storage().fail(error);
            volume.core().journal().ring().wake();
        }
    }
}

fn work_log(volume: &Weak<Engine>, signals: &Signals, interval: Option<Duration>) {
    let own = own_priority();
    let mut next = Instant::now() + PERIOD;
    let mut sync = interval.map(|i| Instant::now() + i);
    loop {
        let work = signals.next_log_work(Some(sync.map_or(next, |at| at.min(next))));
        let now = Instant::now();
        let syncs = sync.is_some_and(|at| at <= now);
        if work == LogWork::Interval {
            next = now + PERIOD;
            if syncs {
                sync = interval.map(|i| now + i);
            }
        }
        let engine = volume.upgrade().filter(|_| work != LogWork::Stop);
        let Some(fs) = engine.and_then(|engine| FileSystem::any(&engine)) else {
            return;
        };
        prefer(&fs, own);
        guarded(&fs, "log", || fs.work(work, syncs));
    }
}

fn work_pushes(volume: &Weak<Engine>, signals: &Signals) {
    let own = own_priority();
    loop {
        let work = signals.next_log_work(None);
        let engine = volume.upgrade().filter(|_| work != LogWork::Stop);
        let Some(fs) = engine.and_then(|engine| FileSystem::any(&engine)) else {
            return;
        };
        prefer(&fs, own);
        guarded(&fs, "push", || fs.work(work, false));
    }
}

/// How much higher a worker's priority is while no thread syncs, in `nice` steps.
const PREFERENCE: i32 = 10;

fn own_priority() -> i32 {
    rustix::process::getpriority_process(None).unwrap_or(0)
}

/// Raises this thread's priority above that of committing threads, which is `own`.
///
/// Committers continue while a worker works, until memory or the log is full and all of them wait
/// for it. With more committers than processors the worker would get a small share of the
/// processors until then, and run alone afterwards; a merge also waits for the push before it. If a
/// thread is syncing when the work begins, the priority stays at `own`: a syncing thread sleeps and
/// wakes often, and must find a free processor. Without the privilege to change priorities
/// everything works, only more slowly.
fn prefer(volume: &FileSystem, own: i32) {
    let syncs = volume.core().fsyncs().in_progress() > 0;
    let priority = if syncs { own } else { own - PREFERENCE };
    let _ = rustix::process::setpriority_process(None, priority);
}

fn work_merges(volume: &Weak<Engine>, signals: &Signals) {
    let own = own_priority();
    loop {
        let work = signals.next_merge_work();
        let engine = volume.upgrade().filter(|_| work != MergeWork::Stop);
        let Some(fs) = engine.and_then(|e| FileSystem::any(&e)) else {
            return;
        };
        match work {
            MergeWork::Drop => {
                // No thread waits for it.
                let _ = rustix::process::setpriority_process(None, own);
                guarded(&fs, "drop", || fs.work_drop());
            }
            MergeWork::Settle => guarded(&fs, "merge", || fs.core().settle_merge()),
            MergeWork::Merge | MergeWork::Stop => {
                prefer(&fs, own);
                guarded(&fs, "merge", || fs.work_merge());
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use crate::fs::{MakeOptions, Options, make_device};
    use cairnfs_disk::device::MemoryDevice;
    use cairnfs_disk::format::ROOT_INO;
    use cairnfs_disk::types::Creds;

    #[test]
    fn dropped_volume_does_not_wait_for_workers() {
        let device = MemoryDevice::new(64 << 20);
        make_device(&device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let device = Arc::new(device);
        let open = || FileSystem::open_device(device.clone(), &Options::default()).unwrap();
        let fs = open();
        let creds = Creds { uid: 0, gid: 0 };
        let made = fs.mknod(ROOT_INO, b"file", 0o100_644, 0, creds).unwrap();
        fs.write(made.ino, 0, b"not written yet", true).unwrap();
        fs.core().exceed_dirty_limits();
        drop(fs);
        let fs = open();
        let mut read = [0; 100];
        let len = fs.read(made.ino, 0, &mut read).unwrap();
        assert_eq!(&read[..len], b"not written yet");
    }
}
