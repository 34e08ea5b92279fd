//! Snapshots that the daemon makes of a mounted branch by itself, at an interval (`-o snapshots=`).
//!
//! Their names tell what they are (`cairnfs_core::refs`), so those of earlier mounts are found, and no snapshot
//! of a user is taken for one. Of more than `keep` the oldest are dropped, and all of them give way, the
//! oldest first, before a program is told that there is no space, with the states that publishes and
//! restores have replaced. Nothing is made of a branch that has not changed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use cairnfs::{Error, Volume};
use cairnfs_core::refs::{automatic, yielding};
use cairnfs_fuse::{MountOptions, Sessions};

use crate::failure::shown;
use crate::opening::OpenVolume;
use crate::reference::name_of;

/// Makes the snapshots of one mount.
pub(crate) struct AutoSnapshots {
    open: Arc<OpenVolume>,
    path: PathBuf,
    sessions: Arc<Sessions>,
    /// The device number of the mount.
    device: String,
    interval: Duration,
    keep: usize,
}

impl AutoSnapshots {
    /// Begins to make snapshots of a mount, until it ends, if its options say so.
    ///
    /// # Errors
    /// There is no thread left.
    pub fn begin(
        open: &Arc<OpenVolume>,
        path: &Path,
        (sessions, device): (&Arc<Sessions>, &str),
        options: &MountOptions,
    ) -> io::Result<()> {
        let Some(interval) = options.snapshots.filter(|_| !options.read_only) else {
            return Ok(());
        };
        open.get()
            .set_yielding(|roots| yielding(roots).iter().map(|root| root.id).collect());
        let snapshots = Self {
            open: Arc::clone(open),
            path: path.to_path_buf(),
            sessions: Arc::clone(sessions),
            device: device.to_owned(),
            interval,
            keep: options.keep,
        };
        let thread = thread::Builder::new().name("cairnfs-snapshots".into());
        thread.spawn(move || snapshots.run()).map(drop)
    }

    fn run(&self) {
        loop {
            let (ends, ended) = channel();
            let tell = move |_: &_| {
                let _ = ends.send(());
            };
            if !self.sessions.watch(&self.device, Box::new(tell)) {
                return;
            }
            // The session forgets a watcher if it has too many; then it is watched again.
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(self.interval) {
                if let Err(error) = self.take() {
                    tracing::warn!("no snapshot of {} was made: {error}", shown(&self.path));
                }
            }
        }
    }

    /// Makes a snapshot if the branch has changed since the last one, and drops the oldest.
    fn take(&self) -> Result<(), Error> {
        loop {
            let shown = self.sessions.shown_by(&self.device);
            let Some(branch) = shown.filter(|root| root.writable) else {
                return Ok(());
            };
            match self.take_of(name_of(&branch)) {
                // It was replaced meanwhile, and the mount shows what it is now.
                Err(Error::Stale) => {}
                taken => return taken,
            }
        }
    }

    fn take_of(&self, branch: &str) -> Result<(), Error> {
        let volume = Volume::from(self.open.get());
        let roots = volume.roots();
        self.sessions
            .fetch(branch)
            .map_err(|e| Error::Other(e.into()))?;
        let mine = automatic(branch, &roots);
        let opened = volume.open_branch(branch)?;
        if let Some(last) = mine.last()
            && opened.file_system().is_unchanged_since(last.id)?
        {
            return Ok(());
        }
        match opened.file_system().snapshot_by_itself() {
            // Of this second there is one.
            Err(Error::Exists) => return Ok(()),
            made => drop(made?),
        }
        // The new one is not in the list.
        let most = self.keep.saturating_sub(1);
        for old in mine.iter().take(mine.len().saturating_sub(most)) {
            match volume.drop_root(name_of(old)) {
                // In use: it goes another time. Or somebody else has dropped it.
                Err(Error::Busy(_) | Error::NoRoot { .. } | Error::NoSnapshot(_)) | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
