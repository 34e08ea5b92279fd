//! The programs that have channels to a mount, and the thread that answers them.
//!
//! One thread answers all programs of a mount ([`cairnfs_channel::Server`]). It is started for the first
//! one, and ends with the mount. What is asked is done by [`Ops::serve_program`]. An fsync waits with those of
//! the kernel ([`Syncs`]), and is answered by another thread. When nobody answers any
//! more, the connections of all programs are shut down, by which a program learns that it is so.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use cairnfs::fs::FsyncRequest;
use cairnfs_channel::{Answered, Asked, Handler, Joiner, Server, channel};
use cairnfs_core::source::{AtOneTime, at_one_time};
use parking_lot::{Mutex, RwLock};

use crate::admission::Purpose;
use crate::fault::inherited;
use crate::ops::Ops;
use crate::ops::deferred::Merged;
use crate::ops::programs::Program;
use crate::person::Person;
use crate::syncs::Syncs;
use crate::waiting::Waiting;

/// The program's end of a new channel.
pub struct Joined {
    /// The number by which the program leaves.
    pub channel: u64,
    /// The memory.
    pub memory: OwnedFd,
    /// The doorbell.
    pub doorbell: OwnedFd,
    /// The name of the door (see [`Ops::door`]).
    pub door: String,
}

/// The programs by the number of their channel, with their connections; `None` if they are not answered any
/// more. Held shared while one is answered, so that a program that has left opens nothing afterwards.
type Known = Arc<RwLock<Option<HashMap<u64, (Program, UnixStream)>>>>;

/// The programs that have channels to a mount.
pub struct Programs {
    ops: Arc<Ops>,
    programs: Known,
    durable: Durable,
    birth_times: bool,
    thread: Mutex<Option<(Joiner, JoinHandle<()>)>>,
}

/// How files are made durable.
#[derive(Clone)]
pub struct Durable {
    /// The fsyncs of the mount.
    pub syncs: Syncs<Ops>,
    /// Where they wait.
    pub waiting: Waiting,
}

struct Answers {
    ops: Arc<Ops>,
    programs: Known,
    durable: Durable,
    time: Option<AtOneTime>,
    merged: Option<Merged>,
}

impl Durable {
    /// Without fsyncs of the kernel.
    pub fn alone(ops: &Arc<Ops>) -> Self {
        Self {
            syncs: Syncs::new(Arc::clone(ops)),
            waiting: Waiting::for_rings_only(),
        }
    }

    /// Has a file made durable, and the program answered then. Without a reply it asks the kernel.
    fn sync(&self, ops: &Arc<Ops>, request: FsyncRequest, from: &Asked<'_>) -> Answered {
        // As for the kernel's, which the end of a mount awaits.
        let inside = ops.admission().enter(Purpose::WriteBack);
        let (Ok(_inside), Some(promise)) = (inside, from.promise()) else {
            return Answered::Now;
        };
        let counted = Arc::clone(ops);
        self.syncs.sync(request, &self.waiting, move |outcome| {
            let mut reply = Vec::new();
            counted.put_synced(outcome, &mut reply);
            promise.keep(&reply);
        });
        Answered::Later
    }
}

impl Handler for Answers {
    fn handle(&mut self, from: &Asked<'_>, request: &[u8], reply: &mut Vec<u8>) -> Answered {
        let programs = self.programs.read();
        let known = programs.as_ref();
        let Some((program, _)) = known.and_then(|known| known.get(&from.channel)) else {
            return Answered::Now;
        };
        let request = (request, from.deferred);
        let sync = self
            .ops
            .serve_program(program, request, &mut self.merged, reply);
        sync.map_or(Answered::Now, |sync| {
            self.durable.sync(&self.ops, sync, from)
        })
    }

    fn begins(&mut self) {
        self.time = None;
        self.time = Some(at_one_time());
    }

    fn is_passed(&mut self) {
        self.ops.set_merged(&mut self.merged);
    }

    fn ends(&mut self) {
        self.time = None;
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        let programs = self.programs.write().take();
        for (_, connection) in programs.into_iter().flat_map(HashMap::into_values) {
            // One that is gone needs nothing.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Programs {
    /// None yet; they will use `ops`, and are shown times of birth if the mount shows them.
    pub fn new(ops: Arc<Ops>, durable: Durable, birth_times: bool) -> Self {
        Self {
            ops,
            durable,
            birth_times,
            programs: Arc::new(RwLock::new(Some(HashMap::new()))),
            thread: Mutex::default(),
        }
    }

    /// Makes a channel for a program of this user, which has this connection.
    ///
    /// # Errors
    /// The mount has ended; the system lacks descriptors, memory or threads.
    pub fn join(&self, person: Person, connection: UnixStream) -> io::Result<Joined> {
        let ends = channel()?;
        let mut thread = self.thread.lock();
        if self.programs.read().is_none() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let (joiner, _) = match &mut *thread {
            Some(running) => running,
            none => none.insert(self.start()?),
        };
        let mut programs = self.programs.write();
        let Some(known) = &mut *programs else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let channel = joiner.join(Arc::clone(&ends.daemon));
        let deferrals = self.ops.deferrals();
        deferrals.add(channel, ends.daemon, joiner.clone());
        let program = Program {
            person,
            channel,
            birth_times: self.birth_times,
        };
        known.insert(channel, (program, connection));
        Ok(Joined {
            channel,
            memory: ends.memory,
            doorbell: ends.doorbell,
            door: self.ops.door().to_owned(),
        })
    }

    fn start(&self) -> io::Result<(Joiner, JoinHandle<()>)> {
        let mut server = Server::new()?;
        let joiner = server.joiner();
        let mut answers = Answers {
            ops: Arc::clone(&self.ops),
            programs: Arc::clone(&self.programs),
            durable: self.durable.clone(),
            time: None,
            merged: None,
        };
        let thread = thread::Builder::new().name("cairnfs-programs".into());
        let thread = thread.spawn(inherited(move || {
            if let Err(error) = server.run(&mut answers) {
                tracing::error!("programs get no answers by channels any more: {error}");
            }
        }))?;
        Ok((joiner, thread))
    }

    /// A program has ended, or has closed its connection.
    pub fn leave(&self, channel: u64) {
        self.ops.deferrals().remove(channel);
        if let Some((joiner, _)) = &*self.thread.lock() {
            joiner.leave(channel);
        }
        if let Some(known) = &mut *self.programs.write() {
            known.remove(&channel);
        }
        self.ops.program_ended(channel);
    }

    /// Answers none any more. What they have asked for is answered, or never will be.
    pub fn end(&self) {
        let mut thread = self.thread.lock();
        if let Some((joiner, thread)) = thread.take() {
            joiner.end();
            // It has logged why it ended.
            let _ = thread.join();
        }
        // Nobody has a connection without a thread, and none is started for another one.
        *self.programs.write() = None;
    }
}
