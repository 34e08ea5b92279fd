//! The loop of one ring: takes requests from completions, and commits their replies.
//!
//! An entry is with the kernel, with the server, or gone: the kernel completes a command with an
//! error if the connection has ended or if it refuses the entry, and never touches that entry again.
//! The loop ends when all entries are gone. If it breaks off before, their memory is never unmapped.
//! Requests are served in order of arrival; replies of one round are submitted together.

#![allow(
    unsafe_code,
    reason = "hands entries to the kernel and takes them back; the owner of each is recorded"
)]

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zerocopy::{FromBytes, IntoBytes};

use super::instance::{Command, Completion, Instance, Wait};
use super::late::{Late, Request};
use super::outbox::{Done, Outbox};
use super::region::{Body, Region};
use super::sink::{Ended, EntrySink, Patient};
use super::sleep_timer::{PAUSE, SleepTimer};
use crate::abi::{InHeader, Opcode, OutHeader};
use crate::polling::{POLL, Pace};
use crate::quiet::{Quiet, is_direct};
use crate::reply::Sink;
use crate::server::{self, Server};

/// Requests that are served before their replies are submitted: one submission for several saves
/// system calls, but the first caller of a round waits for all of it.
const ROUND: usize = 4;

/// Payloads with memory that a ring keeps: as many as a few clients with large requests use.
const KEPT: usize = 4;

/// Time after which memory of entries that were not used is given back.
const SWEEP: Duration = Duration::from_secs(1);

/// A payload up to this size, in bytes, does not count as memory.
const SMALL: usize = 4096;

/// The side that may touch an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// Neither side: the entry is not registered, or the kernel has returned it for good.
    Neither,
    Kernel,
    /// The server; `unique` is the number of the request.
    Server {
        unique: u64,
        /// Whether the reply must not be kept back.
        is_direct: bool,
    },
}

/// What polling found.
enum Found {
    Request,
    /// A reply of another thread, or a sleep is due.
    Other,
    Nothing,
}

struct Slot {
    queue: u16,
    owner: Owner,
    /// Whether its payload has memory of more than a page.
    large: bool,
    /// Whether it was used since the last sweep.
    used: bool,
    /// Whether its reply comes from another thread.
    owed: Cell<bool>,
    entry: Arc<EntrySink>,
    /// The same as `entry`.
    sink: Arc<dyn Sink>,
}

impl Slot {
    fn owes(&self, late: &Late) {
        self.owed.set(true);
        late.owes();
    }

    fn paid(&self, late: &Late) {
        if self.owed.take() {
            late.paid();
        }
    }
}

/// What a ring has in common with the other rings of its connection.
pub(super) struct Common {
    pub(super) late: Arc<Late>,
    pub(super) quiet: Arc<Quiet>,
}

/// A ring: an instance, its entries, and the replies on their way to it.
pub(super) struct Ring<I> {
    instance: I,
    region: Arc<Region>,
    outbox: Arc<Outbox>,
    slots: Vec<Slot>,
    /// Entries that are not gone.
    live: usize,
    /// Completions that were taken and not handled.
    arrived: VecDeque<Completion>,
    /// The list that is exchanged with the outbox.
    done: Vec<Done>,
    /// Replies of this thread.
    ready: Vec<Done>,
    late: Arc<Late>,
    quiet: Arc<Quiet>,
    /// Whether there are commands that are not submitted.
    pushed: bool,
    /// Whether polling for requests pays.
    pace: Pace,
    /// Number of entries whose payload has memory of more than a page.
    large: usize,
    /// When memory was last given back.
    swept: Instant,
    /// Time between two sweeps.
    pub(super) sweep_after: Duration,
    timer: SleepTimer,
    /// When this ring began to wait for the next request, unless it polled.
    waiting_since: Option<Instant>,
}

impl<I: Instance> Ring<I> {
    /// Creates a ring that has `depth` entries of each queue; the region has as many.
    pub(super) fn new(
        instance: I,
        region: Arc<Region>,
        outbox: Arc<Outbox>,
        (queues, depth): (&[u16], usize),
        common: Common,
    ) -> Self {
        let entries = queues
            .iter()
            .flat_map(|queue| (0..depth).map(move |_| *queue));
        let slot = |(slot, queue)| {
            let entry = Arc::new(EntrySink::new(slot, Arc::clone(&outbox)));
            Slot {
                queue,
                owner: Owner::Neither,
                large: false,
                used: false,
                owed: Cell::new(false),
                sink: Arc::clone(&entry) as Arc<dyn Sink>,
                entry,
            }
        };
        let slots = entries.enumerate().map(slot).collect();
        Self {
            instance,
            region,
            outbox,
            slots,
            live: 0,
            arrived: VecDeque::new(),
            done: Vec::new(),
            ready: Vec::new(),
            late: common.late,
            quiet: common.quiet,
            pushed: false,
            pace: Pace::default(),
            large: 0,
            swept: Instant::now(),
            sweep_after: SWEEP,
            timer: SleepTimer::new(Instant::now()),
            waiting_since: None,
        }
    }

    /// Registers all entries. Returns the first refusal of the kernel; entries that it did not
    /// refuse are served by [`Ring::run`].
    ///
    /// # Errors
    /// The instance broke.
    pub(super) fn register(&mut self) -> io::Result<Option<io::Error>> {
        self.push(Command::Listen)?;
        for at in 0..self.slots.len() {
            // SAFETY: entries are registered here only, and once.
            let addresses = unsafe { self.region.addresses(at) };
            self.live += 1;
            self.give(at, |queue| Command::Register {
                slot: at,
                queue,
                addresses,
            })?;
        }
        self.submit()?;
        // A refusal is complete when its submission returns.
        while let Some(completion) = self.instance.complete() {
            self.arrived.push_back(completion);
        }
        let mut completions = self.arrived.iter();
        let refused = completions.find(|c| c.slot.is_some() && c.result < 0);
        Ok(refused.map(|c| io::Error::from_raw_os_error(-c.result)))
    }

    /// Serves requests until all entries are gone. `polled` counts those that polling found.
    ///
    /// # Errors
    /// The instance broke.
    pub(super) fn run(&mut self, server: &Arc<impl Server>, polled: &AtomicU64) -> io::Result<()> {
        loop {
            self.handle(server)?;
            self.commit_replies()?;
            if self.live == 0 {
                return Ok(());
            }
            self.rest()?;
            if self.is_idle() {
                self.wait(polled)?
            } else {
                self.submit()?
            }
        }
    }

    /// Sleeps for a moment if that is due.
    fn rest(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if self.timer.is_due(now, self.late.is_owed()) {
            self.submit()?;
            thread::sleep(PAUSE);
            self.timer.slept(now, Instant::now());
        }
        Ok(())
    }

    /// Waits for work: by looking for it for a while if that pays, then asleep.
    fn wait(&mut self, polled: &AtomicU64) -> io::Result<()> {
        if self.pace.pays() {
            match self.poll()? {
                Found::Request => {
                    polled.fetch_add(1, Ordering::Relaxed);
                    self.pace.caught();
                    return Ok(());
                }
                Found::Other => return Ok(()),
                Found::Nothing => self.pace.missed(),
            }
            self.waiting_since = None;
        } else if self.waiting_since.is_none() {
            self.waiting_since = Some(Instant::now());
        }
        if self.large > KEPT && self.swept.elapsed() >= self.sweep_after {
            self.submit()?;
            if !self.is_idle() {
                return Ok(());
            }
            self.sweep();
        }
        if self.outbox.may_sleep() {
            let since = Instant::now();
            self.enter(self.sleep())?;
            self.outbox.awake();
            self.timer.slept(since, Instant::now());
            Ok(())
        } else {
            self.submit()
        }
    }

    /// How to sleep: until memory can be given back, if there is much.
    fn sleep(&self) -> Wait {
        if self.large > KEPT {
            Wait::AtMost(self.sweep_after)
        } else {
            Wait::Completion
        }
    }

    /// Gives back the memory of entries that were not used since the last sweep. Called when nothing
    /// is left to be submitted or handled: the kernel copies replies and requests in the context of
    /// this thread only, inside a system call.
    fn sweep(&mut self) {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let unused = !std::mem::take(&mut slot.used);
            if unused && slot.large && slot.owner == Owner::Kernel && self.large > KEPT {
                // SAFETY: the kernel has the entry, has taken its last reply, and has not completed
                // it since. It copies a request inside a system call of this thread.
                unsafe { self.region.release(at) };
                slot.large = false;
                self.large -= 1;
            }
        }
        self.swept = Instant::now();
    }

    /// Submits what was pushed, and looks for work for a while.
    fn poll(&mut self) -> io::Result<Found> {
        self.submit()?;
        let mut now = Instant::now();
        let until = now + POLL;
        loop {
            if !self.is_idle() {
                return Ok(Found::Request);
            }
            if !self.outbox.is_empty() || self.timer.is_due(now, self.late.is_owed()) {
                return Ok(Found::Other);
            }
            // Looked at last after the client had run, however long that took.
            if now >= until {
                return Ok(Found::Nothing);
            }
            // The client may run on this processor, and cannot while this thread does.
            thread::yield_now();
            now = Instant::now();
        }
    }

    /// Whether no completion waits to be handled.
    fn is_idle(&mut self) -> bool {
        self.arrived.is_empty() && !self.instance.is_ready()
    }

    /// Handles completions, of requests one round at most.
    fn handle(&mut self, server: &Arc<impl Server>) -> io::Result<()> {
        let mut served = 0;
        while served < ROUND {
            let arrived = self.arrived.pop_front();
            let Some(completion) = arrived.or_else(|| self.instance.complete()) else {
                break;
            };
            match completion.slot {
                None if completion.more => {}
                None => self.push(Command::Listen)?,
                Some(at) if completion.result < 0 => self.lose(at, completion.result),
                Some(at) => {
                    self.serve(at, server)?;
                    served += 1;
                }
            }
        }
        Ok(())
    }

    /// Serves the request that has arrived in an entry.
    fn serve(&mut self, at: usize, server: &Arc<impl Server>) -> io::Result<()> {
        if let Some(since) = self.waiting_since.take() {
            self.pace.slept(since.elapsed());
        }
        let Some(slot) = self.slots.get_mut(at) else {
            return Ok(());
        };
        if slot.owner != Owner::Kernel {
            return Ok(());
        }
        // SAFETY: the kernel had the entry and has completed it.
        let split = unsafe { self.region.split(at) };
        let split = split.and_then(|(request, room)| {
            let (header, _) = InHeader::ref_from_prefix(request.header).ok()?;
            Some((header, request, room))
        });
        let Some((header, request, room)) = split else {
            return Err(io::Error::other("an entry of the ring has no request"));
        };
        slot.owner = Owner::Server {
            unique: header.unique,
            is_direct: is_direct(Opcode(header.opcode), request.op),
        };
        slot.used = true;
        let grows = !slot.large && request.payload.len() > SMALL;
        slot.large |= grows;
        self.large += usize::from(grows);
        let elsewhere = |again| {
            slot.owes(&self.late);
            let request = Request::new(header, &request, &self.late);
            let sink: Arc<dyn Sink> = Arc::new(Patient(Arc::clone(&slot.entry)));
            let serving = Arc::clone(server);
            server.hand_over(again, Box::new(move || request.serve(&*serving, &sink)));
        };
        if self.late.has(header.nodeid) {
            slot.entry.expect(room, false);
            elsewhere(false);
            return Ok(());
        }
        slot.entry.expect(room, true);
        let attempt = server.without_waiting(&mut || {
            server::serve(&**server, header, request.op, request.payload, &slot.sink);
        });
        // The kernel sends no such requests here; a ring could not continue without a reply.
        if Opcode(header.opcode).is_unanswered() {
            slot.sink.send(header.unique, Ok(&[]));
        }
        match (slot.entry.end_attempt(attempt.refused), attempt.owed) {
            (Ended::Elsewhere, _) => slot.owes(&self.late),
            (Ended::Refused, _) => elsewhere(true),
            (Ended::Replied(outcome), None) => self.ready.push(Done { slot: at, outcome }),
            (Ended::Replied(outcome), Some(settle)) => {
                slot.owes(&self.late);
                let outbox = Arc::clone(&self.outbox);
                let job = move || {
                    let outcome = settle().and(outcome);
                    outbox.push(Done { slot: at, outcome });
                };
                server.hand_over(true, Box::new(job));
            }
        }
        Ok(())
    }

    /// Gives entries with finished replies back to the kernel.
    fn commit_replies(&mut self) -> io::Result<()> {
        let mut ready = mem::take(&mut self.ready);
        for reply in ready.drain(..) {
            self.commit(reply)?;
        }
        self.ready = ready;
        let mut done = mem::take(&mut self.done);
        self.outbox.take(&mut done);
        for reply in done.drain(..) {
            self.commit(reply)?;
        }
        self.done = done;
        Ok(())
    }

    fn commit(&mut self, reply: Done) -> io::Result<()> {
        let at = reply.slot;
        let owner = self.slots.get(at).map(|slot| slot.owner);
        let Some(Owner::Server { unique, is_direct }) = owner else {
            return Ok(());
        };
        if self.quiet.keeps() && !is_direct {
            let outbox = Arc::clone(&self.outbox);
            self.quiet.keep(move || outbox.push(reply));
            return Ok(());
        }
        let (error, body) = match reply.outcome {
            Ok(body) => (0, body),
            Err(errno) => (-errno.number(), Body::Direct(0)),
        };
        if let (Some(slot), true) = (self.slots.get_mut(at), body.len() > SMALL) {
            self.large += usize::from(!slot.large);
            slot.large = true;
        }
        let header = OutHeader {
            len: (size_of::<OutHeader>() + body.len()) as u32,
            error,
            unique,
        };
        // SAFETY: the server had the entry. Its reply came through the sink, which has dropped the
        // room; its request is borrowed only while `serve` runs, which this thread does not.
        let commit_id = unsafe {
            self.region.conclude(at, header.as_bytes(), &body);
            self.region.commit_id(at)
        };
        self.give(at, |queue| Command::Commit {
            slot: at,
            queue,
            commit_id,
        })
    }

    /// Gives an entry to the kernel by a command to its queue.
    fn give(&mut self, at: usize, command: impl FnOnce(u16) -> Command) -> io::Result<()> {
        let Some(slot) = self.slots.get_mut(at) else {
            return Ok(());
        };
        slot.owner = Owner::Kernel;
        slot.paid(&self.late);
        let command = command(slot.queue);
        self.push(command)
    }

    fn push(&mut self, command: Command) -> io::Result<()> {
        self.pushed = true;
        // SAFETY: the region stays mapped until all entries are gone, see `drop`; an entry that the
        // kernel has is not touched.
        unsafe { self.instance.push(command) }
    }

    /// Submits what was pushed, and lets the kernel do deferred work.
    fn submit(&mut self) -> io::Result<()> {
        if self.pushed || self.instance.is_ready() {
            self.enter(Wait::No)
        } else {
            Ok(())
        }
    }

    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        self.pushed = false;
        self.instance.enter(wait)
    }

    /// The kernel has given an entry back for good.
    fn lose(&mut self, at: usize, error: i32) {
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        if mem::replace(&mut slot.owner, Owner::Neither) == Owner::Neither {
            return;
        }
        slot.paid(&self.late);
        self.live -= 1;
        if !ENDED.contains(&-error) {
            let error = io::Error::from_raw_os_error(-error);
            let queue = slot.queue;
            tracing::warn!("the kernel refuses an entry of FUSE ring {queue}: {error}");
        }
    }
}

/// How the kernel completes the entries of a connection that has ended.
const ENDED: [i32; 3] = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED];

impl<I> Drop for Ring<I> {
    /// If the loop broke off, the kernel may write the entries at any time; so they stay mapped.
    fn drop(&mut self) {
        if self.live > 0 {
            mem::forget(Arc::clone(&self.region));
        }
    }
}
