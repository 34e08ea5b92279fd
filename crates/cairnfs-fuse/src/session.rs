//! The life of a mount: from the system call to the end of the session.
//!
//! Mounts, runs the event loops, and waits until somebody unmounts or a signal asks for the end. A
//! mount in use then ends as by `umount -l`: it is detached, and its open files are served until the
//! last is closed, for a bounded time. Unmounts nothing but its own mount, known by its device
//! number. Opening and closing the volume is the caller's.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fuser::{Config, Filesystem, Notifier, Session, SessionACL};
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

/// Why a mount came to no good.
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
    /// It was mounted, and the connection to the kernel broke; it is unmounted now.
    #[error("the mount on {} was broken off: {source}", dir.display())]
    Broken {
        /// The mountpoint.
        dir: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// What a session can serve.
pub trait Served: Filesystem + 'static {
    /// What takes the way to the kernel, once there is one.
    fn connected(&self) -> Box<dyn FnOnce(Notifier)> {
        Box::new(drop)
    }

    /// What its end needs.
    fn ending(&self) -> Box<dyn Ending> {
        Box::new(())
    }
}

impl Served for Adapter {
    fn ending(&self) -> Box<dyn Ending> {
        Box::new(self.end())
    }

    fn connected(&self) -> Box<dyn FnOnce(Notifier)> {
        let ops = self.ops();
        Box::new(move |notifier| ops.connect(Box::new(Notices(notifier))))
    }
}

/// Time after which a session is cut off that lives on though its last mount seems to be gone.
const UNSEEN: Duration = Duration::from_secs(60);

/// What a serving thread waits for.
enum Event {
    Signal,
    Ended(io::Result<()>),
}

/// Mounts a file system on `dir`, which is absolute and without symlinks, and serves it until it is
/// unmounted or SIGTERM or SIGINT come (SIGHUP too, if `hangup_ends`). Calls `ready` when the mount
/// is live.
///
/// When a signal comes while files are open, or while the file system is mounted elsewhere, too,
/// everything is made durable and the mount is detached. It is served until the last file is closed
/// and the last mount is gone, [`MountOptions::grace`] has passed or a second signal
/// comes. If files are open then, what the kernel holds of them is fetched, and all later requests
/// are refused. However it ends, requests that are under way are answered first.
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
    /// Mounts a file system on `dir`, which is absolute and without symlinks. Signals are the
    /// caller's business.
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
        let mounted = Mounted {
            dir: dir.to_path_buf(),
            entry: mountinfo::at(dir).map_err(failed)?,
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

    /// Unmounts, and waits until all that the kernel held has arrived. While files are open it is
    /// detached instead, and they are served for [`MountOptions::grace`].
    ///
    /// # Errors
    /// The connection to the kernel broke.
    pub fn end(self) -> Result<(), ServeError> {
        // Fails only if nobody receives, and the receiver is ours.
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

/// The next event, if one comes before the deadline.
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

/// Greets the kernel and starts the event loops.
///
/// The kernel checks who may use the mount. fuser's own check stays off: it would also refuse what
/// the kernel's flusher sends in root's name for an ordinary user's mount.
fn start(
    served: impl Served,
    connection: OwnedFd,
    options: &MountOptions,
    events: Sender<Event>,
) -> io::Result<()> {
    let mut config = Config::default();
    config.n_threads = Some(options.event_loops());
    config.clone_fd = mounter::can_clone_device();
    let connected = served.connected();
    let session = Session::from_fd(served, connection, SessionACL::All, config)?;
    connected(session.notifier());
    thread::Builder::new()
        .name("cairnfs-session".into())
        .spawn(move || {
            let ended = session.run();
            // Nobody listens any more if a signal ended it first.
            let _ = events.send(Event::Ended(ended));
        })?;
    Ok(())
}

/// Our mount.
struct Mounted {
    dir: PathBuf,
    entry: Option<MountEntry>,
}

impl Mounted {
    /// Waits for the end of the session. The first signal asks for it; it is cut off if it is still
    /// there `grace` later, or at the next signal.
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

    /// Takes the mount away from where it is seen; returns for how long it may live on in open files
    /// and in other mounts.
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
            // Without another mount the kernel has ended the session, unless that cannot be seen.
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

    /// Whether our mount, and not another, is what is seen at its place.
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

    /// Lets the kernel read ahead as much as one request holds. Only root may.
    fn raise_readahead(&self) {
        if let Some(device) = self.entry.as_ref().map(|m| &m.device) {
            let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
            if let Err(e) = std::fs::write(&path, (MAX_REQUEST >> 10).to_string()) {
                tracing::debug!("readahead stays small: {path}: {e}");
            }
        }
    }
}
