//! The daemon's end: one thread that looks at the slots of many channels and answers.
//!
//! Channels with requests of late are *active*: the thread looks at their memory. The others have rung to
//! be looked at, or have nothing; they are marked asleep, so that their programs ring the doorbell. The
//! thread serves one round after the other, in each all requests of all active channels, so a program with
//! many requests delays another one by its slots at most. Without a request it looks for a while
//! ([`crate::wait`]), marks all channels asleep, and sleeps until a doorbell rings.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::available_parallelism;

use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::region::{PAYLOAD, Region, state};
use crate::wait::{Patience, is_crowded, look, wake};

/// After so many times that the thread woke up, a channel without a request is not active any more.
const IDLE: u32 = 32;
/// Every so many rounds the doorbells are heard: of channels that are not active, and of the thread.
const ROUNDS: u32 = 32;
/// The doorbell of the thread itself.
const OWN: u64 = 0;

/// What answers requests.
pub trait Handler {
    /// Answers the request of a channel. The reply is empty; more than [`PAYLOAD`] bytes of it are cut
    /// off.
    fn handle(&mut self, channel: u64, request: &[u8], reply: &mut Vec<u8>);
}

/// The daemon's end of a channel.
pub struct DaemonEnd {
    region: Region,
    doorbell: OwnedFd,
}

impl DaemonEnd {
    pub(crate) fn new(region: Region, doorbell: OwnedFd) -> Self {
        Self { region, doorbell }
    }
}

/// What other threads want of the serving one.
#[derive(Default)]
struct Wanted {
    joins: Vec<(u64, DaemonEnd)>,
    leaves: Vec<u64>,
    /// The number of the last channel.
    last: u64,
    ends: bool,
}

struct Shared {
    wanted: Mutex<Wanted>,
    bell: OwnedFd,
}

/// Adds channels to a thread that serves, and ends it.
#[derive(Clone)]
pub struct Joiner(Arc<Shared>);

impl Joiner {
    fn ask<R>(&self, ask: impl FnOnce(&mut Wanted) -> R) -> R {
        let asked = ask(&mut self.0.wanted.lock().unwrap_or_else(PoisonError::into_inner));
        // It fails only if the bell is ringing.
        let _ = rustix::io::write(&self.0.bell, &1u64.to_ne_bytes());
        asked
    }

    /// Has the requests of a channel answered from now on. Returns its number.
    pub fn join(&self, channel: DaemonEnd) -> u64 {
        self.ask(|wanted| {
            wanted.last += 1;
            wanted.joins.push((wanted.last, channel));
            wanted.last
        })
    }

    /// Ends the service of a channel, whose program has ended or does not want it any more.
    pub fn leave(&self, channel: u64) {
        self.ask(|wanted| wanted.leaves.push(channel));
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.ask(|wanted| wanted.ends = true);
    }
}

struct Served {
    channel: DaemonEnd,
    /// How often the thread has woken up since the last request, if it is active.
    idle: Option<u32>,
}

/// A thread that serves channels.
pub struct Server {
    shared: Arc<Shared>,
    bells: OwnedFd,
    channels: BTreeMap<u64, Served>,
    processors: usize,
    patience: Patience,
    /// Copies of what is under way.
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Server {
    /// A server without channels, whose thread may run on as many processors as the caller's.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let bells = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(OWN);
        epoll::add(&bells, &bell, data, epoll::EventFlags::IN)?;
        let wanted = Mutex::default();
        Ok(Self {
            shared: Arc::new(Shared { wanted, bell }),
            bells,
            channels: BTreeMap::new(),
            processors: available_parallelism().map_or(1, usize::from),
            patience: Patience::default(),
            request: vec![0; PAYLOAD],
            reply: Vec::with_capacity(PAYLOAD),
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
        let mut rounds = 0;
        loop {
            if self.serve_round(handler) {
                rounds += 1;
                if rounds % ROUNDS != 0 {
                    continue;
                }
                self.hear(Some(&rustix::time::Timespec::default()))?;
            } else if !self.finds_request() {
                self.sleep()?;
            } else {
                continue;
            }
            if self.do_wanted()? {
                return Ok(());
            }
        }
    }

    fn active(&self) -> impl Iterator<Item = &Served> {
        self.channels
            .values()
            .filter(|served| served.idle.is_some())
    }

    /// Answers the requests of all active channels. Returns whether there was any.
    fn serve_round(&mut self, handler: &mut dyn Handler) -> bool {
        let mut any = false;
        for (number, served) in &mut self.channels {
            if served.idle.is_none() {
                continue;
            }
            let region = &served.channel.region;
            if region.pending.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut pending = region.pending.swap(0, Ordering::Acquire);
            served.idle = Some(0);
            any = true;
            while pending != 0 {
                let at = pending.trailing_zeros();
                pending &= pending - 1;
                let Some(slot) = region.slots.get(at as usize) else {
                    continue;
                };
                let len = slot.take(&mut self.request);
                self.reply.clear();
                let request = self.request.get(..len).unwrap_or_default();
                handler.handle(*number, request, &mut self.reply);
                self.reply.truncate(PAYLOAD);
                slot.put(&[&self.reply]);
                // A program that has spoiled the state only spoils its own wait.
                if slot.state.swap(state::ANSWERED, Ordering::AcqRel) == state::AWAITED {
                    wake(&slot.state);
                }
            }
        }
        any
    }

    /// Looks for a request of an active channel, unless that was in vain lately. Returns whether there is one.
    fn finds_request(&self) -> bool {
        if self.active().next().is_none() || !self.patience.looks() {
            return false;
        }
        let pending = |served: &Served| served.channel.region.pending.load(Ordering::Relaxed) != 0;
        let found = look(self.is_crowded(), || self.active().any(pending));
        self.patience.note(found.helped);
        found.done
    }

    /// Sleeps until a doorbell rings, unless a request came before all channels were marked.
    fn sleep(&mut self) -> io::Result<()> {
        let set = |server: &Self, asleep| {
            let all = server.active();
            all.for_each(|served| served.channel.region.asleep.store(asleep, Ordering::SeqCst));
        };
        set(self, 1);
        let pending = |served: &Served| served.channel.region.pending.load(Ordering::SeqCst) != 0;
        if !self.active().any(pending) {
            self.hear(None)?;
        }
        for served in self.channels.values_mut() {
            served.idle = served
                .idle
                .map(|idle| idle + 1)
                .filter(|idle| *idle <= IDLE);
        }
        set(self, 0);
        self.tell_crowded();
        Ok(())
    }

    /// Makes the channels active whose doorbells have rung, or ring within `limit`.
    fn hear(&mut self, limit: Option<&rustix::time::Timespec>) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        match epoll::wait(
            &self.bells,
            rustix::buffer::spare_capacity(&mut events),
            limit,
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut count = [0; 8];
        for event in events {
            let number = event.data.u64();
            let served = self.channels.get_mut(&number);
            let bell = match &served {
                Some(served) => &served.channel.doorbell,
                None => &self.shared.bell,
            };
            // Empties it. It may be empty, because another program may have read it.
            let _ = rustix::io::read(bell, &mut count);
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
        is_crowded(self.processors, self.active().count())
    }

    /// Tells programs whether they yield while they look for a reply.
    fn tell_crowded(&self) {
        let crowded = u32::from(self.is_crowded());
        for served in self.active() {
            let told = &served.channel.region.crowded;
            if told.load(Ordering::Relaxed) != crowded {
                told.store(crowded, Ordering::Relaxed);
            }
        }
    }

    /// Does what other threads want. Returns whether the thread shall end.
    fn do_wanted(&mut self) -> io::Result<bool> {
        let (joins, leaves, ends) = {
            let mut wanted = self
                .shared
                .wanted
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let joins = std::mem::take(&mut wanted.joins);
            (joins, std::mem::take(&mut wanted.leaves), wanted.ends)
        };
        for (number, channel) in joins {
            let data = epoll::EventData::new_u64(number);
            epoll::add(&self.bells, &channel.doorbell, data, epoll::EventFlags::IN)?;
            self.channels.insert(
                number,
                Served {
                    channel,
                    idle: None,
                },
            );
        }
        for number in leaves {
            if let Some(served) = self.channels.remove(&number) {
                epoll::delete(&self.bells, &served.channel.doorbell)?;
            }
        }
        Ok(ends)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;
    use crate::{Client, Gone, channel};

    /// Answers with the bytes in reverse order.
    struct Reverse;

    impl Handler for Reverse {
        fn handle(&mut self, _: u64, request: &[u8], reply: &mut Vec<u8>) {
            reply.extend(request.iter().rev());
        }
    }

    struct Running {
        joiner: Joiner,
        thread: Option<thread::JoinHandle<io::Result<()>>>,
    }

    impl Running {
        fn new() -> Self {
            let mut server = Server::new().unwrap();
            let joiner = server.joiner();
            let thread = Some(thread::spawn(move || server.run(&mut Reverse)));
            Self { joiner, thread }
        }

        /// A client, and the daemon's end of its socket.
        fn client(&self) -> (Client, UnixStream) {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let ends = channel().unwrap();
            self.joiner.join(ends.daemon);
            let client = Client::new(ends.memory, ends.doorbell, theirs.into()).unwrap();
            (client, ours)
        }

        fn end(&mut self) {
            self.joiner.end();
            self.thread.take().unwrap().join().unwrap().unwrap();
        }
    }

    fn ask(client: &Client, number: u64) {
        let request = [number.to_le_bytes(), (!number).to_le_bytes()].concat();
        let mut reply = [0; 32];
        let len = client.call(&[&request], &mut reply).unwrap();
        let expected: Vec<u8> = request.into_iter().rev().collect();
        assert_eq!(&reply[..len], expected);
    }

    #[test]
    fn each_call_of_many_threads_of_many_programs_gets_its_own_reply() {
        let mut running = Running::new();
        let clients: Vec<_> = (0..5).map(|_| running.client()).collect();
        thread::scope(|scope| {
            for (n, (client, _)) in clients.iter().enumerate() {
                for thread in 0..3 {
                    scope.spawn(move || {
                        (0..2000)
                            .for_each(|call| ask(client, (n as u64) << 32 | thread << 24 | call));
                    });
                }
            }
        });
        running.end();
    }

    #[test]
    fn a_call_after_a_pause_is_answered() {
        let mut running = Running::new();
        let (client, _socket) = running.client();
        let (other, _other) = running.client();
        for pause in 0..20 {
            thread::sleep(std::time::Duration::from_millis(pause % 4));
            ask(&client, pause);
            (0..100).for_each(|call| ask(&other, call));
        }
        running.end();
    }

    #[test]
    fn requests_that_nobody_waits_for_are_carried_out_and_free_their_slots() {
        struct Counted(Arc<AtomicUsize>);
        impl Handler for Counted {
            fn handle(&mut self, _: u64, request: &[u8], _: &mut Vec<u8>) {
                self.0.fetch_add(request.len(), Ordering::SeqCst);
            }
        }
        let counted = Arc::<AtomicUsize>::default();
        let (mut server, mut handler) = (Server::new().unwrap(), Counted(counted.clone()));
        let joiner = server.joiner();
        let thread = Some(thread::spawn(move || server.run(&mut handler)));
        let mut running = Running { joiner, thread };
        let (client, _socket) = running.client();
        for round in 1..=200 {
            assert!(client.post(&[&[1; 8]]));
            client.call(&[&[1; 16]], &mut [0; 8]).unwrap();
            if round % 50 == 0 {
                // The thread sleeps by then, and is woken by a request like any other.
                thread::sleep(std::time::Duration::from_millis(20));
                assert_eq!(counted.load(Ordering::SeqCst), round * 24);
            }
        }
        assert!(!client.post(&[&[0; PAYLOAD + 1]]));
        running.end();
    }

    #[test]
    fn without_a_daemon_a_call_fails() {
        let mut running = Running::new();
        let (client, socket) = running.client();
        ask(&client, 1);
        running.end();
        drop(socket);
        let asked = client.call(&[b"request"], &mut [0; 8]);
        assert_eq!(asked, Err(Gone::Unanswered));
        let long = client.call(&[&[0; PAYLOAD + 1]], &mut [0; 8]);
        assert_eq!(long, Err(Gone::NotAsked));
    }

    #[test]
    fn a_channel_that_left_is_not_served_and_others_are() {
        let mut running = Running::new();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let ends = channel().unwrap();
        let number = running.joiner.join(ends.daemon);
        let client = Client::new(ends.memory, ends.doorbell, theirs.into()).unwrap();
        ask(&client, 1);
        running.joiner.leave(number);
        let (other, _other) = running.client();
        ask(&other, 2);
        drop(ours);
        assert_eq!(
            client.call(&[b"request"], &mut [0; 8]),
            Err(Gone::Unanswered)
        );
        ask(&other, 3);
        running.end();
    }

    /// Whatever a program writes into its memory, the others are served.
    #[test]
    fn hostile_memory_harms_only_its_own_program() {
        let mut running = Running::new();
        let ends = channel().unwrap();
        let region = Region::map(&ends.memory).unwrap();
        running.joiner.join(ends.daemon);
        let (client, _socket) = running.client();
        let mut random = 1u64;
        for call in 0..3000 {
            for _ in 0..8 {
                random = random
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let slot = &region.slots[(random >> 40) as usize % region.slots.len()];
                slot.state.store((random >> 33) as u32, Ordering::Relaxed);
                slot.put(&[&random.to_le_bytes()]);
                region.pending.store(random, Ordering::Relaxed);
                region
                    .asleep
                    .store((random >> 60) as u32, Ordering::Relaxed);
            }
            let _ = rustix::io::write(&ends.doorbell, &1u64.to_ne_bytes());
            ask(&client, call);
        }
        running.end();
    }

    /// Answers, and whenever it does, the first channel has new requests.
    struct Flooded(Region);

    impl Handler for Flooded {
        fn handle(&mut self, channel: u64, request: &[u8], reply: &mut Vec<u8>) {
            self.0.pending.store(u64::MAX, Ordering::Relaxed);
            Reverse.handle(channel, request, reply);
        }
    }

    /// A program that always has requests keeps no other one from joining, and the thread not from ending.
    #[test]
    fn others_join_beside_a_flood_of_requests() {
        let mut server = Server::new().unwrap();
        let joiner = server.joiner();
        let ends = channel().unwrap();
        let region = Region::map(&ends.memory).unwrap();
        joiner.join(ends.daemon);
        region.pending.store(1, Ordering::SeqCst);
        let _ = rustix::io::write(&ends.doorbell, &1u64.to_ne_bytes());
        let thread = thread::spawn(move || server.run(&mut Flooded(region)));
        let mut running = Running {
            joiner,
            thread: Some(thread),
        };
        // The flood has begun by then.
        let (client, _socket) = running.client();
        ask(&client, 1);
        running.end();
    }
}
