//! The lifetime of a mount: from the mount system call to the end of the session.
//!
//! Mounts, runs the event loops, and waits for an unmount or a signal. At a signal, a mount in use
//! ends as by `umount -l`: it is detached, and its open files are served until the last one is
//! closed, for a bounded time. Unmounts only its own mount, identified by its device number. The
//! caller opens and closes the volume.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use cairnfs_transport::session::Traffic;
use cairnfs_transport::{Config, Notifier, Server, Session};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::adapter::{Adapter, Notices};
use crate::control;
use crate::elsewhere;
use crate::ending::Ending;
use crate::holders;
use crate::mounter::{self, Way};
use crate::mountinfo::{self, MountEntry};
use crate::negotiate::MAX_REQUEST;
use crate::options::MountOptions;

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

/// A file system that a session can serve.
pub trait Served: Server {
    /// Returns a function that receives the channel for unsolicited messages to the kernel, and the
    /// counts of the transport, once the session exists.
    fn connected(&self) -> Box<dyn FnOnce(Notifier, Traffic)> {
        Box::new(|_, _| {})
    }

    /// Returns the handle by which the session ends the file system.
    fn ending(&self) -> Box<dyn Ending> {
        Box::new(())
    }
}

impl Served for Adapter {
    fn ending(&self) -> Box<dyn Ending> {
        Box::new(self.end())
    }

    fn connected(&self) -> Box<dyn FnOnce(Notifier, Traffic)> {
        let ops = self.ops();
        Box::new(move |notifier, traffic| {
            ops.connect(Box::new(Notices::new(notifier, traffic)));
        })
    }
}

/// Time after which a session is cut off that continues although its last visible mount is gone.
const UNSEEN: Duration = Duration::from_secs(60);

/// An event for which the serving thread waits.
enum Event {
    Signal,
    Ended(io::Result<()>),
}

/// Mounts a file system on `dir`, which must be absolute and without symlinks, and serves it until
/// it is unmounted or SIGTERM or SIGINT is received (also SIGHUP if `hangup_ends`). Calls `ready`
/// when the mount is live.
///
/// If a signal is received while files are open, or while the file system is also mounted
/// elsewhere, everything is made durable and the mount is detached. It is then served until the
/// last file is closed and the last mount is removed, but at most for [`MountOptions::grace`], and
/// not beyond a second signal. If files are open then, the kernel's dirty pages are fetched, and
/// all later requests are refused. In every case the requests in flight are answered first.
///
/// # Errors
/// Mounting fails, or the connection to the kernel breaks.
pub fn serve(
    served: impl Served,
    volume: &Path,
    dir: &Path,
    options: &MountOptions,
    hangup_ends: bool,
    ready: impl FnOnce(),
) -> Result<(), ServeError> {
    let (events, coming) = channel();
    watch_signals(events.clone(), hangup_ends).map_err(|source| ServeError::Mount {
        dir: dir.to_path_buf(),
        source,
    })?;
    let serving = Serving::begin(served, volume, dir, options, events, coming)?;
    ready();
    serving.wait()
}

/// A live mount, served by threads of this process until [`Serving::end`].
pub struct Serving {
    mounted: Mounted,
    events: Sender<Event>,
    coming: Receiver<Event>,
    ending: Box<dyn Ending>,
    grace: Duration,
}

impl Serving {
    /// Mounts a file system on `dir`, which must be absolute and without symlinks. Does not handle
    /// signals.
    ///
    /// # Errors
    /// Mounting fails; nothing is mounted then.
    pub fn start(
        served: impl Served,
        volume: &Path,
        dir: &Path,
        options: &MountOptions,
    ) -> Result<Self, ServeError> {
        let (events, coming) = channel();
        Self::begin(served, volume, dir, options, events, coming)
    }

    fn begin(
        served: impl Served,
        volume: &Path,
        dir: &Path,
        options: &MountOptions,
        events: Sender<Event>,
        coming: Receiver<Event>,
    ) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Mount {
            dir: dir.to_path_buf(),
            source,
        };
        let connection = mounter::mount(volume, dir, options).map_err(failed)?;
        // A mount that nothing serves must not stay.
        let entry = mountinfo::at(dir).inspect_err(|_| {
            let _ = mounter::unmount(dir, Way::Lazy);
        });
        let mounted = Mounted {
            dir: dir.to_path_buf(),
            entry: entry.map_err(failed)?,
        };
        let ending = served.ending();
        if let Err(e) = start(served, connection, options, events.clone()) {
            mounted.detach();
            return Err(failed(e));
        }
        mounted.raise_readahead();
        Ok(Self {
            mounted,
            events,
            coming,
            ending,
            grace: options.grace,
        })
    }

    /// Unmounts, and waits until all of the kernel's dirty pages have arrived. If files are open,
    /// the mount is detached instead, and they are served for [`MountOptions::grace`].
    ///
    /// # Errors
    /// The connection to the kernel broke.
    pub fn end(self) -> Result<(), ServeError> {
        // Fails only without a receiver, and `self` holds the receiver.
        let _ = self.events.send(Event::Signal);
        self.wait()
    }

    fn wait(self) -> Result<(), ServeError> {
        drop(self.events);
        let waited = self.mounted.wait(&self.coming, self.grace, &*self.ending);
        self.ending.finish();
        waited.map_err(|source| ServeError::Broken {
            dir: self.mounted.dir,
            source,
        })
    }
}

/// Waits for the next event, until the deadline.
fn next(coming: &Receiver<Event>, deadline: Option<Instant>) -> Result<Event, RecvTimeoutError> {
    match deadline {
        None => coming.recv().map_err(|_| RecvTimeoutError::Disconnected),
        Some(at) => coming.recv_timeout(at.saturating_duration_since(Instant::now())),
    }
}

fn watch_signals(events: Sender<Event>, hangup_ends: bool) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    thread::Builder::new()
        .name("cairnfs-signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                let ends = signal != SIGHUP || hangup_ends;
                if ends && events.send(Event::Signal).is_err() {
                    return;
                }
            }
        })?;
    Ok(())
}

/// Negotiates with the kernel and starts the event loops. The kernel checks which users may use the
/// mount.
fn start(
    served: impl Served,
    connection: OwnedFd,
    options: &MountOptions,
    events: Sender<Event>,
) -> io::Result<()> {
    let config = Config {
        loops: options.event_loops(),
        clone_device: mounter::can_clone_device(),
        transport: options.transport,
    };
    let connected = served.connected();
    let session = Session::new(served, connection, config)?;
    connected(session.notifier(), session.traffic());
    thread::Builder::new()
        .name("cairnfs-session".into())
        .spawn(move || {
            let ended = session.run();
            // There is no receiver any more if a signal has ended the session.
            let _ = events.send(Event::Ended(ended));
        })?;
    Ok(())
}

/// The mount of this session.
struct Mounted {
    dir: PathBuf,
    entry: Option<MountEntry>,
}

impl Mounted {
    /// Waits for the end of the session. The first signal starts it; the session is cut off if it
    /// still exists `grace` later, or at the next signal.
    fn wait(
        &self,
        coming: &Receiver<Event>,
        grace: Duration,
        ending: &dyn Ending,
    ) -> io::Result<()> {
        let mut deadline = None;
        loop {
            match (next(coming, deadline), deadline) {
                (Ok(Event::Ended(ended)), _) => {
                    if ended.is_err() {
                        self.detach();
                    }
                    return ended;
                }
                (Ok(Event::Signal), None) => {
                    deadline = Some(Instant::now() + self.leave(grace));
                }
                (Ok(Event::Signal) | Err(RecvTimeoutError::Timeout), _) => {
                    let dir = self.dir.display();
                    tracing::warn!("{dir} ends while it is in use: nothing more can be written");
                    ending.cut_off();
                    return Ok(());
                }
                (Err(RecvTimeoutError::Disconnected), _) => return Ok(()),
            }
        }
    }

    /// Unmounts or detaches; returns for how long the session may continue for open files and other
    /// mounts.
    fn leave(&self, grace: Duration) -> Duration {
        let other = self.entry.as_ref().and_then(elsewhere::of);
        if let Some(other) = &other {
            tracing::warn!(
                "{} is mounted {other}, too: it ends when it is unmounted there, or in {} seconds, or \
                 with the next signal",
                self.dir.display(),
                grace.as_secs_f64(),
            );
        }
        if !self.is_there() {
            return grace;
        }
        if other.is_some() {
            self.sync();
        }
        let Err(e) = mounter::unmount(&self.dir, Way::Plain) else {
            // Without another mount the kernel has ended the session, unless a mount is invisible
            // from here.
            return if other.is_some() {
                grace
            } else {
                grace.max(UNSEEN)
            };
        };
        tracing::warn!(
            "{} is in use ({e}) by {}: it is detached, and ends when they have closed their files, \
             or in {} seconds, or with the next signal",
            self.dir.display(),
            holders::of(&self.dir),
            grace.as_secs_f64(),
        );
        self.sync();
        self.detach();
        grace
    }

    fn sync(&self) {
        if let Err(e) = control::sync(&self.dir) {
            tracing::warn!("{}: {e}", self.dir.display());
        }
    }

    /// Whether the mount at `dir` is this session's, not another one.
    fn is_there(&self) -> bool {
        let seen = mountinfo::at(&self.dir).ok().flatten();
        let device = self.entry.as_ref().map(|m| &m.device);
        seen.is_some_and(|m| Some(&m.device) == device)
    }

    fn detach(&self) {
        if !self.is_there() {
            return;
        }
        if let Err(e) = mounter::unmount(&self.dir, Way::Lazy) {
            tracing::error!("cannot unmount {}: {e}", self.dir.display());
        }
    }

    /// Raises the kernel's readahead to the size of one request. Permitted to root only.
    fn raise_readahead(&self) {
        if let Some(device) = self.entry.as_ref().map(|m| &m.device) {
            let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
            if let Err(e) = std::fs::write(&path, (MAX_REQUEST >> 10).to_string()) {
                tracing::debug!("readahead stays small: {path}: {e}");
            }
        }
    }
}
