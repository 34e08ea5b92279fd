//! The daemon's end: one thread that looks at the slots of many channels and answers.
//!
//! Channels with requests of late are *active*: the thread looks at their memory. The others have rung to
//! be looked at, or have nothing; they are marked asleep, so that their programs ring the doorbell. The
//! thread serves one round after the other, in each all requests of all active channels, so a program with
//! many requests delays another one by its slots at most. What any program has deferred is carried out before
//! a call is answered that may have been made after it. Without a request it looks for a while
//! ([`crate::wait`]), marks all channels asleep, and sleeps until a doorbell rings.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, PoisonError};
use std::thread::available_parallelism;

use crate::region::{PAYLOAD, SLOTS, Slot, sized, state};
use crate::served::DaemonEnd;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{self, Bells, Doorbell, Mutex, MutexGuard, wake};
use crate::wait::{Patience, is_crowded, look};

/// After so many times that the thread woke up, a channel without a request is not active any more.
const IDLE: u32 = sized(32, 1) as u32;
/// Every so many rounds the doorbells are heard: of channels that are not active, and of the thread.
const ROUNDS: u32 = sized(32, 2) as u32;
/// The doorbell of the thread itself.
const OWN: u64 = 0;

/// Where a request came from.
pub struct Asked<'s> {
    /// The number of the channel.
    pub channel: u64,
    /// Whether the program may not wait for the reply.
    pub deferred: bool,
    end: &'s Arc<DaemonEnd>,
    slot: u32,
}

impl Asked<'_> {
    /// The reply is promised, if not too many replies of this channel are.
    pub fn promise(&self) -> Option<Promise> {
        if self.end.promised.fetch_add(1, Ordering::Relaxed) >= SLOTS {
            self.end.promised.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Promise {
            end: Arc::clone(self.end),
            slot: self.slot,
            kept: false,
        })
    }
}

/// A reply that any thread gives later. One that is dropped gives an empty reply.
pub struct Promise {
    end: Arc<DaemonEnd>,
    slot: u32,
    kept: bool,
}

impl Promise {
    /// Gives the reply, of which more than [`PAYLOAD`] bytes are cut off.
    pub fn keep(mut self, reply: &[u8]) {
        self.give(reply);
    }

    fn give(&mut self, reply: &[u8]) {
        self.kept = true;
        if let Some(slot) = self.end.region.slots.get(self.slot as usize) {
            give(slot, reply);
        }
        self.end.promised.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if !self.kept {
            self.give(&[]);
        }
    }
}

/// Writes the reply into a slot and wakes the waiting caller.
fn give(slot: &Slot, reply: &[u8]) {
    slot.put(&[reply.get(..PAYLOAD).unwrap_or(reply)]);
    // A program that has spoiled the state only spoils its own wait.
    if slot.state.swap(state::ANSWERED, Ordering::AcqRel) == state::AWAITED {
        wake(&slot.state);
    }
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// The reply is there.
    Now,
    /// It was [promised](Asked::promise).
    Later,
}

/// What answers requests.
pub trait Handler {
    /// Answers a request. The reply is empty; more than [`PAYLOAD`] bytes of it are cut off.
    fn handle(&mut self, from: &Asked<'_>, request: &[u8], reply: &mut Vec<u8>) -> Answered;

    /// Requests are handled now that were all made before. They have one time.
    fn begins(&mut self) {}

    /// What was deferred is to be carried out when this returns.
    fn is_passed(&mut self) {}

    /// The requests of one time are handled.
    fn ends(&mut self) {}
}

/// What other threads want of the serving one.
#[derive(Default)]
struct Wanted {
    joins: Vec<(u64, Arc<DaemonEnd>)>,
    leaves: Vec<u64>,
    /// Channels of which what is deferred is to be carried out.
    passes: Vec<u64>,
    /// The number of the last channel.
    last: u64,
    ends: bool,
}

struct Shared {
    wanted: Mutex<Wanted>,
    /// Whether anything is.
    some: AtomicBool,
    bell: Doorbell,
}

/// Adds channels to a thread that serves, and ends it.
#[derive(Clone)]
pub struct Joiner(Arc<Shared>);

impl Joiner {
    fn ask<R>(&self, ask: impl FnOnce(&mut Wanted) -> R) -> R {
        let asked = ask(&mut self.0.wanted.lock().unwrap_or_else(PoisonError::into_inner));
        self.0.some.store(true, Ordering::SeqCst);
        sync::ring(&self.0.bell);
        asked
    }

    /// Has the requests of a channel answered from now on. Returns its number.
    pub fn join(&self, channel: Arc<DaemonEnd>) -> u64 {
        self.ask(|wanted| {
            wanted.last += 1;
            if wanted.ends {
                channel.leave();
            }
            wanted.joins.push((wanted.last, channel));
            wanted.last
        })
    }

    /// Ends the service of a channel, whose program has ended or does not want it any more.
    pub fn leave(&self, channel: u64) {
        self.ask(|wanted| wanted.leaves.push(channel));
    }

    /// Waits until what the program of a channel has deferred by now is carried out.
    pub fn finish(&self, number: u64, channel: &DaemonEnd) {
        channel.finish(|| self.ask(|wanted| wanted.passes.push(number)));
    }

    /// Ends the leases that the program of a channel has: when this returns, all that it has deferred by them
    /// is carried out, and it defers nothing by them any more.
    pub fn end_leases(&self, number: u64, channel: &DaemonEnd) {
        let epoch = channel.end_epoch();
        self.finish(number, channel);
        channel.settle(epoch);
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.ask(|wanted| wanted.ends = true);
    }
}

struct Served {
    channel: Arc<DaemonEnd>,
    /// How often the thread has woken up since the last request, if it is active.
    idle: Option<u32>,
    /// How many threads of the program were seen to wait at once, in the last rounds and in those before.
    callers: [u32; 2],
}

impl Served {
    /// How many threads of the program call at once, if it is active.
    fn callers(&self) -> usize {
        let [now, before] = self.callers;
        let callers = now.max(before).max(1) as usize;
        if self.idle.is_some() { callers } else { 0 }
    }
}

/// A thread that serves channels.
pub struct Server {
    shared: Arc<Shared>,
    bells: Bells,
    channels: BTreeMap<u64, Served>,
    processors: usize,
    patience: Patience,
    buffers: Buffers,
}

/// Buffers of what is under way.
struct Buffers {
    request: Vec<u8>,
    reply: Vec<u8>,
    /// Turns and numbers of the slots of a pass.
    turns: Vec<(u64, u32)>,
}

impl Buffers {
    /// Answers the request in a slot, or has it answered later.
    fn answer(&mut self, from: &Asked<'_>, handler: &mut dyn Handler) {
        let Some(slot) = from.end.region.slots.get(from.slot as usize) else {
            return;
        };
        let len = slot.take(&mut self.request);
        self.reply.clear();
        let request = self.request.get(..len).unwrap_or_default();
        if handler.handle(from, request, &mut self.reply) == Answered::Now {
            give(slot, &self.reply);
        }
    }

    /// Carries out what the program of a channel has deferred.
    fn pass(&mut self, number: u64, channel: &Arc<DaemonEnd>, handler: &mut dyn Handler) {
        channel.pass(|bits| {
            let slots = &channel.region.slots;
            let mut turns = std::mem::take(&mut self.turns);
            turns.extend(numbers(bits).filter_map(|at| {
                let turn = slots.get(at as usize)?.turn.load(Ordering::Relaxed);
                Some((turn, at))
            }));
            turns.sort_unstable();
            handler.begins();
            for (_, slot) in turns.drain(..) {
                let from = Asked {
                    channel: number,
                    deferred: true,
                    end: channel,
                    slot,
                };
                self.answer(&from, handler);
            }
            self.turns = turns;
            handler.is_passed();
        });
    }
}

/// The numbers of the bits that are set.
fn numbers(mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let at = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(at)
    })
}

impl Server {
    /// A server without channels, whose thread may run on as many processors as the caller's.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        let (bell, bells) = (sync::doorbell()?, Bells::new()?);
        bells.add(&bell, OWN)?;
        let wanted = Mutex::new(Wanted::default());
        Ok(Self {
            shared: Arc::new(Shared {
                wanted,
                some: AtomicBool::new(false),
                bell,
            }),
            bells,
            channels: BTreeMap::new(),
            processors: available_parallelism().map_or(1, usize::from),
            patience: Patience::default(),
            buffers: Buffers {
                request: vec![0; PAYLOAD],
                reply: Vec::with_capacity(PAYLOAD),
                turns: Vec::with_capacity(SLOTS),
            },
        })
    }

    /// What adds channels.
    pub fn joiner(&self) -> Joiner {
        Joiner(self.shared.clone())
    }

    /// Serves until [`Joiner::end`].
    ///
    /// # Errors
    /// The kernel's, when it waits for doorbells.
    pub fn run(&mut self, handler: &mut dyn Handler) -> io::Result<()> {
        let done = self.serve(handler);
        let channels = std::mem::take(&mut self.channels);
        channels.values().for_each(|served| served.channel.leave());
        // A channel that joins or waits from now on is served by nobody.
        let mut wanted = self.wanted();
        wanted.ends = true;
        wanted.joins.drain(..).for_each(|(_, end)| end.leave());
        done
    }

    fn serve(&mut self, handler: &mut dyn Handler) -> io::Result<()> {
        let mut rounds = 0;
        loop {
            if self.serve_round(handler) {
                rounds += 1;
                if rounds % ROUNDS == 0 {
                    self.hear(false)?;
                }
            } else if !self.finds_request() {
                self.sleep()?;
            }
            if self.shared.some.swap(false, Ordering::SeqCst) && self.do_wanted(handler)? {
                return Ok(());
            }
        }
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        let wanted = self.shared.wanted.lock();
        wanted.unwrap_or_else(PoisonError::into_inner)
    }

    fn active(&self) -> impl Iterator<Item = &Served> {
        self.channels
            .values()
            .filter(|served| served.idle.is_some())
    }

    /// Answers the requests of all active channels. Returns whether there was any.
    fn serve_round(&mut self, handler: &mut dyn Handler) -> bool {
        let mut any = false;
        let mut last = 0;
        while let Some((number, served)) = next_active(&mut self.channels, last) {
            last = number;
            if !served.channel.has_request() {
                continue;
            }
            served.idle = Some(0);
            any = true;
            let channel = Arc::clone(&served.channel);
            let calls = channel.region.pending.swap(0, Ordering::SeqCst);
            let [now, _] = &mut served.callers;
            *now = calls.count_ones().max(*now);
            // Whatever was deferred by any program when one of these calls was made. Its own comes last.
            if calls != 0 {
                for (other, served) in &self.channels {
                    if *other != number && served.channel.has_deferred() {
                        self.buffers.pass(*other, &served.channel, handler);
                        handler.ends();
                    }
                }
            }
            handler.begins();
            if channel.has_deferred() {
                self.buffers.pass(number, &channel, handler);
            }
            for slot in numbers(calls) {
                let from = Asked {
                    channel: number,
                    deferred: false,
                    end: &channel,
                    slot,
                };
                self.buffers.answer(&from, handler);
            }
            handler.ends();
        }
        any
    }

    /// Looks for a request of an active channel, unless that was in vain lately. Returns whether there is one,
    /// or other threads want something.
    fn finds_request(&self) -> bool {
        if self.active().next().is_none() || !self.patience.looks() {
            return false;
        }
        let found = look(self.is_crowded(), || {
            self.active().any(|served| served.channel.has_request())
                || self.shared.some.load(Ordering::Relaxed)
        });
        self.patience.note(found);
        found.done
    }

    /// Sleeps until a doorbell rings, unless a request came before all channels were marked.
    fn sleep(&mut self) -> io::Result<()> {
        let set = |server: &Self, asleep| {
            let all = server.active();
            all.for_each(|served| served.channel.region.asleep.store(asleep, Ordering::SeqCst));
        };
        set(self, 1);
        if !self.active().any(|served| served.channel.has_request()) {
            self.hear(true)?;
        }
        for served in self.channels.values_mut() {
            // One with a request stays: its program may have found the channel awake, and not have rung.
            let stays = |idle: &u32| *idle <= IDLE || served.channel.has_request();
            served.idle = served.idle.map(|idle| idle + 1).filter(stays);
        }
        set(self, 0);
        self.tell_crowded();
        Ok(())
    }

    /// Makes the channels active whose doorbells have rung; with `waits`, once one rings.
    fn hear(&mut self, waits: bool) -> io::Result<()> {
        for number in self.bells.hear(waits)? {
            let served = self.channels.get_mut(&number);
            sync::empty(match &served {
                Some(served) => &served.channel.doorbell,
                None => &self.shared.bell,
            });
            if let Some(served) = served {
                served.idle = Some(0);
                served.channel.region.asleep.store(0, Ordering::SeqCst);
            }
        }
        self.tell_crowded();
        Ok(())
    }

    /// Whether waiting threads take processors from others.
    fn is_crowded(&self) -> bool {
        let callers = self.channels.values().map(Served::callers).sum();
        is_crowded(self.processors, callers)
    }

    /// Tells programs whether they yield while they look for a reply.
    fn tell_crowded(&mut self) {
        let crowded = u32::from(self.is_crowded());
        for served in self.active() {
            let told = &served.channel.region.crowded;
            if told.load(Ordering::Relaxed) != crowded {
                told.store(crowded, Ordering::Relaxed);
            }
        }
        for served in self.channels.values_mut() {
            let [now, before] = &mut served.callers;
            (*now, *before) = (0, *now);
        }
    }

    /// Does what other threads want. Returns whether the thread shall end.
    fn do_wanted(&mut self, handler: &mut dyn Handler) -> io::Result<bool> {
        let (joins, leaves, passes, ends) = {
            let mut wanted = self.wanted();
            let joins = std::mem::take(&mut wanted.joins);
            let leaves = std::mem::take(&mut wanted.leaves);
            let passes = std::mem::take(&mut wanted.passes);
            (joins, leaves, passes, wanted.ends)
        };
        for (number, channel) in joins {
            self.bells.add(&channel.doorbell, number)?;
            self.channels.insert(
                number,
                Served {
                    channel,
                    idle: None,
                    callers: [0; 2],
                },
            );
        }
        for number in passes {
            if let Some(served) = self.channels.get(&number) {
                self.buffers.pass(number, &served.channel, handler);
                handler.ends();
            }
        }
        for number in leaves {
            if let Some(served) = self.channels.remove(&number) {
                served.channel.leave();
                self.bells.remove(&served.channel.doorbell, number)?;
            }
        }
        Ok(ends)
    }
}

/// The first active channel with a larger number.
fn next_active(channels: &mut BTreeMap<u64, Served>, last: u64) -> Option<(u64, &mut Served)> {
    let mut behind = channels.range_mut(last + 1..);
    let active = behind.find(|(_, served)| served.idle.is_some());
    active.map(|(number, served)| (*number, served))
}

#[cfg(test)]
#[cfg(shuttle)]
mod schedules;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
