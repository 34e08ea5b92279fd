//! The transport over io_uring: requests and replies in memory shared with the kernel (FUSE over
//! io_uring, Linux 6.14).
//!
//! There is a thread with an io_uring instance for each processor. It serves the kernel's queue of
//! that processor, so a request is served where it was made, and one system call both delivers a
//! reply and waits for the next request. INIT, FORGET, INTERRUPT and notifications stay on
//! `/dev/fuse`, and so does everything until all queues are registered.
//!
//! The order matters. The kernel lets all requests wait once the feature is granted, until every
//! queue is registered or a registration was refused. So everything that may fail for want of
//! permission or memory is done before INIT is answered ([`Prepared`]), and only the registration
//! after it ([`Prepared::start`]).
//!
//! `abi` has the kernel's numbers, `region` the memory of entries, `instance` the seam to io_uring,
//! `queue` the loop, `sink` and `outbox` the way of replies to it, `late` the requests that other
//! threads serve, `sleep_timer` when the loop
//! of a busy ring sleeps for a moment, `processors` the assignment of queues to threads.

mod abi;
#[cfg(test)]
mod fake;
mod instance;
mod late;
mod outbox;
mod processors;
mod queue;
mod region;
mod sink;
mod sleep_timer;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use crate::by_rings::ByRings;
use crate::quiet::Quiet;
use crate::server::Server;

use instance::Uring;
use late::Late;
use outbox::Outbox;
use processors::Share;
use queue::{Common, Ring};
use region::Region;

/// Entries of each queue: the requests of one processor that are in service at once, those included
/// that wait for the device in other threads; further ones wait in the kernel. Each entry needs
/// address space for the largest request, and memory for the largest that it ever had. The kernel
/// uses the entry that was used last, so few entries grow unless many requests wait.
pub const DEPTH: usize = 128;

/// What a thread needs to begin.
struct Start<S> {
    device: OwnedFd,
    server: Arc<S>,
    counts: Arc<ByRings>,
    common: Common,
}

/// What a thread reports before it serves.
enum Report {
    /// The instance and the memory are there.
    Prepared,
    /// All entries are registered, or some were refused.
    Registered(Option<io::Error>),
}

/// A thread that waits for its start.
struct Waiting<S> {
    thread: JoinHandle<io::Result<()>>,
    start: Sender<Start<S>>,
    reports: Receiver<Report>,
}

/// Rings that are ready to be registered.
pub(crate) struct Prepared<S> {
    threads: Vec<Waiting<S>>,
}

/// Rings in service.
pub(crate) struct Running {
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl<S: Server> Prepared<S> {
    /// Creates the rings and their threads, for requests and replies of up to `payload` bytes.
    ///
    /// # Errors
    /// The system forbids io_uring (`PermissionDenied`, `Unsupported`), or lacks memory, descriptors
    /// or threads.
    pub(crate) fn new(payload: usize) -> io::Result<Self> {
        let shares = processors::shares()?;
        let threads = shares
            .into_iter()
            .map(|share| Waiting::spawn(share, payload));
        let threads = threads.collect::<io::Result<Vec<_>>>()?;
        let mut prepared = Self { threads };
        match prepared.failure() {
            None => Ok(prepared),
            Some(error) => Err(error),
        }
    }

    /// Waits until all threads are prepared; returns why one is not.
    fn failure(&mut self) -> Option<io::Error> {
        let unprepared = |waiting: &Waiting<S>| waiting.reports.recv().is_err();
        let at = self.threads.iter().position(unprepared)?;
        Some(ended(self.threads.swap_remove(at).thread))
    }

    /// Registers the rings with the connection of `device`, and serves. To be called at once when
    /// INIT is answered. Also returns the kernel's refusal, if there is one: all requests then
    /// arrive over `/dev/fuse`.
    ///
    /// # Errors
    /// A ring broke, so the kernel may wait for it for ever: the connection must be given up.
    pub(crate) fn start(
        self,
        device: &impl AsFd,
        server: &Arc<S>,
        (counts, quiet): (&Arc<ByRings>, &Arc<Quiet>),
    ) -> io::Result<(Running, Option<io::Error>)> {
        let late = Arc::<Late>::default();
        for waiting in &self.threads {
            let common = Common {
                late: Arc::clone(&late),
                quiet: Arc::clone(quiet),
            };
            let start = Start {
                common,
                device: device.as_fd().try_clone_to_owned()?,
                server: Arc::clone(server),
                counts: Arc::clone(counts),
            };
            // Without a receiver the thread has ended, and says so below.
            let _ = waiting.start.send(start);
        }
        let mut refusal = None;
        let mut threads = Vec::new();
        for waiting in self.threads {
            match waiting.reports.recv() {
                Ok(Report::Registered(refused)) => refusal = refusal.or(refused),
                _ => return Err(ended(waiting.thread)),
            }
            threads.push(waiting.thread);
        }
        Ok((Running { threads }, refusal))
    }
}

impl Running {
    /// Waits until the kernel has given all entries back, because the connection has ended.
    ///
    /// # Errors
    /// A ring broke.
    pub(crate) fn join(self) -> io::Result<()> {
        let mut outcome = Ok(());
        for thread in self.threads {
            let panicked = || io::Error::other("the thread of a ring panicked");
            let ended = thread.join().unwrap_or_else(|_| Err(panicked()));
            outcome = outcome.and(ended);
        }
        outcome
    }
}

/// Why a thread ended before it served.
fn ended(thread: JoinHandle<io::Result<()>>) -> io::Error {
    match thread.join() {
        Ok(Err(error)) => error,
        _ => io::Error::other("the thread of a ring ended"),
    }
}

impl<S: Server> Waiting<S> {
    fn spawn(share: Share, payload: usize) -> io::Result<Self> {
        let (start, starting) = channel();
        let (reporting, reports) = channel();
        let thread = thread::Builder::new()
            .name(format!("cairnfs-ring-{}", share.processor))
            .spawn(move || serve_share(&share, payload, &starting, &reporting))?;
        Ok(Self {
            thread,
            start,
            reports,
        })
    }
}

/// The life of a ring's thread.
fn serve_share<S: Server>(
    share: &Share,
    payload: usize,
    starting: &Receiver<Start<S>>,
    reporting: &Sender<Report>,
) -> io::Result<()> {
    processors::bind(share.processor);
    let entries = share.queues.len() * DEPTH;
    let region = Region::new(entries, payload)?;
    let outbox = Arc::new(Outbox::new()?);
    let uring = Uring::new(entries, outbox.doorbell())?;
    // Sending fails if the caller of `Prepared::new` has given up.
    let _ = reporting.send(Report::Prepared);
    let Ok(start) = starting.recv() else {
        return Ok(());
    };
    uring.connect(start.device.as_fd())?;
    drop(start.device);
    let mut ring = Ring::new(
        uring,
        region,
        Arc::clone(&outbox),
        (&share.queues, DEPTH),
        start.common,
    );
    let refusal = ring.register()?;
    let _ = reporting.send(Report::Registered(refusal));
    let ended = ring.run(&start.server, &start.counts.polled);
    ended.inspect_err(|e| {
        let processor = share.processor;
        tracing::error!("the ring of processor {processor} broke, which ends the mount: {e}");
        start.counts.broken();
    })
}
