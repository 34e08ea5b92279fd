//! Replies to a lone client, written so that it goes on on the processor where it waits.
//!
//! A client that waits for each reply, and the loop that serves it, take turns. On one processor a
//! turn costs a switch of threads; on two, each message and each reply wakes the other processor,
//! which in a virtual machine costs ten times as much. The kernel wakes a loop on the processor that
//! it is bound to, but moves the client that is woken to another processor, if one is idle, because
//! the one where the reply is written is not. It counts as idle if only threads of the policy
//! SCHED_IDLE run there. So the loop is bound to the client's processor, which [`Search`] finds by
//! trial, and hands its reply to a thread of that policy, the reply thread.
//!
//! A thread of this policy hardly runs beside others. So nothing but the reply depends on it: it
//! holds no lock of the server, and a reply that it has not written soon is written by the loop when
//! a message of another client arrives, or by the loop that watches (`readers`). The kernel refuses
//! the second of two replies. Neither the loop nor the reply thread waits with a timeout: setting a timer
//! costs as much as waking a processor. A loop is bound only while messages come; when none does, the
//! watcher lets it run everywhere again, and so does a loop itself before it parks.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity, sched_yield};

use crate::abi::{InHeader, Opcode};
use crate::dev::Channel;
use crate::reply::{Errno, Sink};
use crate::search::{Move, Search};

/// The largest reply that is handed over, in bytes: it is copied for that.
const LARGEST: usize = 32 << 10;

/// How long a reply may be on its way: a reply thread whose processor has nothing else to do needs a
/// hundredth.
const SOON: Duration = Duration::from_millis(1);

/// For how long no client is followed after a reply that was late, and after many of these; and
/// replies in succession, none of them late, after which it is the first one again.
const REST: Duration = Duration::from_millis(500);
const REST_MAX: Duration = Duration::from_secs(64);
const CALM: u32 = 20_000;

/// A request whose reply may be handed over.
#[derive(Debug, Clone, Copy, Default)]
struct Served {
    unique: u64,
    /// The thread that sends nothing before it has the reply; 0 if it may.
    client: u32,
}

thread_local! {
    /// What this thread, a loop, serves now; none has the number 0.
    static SERVED: Cell<Served> = const { Cell::new(Served { unique: 0, client: 0 }) };
}

/// A reply on its way.
#[derive(Debug)]
struct PendingReply {
    request: Served,
    outcome: Result<Vec<u8>, Errno>,
    handed: Instant,
    sent: AtomicBool,
}

impl PendingReply {
    fn is_sent(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }

    fn is_late(&self) -> bool {
        self.handed.elapsed() >= SOON
    }

    /// Returns whether the kernel took it, which takes one reply to each request.
    fn send(&self, channel: &Channel) -> bool {
        let taken = match &self.outcome {
            Ok(bytes) => channel.answer(self.request.unique, Ok(&[bytes])),
            Err(error) => channel.answer(self.request.unique, Err(*error)),
        };
        // The client may go on here, and this thread much later.
        self.sent.store(true, Ordering::Release);
        taken
    }
}

/// Where a loop and its reply thread are bound.
#[derive(Debug, Clone, Copy)]
struct Bound {
    place: usize,
    /// Where the loop may run otherwise.
    allowed: CpuSet,
}

/// What a loop, its reply thread and the watcher share.
#[derive(Debug)]
pub(crate) struct Handoff {
    channel: Arc<Channel>,
    /// What the reply thread takes next.
    next: Mutex<Option<Arc<PendingReply>>>,
    /// The newest reply; the reply thread does not touch it, which may lose its processor at any time.
    newest: Mutex<Option<Arc<PendingReply>>>,
    /// Replies that the reply thread may still have. The loop frees them: the allocator may have locks.
    older: Mutex<Vec<Arc<PendingReply>>>,
    /// A reply was late, which the loop does not know yet.
    late: AtomicBool,
    bound: Mutex<Option<Bound>>,
    /// The loop and the reply thread.
    threads: OnceLock<[Pid; 2]>,
    closed: AtomicBool,
}

impl Handoff {
    /// For a loop that answers on this channel.
    pub fn new(channel: &Arc<Channel>) -> Self {
        Self {
            channel: Arc::clone(channel),
            bound: Mutex::default(),
            threads: OnceLock::new(),
            next: Mutex::default(),
            newest: Mutex::default(),
            older: Mutex::default(),
            late: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// As the loop that watches: writes a late reply, and if the loop is `idle` lets it run
    /// everywhere.
    pub fn attend(&self, idle: bool) {
        if idle {
            self.release();
        }
        if self.write_if_late() {
            self.late.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a reply is on its way.
    pub fn is_awaited(&self) -> bool {
        let newest = self.newest.lock();
        newest.as_ref().is_some_and(|reply| !reply.is_sent())
    }

    /// Writes the newest reply if the reply thread has not done so. Returns whether it was late.
    pub fn write_instead(&self) -> bool {
        let newest = self.newest.lock().take();
        let Some(left) = newest.filter(|reply| !reply.is_sent()) else {
            return false;
        };
        let is_late = left.is_late();
        let taken = left.send(&self.channel);
        if is_late && !taken {
            // The reply thread may have lost its processor inside the kernel: it finds another one.
            self.release();
        }
        is_late && taken
    }

    /// The same, only if it is late.
    fn write_if_late(&self) -> bool {
        let newest = self.newest.lock().clone();
        newest.is_some_and(|reply| reply.is_late()) && self.write_instead()
    }

    /// A message has arrived, of this thread if one waits for the reply. Returns whether a reply to
    /// another thread was late.
    fn arrived(&self, client: Option<u32>) -> bool {
        let Some(client) = client else {
            return self.write_if_late();
        };
        let has_it = |reply: &Arc<PendingReply>| reply.request.client == client;
        let mut newest = self.newest.lock();
        // No thread has the number 0, which the kernel gives where there is none.
        if client != 0 && newest.as_ref().is_some_and(has_it) {
            *newest = None;
        }
        drop(newest);
        self.write_instead()
    }

    /// Hands a reply over; false if the reply thread has not taken the last one.
    fn hand_over(&self, request: Served, outcome: Result<&[&[u8]], Errno>) -> bool {
        let Some(mut next) = self.next.try_lock().filter(|next| next.is_none()) else {
            return false;
        };
        let reply = Arc::new(PendingReply {
            request,
            outcome: outcome.map(<[_]>::concat),
            handed: Instant::now(),
            sent: AtomicBool::new(false),
        });
        let mut older = self.older.lock();
        older.retain(|reply| Arc::strong_count(reply) > 1);
        older.push(Arc::clone(&reply));
        *self.newest.lock() = Some(Arc::clone(&reply));
        *next = Some(reply);
        true
    }

    /// Lets the loop run everywhere again. Any thread may call this.
    pub fn release(&self) {
        let mut bound = self.bound.lock();
        let (Some(was), Some([of_loop, thread])) = (bound.take(), self.threads.get()) else {
            return;
        };
        // They run where they are otherwise, only not as well.
        let _ = sched_setaffinity(Some(*thread), &was.allowed);
        if is_at(*of_loop, was.place) {
            let _ = sched_setaffinity(Some(*of_loop), &was.allowed);
        }
    }

    /// Binds the loop, which calls this, and the reply thread. Returns whether they are. The processor may
    /// be one on which the loop does not run for long; then the thread that releases the loop does not
    /// wait for it.
    fn bind(&self, place: usize) -> bool {
        let Some([of_loop, thread]) = self.threads.get() else {
            return false;
        };
        let mut bound = self.bound.lock();
        let allowed = match *bound {
            // Somebody else has bound it.
            Some(was) if !is_at(*of_loop, was.place) => {
                *bound = None;
                return false;
            }
            Some(was) => Ok(was.allowed),
            None => sched_getaffinity(Some(*of_loop)),
        };
        let Ok(allowed) = allowed else {
            return false;
        };
        *bound = Some(Bound { place, allowed });
        drop(bound);
        let mut only = CpuSet::new();
        only.set(place);
        let bind = |thread| sched_setaffinity(Some(thread), &only);
        let is_bound = bind(*thread).and_then(|()| bind(*of_loop)).is_ok();
        if is_bound && self.is_bound() {
            return true;
        }
        // It failed, or was released meanwhile.
        *self.bound.lock() = Some(Bound { place, allowed });
        self.release();
        false
    }

    fn is_bound(&self) -> bool {
        self.bound.lock().is_some()
    }

    /// The processors to which the loop may be bound.
    fn places(&self) -> Vec<usize> {
        let allowed = match (*self.bound.lock(), self.threads.get()) {
            (Some(bound), _) => Some(bound.allowed),
            (None, Some([of_loop, _])) => sched_getaffinity(Some(*of_loop)).ok(),
            (None, None) => None,
        };
        let allowed = allowed.unwrap_or_default();
        (0..CpuSet::MAX_CPU)
            .filter(|n| allowed.is_set(*n))
            .collect()
    }

    fn run(&self) {
        loop {
            let ends = self.closed.load(Ordering::Acquire);
            let reply = self.next.lock().take();
            match reply {
                Some(reply) => {
                    // The scheduler may still count the loop, which sleeps already, until it chooses
                    // among the threads of this processor once more (delayed dequeue, Linux 6.12).
                    sched_yield();
                    let _ = reply.send(&self.channel);
                }
                None if ends => return,
                None => thread::park(),
            }
        }
    }
}

/// The sink of requests that a loop serves. A reply that another thread sends, or that comes later,
/// is not handed over.
struct HandoffSink {
    handoff: Arc<Handoff>,
    thread: thread::Thread,
}

impl Sink for HandoffSink {
    fn send(&self, unique: u64, outcome: Result<&[&[u8]], Errno>) {
        let handoff = &self.handoff;
        let served = SERVED.get();
        let len: usize = outcome.map_or(0, |parts| parts.iter().map(|part| part.len()).sum());
        if served.unique == unique && len <= LARGEST && handoff.hand_over(served, outcome) {
            self.thread.unpark()
        } else {
            handoff.channel.send(unique, outcome)
        }
    }

    fn may_wait(&self) -> bool {
        self.handoff.channel.may_wait()
    }

    fn is_bounded(&self) -> bool {
        self.handoff.channel.is_bounded()
    }
}

/// The reply thread of the calling loop, and the client that both follow.
pub(crate) struct ReplyThread {
    handoff: Arc<Handoff>,
    thread: thread::Thread,
    client: u32,
    search: Search,
    /// Nobody is followed before this.
    rests: Option<Instant>,
    rest: Duration,
    /// Messages since a reply was late.
    calm: u32,
}

impl ReplyThread {
    /// Starts the reply thread of the calling loop, which answers on `channel`.
    ///
    /// # Errors
    /// There is no thread left, or its policy is not permitted.
    pub fn start(channel: &Arc<Channel>) -> io::Result<Self> {
        let handoff = Arc::new(Handoff::new(channel));
        let (ready, started) = mpsc::channel();
        let of_thread = Arc::clone(&handoff);
        let named = thread::Builder::new().name("cairnfs-reply".into());
        let thread = named.spawn(move || {
            // Before it has this policy: the loop must not wait for it afterwards.
            if ready.send(gettid()).is_ok() {
                of_thread.run();
            }
        })?;
        let tid = started.recv().map_err(io::Error::other)?;
        if let Err(error) = run_when_idle(tid) {
            handoff.closed.store(true, Ordering::Release);
            thread.thread().unpark();
            return Err(error);
        }
        // Empty before.
        let _ = handoff.threads.set([gettid(), tid]);
        Ok(Self {
            handoff,
            thread: thread.thread().clone(),
            client: 0,
            search: Search::default(),
            rests: None,
            rest: REST,
            calm: 0,
        })
    }

    /// What the watcher needs.
    pub fn handoff(&self) -> &Arc<Handoff> {
        &self.handoff
    }

    /// The sink for requests of the client that is followed.
    pub fn sink(&self) -> impl Sink + use<> {
        HandoffSink {
            handoff: Arc::clone(&self.handoff),
            thread: self.thread.clone(),
        }
    }

    /// Follows this client, whose message came `now`, `gap` after the last one: what
    /// [`ReplyThread::go`] is to do.
    pub fn follow(&mut self, client: u32, now: Instant, gap: Duration) -> Move {
        if self.rests.is_some_and(|until| now < until) {
            return Move::None;
        }
        self.rests = None;
        self.calm = self.calm.saturating_add(1);
        if self.calm == CALM {
            self.rest = REST;
        }
        if self.search.is_placed() && !self.handoff.is_bound() {
            return self.search.released();
        }
        if std::mem::replace(&mut self.client, client) != client {
            // The new client is looked for first where the last one was.
            return Move::None;
        }
        let handoff = &self.handoff;
        self.search.heard(gap, || handoff.places())
    }

    /// Binds the loop or lets it run everywhere. The message has been counted, so if this takes long,
    /// another loop takes over.
    pub fn go(&mut self, to: Move) {
        match to {
            Move::None => {}
            Move::To(place) => {
                self.handoff.bind(place);
            }
            Move::Away => self.handoff.release(),
        }
    }

    /// Whether a client's messages are being measured, which ends soon.
    pub fn measures(&self) -> bool {
        self.rests.is_none() && self.search.measures()
    }

    /// Whether the loop is bound to a processor.
    pub fn is_bound(&self) -> bool {
        self.handoff.is_bound()
    }

    /// Follows nobody any more: the loop may run everywhere, and no reply is on its way.
    pub fn leave(&mut self) {
        if self.search.is_placed() {
            self.handoff.release();
        }
        self.search.lost();
        self.handoff.write_instead();
    }

    /// A reply was late: others need the processor.
    pub fn failed(&mut self, now: Instant) {
        self.leave();
        self.rests = Some(now + self.rest);
        self.rest = (2 * self.rest).min(REST_MAX);
        self.calm = 0;
    }

    /// Calls `serve`, which serves this request; a reply that it sends is handed over.
    pub fn serving(&self, request: &InHeader, serve: impl FnOnce()) {
        let client = if Opcode(request.opcode).may_be_sent_ahead() {
            0
        } else {
            request.pid
        };
        let unique = request.unique;
        SERVED.set(Served { unique, client });
        serve();
        SERVED.set(Served::default());
    }

    /// A message has arrived, of this thread if one waits for the reply. Returns whether a reply was
    /// late since the last one.
    pub fn arrived(&self, client: Option<u32>) -> bool {
        let late = self.handoff.late.swap(false, Ordering::Relaxed);
        self.handoff.arrived(client) || late
    }
}

impl Drop for ReplyThread {
    fn drop(&mut self) {
        self.leave();
        self.handoff.closed.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Whether a thread may run on this processor only.
fn is_at(thread: Pid, place: usize) -> bool {
    let allowed = sched_getaffinity(Some(thread));
    allowed.is_ok_and(|set| set.count() == 1 && set.is_set(place))
}

/// Gives a thread of this process the policy SCHED_IDLE. Without privileges it gets no other one
/// again.
fn run_when_idle(thread: Pid) -> io::Result<()> {
    let none = libc::sched_param { sched_priority: 0 };
    let thread = thread.as_raw_nonzero().get();
    // SAFETY: sched_setscheduler(2) reads one sched_param through the pointer, which is valid during
    // the call. It changes no memory of this process.
    #[expect(unsafe_code, reason = "rustix has no wrapper of this call")]
    let result = unsafe { libc::sched_setscheduler(thread, libc::SCHED_IDLE, &none) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
