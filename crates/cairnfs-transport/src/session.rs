//! A connection to the kernel from its negotiation to its end: the event loops over `/dev/fuse`.
//!
//! The session negotiates when it is created, and serves while [`Session::run`] runs, which returns
//! when the file system is unmounted. It neither mounts nor unmounts.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{self, InHeader, InitOut, Opcode};
use crate::dev::{Channel, Message, Received};
use crate::init::{Granted, Offer, agree};
use crate::notify::Notifier;
use crate::polling::POLL;
use crate::readers::{Arrival, Readers, Turn};
use crate::reply::{Errno, Sink};
use crate::server::{Server, serve};

/// Parameters of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Number of event loops, at least one.
    pub loops: usize,
    /// Whether each event loop gets its own descriptor of the device, which must be accessible
    /// then. The kernel spreads requests over descriptors with less contention.
    pub clone_device: bool,
}

/// A negotiated connection.
pub struct Session<S> {
    server: Arc<S>,
    channel: Arc<Channel>,
    readers: Arc<Readers>,
    granted: Granted,
    config: Config,
}

/// Counts of a session's transport.
#[derive(Debug, Clone)]
pub struct Traffic {
    readers: Arc<Readers>,
}

impl Traffic {
    /// Name of the transport that carries requests, as the mount option spells it.
    pub fn transport(&self) -> &'static str {
        "dev"
    }

    /// Number of messages that event loops found by polling, before they slept.
    pub fn polled(&self) -> u64 {
        self.readers.polled()
    }
}

impl<S: Server> Session<S> {
    /// Negotiates over the descriptor of a mounted connection.
    ///
    /// # Errors
    /// The kernel is too old (`Unsupported`), or the connection has ended.
    pub fn new(server: S, device: OwnedFd, config: Config) -> io::Result<Self> {
        let channel = Arc::new(Channel::new(device));
        let granted = negotiate(&server, &channel)?;
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            server: Arc::new(server),
            channel,
            readers: Arc::new(Readers::new(config.loops.max(1), processors)),
            granted,
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

    /// The counts of the transport.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            readers: Arc::clone(&self.readers),
        }
    }

    /// Serves requests until the file system is unmounted.
    ///
    /// # Errors
    /// The connection broke, or a thread could not be started.
    pub fn run(self) -> io::Result<()> {
        let mut threads = Vec::new();
        let mut outcome = Ok(());
        for n in 0..self.config.loops.max(1) {
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
        let channel = match n > 0 && self.config.clone_device {
            true => Arc::new(self.channel.duplicate()?),
            false => Arc::clone(&self.channel),
        };
        Ok(EventLoop {
            server: Arc::clone(&self.server),
            sink: Arc::clone(&channel) as Arc<dyn Sink>,
            channel,
            readers: Arc::clone(&self.readers),
            buffer: Channel::buffer(self.granted.max_request),
            answered: false,
        })
    }
}

fn negotiate(server: &impl Server, channel: &Channel) -> io::Result<Granted> {
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
            Ok((reply, granted)) => {
                tracing::debug!("FUSE 7.{}: {:?}", granted.minor, granted.features);
                channel.send(unique, Ok(&[reply.as_bytes()]));
                Ok(granted)
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
    sink: Arc<dyn Sink>,
    readers: Arc<Readers>,
    buffer: Vec<u8>,
    /// Whether a program waited for the reply of the last message.
    answered: bool,
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
        while let Some(turn) = self.readers.enter() {
            let (received, arrival) = self.wait(turn)?;
            let Received::Message(len) = received else {
                break;
            };
            let answered = !self.opcode().is_unanswered();
            self.readers.leave(turn, arrival, answered && self.answered);
            self.answered = answered;
            self.serve(len);
        }
        Ok(())
    }

    /// Waits for the next message in the way of this turn.
    fn wait(&mut self, turn: Turn) -> io::Result<(Received, Arrival)> {
        let began = Instant::now();
        let mut arrival = None;
        if (turn.poll || turn.look) && self.channel.is_ready() {
            arrival = Some(Arrival::AtOnce);
        }
        while turn.poll && arrival.is_none() && began.elapsed() < POLL {
            if self.channel.is_ready() {
                arrival = Some(Arrival::Polled);
            }
        }
        let received = self.channel.receive(&mut self.buffer)?;
        Ok((
            received,
            arrival.unwrap_or_else(|| Arrival::Slept(began.elapsed())),
        ))
    }

    /// The operation of the message in the buffer.
    fn opcode(&self) -> Opcode {
        let header = InHeader::read_from_prefix(&self.buffer);
        Opcode(header.map_or(0, |(header, _)| header.opcode))
    }

    fn serve(&self, len: usize) {
        let bytes = self.buffer.get(..len).unwrap_or_default();
        match Message::split(bytes) {
            Some(message) if message.header.len as usize == len => {
                let Message {
                    header,
                    op,
                    payload,
                } = message;
                serve(&*self.server, &header, op, payload, &self.sink);
            }
            Some(Message { header, .. }) => {
                tracing::error!("message of {len} bytes that announces {}", header.len);
                if !Opcode(header.opcode).is_unanswered() {
                    self.sink.send(header.unique, Err(Errno::EIO));
                }
            }
            None => tracing::error!("message of {len} bytes"),
        }
    }
}
