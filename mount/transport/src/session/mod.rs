//! A connection to the kernel from its negotiation to its end: the event loops over `/dev/fuse`, and
//! the rings if the kernel offers them.
//!
//! The session negotiates when it is created, and serves while [`Session::run`] runs, which returns
//! when the file system is unmounted. It neither mounts nor unmounts. Rings are prepared before they
//! are asked for, so what can fail does so while `/dev/fuse` is still possible.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{self, InHeader, InitOut, Opcode};
use crate::by_rings::ByRings;
use crate::dev::{Channel, Message, Received};
use crate::init::{self, Features, Granted, Offer, agree};
use crate::notify::Notifier;
use crate::polling::POLL;
use crate::quiet::{Patient, Quiet, is_direct};
use crate::readers::{Arrival, From, Readers, Turn};
use crate::reply::{Errno, Sink};
use crate::reply_thread::ReplyThread;
use crate::ring::{Prepared, Running};
use crate::search::Move;
use crate::server::{Server, serve};

/// How requests come from the kernel and replies go to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// Over io_uring if the kernel offers it and the system permits it, over `/dev/fuse` otherwise.
    #[default]
    Auto,
    /// Over `/dev/fuse`.
    Dev,
    /// As [`Transport::Auto`]; it is logged why it is `/dev/fuse`, also if the kernel does not offer
    /// anything else.
    Ring,
}

/// Parameters of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Number of event loops, at least one.
    pub loops: usize,
    /// Whether each event loop gets its own descriptor of the device, which must be accessible
    /// then. The kernel spreads requests over descriptors with less contention.
    pub clone_device: bool,
    /// Which transport is wanted.
    pub transport: Transport,
}

/// A negotiated connection.
pub struct Session<S> {
    server: Arc<S>,
    channel: Arc<Channel>,
    readers: Arc<Readers>,
    quiet: Arc<Quiet>,
    granted: Granted,
    rings: Option<Prepared<S>>,
    by_rings: Arc<ByRings>,
    config: Config,
}

/// Counts of a session's transport.
#[derive(Debug, Clone)]
pub struct Traffic {
    readers: Arc<Readers>,
    by_rings: Arc<ByRings>,
}

impl Traffic {
    /// Name of the transport that carries requests, as the mount option spells it.
    pub fn transport(&self) -> &'static str {
        if self.by_rings.in_service() {
            "ring"
        } else {
            "dev"
        }
    }

    /// Number of messages that event loops and rings found by polling, before they slept.
    pub fn polled(&self) -> u64 {
        self.readers.polled() + self.by_rings.polled.load(Ordering::Relaxed)
    }

    /// Number of messages that an event loop served on the processor of the client, which it followed.
    pub fn followed(&self) -> u64 {
        self.readers.followed()
    }
}

impl<S: Server> Session<S> {
    /// Negotiates over the descriptor of a mounted connection.
    ///
    /// # Errors
    /// The kernel is too old (`Unsupported`), or the connection has ended.
    pub fn new(server: S, device: OwnedFd, config: Config) -> io::Result<Self> {
        let channel = Arc::new(Channel::new(device));
        let (granted, rings) = negotiate(&server, &channel, config.transport)?;
        // No program waits for the messages that rings leave to the device, so polling them would not
        // pay.
        let (processors, by_rings) = match &rings {
            Some(_) => (1, ByRings::new()?),
            None => {
                let processors = thread::available_parallelism().map_or(1, usize::from);
                (processors, ByRings::default())
            }
        };
        Ok(Self {
            server: Arc::new(server),
            channel,
            readers: Arc::new(Readers::new(config.loops.max(1), processors)),
            quiet: Arc::default(),
            granted,
            rings,
            by_rings: Arc::new(by_rings),
            config,
        })
    }

    /// What was negotiated.
    pub fn granted(&self) -> Granted {
        self.granted
    }

    /// The sender of notifications to the kernel.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::clone(&self.channel))
    }

    /// What makes the connection quiet for a moment.
    pub fn quiet(&self) -> Arc<Quiet> {
        Arc::clone(&self.quiet)
    }

    /// The counts of the transport.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            readers: Arc::clone(&self.readers),
            by_rings: Arc::clone(&self.by_rings),
        }
    }

    /// Serves requests until the file system is unmounted.
    ///
    /// # Errors
    /// The connection or a ring broke, or a thread could not be started. Requests may be left
    /// without an answer until all descriptors of the device are closed.
    pub fn run(mut self) -> io::Result<()> {
        let rings = self.start_rings()?;
        let outcome = self.run_loops();
        // The connection has ended, so the rings get their entries back.
        match rings {
            Some(rings) if outcome.is_ok() => rings.join(),
            _ => outcome,
        }
    }

    /// Registers the rings. If the kernel refuses them, all requests come over `/dev/fuse`.
    fn start_rings(&mut self) -> io::Result<Option<Running>> {
        let Some(prepared) = self.rings.take() else {
            return Ok(None);
        };
        let (rings, refused) =
            prepared.start(&*self.channel, &self.server, (&self.by_rings, &self.quiet))?;
        match refused {
            None => self.by_rings.begin_service(),
            Some(error) => log_fallback(&error),
        }
        Ok(Some(rings))
    }

    /// Number of event loops: rings leave few messages to `/dev/fuse`.
    fn loops(&self) -> usize {
        if self.by_rings.in_service() {
            1
        } else {
            self.config.loops.max(1)
        }
    }

    fn run_loops(&self) -> io::Result<()> {
        let mut threads = Vec::new();
        let mut outcome = Ok(());
        for n in 0..self.loops() {
            match self.event_loop(n).and_then(|event_loop| {
                let named = thread::Builder::new().name(format!("cairnfs-fuse-{n}"));
                named.spawn(move || event_loop.run())
            }) {
                Ok(thread) => threads.push(thread),
                Err(e) => {
                    outcome = Err(e);
                    self.readers.close();
                    break;
                }
            }
        }
        for thread in threads {
            let ended = thread.join();
            let ended = ended.unwrap_or_else(|_| Err(io::Error::other("an event loop panicked")));
            outcome = outcome.and(ended);
        }
        outcome
    }

    fn event_loop(&self, n: usize) -> io::Result<EventLoop<S>> {
        let channel = if n > 0 && self.config.clone_device {
            Arc::new(self.channel.duplicate()?)
        } else {
            Arc::clone(&self.channel)
        };
        let direct = Arc::clone(&channel) as Arc<dyn Sink>;
        let patient = Patient::new(Arc::clone(&direct), self.quiet());
        Ok(EventLoop {
            server: Arc::clone(&self.server),
            patient: Arc::new(patient),
            direct,
            channel,
            readers: Arc::clone(&self.readers),
            by_rings: Arc::clone(&self.by_rings),
            quiet: self.quiet(),
            buffer: Channel::buffer(self.granted.max_request),
            polls_for: POLL,
            answered: None,
            arrived: Instant::now(),
            may_follow: true,
            beside: None,
        })
    }
}

fn log_fallback(error: &io::Error) {
    tracing::warn!("FUSE over io_uring is not possible, so /dev/fuse is used: {error}");
}

/// Prepares rings, if they are wanted, offered and possible.
fn prepare<S: Server>(transport: Transport, offer: &Offer, reply: &InitOut) -> Option<Prepared<S>> {
    let offered = offer.features.contains(Features::OVER_IO_URING);
    match (transport, offered) {
        (Transport::Dev, _) | (Transport::Auto, false) => return None,
        (Transport::Ring, false) => {
            log_fallback(&io::Error::other(
                "the kernel does not offer it; it does from Linux 6.14 on, after \
                 `echo Y > /sys/module/fuse/parameters/enable_uring` as root",
            ));
            return None;
        }
        (Transport::Auto | Transport::Ring, true) => {}
    }
    let pages = usize::from(reply.max_pages) * init::PAGE as usize;
    let prepared = Prepared::new(pages.max(reply.max_write as usize));
    prepared.inspect_err(log_fallback).ok()
}

fn negotiate<S: Server>(
    server: &S,
    channel: &Channel,
    transport: Transport,
) -> io::Result<(Granted, Option<Prepared<S>>)> {
    let mut buffer = Channel::buffer(0);
    buffer.resize(2 * buffer.len(), 0);
    loop {
        let Received::Message(len) = channel.receive(&mut buffer)? else {
            let ended = "unmounted before the negotiation";
            return Err(io::Error::new(io::ErrorKind::NotConnected, ended));
        };
        let message = Message::split(buffer.get(..len).unwrap_or_default());
        let message = message.filter(|m| Opcode(m.header.opcode) == Opcode::INIT);
        let offer = message.map(|m| (m.header.unique, Offer::decode(m.op)));
        let Some((unique, Ok(offer))) = offer else {
            let other = "another message came before the negotiation";
            return Err(io::Error::new(io::ErrorKind::InvalidData, other));
        };
        if offer.major > abi::MAJOR {
            // The kernel repeats INIT with the version that it is answered.
            let reply = InitOut {
                major: abi::MAJOR,
                minor: abi::MINOR,
                ..InitOut::default()
            };
            channel.send(unique, Ok(&[reply.as_bytes()]));
            continue;
        }
        let agreed = server.negotiate(&offer);
        return match agreed.and_then(|wanted| agree(&offer, &wanted)) {
            Ok((mut reply, mut granted)) => {
                let rings = prepare(transport, &offer, &reply);
                if rings.is_some() {
                    granted.features = granted.features.union(Features::OVER_IO_URING);
                    reply.flags2 = (granted.features.0 >> 32) as u32;
                }
                tracing::debug!("FUSE 7.{}: {:?}", granted.minor, granted.features);
                channel.send(unique, Ok(&[reply.as_bytes()]));
                Ok((granted, rings))
            }
            Err(why) => {
                channel.send(unique, Err(Errno::EPROTO));
                Err(io::Error::new(io::ErrorKind::Unsupported, why))
            }
        };
    }
}

struct EventLoop<S> {
    server: Arc<S>,
    channel: Arc<Channel>,
    /// Takes the replies of writes, and others that must not be kept back.
    direct: Arc<dyn Sink>,
    /// Takes all other replies, which can be kept back.
    patient: Arc<dyn Sink>,
    readers: Arc<Readers>,
    by_rings: Arc<ByRings>,
    quiet: Arc<Quiet>,
    buffer: Vec<u8>,
    /// [`POLL`], unless a test must not depend on time.
    polls_for: Duration,
    /// The thread that waited for the reply of the last message, if one did.
    answered: Option<u32>,
    /// When the last message of the client arrived.
    arrived: Instant,
    /// Whether replies can be handed over.
    may_follow: bool,
    beside: Option<Beside>,
}

/// What hands over the replies of a loop.
struct Beside {
    thread: ReplyThread,
    direct: Arc<dyn Sink>,
    patient: Arc<dyn Sink>,
}

/// Releases parked loops when a loop ends, in whatever way.
struct CloseOnDrop(Arc<Readers>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<S: Server> EventLoop<S> {
    fn run(mut self) -> io::Result<()> {
        let _close = CloseOnDrop(Arc::clone(&self.readers));
        let readers = Arc::clone(&self.readers);
        self.server
            .announce_waits(Box::new(move || readers.relieve()));
        while let Some(turn) = self.enter() {
            let (received, arrival) = self.wait(turn)?;
            let Received::Message(len) = received else {
                break;
            };
            let (from, to) = self.note(turn);
            self.readers.leave(turn, arrival, from);
            let hands_over = self.go(turn, to);
            self.serve(len, hands_over);
        }
        Ok(())
    }

    /// Begins a turn. A loop that parks, or is not the only one, may run everywhere.
    fn enter(&mut self) -> Option<Turn> {
        let mut leave = || {
            if let Some(beside) = &mut self.beside {
                beside.thread.leave();
            }
        };
        let turn = self.readers.enter(&mut leave)?;
        if !turn.follows() {
            leave();
        }
        Some(turn)
    }

    /// What is known of the message in the buffer, which has just arrived; and where the loop is to
    /// be bound.
    fn note(&mut self, turn: Turn) -> (From, Move) {
        let header = InHeader::read_from_prefix(&self.buffer).map(|(header, _)| header);
        let header = header.ok().filter(|h| !Opcode(h.opcode).is_unanswered());
        let client = header.as_ref().map(|header| header.pid);
        let before = std::mem::replace(&mut self.answered, client);
        let ahead = header.is_some_and(|h| Opcode(h.opcode).may_be_sent_ahead());
        // The next message of one thread was sent after the reply to its last one.
        let waited = ahead || before != client || client == Some(0);
        let mut from = From {
            awaited: before.is_some() && client.is_some() && waited,
            client,
            syncs: header.is_some_and(|header| Opcode(header.opcode).is_sync()),
            ..From::default()
        };
        let to = self.follow(turn, &mut from);
        (from, to)
    }

    /// Follows the client of a message, if it is the only one.
    fn follow(&mut self, turn: Turn, from: &mut From) -> Move {
        if self.beside.is_none() && turn.follows() && self.may_follow {
            match self.start_reply_thread() {
                Ok(beside) => self.beside = Some(beside),
                Err(error) => {
                    tracing::debug!("replies are not handed over: {error}");
                    self.may_follow = false;
                }
            }
        }
        let Some(Beside { thread, .. }) = &mut self.beside else {
            return Move::None;
        };
        let now = Instant::now();
        from.late = thread.arrived(from.client);
        if from.late {
            thread.failed(now);
        }
        let client = from.client.filter(|client| *client != 0 && turn.follows());
        let to = client.map_or(Move::None, |client| {
            let gap = now - std::mem::replace(&mut self.arrived, now);
            thread.follow(client, now, gap)
        });
        from.beside = turn.follows() && thread.is_bound() || matches!(to, Move::To(_));
        from.measures = thread.measures();
        to
    }

    /// Goes where the loop is to be bound. Returns whether its replies are handed over.
    fn go(&mut self, turn: Turn, to: Move) -> bool {
        let Some(Beside { thread, .. }) = &mut self.beside else {
            return false;
        };
        thread.go(to);
        turn.follows() && thread.is_bound()
    }

    fn start_reply_thread(&self) -> io::Result<Beside> {
        let thread = ReplyThread::start(&self.channel)?;
        self.readers.watch_over(Arc::clone(thread.handoff()));
        let direct: Arc<dyn Sink> = Arc::new(thread.sink());
        let patient = Patient::new(Arc::clone(&direct), Arc::clone(&self.quiet));
        Ok(Beside {
            thread,
            direct,
            patient: Arc::new(patient),
        })
    }

    /// Waits for the next message in the way of this turn.
    fn wait(&mut self, turn: Turn) -> io::Result<(Received, Arrival)> {
        let began = Instant::now();
        let mut arrival = None;
        let is_bound = |beside: &Beside| beside.thread.is_bound();
        let polls = turn.lone && !self.beside.as_ref().is_some_and(is_bound);
        if (polls || turn.look) && self.channel.is_ready() {
            arrival = Some(Arrival::AtOnce);
        }
        while polls && arrival.is_none() && began.elapsed() < self.polls_for {
            if self.channel.is_ready() {
                arrival = Some(Arrival::Polled);
            }
        }
        self.by_rings.wait_for(&self.channel)?;
        let received = self.channel.receive(&mut self.buffer)?;
        Ok((
            received,
            arrival.unwrap_or_else(|| Arrival::Slept(began.elapsed())),
        ))
    }

    fn serve(&self, len: usize, hands_over: bool) {
        let bytes = self.buffer.get(..len).unwrap_or_default();
        match Message::split(bytes) {
            Some(message) if message.header.len as usize == len => {
                let Message {
                    header,
                    op,
                    payload,
                } = message;
                let is_direct = is_direct(Opcode(header.opcode), op);
                let serve = |direct, patient| {
                    let sink = if is_direct { direct } else { patient };
                    serve(&*self.server, &header, op, payload, sink);
                };
                // A loop that has waited for the device is probably needed no more, and writes itself.
                let hands_over = hands_over && !Opcode(header.opcode).is_sync();
                match self.beside.as_ref().filter(|_| hands_over) {
                    Some(to) => to.thread.serving(&header, || {
                        serve(&to.direct, &to.patient);
                    }),
                    None => serve(&self.direct, &self.patient),
                }
            }
            Some(Message { header, .. }) => {
                tracing::error!("message of {len} bytes that announces {}", header.len);
                if !Opcode(header.opcode).is_unanswered() {
                    self.direct.send(header.unique, Err(Errno::EIO));
                }
            }
            None => tracing::error!("message of {len} bytes"),
        }
    }
}

#[cfg(test)]
mod tests;
