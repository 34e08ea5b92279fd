//! Ships the volume to a backup while it is mounted (`-o backup=URL,interval=TIME`).
//!
//! One thread for the volume, however many mounts it has. It stores a moment, waits for the interval, and
//! stores the next one if anything has changed; nobody waits for it. A failure is logged, and the next
//! moment is tried later, with longer pauses after failures in a row; only what cannot pass, such as
//! another writer, ends it for good. Uses the backup, the engine and the mounts.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cairnfs::Volume;
use cairnfs_backup::{
    Error, Place, Shipped, Shipper, VolumeSource, Watch, WriterOptions, environment,
};
use cairnfs_fuse::{MountOptions, Sessions};

use super::opening::OpenVolume;
use crate::cmd::backup::now::writer_name;
use crate::roots::name_of;

/// The longest pause after failures.
const LONGEST: Duration = Duration::from_secs(300);

/// The thread that ships; it ends when this is dropped.
pub(super) struct Carrier {
    ending: Arc<Ending>,
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Tells the thread in the middle of its work that it shall end, also while a store does not answer.
#[derive(Default)]
struct Ending(Arc<AtomicBool>);

impl Watch for Ending {
    fn go_on(&self) -> cairnfs_backup::Result<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.ending.0.store(true, Ordering::Relaxed);
        self.ends = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the backup has panicked");
        }
    }
}

/// What the thread works with.
struct Work {
    open: Arc<OpenVolume>,
    sessions: Arc<Sessions>,
    path: PathBuf,
    url: String,
    interval: Duration,
    ending: Arc<Ending>,
}

impl Carrier {
    /// Begins to ship a volume if the options of its first mount say so.
    ///
    /// # Errors
    /// There is no thread left.
    pub fn begin(
        open: &Arc<OpenVolume>,
        path: &Path,
        sessions: &Arc<Sessions>,
        options: &MountOptions,
    ) -> io::Result<Option<Self>> {
        let Some(url) = options.backup.clone().filter(|_| !options.read_only) else {
            return Ok(None);
        };
        let ending = Arc::<Ending>::default();
        let work = Work {
            open: Arc::clone(open),
            sessions: Arc::clone(sessions),
            path: path.to_path_buf(),
            url,
            interval: options.interval,
            ending: Arc::clone(&ending),
        };
        let (ends, ended) = channel();
        let thread = thread::Builder::new().name("cairnfs-carrier".into());
        Ok(Some(Self {
            ending,
            ends: Some(ends),
            thread: Some(thread.spawn(move || work.run(&ended))?),
        }))
    }
}

impl Work {
    fn run(&self, ended: &Receiver<()>) {
        let mut shipper = None;
        let mut pause = self.interval;
        loop {
            match self.ship(&mut shipper) {
                Ok(()) => pause = self.interval,
                Err(Error::Interrupted) => return,
                Err(why) if ends_for_good(&why) => {
                    tracing::error!("{}: the backup has ended: {why}", self.url);
                    return;
                }
                Err(why) => {
                    tracing::error!("{}: no moment was stored: {why}", self.url);
                    pause = (pause * 2).min(LONGEST.max(self.interval));
                }
            }
            match ended.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn ship(&self, shipper: &mut Option<Shipper>) -> cairnfs_backup::Result<()> {
        let volume = Volume::from(self.open.get());
        let source = VolumeSource(&volume);
        let shipper = match shipper {
            Some(shipper) => shipper,
            None => {
                let store = cairnfs_backup::open(&self.url, Place::Make, &environment())?;
                let store = store.ended_by(Arc::clone(&self.ending.0));
                let options = WriterOptions {
                    name: writer_name(&self.path),
                    ..WriterOptions::default()
                };
                shipper.insert(Shipper::open(Arc::new(store), &source, options)?)
            }
        };
        self.fetch(&volume);
        if let Shipped::Moment { moment, bytes, .. } = shipper.ship(&source, &*self.ending)? {
            tracing::debug!("{}: moment {}, {bytes} bytes", self.url, moment.number);
        }
        match shipper.tidy(&*self.ending) {
            Ok(()) | Err(Error::Interrupted) => {}
            Err(why) => tracing::warn!("{}: layers were not merged: {why}", self.url),
        }
        Ok(())
    }

    /// Makes the kernel send what programs have written. A mount that cannot be reached, such as one that
    /// is detached and in use, must not keep the rest of the volume out of the backup.
    fn fetch(&self, volume: &Volume) {
        let roots = volume.roots();
        let named = roots
            .iter()
            .filter(|root| root.writable && root.name.is_some());
        for root in named {
            if let Err(why) = self.sessions.fetch(name_of(root)) {
                tracing::warn!("{}: the moment may lack some writes: {why}", self.url);
            }
        }
    }
}

/// Whether trying again cannot help.
fn ends_for_good(why: &Error) -> bool {
    matches!(
        why,
        Error::Lost { .. } | Error::OtherWriter { .. } | Error::OtherVolume { .. } | Error::Url(_)
    )
}
