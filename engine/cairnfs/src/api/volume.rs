//! The open volume: opening, closing, syncing, and calls on the volume as a whole.
//!
//! [`Volume`] is a shared engine and the owner of new files; the calls on paths are in `names`,
//! `contents` and `attributes` in this directory.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::handle::{Engine, Use};
use super::options::VolumeOptions;
use super::path::{Follow, resolve};
use super::prefixes::Prefixes;
use cairnfs_core::fs::{FileSystem, Sequence};
use cairnfs_disk::error::Result;
use cairnfs_disk::types::{Attr, Creds, RootInfo, StatFs, VolumeInfo};

/// A tree of files of an open volume, with the calls of [`std::fs`]: the main tree, or a
/// [branch](Volume::branch) or [snapshot](Volume::snapshot) of it.
///
/// Cheap to clone, `Send + Sync`: clones and branches share one open volume, which is closed by
/// [`close`](Volume::close), or when the last clone, branch, [`File`](crate::File) and
/// [`ReadDir`](crate::ReadDir) is dropped.
///
/// # Paths
/// Paths are bytes, and have the same meaning as in Linux, in calls and in symbolic links:
///
/// - They begin at the root of the volume, with or without a leading slash. Repeated slashes count
///   as one.
/// - `..` of the root is the root. After a symbolic link, `..` is the parent of the link's target.
///   `.` and `..` must follow a directory.
/// - A trailing slash asks for a directory, and follows a symbolic link before it
///   ([`Error::NotDirectory`](cairnfs_disk::Error::NotDirectory)); a call that may create a file refuses
///   it ([`Error::IsDirectory`](cairnfs_disk::Error::IsDirectory)).
/// - The empty path never exists ([`Error::NotFound`](cairnfs_disk::Error::NotFound)); a path with a zero
///   byte is invalid ([`Error::Invalid`](cairnfs_disk::Error::Invalid)).
/// - A name has 255 bytes at most, the target of a symbolic link 4095
///   ([`Error::NameTooLong`](cairnfs_disk::Error::NameTooLong)). The whole path may be longer than the
///   4095 bytes that Linux accepts, so that everything that [`walk`](Volume::walk) finds can be
///   opened.
/// - At most 40 symbolic links are followed
///   ([`Error::SymlinkLoop`](cairnfs_disk::Error::SymlinkLoop)).
/// - The root, `.` and `..` can be neither renamed ([`Error::Busy`](cairnfs_disk::Error::Busy)) nor
///   removed (`Busy`, [`Invalid`](cairnfs_disk::Error::Invalid) and [`NotEmpty`](cairnfs_disk::Error::NotEmpty),
///   respectively).
///
/// # Permissions
/// Owner and mode are stored, but not enforced: a program that can open the volume may do
/// everything. New files belong to the process's effective user and group
/// ([`VolumeOptions::owner`](crate::VolumeOptions::owner)); files get the mode `0o644` and
/// directories `0o755`, independently of the process's umask.
///
/// # Errors
/// Every call on a path returns an [`Error::At`](cairnfs_disk::Error::At) with that path; match on
/// [`Error::kind`](cairnfs_disk::Error::kind) as with `std::fs`, or on
/// [`Error::cause`](cairnfs_disk::Error::cause). Any call may return
/// [`Error::Corrupt`](cairnfs_disk::Error::Corrupt) or [`Error::Io`](cairnfs_disk::Error::Io); any change
/// [`Error::ReadOnly`](cairnfs_disk::Error::ReadOnly), [`Error::NoSpace`](cairnfs_disk::Error::NoSpace),
/// [`Error::HostFull`](cairnfs_disk::Error::HostFull) or
/// [`Error::Stopped`](cairnfs_disk::Error::Stopped). In a branch whose name went to another tree, because
/// that was published or restored, every change and sync of a file returns
/// [`Error::Stale`](cairnfs_disk::Error::Stale): [open it again](Volume::open_branch) by its name.
///
/// # Durability
/// Each call is atomic across a power failure, and nothing survives a crash without what it depends
/// on. So this replaces a file safely, without a sync:
///
/// ```
/// # use cairnfs::Volume;
/// # fn main() -> cairnfs::Result<()> {
/// # let volume = Volume::in_memory(64 << 20)?;
/// volume.write("settings.tmp", b"colour = blue")?;
/// volume.rename("settings.tmp", "settings")?;
/// # assert_eq!(volume.read("settings")?, b"colour = blue");
/// # Ok(())
/// # }
/// ```
///
/// Use [`File::sync_all`](crate::File::sync_all), [`sync_dir`](Volume::sync_dir) or
/// [`sync`](Volume::sync) if a change must be durable. For many changes, get a
/// [`sequence`](Volume::sequence) for each; one [`sync_through`](Volume::sync_through) then makes
/// all of them durable.
#[derive(Clone)]
pub struct Volume {
    fs: Engine,
    owner: Creds,
    prefixes: Arc<Prefixes>,
}

const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Volume>();
};

impl From<Arc<FileSystem>> for Volume {
    /// A volume on an engine that is already open; new files belong to the process's effective user
    /// and group. It is closed by its owner, not with the last handle of this volume.
    fn from(fs: Arc<FileSystem>) -> Self {
        VolumeOptions::new().volume(Engine::borrowed(fs))
    }
}

impl Volume {
    pub(super) fn new(fs: Engine, owner: Creds) -> Self {
        Self {
            fs,
            owner,
            prefixes: Arc::default(),
        }
    }

    /// Options for opening or creating a volume.
    pub fn options() -> VolumeOptions {
        VolumeOptions::new()
    }

    /// Opens the volume in a file or block device, with the default options.
    ///
    /// # Errors
    /// As [`VolumeOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::options().open(path)
    }

    /// Creates a volume of `size` bytes in a file that does not exist yet, and opens it. The file
    /// is sparse: it takes space as the volume fills.
    ///
    /// # Errors
    /// As [`VolumeOptions::create_new`].
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<Self> {
        Self::options().size(size).create_new(path)
    }

    /// Creates a volume of `size` bytes in memory, for tests and temporary files.
    ///
    /// # Errors
    /// As [`VolumeOptions::in_memory`].
    pub fn in_memory(size: u64) -> Result<Self> {
        Self::options().size(size).in_memory()
    }

    /// Makes all changes durable that returned before this call, of all branches.
    ///
    /// # Errors
    /// [`Error::Stopped`](cairnfs_disk::Error::Stopped) or a device failure: changes may be lost.
    /// [`Error::HostFull`](cairnfs_disk::Error::HostFull) if the host has no space for them: they stay in
    /// memory, and a later call may succeed.
    pub fn sync(&self) -> Result<()> {
        self.fs.sync()
    }

    /// A point in the order of changes, after all changes that returned before this call in any
    /// thread. For [`sync_through`](Self::sync_through) of the same open volume.
    ///
    /// ```
    /// # use cairnfs::Volume;
    /// # fn main() -> cairnfs::Result<()> {
    /// let volume = Volume::in_memory(64 << 20)?;
    /// let mut made = Vec::new();
    /// for n in 0..1000 {
    ///     volume.write(format!("{n}"), "a small file")?;
    ///     made.push((n, volume.sequence()));
    /// }
    /// // The first of these makes them all durable with one flush.
    /// for (_, sequence) in made {
    ///     volume.sync_through(sequence)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn sequence(&self) -> Sequence {
        self.fs.sequence()
    }

    /// Makes everything up to a sequence durable. Concurrent callers share one sync. Returns at
    /// once if a sync of the whole volume that began after the sequence has succeeded, including
    /// those of the durability interval.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn sync_through(&self, sequence: Sequence) -> Result<()> {
        self.fs.sync_through(sequence)
    }

    /// Whether everything up to a sequence is known to be durable.
    pub fn is_durable(&self, sequence: Sequence) -> bool {
        self.fs.is_durable(sequence)
    }

    /// Makes several files durable, each like [`File::sync_all`](crate::File::sync_all), with one
    /// flush of the device for all of them.
    ///
    /// # Errors
    /// [`Error::Invalid`](cairnfs_disk::Error::Invalid) for a file of another volume or branch, or as
    /// [`sync`](Self::sync).
    pub fn sync_files(&self, files: &[&crate::File]) -> Result<()> {
        let inodes: Option<Vec<u64>> = files.iter().map(|f| f.ino_in(&self.fs)).collect();
        let other = cairnfs_disk::Error::Invalid("a file of another volume or branch");
        self.fs.fsync_all(&inodes.ok_or(other)?)
    }

    /// Makes a directory durable with all its entries, and the directories on its path.
    ///
    /// # Errors
    /// [`Error::NotDirectory`](cairnfs_disk::Error::NotDirectory), or as [`sync`](Self::sync).
    pub fn sync_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.on(path.as_ref(), Follow::Yes, |fs, dir| {
            if !dir.kind.is_dir() {
                return Err(cairnfs_disk::Error::NotDirectory);
            }
            fs.fsync(dir.ino, false)
        })
    }

    /// Writes everything and closes the volume, for all its clones, branches and open files: their
    /// later calls fail. Dropping them closes it as well, but cannot report a failure.
    ///
    /// # Errors
    /// A device failure: changes may be lost.
    pub fn close(self) -> Result<()> {
        self.fs.close()
    }

    /// Makes a snapshot of all files, with every call that has returned: a read-only tree under
    /// `name`, which no later change affects. It is durable when this returns, also after a power
    /// failure. Making it takes as long as writing back unwritten data and a sync; the number of
    /// files does not matter. [`open_branch`](Volume::open_branch) reads it.
    ///
    /// ```
    /// # fn main() -> cairnfs::Result<()> {
    /// let volume = cairnfs::Volume::in_memory(64 << 20)?;
    /// volume.write("settings", "before")?;
    /// volume.snapshot("monday")?;
    /// volume.write("settings", "after")?;
    /// let monday = volume.open_branch("monday")?;
    /// assert_eq!(monday.read("settings")?, b"before");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Exists`](cairnfs_disk::Error::Exists) if a branch or snapshot has this name;
    /// [`Error::Invalid`](cairnfs_disk::Error::Invalid) for a name that is empty, longer than 255 bytes,
    /// `.` or `..`, begins with `-`, begins or ends with a blank, contains `/`, `@` or a control
    /// character, or ends in `.auto-` or `.undo-` and a time, as those that are dropped by themselves
    /// ([`check_given`](cairnfs_core::refs::check_given)), and if the volume has as many branches and snapshots as it can have;
    /// [`Error::ReadOnly`](cairnfs_disk::Error::ReadOnly), also of a snapshot;
    /// [`Error::NoSpace`](cairnfs_disk::Error::NoSpace), or as [`sync`](Self::sync).
    pub fn snapshot(&self, name: &str) -> Result<()> {
        self.fs.snapshot(name)
    }

    /// Makes a branch under `name` and opens it: a tree of files that begins as this one is now,
    /// with every call that has returned, and is changed independently of it. The branch is durable
    /// when this returns. Making it takes as long as [`snapshot`](Volume::snapshot), however many
    /// files there are; both trees share the blocks that neither has changed.
    ///
    /// The branch is a [`Volume`] with all its calls, and has the same options and owner of new
    /// files. Threads may use several branches at once: they share caches, memory budget, log and
    /// flushes. [`sync`](Volume::sync), [`trim`](Volume::trim) and [`close`](Volume::close) of any
    /// of them are those of the whole volume.
    ///
    /// ```
    /// # fn main() -> cairnfs::Result<()> {
    /// let volume = cairnfs::Volume::in_memory(64 << 20)?;
    /// volume.write("settings", "colour = blue")?;
    /// let trial = volume.branch("trial")?;
    /// trial.write("settings", "colour = red")?;
    /// trial.remove_file("settings")?;
    /// assert_eq!(volume.read("settings")?, b"colour = blue");
    /// assert_eq!(trial.name().as_deref(), Some("trial"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Files are moved from one branch to another by copying: open files and paths belong to one
    /// tree. Files that are open and have no name when the branch is made are not in it.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot), except that a snapshot can be branched;
    /// [`Error::Busy`](cairnfs_disk::Error::Busy) if 1,000 branches and snapshots are open: then the
    /// branch is made, but not opened.
    pub fn branch(&self, name: &str) -> Result<Self> {
        let id = self.fs.branch(name)?;
        Ok(self.with_root(self.fs.open_root(id)?))
    }

    /// Opens a branch or snapshot by its name. The files of a snapshot cannot be changed
    /// ([`Error::ReadOnly`](cairnfs_disk::Error::ReadOnly)). All volumes of one branch are the same tree.
    ///
    /// # Errors
    /// [`Error::NoSnapshot`](cairnfs_disk::Error::NoSnapshot) if nothing has this name;
    /// [`Error::Busy`](cairnfs_disk::Error::Busy) if 1,000 branches and snapshots are open: drop the
    /// [`Volume`]s of one; [`Error::NoSpace`](cairnfs_disk::Error::NoSpace), or as [`sync`](Self::sync).
    pub fn open_branch(&self, name: &str) -> Result<Self> {
        Ok(self.with_root(self.fs.open_named(name)?))
    }

    /// The name of this branch or snapshot; `main` for the tree that a volume begins with. `None` if
    /// it has lost its name.
    pub fn name(&self) -> Option<String> {
        self.fs.root_info().and_then(|info| info.name)
    }

    /// Gives a branch or snapshot another name. It stays open under it.
    ///
    /// # Errors
    /// [`Error::NoSnapshot`](cairnfs_disk::Error::NoSnapshot) if nothing has the name `old`;
    /// [`Error::NotPermitted`](cairnfs_disk::Error::NotPermitted) for `main`, which keeps its name; else as
    /// [`snapshot`](Self::snapshot).
    pub fn rename_root(&self, old: &str, new: &str) -> Result<()> {
        self.fs.rename_root(old, new)
    }

    /// All branches and snapshots of the volume, in order of their ids.
    pub fn roots(&self) -> Vec<RootInfo> {
        self.fs.roots()
    }

    /// Another root of this volume.
    fn with_root(&self, fs: Arc<FileSystem>) -> Self {
        Self::new(self.fs.with_root(fs), self.owner)
    }

    /// Discards all free space of the volume in its file or device. Returns the bytes discarded;
    /// some may have been discarded before.
    ///
    /// # Errors
    /// [`Error::Unsupported`](cairnfs_disk::Error::Unsupported) if the file or device does not support it,
    /// or as [`sync`](Self::sync).
    pub fn trim(&self) -> Result<u64> {
        self.fs.trim()
    }

    /// Space, in blocks, and inodes.
    pub fn statfs(&self) -> StatFs {
        self.fs.statfs()
    }

    /// UUID, label, sizes and features.
    pub fn info(&self) -> VolumeInfo {
        self.fs.info()
    }

    /// Whether the volume was opened read-only, or this is a snapshot. False after a failure that
    /// stopped all changes.
    pub fn is_read_only(&self) -> bool {
        self.fs.is_read_only()
    }

    /// The engine, which works by inode number; for operations that have no call here.
    pub fn file_system(&self) -> &Arc<FileSystem> {
        self.fs.file_system()
    }

    /// The engine with its share in keeping the volume open.
    pub(super) fn engine(&self) -> &Engine {
        &self.fs
    }

    /// Owner and group of new files.
    pub(super) fn owner(&self) -> Creds {
        self.owner
    }

    /// The cache of directories by path, shared by all clones.
    pub(super) fn prefixes(&self) -> &Prefixes {
        &self.prefixes
    }

    /// Calls `what` with the inode of a path, with a use held; errors get the path.
    pub(super) fn on<T>(
        &self,
        path: &Path,
        follow: Follow,
        what: impl FnOnce(&FileSystem, &Attr) -> Result<T>,
    ) -> Result<T> {
        resolve(self, path, follow)
            .and_then(|(_held, attr)| what(&self.fs, &attr))
            .map_err(|e| e.at(path))
    }

    /// The inode of a path, with a use; errors get the path.
    pub(super) fn find(&self, path: &Path, follow: Follow) -> Result<(Use<'_>, Attr)> {
        resolve(self, path, follow).map_err(|e| e.at(path))
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume")
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
