//! The mounts that a process serves: how each begins, and how they end, one by one or together.
//!
//! A session is added with the descriptor of a mounted connection, and ends when that is unmounted
//! everywhere. A signal ends all of them. A mount in use then ends as by `umount -l`: it is
//! detached, and its open files are served until the last one is closed, for a bounded time. With
//! the last session the registry is closed, in the same moment: no later one is accepted. This
//! module neither mounts nor opens or closes a volume.

mod replacing;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cairnfs::RootInfo;
use cairnfs_transport::session::Traffic;
use cairnfs_transport::{Config, Notifier, Quiet, Server, Session};
use parking_lot::{Condvar, Mutex, MutexGuard};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::adapter::{Adapter, Notices};
use crate::apart::Apart;
use crate::ending::Ending;
use crate::mounted::Mounted;
use crate::mounter;
use crate::ops::Ops;
use crate::options::MountOptions;
use crate::programs::Programs;

pub use replacing::Held;

/// Failure of a mount.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It could not be mounted; nothing is mounted.
    #[error("cannot mount on {}: {source}", dir.display())]
    Mount {
        /// The mountpoint.
        dir: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It was mounted, and the connection to the kernel broke; it is unmounted.
    #[error("the mount on {} was broken off: {source}", dir.display())]
    Broken {
        /// The mountpoint.
        dir: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Why a session was not added.
#[derive(Debug)]
pub enum NotAdded {
    /// The process ends its mounts, or has ended the last one.
    Closed,
    /// The same tree is mounted, and may be mounted once.
    Mounted {
        /// Where.
        dir: PathBuf,
        /// Whether it is not mounted there any more, as far as can be seen, and still in use.
        detached: bool,
    },
    /// The negotiation with the kernel failed, or a thread could not be started.
    Failed(io::Error),
}

/// Receives the channel for unsolicited messages to the kernel, what makes the connection quiet, the
/// counts of the transport, and the mount.
pub type Connected = Box<dyn FnOnce(Notifier, Arc<Quiet>, Traffic, &Arc<Mounted>)>;

/// A file system that a session can serve.
pub trait Served: Server {
    /// Returns what is to be called once the session exists.
    fn connected(&self) -> Connected {
        Box::new(|_, _, _, _| {})
    }

    /// Returns the handle by which the session ends the file system.
    fn ending(&self) -> Arc<dyn Ending> {
        Arc::new(())
    }

    /// Returns the operations by which another tree can take the place of the one that is served, if
    /// that is possible.
    fn replaceable(&self) -> Option<Arc<Ops>> {
        None
    }

    /// Returns the programs that may have channels to the file system, if it serves any.
    fn programs(&self) -> Option<Arc<Programs>> {
        None
    }
}

impl Served for Adapter {
    fn ending(&self) -> Arc<dyn Ending> {
        Arc::new(self.end())
    }

    fn replaceable(&self) -> Option<Arc<Ops>> {
        Some(self.ops())
    }

    fn programs(&self) -> Option<Arc<Programs>> {
        Some(self.programs())
    }

    fn connected(&self) -> Connected {
        let ops = self.ops();
        Box::new(move |notifier, quiet, traffic, mounted| {
            let mounted = Arc::clone(mounted);
            ops.connect(Box::new(Notices::new(notifier, quiet, traffic, mounted)));
        })
    }
}

/// A mount that is to be served.
#[derive(Debug)]
pub struct NewMount {
    /// The mount. It is detached if it cannot be served.
    pub mounted: Mounted,
    /// Its connection.
    pub device: OwnedFd,
    /// The number of a tree of which there must be one mount at a time, because its files can
    /// change: the kernel's caches of two mounts would differ.
    pub sole: Option<u64>,
}

/// How a session has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Other mounts are left. Everything in this mount is durable, or the error says why not.
    Apart(Result<(), String>),
    /// It was the last one.
    Last,
}

/// Receives how a session has ended.
pub type Watcher = Box<dyn FnOnce(&Ended) + Send>;

/// Maximum number of watchers of one session.
const WATCHERS: usize = 64;

/// Time that a session has to end after its mount is gone, before its tree counts as in use.
const UNMOUNTED: Duration = Duration::from_secs(3);

/// Time that commands have to end after the last session, before the volume is closed.
const COMMANDS: Duration = Duration::from_secs(5);

/// A command that is performed on the open volume: it is not closed before this is dropped, unless that
/// takes too long.
pub struct Command(Arc<Sessions>);

impl Drop for Command {
    fn drop(&mut self) {
        self.0.state.lock().commands -= 1;
        self.0.changed.notify_all();
    }
}

/// The sessions of a process.
#[derive(Default)]
pub struct Sessions {
    state: Mutex<State>,
    changed: Condvar,
    apart: Arc<Apart>,
}

#[derive(Default)]
struct State {
    live: Vec<Live>,
    /// Number of sessions so far, which numbers them.
    begun: u64,
    /// Whether no session is added any more.
    closed: bool,
    /// Names of branches that a new mount is about to serve, or that a call without a mount of them may
    /// give to another tree.
    held: Vec<String>,
    /// Number of commands that are performed.
    commands: usize,
    /// Whether they are not waited for.
    hurried: bool,
    /// The first failure of a session.
    failure: Option<ServeError>,
}

/// A session that has not ended.
struct Live {
    number: u64,
    mounted: Arc<Mounted>,
    sole: Option<u64>,
    ending: Arc<dyn Ending>,
    replaceable: Option<Arc<Ops>>,
    programs: Option<Arc<Programs>>,
    /// Name of the branch whose tree is being replaced.
    replaced: Option<String>,
    grace: Duration,
    phase: Phase,
    watchers: Vec<Watcher>,
    /// Whether somebody needs it for a time of his own.
    leased: bool,
}

/// The phases of a session, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// It shall end.
    Ends,
    /// It is being unmounted; `again` if it shall not be served for longer than that.
    Leaving {
        again: bool,
    },
    /// It is in use, and is cut off at this time.
    Until(Instant),
    /// It is being cut off.
    CutOff,
}

/// A step of a session's end, which may take long.
type Step = Box<dyn FnOnce() + Send>;

impl Sessions {
    /// None yet; `apart` makes calls that wait for their requests. By default this process does, which
    /// must not be killed then.
    pub fn with(apart: Apart) -> Self {
        let apart = Arc::new(apart);
        Self {
            apart,
            ..Self::default()
        }
    }

    /// What makes calls that wait for requests of a mount.
    pub fn apart(&self) -> &Arc<Apart> {
        &self.apart
    }

    /// Makes SIGTERM and SIGINT end all sessions (also SIGHUP if `hangup_ends`).
    ///
    /// # Errors
    /// The system lacks resources.
    pub fn watch_signals(self: &Arc<Self>, hangup_ends: bool) -> io::Result<()> {
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        let sessions = Arc::downgrade(self);
        thread::Builder::new()
            .name("cairnfs-signals".into())
            .spawn(move || {
                for signal in signals.forever() {
                    let Some(sessions) = sessions.upgrade() else {
                        return;
                    };
                    if signal != SIGHUP || hangup_ends {
                        sessions.end_all();
                    }
                }
            })?;
        Ok(())
    }

    /// Negotiates with the kernel, and serves the mount in threads of its own from then on.
    ///
    /// # Errors
    /// It is not served, and is detached.
    pub fn add(
        self: &Arc<Self>,
        served: impl Served,
        new: NewMount,
        options: &MountOptions,
    ) -> Result<(), NotAdded> {
        let mounted = Arc::new(new.mounted);
        let begun = self.begin(served, &mounted, new.device, new.sole, options);
        match &begun {
            Ok(()) => mounted.raise_readahead(),
            Err(_) => mounted.detach(),
        }
        begun
    }

    /// Negotiates, enters the session, and starts the event loops. The kernel checks which users may
    /// use the mount. A connection that sends nothing to negotiate about is in no registry.
    fn begin(
        self: &Arc<Self>,
        served: impl Served,
        mounted: &Arc<Mounted>,
        device: OwnedFd,
        sole: Option<u64>,
        options: &MountOptions,
    ) -> Result<(), NotAdded> {
        let config = Config {
            loops: options.event_loops(),
            clone_device: mounter::can_clone_device(),
            transport: options.transport,
        };
        let (connected, ending) = (served.connected(), served.ending());
        let (replaceable, programs) = (served.replaceable(), served.programs());
        let session = Session::new(served, device, config).map_err(NotAdded::Failed)?;
        connected(
            session.notifier(),
            session.quiet(),
            session.traffic(),
            mounted,
        );
        let number = self.enter(Live {
            number: 0,
            mounted: Arc::clone(mounted),
            sole,
            ending,
            replaceable,
            programs,
            replaced: None,
            grace: options.grace,
            phase: Phase::Serving,
            watchers: Vec::new(),
            leased: false,
        })?;
        let sessions = Arc::clone(self);
        let thread = thread::Builder::new().name("cairnfs-session".into());
        let started = thread.spawn(move || sessions.ended(number, session.run()));
        started.map(drop).map_err(|error| {
            self.forget(number);
            NotAdded::Failed(error)
        })
    }

    /// Enters a session into the registry; returns the number that it gets.
    fn enter(&self, mut live: Live) -> Result<u64, NotAdded> {
        let mut state = self.state.lock();
        state.check(live.sole)?;
        state.begun += 1;
        live.number = state.begun;
        state.live.push(live);
        Ok(state.begun)
    }

    /// Whether a session of the tree with this number may be added. One of it that has just been
    /// unmounted is given some time to end.
    ///
    /// # Errors
    /// [`NotAdded::Closed`], [`NotAdded::Mounted`].
    pub fn check(&self, sole: Option<u64>) -> Result<(), NotAdded> {
        let until = Instant::now() + UNMOUNTED;
        let mut state = self.state.lock();
        loop {
            let checked = state.check(sole);
            let ends = matches!(&checked, Err(NotAdded::Mounted { detached: true, .. }));
            if !ends || self.changed.wait_until(&mut state, until).timed_out() {
                return checked;
            }
        }
    }

    /// Ends all sessions: unmounts them, or detaches those in use, which are then served for their
    /// [`MountOptions::grace`] at most. Called again, cuts off those that are left. The thread that
    /// is in [`Self::wait`] does it.
    pub fn end_all(&self) {
        let mut state = self.state.lock();
        state.hurried |= state.closed;
        state.closed = true;
        for live in &mut state.live {
            live.phase = match live.phase {
                Phase::Serving => Phase::Ends,
                Phase::Leaving { .. } => Phase::Leaving { again: true },
                Phase::Until(_) => Phase::Until(Instant::now()),
                phase @ (Phase::Ends | Phase::CutOff) => phase,
            };
        }
        drop(state);
        self.changed.notify_all();
    }

    /// A mount is unmounted or detached; its session may continue for `time`.
    fn left(&self, number: u64, time: Duration) {
        let mut state = self.state.lock();
        if let Some(live) = state.live.iter_mut().find(|live| live.number == number) {
            let time = match live.phase {
                Phase::Leaving { again: true } => Duration::ZERO,
                _ => time,
            };
            live.phase = Phase::Until(Instant::now() + time);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The connection has ended, or is broken.
    fn ended(&self, number: u64, ended: io::Result<()>) {
        let found = {
            let state = self.state.lock();
            let live = state.live.iter().find(|live| live.number == number);
            live.map(|live| (Arc::clone(&live.mounted), Arc::clone(&live.ending)))
        };
        // A session that was cut off is not there any more.
        let Some((mounted, ending)) = found else {
            return;
        };
        if let Err(source) = ended {
            mounted.detach();
            let dir = mounted.dir().to_path_buf();
            let broken = ServeError::Broken { dir, source };
            tracing::error!("{broken}");
            self.state.lock().failure.get_or_insert(broken);
        }
        ending.finish();
        ending.release();
        drop(ending);
        self.leave_others(number);
    }

    /// Removes a session whose requests are all answered. If others are left, the volume stays open,
    /// so what this one has been sent is made durable before; otherwise closing it does that.
    fn leave_others(&self, number: u64) {
        let others = self.state.lock().live.len() > 1;
        let how = if others {
            self.made_durable(number)
        } else {
            Ended::Last
        };
        if !self.remove(number, how) {
            // One was added meanwhile.
            self.remove(number, self.made_durable(number));
        }
    }

    /// How a session has ended that leaves others behind. Keeps nothing of it, so that its tree is
    /// closed when it is removed.
    fn made_durable(&self, number: u64) -> Ended {
        let ending = {
            let state = self.state.lock();
            let live = state.live.iter().find(|live| live.number == number);
            live.map(|live| Arc::clone(&live.ending))
        };
        Ended::Apart(ending.map_or(Ok(()), |ending| ending.make_durable()))
    }

    /// Removes a session, closes the registry with the last one, and tells its watchers. Does nothing
    /// and returns false if it is said to be the last one and is not.
    fn remove(&self, number: u64, how: Ended) -> bool {
        let mut state = self.state.lock();
        let Some(at) = state.live.iter().position(|live| live.number == number) else {
            return true;
        };
        let others = state.live.len() > 1;
        if others && how == Ended::Last {
            return false;
        }
        let live = state.live.swap_remove(at);
        state.closed |= !others;
        let how = if others { how } else { Ended::Last };
        // Who is told that the session has ended finds its tree closed.
        drop((live.ending, live.replaceable, live.programs));
        // They write to sockets, without waiting. Who waits for the last session may end the process
        // when the lock is free.
        for watcher in live.watchers {
            watcher(&how);
        }
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Removes a session that did not begin. The registry stays open.
    fn forget(&self, number: u64) {
        self.state.lock().live.retain(|live| live.number != number);
        self.changed.notify_all();
    }

    /// Registers a function that is called when the session of the mount with this device number has
    /// ended and is durable. Returns false if there is none.
    pub fn watch(&self, device: &str, watcher: Watcher) -> bool {
        let mut state = self.state.lock();
        let of_device = |live: &&mut Live| live.mounted.device() == Some(device);
        let Some(live) = state.live.iter_mut().find(of_device) else {
            return false;
        };
        if live.watchers.len() == WATCHERS {
            drop(live.watchers.remove(0));
        }
        live.watchers.push(watcher);
        true
    }

    /// The mount with this device number, for one who will unmount it when he does not need it any
    /// more; `None` if there is none, or somebody has it already.
    pub fn lease(&self, device: &str) -> Option<Arc<Mounted>> {
        let mut state = self.state.lock();
        let mut live = state.live.iter_mut();
        let live = live.find(|live| live.mounted.device() == Some(device) && !live.leased)?;
        live.leased = true;
        Some(Arc::clone(&live.mounted))
    }

    /// Where the tree with this number is mounted, if it may have one mount only.
    pub fn mounted_on(&self, tree: u64) -> Option<PathBuf> {
        let state = self.state.lock();
        let live = state.of_tree(Some(tree))?;
        Some(live.mounted.dir().to_path_buf())
    }

    /// The tree of the mount with this device number, in the list of roots. During a replacement the
    /// former entry is given: the branch of the former name will be mounted.
    pub fn shown_by(&self, device: &str) -> Option<RootInfo> {
        let ops = {
            let state = self.state.lock();
            let mut live = state.live.iter();
            let live = live.find(|live| live.mounted.device() == Some(device))?;
            live.replaceable.clone()?
        };
        ops.shown()
    }

    /// The programs that have channels to the mount with this device number.
    pub fn programs_of(&self, device: &str) -> Option<Arc<Programs>> {
        let state = self.state.lock();
        let mut live = state.live.iter();
        let live = live.find(|live| live.mounted.device() == Some(device))?;
        live.programs.clone()
    }

    /// Whether the mount with this device number is one of these.
    pub fn serves(&self, device: &str) -> bool {
        let state = self.state.lock();
        let mut live = state.live.iter();
        live.any(|live| live.mounted.device() == Some(device))
    }

    /// Whether no session is added any more: the volume is closed as soon as the last one has ended.
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Begins a command on the open volume; `None` if the last session has ended.
    pub fn begin_command(self: &Arc<Self>) -> Option<Command> {
        let mut state = self.state.lock();
        let is_served = !state.live.is_empty();
        state.commands += usize::from(is_served);
        is_served.then(|| Command(Arc::clone(self)))
    }

    /// Number of sessions.
    pub fn count(&self) -> usize {
        self.state.lock().live.len()
    }

    /// Waits until there is no session, and then for a while until no command is performed; neither
    /// begins after that.
    ///
    /// # Errors
    /// The first failure of a session.
    pub fn wait(self: &Arc<Self>) -> Result<(), ServeError> {
        let mut state = self.state.lock();
        while !state.live.is_empty() {
            let steps = self.steps(&mut state);
            if !steps.is_empty() {
                MutexGuard::unlocked(&mut state, || steps.into_iter().for_each(apart));
                continue;
            }
            match state.deadline() {
                Some(at) => {
                    self.changed.wait_until(&mut state, at);
                }
                None => self.changed.wait(&mut state),
            }
        }
        state.closed = true;
        let until = Instant::now() + COMMANDS;
        while state.commands > 0 && !state.hurried {
            if self.changed.wait_until(&mut state, until).timed_out() {
                tracing::warn!("a command did not end, and its volume is closed");
                break;
            }
        }
        state.failure.take().map_or(Ok(()), Err)
    }

    /// The steps that are due.
    fn steps(self: &Arc<Self>, state: &mut State) -> Vec<Step> {
        let now = Instant::now();
        let steps = state.live.iter_mut().filter_map(|live| -> Option<Step> {
            let (sessions, number) = (Arc::clone(self), live.number);
            match live.phase {
                Phase::Ends => {
                    live.phase = Phase::Leaving { again: false };
                    let (mounted, grace) = (Arc::clone(&live.mounted), live.grace);
                    Some(Box::new(move || {
                        sessions.left(number, mounted.leave(grace));
                    }))
                }
                Phase::Until(at) if at <= now => {
                    live.phase = Phase::CutOff;
                    let dir = live.mounted.dir().display();
                    tracing::warn!("{dir} ends while it is in use: nothing more can be written");
                    let ending = Arc::clone(&live.ending);
                    Some(Box::new(move || {
                        ending.cut_off();
                        ending.release();
                        drop(ending);
                        sessions.leave_others(number);
                    }))
                }
                _ => None,
            }
        });
        steps.collect()
    }
}

impl State {
    fn check(&self, sole: Option<u64>) -> Result<(), NotAdded> {
        match self.of_tree(sole) {
            _ if self.closed => Err(NotAdded::Closed),
            Some(live) => Err(NotAdded::Mounted {
                dir: live.mounted.dir().to_path_buf(),
                detached: live.is_unmounted(),
            }),
            None => Ok(()),
        }
    }

    fn of_tree(&self, sole: Option<u64>) -> Option<&Live> {
        let tree = sole?;
        self.live.iter().find(|live| live.is_of_tree(tree))
    }

    /// The time at which the next session is cut off.
    fn deadline(&self) -> Option<Instant> {
        let until = |live: &Live| match live.phase {
            Phase::Until(at) => Some(at),
            _ => None,
        };
        self.live.iter().filter_map(until).min()
    }
}

impl Live {
    fn is_unmounted(&self) -> bool {
        !self.mounted.is_there()
    }
}

/// Runs a step in another thread; in this one if no thread can be started.
fn apart(step: Step) {
    let step = Arc::new(Mutex::new(Some(step)));
    let run = |step: &Mutex<Option<Step>>| {
        let step = step.lock().take();
        step.into_iter().for_each(|step| step());
    };
    let theirs = Arc::clone(&step);
    let thread = thread::Builder::new().name("cairnfs-end".into());
    if let Err(error) = thread.spawn(move || run(&theirs)) {
        tracing::warn!("no thread for the end of a mount: {error}");
        run(&step);
    }
}
