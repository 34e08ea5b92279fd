//! Options for opening volumes and files: builders that only store the options.
//!
//! [`VolumeOptions`] creates and opens volumes through [`cairnfs_core::fs`]; [`OpenOptions`] is a plain
//! value that [`Volume::open_with`] reads.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::Volume;
use super::handle::Engine;
use cairnfs_core::fs::{FileSystem, MakeOptions, Options, is_unmade, make, make_device};
use cairnfs_disk::device::{Device, MemoryDevice};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::mechanism::Mechanism;
use cairnfs_disk::types::Creds;

/// How to open or create a volume. Begin with [`Volume::options`].
///
/// ```
/// use std::time::Duration;
/// use cairnfs::Volume;
///
/// # fn main() -> cairnfs::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data.cairn");
/// let volume = Volume::options()
///     .create(true)
///     .size(64 << 20)
///     .label("photos")
///     .cache_budget(32 << 20)
///     .durability_interval(Some(Duration::from_secs(1)))
///     .open(&path)?;
/// assert_eq!(volume.info().label, "photos");
/// volume.close()
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct VolumeOptions {
    open: Options,
    make: MakeOptions,
    create: bool,
    owner: Creds,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        Self {
            open: Options::default(),
            make: MakeOptions::default(),
            create: false,
            owner: Creds {
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
            },
        }
    }
}

impl VolumeOptions {
    /// Options to open an existing volume for reading and writing, with default budget and
    /// interval.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether all changes are refused with [`Error::ReadOnly`]. Several processes may have a
    /// volume open read-only. The volume is not written. If the log is not empty and its replay
    /// needs more memory than its share of the [budget](Self::cache_budget), the replay goes to an
    /// unlinked temporary file in [`std::env::temp_dir`] (`TMPDIR`), or opening fails with
    /// [`Error::Temporary`]. Default: no.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.open.read_only = read_only;
        self
    }

    /// The snapshot whose files are opened, by name, instead of the files of the volume. The volume
    /// must be opened [read-only](Self::read_only). Opening fails with [`Error::NoSnapshot`] if
    /// there is none of that name.
    #[must_use]
    pub fn root(mut self, name: impl Into<String>) -> Self {
        self.open.root = Some(name.into());
        self
    }

    /// Whether the log is replayed. If not, the volume is read-only as its last merge left it:
    /// later changes are missing, and blocks that later merges overwrote fail with
    /// [`Error::Corrupt`]. For salvage from a volume whose log or newest superblock is damaged.
    /// Default: yes.
    #[must_use]
    pub fn recovery(mut self, recovery: bool) -> Self {
        self.open.recovery = recovery;
        self
    }

    /// Bytes of memory for caches and unwritten changes. Default: an eighth of the memory that this
    /// process may use, from 64 MiB to 4 GiB.
    #[must_use]
    pub fn cache_budget(mut self, bytes: usize) -> Self {
        self.open.cache_budget = bytes;
        self
    }

    /// Time from one sync of the whole volume to the next, for changes that are not synced
    /// explicitly; `None`: only on request. Default: 5 s.
    #[must_use]
    pub fn durability_interval(mut self, interval: Option<Duration>) -> Self {
        self.open.durability_interval = interval;
        self
    }

    /// Whether freed space is discarded on the device. Default: yes.
    #[must_use]
    pub fn discard(mut self, discard: bool) -> Self {
        self.open.discard = discard;
        self
    }

    /// Disables a mechanism, to measure what it saves; all guarantees hold without it. Default:
    /// none is disabled.
    #[doc(hidden)]
    #[must_use]
    pub fn ablate(mut self, mechanism: Mechanism) -> Self {
        self.open.ablated = Some(mechanism);
        self
    }

    /// Whether [`open`](Self::open) creates a volume if there is no file; this needs a
    /// [`size`](Self::size). Default: no.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Size in bytes of a new volume. The file is sparse: it takes space as it fills.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.make.size = Some(bytes);
        self
    }

    /// Label of a new volume, at most 64 bytes.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.make.label = label.into();
        self
    }

    /// Owner and group of new files (and of the root directory of a new volume). Default: the
    /// effective user and group of the process.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = Creds { uid, gid };
        self
    }

    /// Opens the volume in a file or block device; creates it first if
    /// [`create`](Self::create) is set and there is no file, or one whose first megabyte is zeros.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process, or this one, has it open, [`Error::NotAVolume`], [`Error::Corrupt`],
    /// [`Error::Incompatible`], or an error of the file.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Volume> {
        let path = path.as_ref();
        if self.create && is_unmade(path) {
            match self.make(path) {
                // Another process created it first.
                Ok(()) | Err(Error::Exists) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(self.volume(Engine::owned(FileSystem::open(path, &self.open)?)))
    }

    /// Creates a volume in a file that does not exist yet, and opens it. The file is readable and
    /// writable by its owner only (mode 0600).
    ///
    /// # Errors
    /// [`Error::Exists`] if the file exists; [`Error::Invalid`] without a size.
    pub fn create_new(&self, path: impl AsRef<Path>) -> Result<Volume> {
        let path = path.as_ref();
        if path.symlink_metadata().is_ok() {
            return Err(Error::Exists.at(path));
        }
        self.make(path)?;
        Ok(self.volume(Engine::owned(FileSystem::open(path, &self.open)?)))
    }

    /// Opens the volume on a device.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_device(&self, device: Arc<dyn Device>) -> Result<Volume> {
        Ok(self.volume(Engine::owned(FileSystem::open_device(device, &self.open)?)))
    }

    /// Creates a volume on a device, overwriting its contents, and opens it.
    ///
    /// # Errors
    /// An error of the device, or [`Error::Invalid`] if it is too small.
    pub fn create_device(&self, device: Arc<dyn Device>) -> Result<Volume> {
        let options = MakeOptions {
            force: true,
            ..self.make_options()
        };
        make_device(&*device, &options, &mut |_, _| {})?;
        self.open_device(device)
    }

    /// Creates a volume in memory, which is freed with the last of its files and clones.
    ///
    /// # Errors
    /// [`Error::Invalid`] without a size, or if it is too small.
    pub fn in_memory(&self) -> Result<Volume> {
        let size = self.make.size.ok_or(NO_SIZE)?;
        self.create_device(Arc::new(MemoryDevice::new(size)))
    }

    fn make(&self, path: &Path) -> Result<()> {
        if self.make.size.is_none() {
            return Err(NO_SIZE);
        }
        make(path, &self.make_options(), &mut |_, _| {})?;
        Ok(())
    }

    fn make_options(&self) -> MakeOptions {
        MakeOptions {
            root_owner: (self.owner.uid, self.owner.gid),
            ..self.make.clone()
        }
    }

    pub(super) fn volume(&self, fs: Engine) -> Volume {
        Volume::new(fs, self.owner)
    }
}

const NO_SIZE: Error = Error::Invalid("a new volume needs a size");

/// How to open a file, like [`std::fs::OpenOptions`].
///
/// ```
/// use std::io::Write;
/// use cairnfs::{OpenOptions, Volume};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let volume = Volume::in_memory(64 << 20)?;
/// let mut log = volume.open_with("log", OpenOptions::new().append(true).create(true))?;
/// writeln!(log, "started")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct OpenOptions {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) append: bool,
    pub(super) truncate: bool,
    pub(super) create: bool,
    pub(super) create_new: bool,
    pub(super) sync: Option<Synced>,
    pub(super) mode: u32,
}

/// What a write makes durable before it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Synced {
    Data,
    All,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            sync: None,
            mode: DEFAULT_FILE_MODE,
        }
    }
}

/// Permissions of new files if none are given.
pub(super) const DEFAULT_FILE_MODE: u32 = 0o644;

impl OpenOptions {
    /// All options off; at least one of read, write and append must be set before opening.
    pub fn new() -> Self {
        Self::default()
    }

    /// Open for reading.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    /// Open for writing.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    /// Open for appending: every `write` goes to the current end of the file, atomically, also with
    /// concurrent appends.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.append = append;
        self
    }

    /// Truncate an existing file to 0 bytes. Needs write.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// Create the file if it does not exist. Needs write or append.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Create the file, and fail if the name exists (also as a symbolic link). Needs
    /// write or append.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// Every write is durable before it returns, as with
    /// [`File::sync_data`](crate::File::sync_data); like `O_DSYNC` in the custom flags of
    /// [`std::fs`]. The last call of this and [`sync_all`](Self::sync_all) is effective.
    pub fn sync_data(&mut self, sync: bool) -> &mut Self {
        self.sync = sync.then_some(Synced::Data);
        self
    }

    /// Every write is durable as with [`File::sync_all`](crate::File::sync_all), including times
    /// and names; like `O_SYNC`.
    pub fn sync_all(&mut self, sync: bool) -> &mut Self {
        self.sync = sync.then_some(Synced::All);
        self
    }

    /// Permissions of a new file. Default: `0o644`. The process's umask is not applied.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// Refuses invalid combinations, by the rules of `std::fs`.
    pub(super) fn check(&self) -> Result<()> {
        let writes = self.write || self.append;
        let makes = self.truncate || self.create || self.create_new;
        if !(self.read || writes) {
            Err(Error::Invalid(
                "a file is opened for reading, writing or appending",
            ))
        } else if makes && !writes {
            Err(Error::Invalid("a file is made or cut only for writing"))
        } else if self.append && self.truncate && !self.create_new {
            Err(Error::Invalid("a file is not both cut and appended to"))
        } else {
            Ok(())
        }
    }
}
