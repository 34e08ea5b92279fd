//! The program's end of a channel.
//!
//! Any thread and any signal handler may call; each call has a slot of its own. If all slots are taken,
//! or the daemon does not answer any more, the call fails, and the program asks the kernel instead. A
//! deferred call keeps its slot until the daemon has carried it out.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::region::{DEFERRED, Memory, Region, SLOTS, Slot, sized, state};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{self, Connection, Doorbell, sleep};
use crate::wait::{Patience, look};

/// After so much sleep a caller asks whether the daemon is still there.
const DOUBT: Duration = Duration::from_millis(200);

/// The call was not answered, and never will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// The request was not made: all slots are taken, or it is too long.
    NotAsked,
    /// The request was made, and the daemon has ended. It may have been carried out.
    Unanswered,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAsked => "the request does not fit into the channel",
            Self::Unanswered => "the daemon has ended",
        })
    }
}

impl std::error::Error for Gone {}

/// What became of a call that may be deferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deferred {
    /// The daemon will carry it out before anybody can see that it has not.
    Accepted,
    /// The lease has ended meanwhile, so the reply was waited for; its length.
    Answered(usize),
}

/// How a caller waits for its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// It looks for a while, then it sleeps.
    Looks,
    /// It sleeps at once.
    Sleeps,
}

/// From this number of deferred calls on, it is looked which of them are done.
const MANY: u32 = sized(8, 1) as u32;

/// The program's end of a channel.
pub struct Client {
    region: Region,
    doorbell: Doorbell,
    /// A socket that hangs up when the daemon ends.
    daemon: Connection,
    /// A bit for each slot that no call has.
    free: AtomicU64,
    /// A bit for each slot whose reply nobody waits for.
    posted: AtomicU64,
    /// The turn of the next deferred call.
    turn: AtomicU64,
    patience: Patience,
    /// Names the process that calls; 0: none that may.
    process: fn() -> u64,
}

impl Client {
    /// The end with this memory and doorbell; `daemon` is the socket over which they came.
    ///
    /// # Errors
    /// The memory is that of another version, or cannot be mapped.
    pub fn new(memory: Memory, doorbell: Doorbell, daemon: Connection) -> io::Result<Self> {
        let region = Region::map(memory)?;
        if !region.is_known() {
            return Err(io::Error::other("a channel of another version"));
        }
        Ok(Self {
            region,
            doorbell,
            daemon,
            free: AtomicU64::new(u64::MAX >> (u64::BITS as usize - SLOTS)),
            posted: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            patience: Patience::default(),
            process: || 1,
        })
    }

    /// Calls are those of the process that this names at their begin. One that finds itself in another process,
    /// as a signal handler has forked that interrupted it, leaves its slot to the first.
    #[must_use]
    pub fn of_process(self, process: fn() -> u64) -> Self {
        Self { process, ..self }
    }

    /// A child that was forked leaves the channel to its parent: calls that go on in it are answered no more.
    #[cfg(not(shuttle))]
    pub fn cut_off(&self) {
        self.region.cut_off();
    }

    /// Sends a request, whose parts begin at multiples of eight bytes, and copies the reply into `reply`.
    /// Returns the length of the reply.
    ///
    /// # Errors
    /// [`Gone`]; the program then leaves the call to the kernel.
    pub fn call(&self, request: &[&[u8]], reply: &mut [u8]) -> Result<usize, Gone> {
        self.call_with(request, Wait::Looks, |slot| slot.take(reply))
    }

    /// As [`Self::call`], for one whose reply takes long: the caller sleeps at once, and does not learn from it
    /// how to wait for others.
    ///
    /// # Errors
    /// Those of [`Self::call`].
    pub fn call_long(&self, request: &[&[u8]], reply: &mut [u8]) -> Result<usize, Gone> {
        self.call_with(request, Wait::Sleeps, |slot| slot.take(reply))
    }

    /// As [`Self::call`], for a reply of words and bytes behind them: the bytes go where they are wanted.
    /// Returns the length of the words, and that of the bytes.
    ///
    /// # Errors
    /// Those of [`Self::call`].
    pub fn call_for_bytes<const W: usize>(
        &self,
        request: &[&[u8]],
        words: &mut [[u8; 8]; W],
        bytes: &mut [u8],
    ) -> Result<(usize, usize), Gone> {
        self.call_with(request, Wait::Looks, |slot| {
            let len = slot.take(words.as_flattened_mut());
            (len, slot.take_behind(W, bytes))
        })
    }

    fn call_with<R>(
        &self,
        request: &[&[u8]],
        wait: Wait,
        take: impl FnOnce(&Slot) -> R,
    ) -> Result<R, Gone> {
        let process = (self.process)();
        let (number, slot) = self.put(request, SLOTS).ok_or(Gone::NotAsked)?;
        self.tell(slot, number, &self.region.pending);
        self.take_reply((slot, number, process), wait, take)
    }

    /// Waits for a reply, copies it, and frees its slot. One that the daemon may still answer is never used
    /// again.
    fn take_reply<R>(
        &self,
        (slot, number, process): (&Slot, u32, u64),
        wait: Wait,
        take: impl FnOnce(&Slot) -> R,
    ) -> Result<R, Gone> {
        self.await_reply(slot, wait, process)?;
        if (self.process)() != process {
            return Err(Gone::Unanswered);
        }
        let taken = take(slot);
        slot.state.store(state::FREE, Ordering::Relaxed);
        self.free.fetch_or(1 << number, Ordering::Release);
        Ok(taken)
    }

    /// Puts a request into a slot that stays taken; `None` if there is none, `most` are taken, or it is too
    /// long.
    fn put(&self, request: &[&[u8]], most: usize) -> Option<(u32, &Slot)> {
        let number = self.take_slot()?;
        let slot = self.region.slots.get(number as usize)?;
        // With its own slot, so that of threads that take one each at the same time, the last one sees all.
        let is_one_of_most =
            || SLOTS - self.free.load(Ordering::Relaxed).count_ones() as usize <= most;
        if !is_one_of_most() || !slot.put(request) {
            self.free.fetch_or(1 << number, Ordering::Release);
            return None;
        }
        Some((number, slot))
    }

    /// Has the daemon carry out a call later, in turn with the other deferred ones of this program and before
    /// all calls that are made after this has returned. The caller has a lease of this epoch on the file.
    ///
    /// # Errors
    /// [`Gone`]. With [`Gone::NotAsked`] the caller asks by [`Self::call`]: the lease has ended, or too many
    /// calls are deferred.
    pub fn defer(&self, epoch: u64, request: &[&[u8]], reply: &mut [u8]) -> Result<Deferred, Gone> {
        let now = || self.region.epoch.load(Ordering::SeqCst);
        if now() != epoch {
            return Err(Gone::NotAsked);
        }
        let process = (self.process)();
        let put = self.put_deferred(request, DEFERRED);
        let (number, slot) = put.ok_or(Gone::NotAsked)?;
        // The daemon ends an epoch before it looks for deferred calls a last time: either it finds this one
        // then, or the end is seen here.
        if now() == epoch {
            self.posted.fetch_or(1 << number, Ordering::Release);
            return Ok(Deferred::Accepted);
        }
        let len = self.take_reply((slot, number, process), Wait::Looks, |slot| {
            slot.take(reply)
        });
        len.map(Deferred::Answered)
    }

    /// As [`Self::defer`], for a call that needs no lease and whose reply nobody needs. Returns false if it
    /// was not made.
    pub fn post(&self, request: &[&[u8]]) -> bool {
        let put = self.put_deferred(request, SLOTS);
        if let Some((number, _)) = put {
            self.posted.fetch_or(1 << number, Ordering::Release);
        }
        put.is_some()
    }

    /// Makes a deferred request in a slot that stays taken; `None` as [`Self::put`].
    fn put_deferred(&self, request: &[&[u8]], most: usize) -> Option<(u32, &Slot)> {
        let (number, slot) = self.put(request, most)?;
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        slot.turn.store(turn, Ordering::Relaxed);
        self.tell(slot, number, &self.region.deferred);
        Some((number, slot))
    }

    /// Frees the slots of requests that nobody waits for and that are answered.
    fn reclaim(&self) {
        let mut posted = self.posted.load(Ordering::Acquire);
        while posted != 0 {
            let number = posted.trailing_zeros();
            posted &= posted - 1;
            let Some(slot) = self.region.slots.get(number as usize) else {
                continue;
            };
            let done = || slot.state.load(Ordering::Acquire) == state::ANSWERED;
            let bit = 1 << number;
            if !done() || self.posted.fetch_and(!bit, Ordering::AcqRel) & bit == 0 {
                continue;
            }
            // Who has taken the bit has the slot. Until then another thread may have freed it, and made another
            // request in it.
            if done() {
                slot.state.store(state::FREE, Ordering::Relaxed);
                self.free.fetch_or(bit, Ordering::Release);
            } else {
                self.posted.fetch_or(bit, Ordering::Release);
            }
        }
    }

    /// A free slot, if there is one: the first, so that few calls use little memory.
    fn take_slot(&self) -> Option<u32> {
        if self.posted.load(Ordering::Relaxed).count_ones() >= MANY {
            self.reclaim();
        }
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            let number = free.trailing_zeros();
            if number == u64::BITS {
                return None;
            }
            let before = self.free.fetch_and(!(1 << number), Ordering::Acquire);
            if before & (1 << number) != 0 {
                return Some(number);
            }
            free = before;
        }
    }

    /// Tells the daemon that there is a request in a slot.
    fn tell(&self, slot: &Slot, number: u32, to: &AtomicU64) {
        slot.state.store(state::ASKED, Ordering::Release);
        to.fetch_or(1 << number, Ordering::SeqCst);
        // The daemon takes the mark back. If a caller did, a signal handler that interrupts it before it rings
        // would wait for a daemon that nobody wakes.
        if self.region.asleep.load(Ordering::SeqCst) != 0 {
            sync::ring(&self.doorbell);
        }
    }

    fn await_reply(&self, slot: &Slot, wait: Wait, process: u64) -> Result<(), Gone> {
        let answered = || slot.state.load(Ordering::Acquire) == state::ANSWERED;
        if wait == Wait::Looks && self.patience.looks() {
            let crowded = self.region.crowded.load(Ordering::Relaxed) != 0;
            let looked = look(crowded, answered);
            self.patience.note(looked);
            if looked.done {
                return Ok(());
            }
        }
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let asked = slot
            .state
            .compare_exchange(state::ASKED, state::AWAITED, order.0, order.1);
        if asked.is_err() {
            return Ok(());
        }
        loop {
            sleep(&slot.state, state::AWAITED, DOUBT);
            if answered() {
                return Ok(());
            }
            if (self.process)() != process || sync::has_ended(&self.daemon) {
                return Err(Gone::Unanswered);
            }
        }
    }
}
