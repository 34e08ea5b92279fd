//! The mount that a directory is in, and the volume that its daemon has open.
//!
//! The volume is known by the device and inode number of the file, which the daemon tells: at the path
//! of a volume that was moved may be another one by now. Uses the requests to daemons and the table of
//! mounts.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cairnfs_daemon::failure::{Explain, Failure, shown};
use cairnfs_daemon::handover::folder::SocketName;
use cairnfs_daemon::handover::frames::NamedMount;
use cairnfs_fuse::mountinfo::{self, MountEntry};
use cairnfs_fuse::status::{Tree, VolumeFile};

use crate::daemon::{self, Cause};

/// A mount, and what its daemon has open.
#[derive(Debug, Clone)]
pub struct MountLocation {
    /// Its line in the table of mounts.
    pub entry: MountEntry,
    /// The path by which the volume was mounted.
    pub volume: PathBuf,
    /// The file of the volume; `None` for a block device, and for a moment of a backup.
    file: Option<VolumeFile>,
    /// What is mounted.
    tree: Option<Tree>,
}

impl MountLocation {
    /// That of a directory; `None` if it is in no mounted volume.
    ///
    /// # Errors
    /// The daemon of the mount is gone or does not answer, or the directory cannot be looked up.
    pub fn of(dir: &Path) -> Result<Option<Self>, Failure> {
        let Some(entry) = entry_of(dir)? else {
            return Ok(None);
        };
        let answer = daemon::status(dir, daemon::WAIT)
            .map_err(|refusal| Failure::new(shown(dir), refusal.text))?;
        Ok(Some(Self {
            entry,
            volume: answer.volume,
            file: answer.status.file,
            tree: answer.status.tree,
        }))
    }

    /// The name of its daemon's socket.
    pub fn socket(&self) -> Option<SocketName> {
        match &self.file {
            Some(file) => Some(SocketName::of_file(file.dev, file.ino)),
            None => Some(SocketName::of(&self.volume.metadata().ok()?)),
        }
    }

    /// The path that the volume has now; `None` if it has none that can be seen from here.
    pub fn path(&self) -> Option<PathBuf> {
        let Some(file) = &self.file else {
            return Some(self.volume.clone());
        };
        let is_it = |path: &Path| {
            let found = path.metadata();
            found.is_ok_and(|found| (found.dev(), found.ino()) == (file.dev, file.ino))
        };
        let moved = file.path.as_deref().map(PathBuf::from);
        let paths = [Some(self.volume.clone()), moved].into_iter().flatten();
        paths.into_iter().find(|path| is_it(path))
    }

    /// The mount for a daemon.
    pub fn named(&self) -> NamedMount {
        NamedMount {
            name: self.branch().map(str::to_owned),
            ..named(&self.entry)
        }
    }

    /// The name of the branch or snapshot; `None` if it is that of the volume, or has none.
    pub fn branch(&self) -> Option<&str> {
        let told = self.tree.as_ref().map(|tree| tree.name.as_str());
        told.or_else(|| mountinfo::branch_of(&self.entry.source, &self.volume))
    }

    /// Whether a snapshot is mounted.
    pub fn is_snapshot(&self) -> bool {
        self.tree.as_ref().is_some_and(|tree| tree.is_snapshot)
    }

    /// Whether the mount is still in the table.
    pub fn is_there(&self) -> bool {
        let table = mountinfo::list(Path::new("/proc/self/mountinfo"));
        table.iter().any(|entry| is_same(entry, &self.entry))
    }
}

/// The mount that a directory is in, in the table of mounts; `None` if it is in no mounted volume.
///
/// # Errors
/// The daemon of the mount is gone, or the directory cannot be looked up.
pub fn entry_of(dir: &Path) -> Result<Option<MountEntry>, Failure> {
    match mountinfo::holding(dir) {
        Ok(entry) => Ok(entry.filter(MountEntry::is_ours)),
        // Below the mountpoint of a dead daemon; which one that is, only the table knows.
        Err(e) if mountinfo::is_dead(&e) => Err(gone(dir)),
        Err(e) => Err(e).explain(shown(dir)),
    }
}

/// Whether two lines of the table, read at different times, are of one mount. The kernel uses its
/// numbers again.
pub fn is_same(a: &MountEntry, b: &MountEntry) -> bool {
    (a.id, &a.device, &a.source) == (b.id, &b.device, &b.source)
}

/// A mount for a daemon, which knows the name of a branch that it shows.
pub fn named(entry: &MountEntry) -> NamedMount {
    NamedMount {
        device: entry.device.clone(),
        name: None,
    }
}

/// Fails if a path leads to a mount whose daemon is gone. For commands that need the file of a volume.
///
/// # Errors
/// It does.
pub fn refuse_dead(path: &Path) -> Result<(), Failure> {
    if !mountinfo::is_directory(path) {
        return Ok(());
    }
    match daemon::status(path, daemon::WAIT) {
        Err(refusal) if refusal.cause == Cause::Gone => Err(gone(path)),
        _ => Ok(()),
    }
}

fn gone(dir: &Path) -> Failure {
    Failure::new(shown(dir), daemon::missing(dir))
}
