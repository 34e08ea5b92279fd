//! Replies to a lone client, written so that it goes on on the processor where it waits.
//!
//! A client that waits for each reply, and the loop that serves it, take turns. On one processor a turn
//! costs a switch of threads; on two, each message and each reply wakes the other processor, which in a
//! virtual machine costs ten times as much. The kernel wakes a loop on the processor that it is bound to,
//! but moves the client that is woken to another processor, if one is idle, because the one where the
//! reply is written is not. It counts as idle if only threads of the policy SCHED_IDLE run there. So the
//! loop is bound to the client's processor, and hands its reply to a thread of that policy, the courier.
//!
//! A thread of this policy hardly runs beside others. So nothing but the reply depends on it: it holds no
//! lock of the server, and a reply that it has not written is written by the loop when it gets the message
//! of another client, or by the loop's watcher after a tick. The kernel refuses the second of two replies.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity, sched_yield};

use crate::abi::Opcode;
use crate::dev::{Channel, filled};
use crate::reply::{Errno, Sink};

/// The largest reply that is handed over, in bytes: it is copied for that.
const LARGEST: usize = 32 << 10;

/// Messages of one client after which it is looked again where it runs, and messages before it is looked
/// where another one runs.
const OFTEN: u32 = 32;
const RARELY: u32 = 16;

/// A message that comes later may come from another processor: after at most so many it is looked.
const SLOW: Duration = Duration::from_micros(15);
const DOUBT: u32 = 4;

/// A reply on its way.
#[derive(Debug)]
struct Parcel {
    unique: u64,
    /// The thread that sends nothing before it has it, if any does.
    client: u32,
    outcome: Result<Vec<u8>, Errno>,
    sent: AtomicBool,
}

impl Parcel {
    /// Returns whether the kernel took it, which takes one reply to each request.
    fn send(&self, channel: &Channel) -> bool {
        let taken = match &self.outcome {
            Ok(bytes) => channel.answer(self.unique, Ok(&[bytes])),
            Err(error) => channel.answer(self.unique, Err(*error)),
        };
        // The client may go on here, and this thread much later.
        self.sent.store(true, Ordering::Release);
        taken
    }
}

/// What a loop, its courier and the watcher share.
#[derive(Debug)]
pub(crate) struct Post {
    channel: Arc<Channel>,
    /// What the courier takes next.
    next: Mutex<Option<Arc<Parcel>>>,
    /// The newest parcel; the courier does not touch it, which may lose its processor at any time.
    newest: Mutex<Option<Arc<Parcel>>>,
    /// The request whose reply is handed over, or 0, and the thread that sends nothing before it has it.
    request: AtomicU64,
    client: AtomicU32,
    closed: AtomicBool,
}

impl Post {
    /// For a loop that answers on this channel.
    pub fn new(channel: &Arc<Channel>) -> Self {
        Self {
            channel: Arc::clone(channel),
            next: Mutex::default(),
            newest: Mutex::default(),
            request: AtomicU64::new(0),
            client: AtomicU32::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// Writes the newest reply if the courier has not done so. Returns whether that was needed.
    pub fn rescue(&self) -> bool {
        let newest = self.newest.lock().take();
        let left = newest.filter(|parcel| !parcel.sent.load(Ordering::Acquire));
        left.is_some_and(|parcel| parcel.send(&self.channel))
    }

    /// A message of this thread has arrived, or one that nobody waits for. Returns whether another thread had waited for a reply in vain.
    fn arrived(&self, client: Option<u32>) -> bool {
        let Some(client) = client else {
            return false;
        };
        let mut newest = self.newest.lock();
        if newest
            .as_ref()
            .is_some_and(|parcel| parcel.client == client)
        {
            *newest = None;
        }
        drop(newest);
        self.rescue()
    }

    /// Hands a reply over; false if the courier has not taken the last one.
    pub fn carry(&self, unique: u64, outcome: Result<&[&[u8]], Errno>) -> bool {
        let Some(mut next) = self.next.try_lock().filter(|next| next.is_none()) else {
            return false;
        };
        let parcel = Arc::new(Parcel {
            unique,
            client: self.client.load(Ordering::Relaxed),
            outcome: outcome.map(<[_]>::concat),
            sent: AtomicBool::new(false),
        });
        *self.newest.lock() = Some(Arc::clone(&parcel));
        *next = Some(parcel);
        true
    }

    fn run(&self) {
        loop {
            let ends = self.closed.load(Ordering::Acquire);
            let parcel = self.next.lock().take();
            match parcel {
                Some(parcel) => {
                    // The scheduler may still count the loop, which sleeps already, until it chooses
                    // among the threads of this processor once more (delayed dequeue, Linux 6.12).
                    sched_yield();
                    let _ = parcel.send(&self.channel);
                }
                None if ends => return,
                None => thread::park(),
            }
        }
    }
}

/// The sink of a request whose reply may be handed over.
pub(crate) struct Carried {
    post: Arc<Post>,
    courier: thread::Thread,
}

impl Sink for Carried {
    fn send(&self, unique: u64, outcome: Result<&[&[u8]], Errno>) {
        let post = &self.post;
        let awaited = post.request.load(Ordering::Relaxed) == unique;
        let len = outcome.map_or(0, |parts| parts.iter().map(|part| part.len()).sum());
        match awaited && len <= LARGEST && post.carry(unique, outcome) {
            true => self.courier.unpark(),
            false => post.channel.send(unique, outcome),
        }
    }

    fn may_wait(&self) -> bool {
        self.post.channel.may_wait()
    }

    fn is_bounded(&self) -> bool {
        self.post.channel.is_bounded()
    }

    fn send_filled(
        &self,
        unique: u64,
        size: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<usize, Errno>,
    ) {
        filled(size, fill, |outcome| self.send(unique, outcome));
    }
}

/// The courier of one loop, and the client that both follow.
pub(crate) struct Courier {
    post: Arc<Post>,
    /// To wake it, and to wait for its end.
    courier: thread::Thread,
    thread: Option<JoinHandle<()>>,
    id: Pid,
    /// Where the loop may run when it is not bound.
    allowed: CpuSet,
    /// The processor that loop and courier are bound to.
    place: Option<usize>,
    /// The thread that is followed, and the number of messages since it was looked where it runs.
    client: u32,
    since: u32,
    /// Slow messages after which it is looked, fewer the more often that found it elsewhere.
    doubt: u32,
}

impl Courier {
    /// Starts the courier of the calling loop, which answers on `channel`.
    ///
    /// # Errors
    /// There is no thread left, or its policy is not permitted.
    pub fn start(channel: &Arc<Channel>) -> io::Result<Self> {
        let post = Arc::new(Post::new(channel));
        let (ready, started) = mpsc::channel();
        let of_thread = Arc::clone(&post);
        let named = thread::Builder::new().name("cairnfs-courier".into());
        let thread = named.spawn(move || {
            let begun = run_when_idle().map(|()| gettid());
            let goes_on = begun.is_ok();
            if ready.send(begun).is_ok() && goes_on {
                of_thread.run();
            }
        })?;
        let id = started.recv().map_err(io::Error::other)??;
        Ok(Self {
            post,
            courier: thread.thread().clone(),
            thread: Some(thread),
            id,
            allowed: sched_getaffinity(None)?,
            place: None,
            client: 0,
            since: RARELY,
            doubt: 1,
        })
    }

    /// The sink for requests of the client that is followed.
    pub fn sink(&self) -> Carried {
        Carried {
            post: Arc::clone(&self.post),
            courier: self.courier.clone(),
        }
    }

    /// Makes the loop serve this client where it runs, for a message that it sent after the loop had
    /// waited for it so long. False if that is not possible, or would not pay because several clients
    /// take turns.
    pub fn follow(&mut self, client: u32, waited: Duration) -> bool {
        self.since += 1;
        let is_same = self.client == client;
        let due = match (is_same, waited > SLOW) {
            (true, true) => self.doubt,
            (true, false) => OFTEN,
            (false, _) => RARELY,
        };
        if self.since < due {
            return is_same && self.place.is_some();
        }
        (self.client, self.since) = (client, 0);
        self.note_allowed();
        let processor = processor_of(client).filter(|processor| self.may_run_on(*processor));
        self.doubt = match processor == self.place {
            true => (2 * self.doubt).min(DOUBT),
            false => 1,
        };
        match processor {
            Some(processor) if self.place == Some(processor) => true,
            Some(processor) => self.bind(processor).is_ok(),
            None => {
                self.leave();
                false
            }
        }
    }

    /// Whether loop and client are together.
    pub fn is_beside(&self) -> bool {
        self.place.is_some()
    }

    /// Lets the loop run everywhere again.
    pub fn leave(&mut self) {
        if self.place.take().is_some() {
            self.since = RARELY;
            // It runs where it is otherwise, only not as well.
            let _ = sched_setaffinity(None, &self.allowed);
        }
    }

    /// Hands the reply of this request over, when it is sent.
    pub fn expect(&self, unique: u64, opcode: Opcode) {
        let client = match opcode.may_be_sent_ahead() {
            true => 0,
            false => self.client,
        };
        self.post.client.store(client, Ordering::Relaxed);
        self.post.request.store(unique, Ordering::Relaxed);
    }

    /// A message of this client has arrived, or one that nobody waits for. Returns whether another client
    /// had waited for a reply that the courier did not write.
    pub fn arrived(&self, client: Option<u32>) -> bool {
        self.post.arrived(client)
    }

    /// Where its replies are handed over.
    pub fn post(&self) -> &Arc<Post> {
        &self.post
    }

    fn note_allowed(&mut self) {
        if self.place.is_none()
            && let Ok(allowed) = sched_getaffinity(None)
        {
            self.allowed = allowed;
        }
    }

    fn may_run_on(&self, processor: usize) -> bool {
        processor < CpuSet::MAX_CPU && self.allowed.is_set(processor)
    }

    fn bind(&mut self, processor: usize) -> io::Result<()> {
        let mut only = CpuSet::new();
        only.set(processor);
        self.place = None;
        sched_setaffinity(Some(self.id), &only)?;
        sched_setaffinity(None, &only)?;
        self.place = Some(processor);
        Ok(())
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.leave();
        self.post.closed.store(true, Ordering::Release);
        // So that it finds a processor soon.
        let _ = sched_setaffinity(Some(self.id), &self.allowed);
        if let Some(thread) = self.thread.take() {
            self.courier.unpark();
            // It does not panic.
            let _ = thread.join();
        }
    }
}

/// Gives the calling thread the policy SCHED_IDLE. No thread without privileges gets another one again.
fn run_when_idle() -> io::Result<()> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: sched_setscheduler(2) reads one sched_param through the pointer, which is valid during the
    // call; 0 is the calling thread. It changes no memory of this process.
    #[expect(unsafe_code, reason = "rustix has no wrapper of this call")]
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &none) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The processor that a thread ran on last (proc_pid_stat(5)); `None` if it has ended or is not visible.
fn processor_of(thread: u32) -> Option<usize> {
    let stat = fs::read(format!("/proc/{thread}/stat")).ok()?;
    // The name of the program, in parentheses, may contain any characters.
    let name = stat.iter().rposition(|byte| *byte == b')')?;
    let behind = std::str::from_utf8(stat.get(name + 1..)?).ok()?;
    behind.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
#[path = "courier/tests.rs"]
mod tests;
