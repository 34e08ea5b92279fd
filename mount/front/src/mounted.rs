//! One mount of a session: where it is visible, and how it is taken away.
//!
//! Unmounts only its own mount, identified by its device number, which each connection has for
//! itself. Uses the table of mounts and the system calls; knows nothing of who serves the mount.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::apart::{Apart, Call};
use crate::connections::Connection;
use crate::elsewhere;
use crate::holders;
use crate::mountinfo::{self, MountEntry};
use crate::negotiate::MAX_REQUEST;

/// Time after which a session is cut off that continues although its last visible mount is gone.
const UNSEEN: Duration = Duration::from_secs(60);

/// Time between two attempts to unmount what is in use: the first, and the longest.
const SOON: Duration = Duration::from_millis(100);
const LATER: Duration = Duration::from_secs(10);

/// A mounted connection.
#[derive(Debug)]
pub struct Mounted {
    dir: PathBuf,
    apart: Arc<Apart>,
    device: Option<String>,
    /// Its line in the table of mounts, if it is visible from this process.
    entry: Option<MountEntry>,
}

impl Mounted {
    /// What this process has just mounted on `dir`, which must be absolute and without symlinks; `apart`
    /// makes calls that wait for its requests.
    ///
    /// # Errors
    /// The table of mounts cannot be read.
    pub fn here(dir: &Path, apart: &Arc<Apart>) -> io::Result<Self> {
        let entry = mountinfo::at(dir)?;
        Ok(Self {
            dir: dir.to_path_buf(),
            apart: Arc::clone(apart),
            device: entry.as_ref().map(|m| m.device.clone()),
            entry,
        })
    }

    /// What another process has mounted on `dir`, with the device number that it has read from its
    /// table. If the table of this process has another mount there, or none, this one cannot be
    /// unmounted from here.
    ///
    /// # Errors
    /// It is no device number; the table of mounts cannot be read.
    pub fn by_another(dir: &Path, device: &str, apart: &Arc<Apart>) -> io::Result<Self> {
        let numbers = device.split_once(':');
        let is_number = |text: &str| text.parse::<u32>().is_ok();
        if !numbers.is_some_and(|(major, minor)| is_number(major) && is_number(minor)) {
            let wrong = "not a device number";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, wrong));
        }
        let found = mountinfo::at(dir)?;
        Ok(Self {
            dir: dir.to_path_buf(),
            apart: Arc::clone(apart),
            device: Some(device.to_owned()),
            entry: found.filter(|m| m.is_ours() && m.device == device),
        })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The device number, `MAJOR:MINOR`; `None` if the mount was gone before it could be looked up.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// The number of requests of the connection without a reply; `None` if the kernel does not tell.
    pub(crate) fn unanswered(&self) -> Option<usize> {
        Connection::of(self.device.as_deref()?).unanswered()
    }

    /// Whether the mount on the directory is this one, not another one.
    pub fn is_there(&self) -> bool {
        let seen = mountinfo::at(&self.dir).ok().flatten();
        let device = self.entry.as_ref().map(|m| &m.device);
        seen.is_some_and(|m| Some(&m.device) == device)
    }

    /// Unmounts or detaches; returns for how long the session may continue for open files and other
    /// mounts, if `grace` is what it is given for open files.
    pub(crate) fn leave(&self, grace: Duration) -> Duration {
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
        let Err(e) = self.call(Call::Unmount) else {
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

    /// Makes the kernel begin to send the data that it holds back.
    ///
    /// # Errors
    /// The mount cannot be reached from here.
    pub(crate) fn fetch(&self) -> io::Result<()> {
        if self.entry.as_ref().is_some_and(|mount| mount.has("ro")) {
            return Ok(());
        }
        let sent = self.call(Call::Send).map_err(|error| {
            let dir = self.dir.display();
            io::Error::other(format!(
                "what was written to the mount on {dir} and has not arrived cannot be fetched: {error}"
            ))
        });
        sent.map(drop)
    }

    /// Makes a call that waits for requests of the mount.
    fn call(&self, call: Call) -> io::Result<Option<String>> {
        let device = self.device.as_deref().unwrap_or_default();
        self.apart.call(call, &self.dir, device)
    }

    /// By what such calls are made.
    pub(crate) fn apart(&self) -> &Apart {
        &self.apart
    }

    fn sync(&self) {
        match self.call(Call::Sync) {
            Ok(None) => {}
            Ok(Some(refused)) => tracing::warn!("{}: {refused}", self.dir.display()),
            Err(e) => tracing::warn!("{}: {e}", self.dir.display()),
        }
    }

    /// Detaches the mount, if it is there.
    pub fn detach(&self) {
        if !self.is_there() {
            return;
        }
        if let Err(e) = self.call(Call::Detach) {
            tracing::error!("cannot unmount {}: {e}", self.dir.display());
        }
    }

    /// Unmounts as soon as nothing uses it, and removes its directory then if that is empty. Returns
    /// when that is done, or somebody else has unmounted it, or it cannot be unmounted from here. Must
    /// not be called in an event loop.
    pub fn leave_when_unused(&self) {
        if self.entry.is_none() {
            return;
        }
        let mut pause = SOON;
        while self.is_there() {
            match self.call(Call::Unmount) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
                    thread::sleep(pause);
                    pause = LATER.min(pause * 2);
                }
                Err(e) => {
                    tracing::warn!("{} stays mounted: {e}", self.dir.display());
                    return;
                }
            }
        }
        // Something else may be in it, or it is removed by another.
        let _ = self.call(Call::Remove);
    }

    /// Raises the kernel's readahead to the size of one request. Permitted to root only.
    pub(crate) fn raise_readahead(&self) {
        if let Some(device) = &self.device {
            let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
            if let Err(e) = std::fs::write(&path, (MAX_REQUEST >> 10).to_string()) {
                tracing::debug!("readahead stays small: {path}: {e}");
            }
        }
    }
}
