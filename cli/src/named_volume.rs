//! The volume that a command names: by its path, or by a directory of one of its mounts.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use cairnfs_daemon::failure::{Failure, shown};
use cairnfs_fuse::mountinfo::{self, MountEntry};

use crate::mount_location::{self, MountLocation};

/// The file or device of the volume that a command names, in the form that all commands find.
///
/// # Errors
/// No volume is meant.
pub fn file_of(path: &Path) -> Result<PathBuf, Failure> {
    let named = Named::find(path)?;
    let volume = named
        .location()?
        .map_or(named.volume.clone(), |location| location.volume.clone());
    Ok(volume.canonicalize().unwrap_or(volume))
}

/// The volume that a command names, by its path or by that of a mount.
pub struct Named {
    /// Its path, or that by which it was mounted.
    pub volume: PathBuf,
    pub mount: Option<InMount>,
}

/// A mount that a command names by a directory in it.
pub struct InMount {
    dir: PathBuf,
    pub entry: MountEntry,
    /// What its daemon tells, once that is needed: asking takes a process of its own.
    location: OnceCell<MountLocation>,
}

impl InMount {
    /// Whether its daemon has been asked.
    pub fn is_located(&self) -> bool {
        self.location.get().is_some()
    }

    /// What its daemon tells.
    ///
    /// # Errors
    /// It does not answer, or no volume is mounted there any more.
    pub fn location(&self) -> Result<&MountLocation, Failure> {
        if let Some(location) = self.location.get() {
            return Ok(location);
        }
        let location = MountLocation::of(&self.dir)?.ok_or_else(|| no_volume(&self.dir))?;
        Ok(self.location.get_or_init(|| location))
    }
}

fn no_volume(dir: &Path) -> Failure {
    Failure::new(shown(dir), "is a directory, not a volume")
        .hint("name the file or device that holds the volume, or a directory where it is mounted")
}

impl Named {
    /// The volume that has this path, or that is mounted there.
    ///
    /// # Errors
    /// It is a directory outside of mounts, or shows a moment of a backup.
    pub fn find(path: &Path) -> Result<Self, Failure> {
        if !mountinfo::is_directory(path) {
            return Ok(Self {
                volume: path.to_path_buf(),
                mount: None,
            });
        }
        // A directory stands for the volume that is mounted there, or above.
        let entry = mount_location::entry_of(path)?.ok_or_else(|| no_volume(path))?;
        if entry.is_moment() {
            let why = "shows a moment of a backup, which has no snapshots and no branches";
            return Err(Failure::new(shown(path), why)
                .hint("to make a volume of it: cairnfs restore-from URL FILE --at MOMENT"));
        }
        Ok(Self {
            volume: mountinfo::volume_of(&entry.source).to_path_buf(),
            mount: Some(InMount {
                dir: path.to_path_buf(),
                entry,
                location: OnceCell::new(),
            }),
        })
    }

    /// That of a directory in a mount, which may lead to another one by now.
    pub fn located(dir: &Path, location: MountLocation) -> Self {
        Self {
            volume: location.volume.clone(),
            mount: Some(InMount {
                dir: dir.to_path_buf(),
                entry: location.entry.clone(),
                location: location.into(),
            }),
        }
    }

    fn location(&self) -> Result<Option<&MountLocation>, Failure> {
        self.mount.as_ref().map(InMount::location).transpose()
    }

    /// Where the file is. That of a mount may have been moved, and its path may have another one.
    ///
    /// # Errors
    /// It is not known.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        let Some(location) = self.location()? else {
            return Ok(self.volume.clone());
        };
        location.path().ok_or_else(|| {
            let why = "was moved or deleted while it was mounted, and its daemon does not answer";
            Failure::new(shown(&self.volume), why)
        })
    }

    /// The branch or snapshot of the mount.
    ///
    /// # Errors
    /// Its daemon does not answer.
    pub fn branch(&self) -> Result<Option<&str>, Failure> {
        Ok(self.location()?.and_then(MountLocation::branch))
    }
}
