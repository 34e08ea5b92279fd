//! The lifetime of a single mount that this process makes and serves: from the mount system call to
//! the end of the session. The caller opens and closes the volume.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::mounted::Mounted;
use crate::mounter::{self, Way};
use crate::options::MountOptions;
use crate::sessions::{NewMount, NotAdded, ServeError, Served, Sessions};

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
    let sessions = Arc::<Sessions>::default();
    let watched = sessions.watch_signals(hangup_ends);
    watched.map_err(|source| ServeError::Mount {
        dir: dir.to_path_buf(),
        source,
    })?;
    begin(&sessions, served, volume, dir, options, None)?;
    ready();
    sessions.wait()
}

/// Mounts a file system on `dir`, which must be absolute and without symlinks, as a session of this
/// process. `sole` as in [`NewMount`].
///
/// # Errors
/// Mounting fails; nothing is mounted then.
pub fn begin(
    sessions: &Arc<Sessions>,
    served: impl Served,
    volume: &Path,
    dir: &Path,
    options: &MountOptions,
    sole: Option<u64>,
) -> Result<(), ServeError> {
    let failed = |source| ServeError::Mount {
        dir: dir.to_path_buf(),
        source,
    };
    let device = mounter::mount(volume, dir, options).map_err(failed)?;
    // A mount that nothing serves must not stay.
    let mounted = Mounted::here(dir, sessions.apart()).inspect_err(|_| {
        let _ = mounter::unmount(dir, Way::Lazy);
    });
    let new = NewMount {
        mounted: mounted.map_err(failed)?,
        device,
        sole,
    };
    let added = sessions.add(served, new, options);
    added.map_err(|why| {
        failed(match why {
            NotAdded::Failed(source) => source,
            NotAdded::Closed => io::Error::other("the program was told to end"),
            NotAdded::Mounted { dir, .. } => {
                io::Error::other(format!("it is mounted on {} already", dir.display()))
            }
        })
    })
}

/// A live mount, served by threads of this process until [`Serving::end`].
pub struct Serving {
    sessions: Arc<Sessions>,
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
        let sessions = Arc::<Sessions>::default();
        begin(&sessions, served, volume, dir, options, None)?;
        Ok(Self { sessions })
    }

    /// Unmounts, and waits until all of the kernel's dirty pages have arrived. If files are open,
    /// the mount is detached instead, and they are served for [`MountOptions::grace`].
    ///
    /// # Errors
    /// The connection to the kernel broke.
    pub fn end(self) -> Result<(), ServeError> {
        self.sessions.end_all();
        self.sessions.wait()
    }
}
