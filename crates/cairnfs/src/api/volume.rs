//! The open volume itself: opening, closing, syncing, and what is told of it as a whole.
//!
//! [`Volume`] is a shared engine and the owner of what is made; the calls on paths are in
//! `names`, `contents` and `attributes` beside this file.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::handle::Use;
use super::options::VolumeOptions;
use super::path::{Follow, resolve};
use super::prefixes::Prefixes;
use crate::error::Result;
use crate::fs::{FileSystem, Sequence};
use crate::types::{Attr, Creds, StatFs, VolumeInfo};

/// A volume that is open: a tree of files, with the calls of [`std::fs`].
///
/// Cheap to clone, `Send + Sync`: clones share one open volume, which is closed by
/// [`close`](Volume::close), or when the last clone, [`File`](crate::File) and
/// [`ReadDir`](crate::ReadDir) is dropped.
///
/// # Paths
/// Paths are bytes, and mean what they mean to Linux, in calls and in symbolic links:
///
/// - They begin at the root of the volume, whether or not they begin with a slash. Several slashes
///   are one.
/// - `..` of the root is the root. Behind a symbolic link, `..` is the parent of what it leads to.
///   What `.` and `..` follow must be a directory.
/// - A slash at the end asks for a directory, and follows a symbolic link before it
///   ([`Error::NotDirectory`](crate::Error::NotDirectory)); a call that may make a file refuses it
///   ([`Error::IsDirectory`](crate::Error::IsDirectory)).
/// - Nothing has the empty path ([`Error::NotFound`](crate::Error::NotFound)), nor a path with a
///   zero byte ([`Error::Invalid`](crate::Error::Invalid)).
/// - A name has 255 bytes at most, the target of a symbolic link 4095
///   ([`Error::NameTooLong`](crate::Error::NameTooLong)). The whole path may be longer than the
///   4095 bytes that Linux takes, so that whatever [`walk`](Volume::walk) finds can be opened.
/// - 40 symbolic links are followed
///   ([`Error::SymlinkLoop`](crate::Error::SymlinkLoop)).
/// - The root, and what is named by `.` or `..`, can be neither renamed
///   ([`Error::Busy`](crate::Error::Busy)) nor removed (`Busy`,
///   [`Invalid`](crate::Error::Invalid) and [`NotEmpty`](crate::Error::NotEmpty), in this order).
///
/// # Permissions
/// Owner and mode are kept, not enforced: who can open the volume may do everything. What is
/// made belongs to the process's effective user and group
/// ([`VolumeOptions::owner`](crate::VolumeOptions::owner)); files get the mode `0o644` and
/// directories `0o755`, whatever the process's umask.
///
/// # Errors
/// Every call on a path gives an [`Error::At`](crate::Error::At) that names it; match on
/// [`Error::kind`](crate::Error::kind) as with `std::fs`, or on
/// [`Error::cause`](crate::Error::cause). Any call may give
/// [`Error::Corrupt`](crate::Error::Corrupt) or [`Error::Io`](crate::Error::Io); any change
/// [`Error::ReadOnly`](crate::Error::ReadOnly), [`Error::NoSpace`](crate::Error::NoSpace),
/// [`Error::HostFull`](crate::Error::HostFull) or
/// [`Error::Stopped`](crate::Error::Stopped).
///
/// # Durability
/// Each call happens wholly or not at all, however the power fails, and nothing survives a crash
/// without what it depends on. So this replaces a file safely, without any sync:
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
/// [`File::sync_all`](crate::File::sync_all), [`sync_dir`](Volume::sync_dir) and
/// [`sync`](Volume::sync) say when a change has to be on the device. Who makes many changes gets a
/// [`sequence`](Volume::sequence) for them, and one [`sync_through`](Volume::sync_through) makes all
/// of them durable.
#[derive(Clone)]
pub struct Volume {
    fs: Arc<FileSystem>,
    owner: Creds,
    prefixes: Arc<Prefixes>,
}

const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Volume>();
};

impl From<Arc<FileSystem>> for Volume {
    /// The calls on paths over an engine that is open already; what is made belongs to the process's
    /// effective user and group.
    fn from(fs: Arc<FileSystem>) -> Self {
        VolumeOptions::new().volume(fs)
    }
}

impl Volume {
    pub(super) fn new(fs: Arc<FileSystem>, owner: Creds) -> Self {
        Self {
            fs,
            owner,
            prefixes: Arc::default(),
        }
    }

    /// What can be chosen when a volume is opened or made.
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

    /// Makes a volume of `size` bytes in a file that does not exist yet, and opens it. The file
    /// is sparse: it takes space as the volume fills.
    ///
    /// # Errors
    /// As [`VolumeOptions::create_new`].
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<Self> {
        Self::options().size(size).create_new(path)
    }

    /// Makes a volume of `size` bytes in memory: for tests, and for files that need not last.
    ///
    /// # Errors
    /// As [`VolumeOptions::in_memory`].
    pub fn in_memory(size: u64) -> Result<Self> {
        Self::options().size(size).in_memory()
    }

    /// Makes everything durable: all changes that returned before this call.
    ///
    /// # Errors
    /// [`Error::Stopped`](crate::Error::Stopped) or the device's failure: changes may be lost
    /// then. [`Error::HostFull`](crate::Error::HostFull) if the file system that holds the volume has
    /// no space for them: they wait in memory, and a later call may succeed.
    pub fn sync(&self) -> Result<()> {
        self.fs.sync()
    }

    /// A point in the order of changes: all that returned before this call, in any thread, lie
    /// before it. For [`sync_through`](Self::sync_through) of the same open volume.
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

    /// Makes everything durable up to a sequence. Those who need that at the same time share it, and
    /// nothing is left to do if a sync of everything has begun since, also that of the interval.
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

    /// Makes several files durable at once, each as [`File::sync_all`](crate::File::sync_all) does,
    /// with one flush of the device for all of them.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a file of another volume, or as
    /// [`sync`](Self::sync).
    pub fn sync_files(&self, files: &[&crate::File]) -> Result<()> {
        let inodes: Option<Vec<u64>> = files.iter().map(|f| f.ino_in(&self.fs)).collect();
        let other = crate::Error::Invalid("a file of another volume");
        self.fs.fsync_all(&inodes.ok_or(other)?)
    }

    /// Makes a directory durable with all its entries, and the directories that lead to it.
    ///
    /// # Errors
    /// [`Error::NotDirectory`](crate::Error::NotDirectory), or as [`sync`](Self::sync).
    pub fn sync_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.on(path.as_ref(), Follow::Yes, |fs, dir| {
            if !dir.kind.is_dir() {
                return Err(crate::Error::NotDirectory);
            }
            fs.fsync(dir.ino, false)
        })
    }

    /// Writes everything and closes the volume, for all its clones and open files: their calls
    /// fail from then on. Dropping them closes it as well, but has no way to tell of a failure.
    ///
    /// # Errors
    /// The device's failure: changes may be lost then.
    pub fn close(self) -> Result<()> {
        self.fs.close()
    }

    /// Gives all free space back to the file or device that holds the volume, and tells how many
    /// bytes that are; some may have been given back before.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if that cannot take it back, or as
    /// [`sync`](Self::sync).
    pub fn trim(&self) -> Result<u64> {
        self.fs.trim()
    }

    /// Space and inodes.
    pub fn statfs(&self) -> StatFs {
        self.fs.statfs()
    }

    /// Identity, label, size and such.
    pub fn info(&self) -> VolumeInfo {
        self.fs.info()
    }

    /// Whether changes are refused: it was opened so, or a failure stopped them.
    pub fn is_read_only(&self) -> bool {
        self.fs.is_read_only()
    }

    /// The engine below, which works by inode number; for what has no call here.
    pub fn file_system(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// Who owns what is made.
    pub(super) fn owner(&self) -> Creds {
        self.owner
    }

    /// Directories by path, of all clones.
    pub(super) fn prefixes(&self) -> &Prefixes {
        &self.prefixes
    }

    /// Does something with the inode that a path names, and says the path in an error.
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

    /// The inode that a path names, with a use of it; a failure says the path.
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
