//! How volumes and files are opened: builders that only hold what was asked for.
//!
//! [`VolumeOptions`] makes and opens volumes through [`crate::fs`]; [`OpenOptions`] is a plain
//! value that [`Volume::open_with`] reads.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::Volume;
use crate::device::{Device, MemoryDevice};
use crate::error::{Error, Result};
use crate::fs::{FileSystem, MakeOptions, Options, make, make_device};
use crate::mechanism::Mechanism;
use crate::types::Creds;

/// How to open or make a volume. Begin with [`Volume::options`].
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
    /// Opens an existing volume for reading and writing, with the default budget and interval.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether every change is refused, with [`Error::ReadOnly`]. Several processes may have a
    /// volume open so. The volume is not written; a log that the process before has left and that
    /// needs more memory than its part of the [budget](Self::cache_budget) is recovered into an
    /// unlinked temporary file in [`std::env::temp_dir`] (`TMPDIR`), or opening fails with
    /// [`Error::Temporary`]. Default: no.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.open.read_only = read_only;
        self
    }

    /// Whether the log is replayed. Without, the volume is read-only as its last merge left it: what was
    /// changed since is missing, and what later merges overwrote fails with [`Error::Corrupt`].
    /// To save files of a volume whose log or newest superblock is damaged. Default: yes.
    #[must_use]
    pub fn recovery(mut self, recovery: bool) -> Self {
        self.open.recovery = recovery;
        self
    }

    /// Bytes of memory that caches and changes not yet written may take. Default: an eighth of what
    /// this process may use, from 64 MiB to 4 GiB.
    #[must_use]
    pub fn cache_budget(mut self, bytes: usize) -> Self {
        self.open.cache_budget = bytes;
        self
    }

    /// How long after one sync of everything the next begins, for changes that nobody syncs; `None`:
    /// only on request. Default: 5 s.
    #[must_use]
    pub fn durability_interval(mut self, interval: Option<Duration>) -> Self {
        self.open.durability_interval = interval;
        self
    }

    /// Whether the device is told of space that is not needed any more. Default: yes.
    #[must_use]
    pub fn discard(mut self, discard: bool) -> Self {
        self.open.discard = discard;
        self
    }

    /// Leaves a mechanism out, to measure what it saves; every promise holds without it. Default: none
    /// is left out.
    #[doc(hidden)]
    #[must_use]
    pub fn ablate(mut self, mechanism: Mechanism) -> Self {
        self.open.ablated = Some(mechanism);
        self
    }

    /// Whether [`open`](Self::open) makes a volume where no file is; it needs a
    /// [`size`](Self::size) for that. Default: no.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Size in bytes of a volume that is made. The file is sparse: it takes space as it fills.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.make.size = Some(bytes);
        self
    }

    /// Name of a volume that is made.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.make.label = label.into();
        self
    }

    /// Who owns what is made through this volume (its root directory too, when the volume is
    /// made). Default: the effective user and group of the process.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = Creds { uid, gid };
        self
    }

    /// Opens the volume in a file or block device, and makes it first if
    /// [`create`](Self::create) says so and there is no file.
    ///
    /// # Errors
    /// [`Error::InUse`] if someone else has it open, [`Error::NotAVolume`], [`Error::Corrupt`],
    /// [`Error::Incompatible`], or what the file gives.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Volume> {
        let path = path.as_ref();
        if self.create && !path.exists() {
            match self.make(path) {
                // Someone else was quicker: theirs is as good.
                Ok(()) | Err(Error::Exists) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(self.volume(FileSystem::open(path, &self.open)?))
    }

    /// Makes a volume in a file that does not exist yet, and opens it. The file is readable and
    /// writable by its owner only (mode 0600).
    ///
    /// # Errors
    /// [`Error::Exists`] if there is a file; [`Error::Invalid`] without a size.
    pub fn create_new(&self, path: impl AsRef<Path>) -> Result<Volume> {
        let path = path.as_ref();
        if path.symlink_metadata().is_ok() {
            return Err(Error::Exists.at(path));
        }
        self.make(path)?;
        Ok(self.volume(FileSystem::open(path, &self.open)?))
    }

    /// Opens the volume on a device.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_device(&self, device: Arc<dyn Device>) -> Result<Volume> {
        Ok(self.volume(FileSystem::open_device(device, &self.open)?))
    }

    /// Makes a volume on a device, whatever it holds, and opens it.
    ///
    /// # Errors
    /// The device's, or [`Error::Invalid`] if it is too small.
    pub fn create_device(&self, device: Arc<dyn Device>) -> Result<Volume> {
        let options = MakeOptions {
            force: true,
            ..self.make_options()
        };
        make_device(&*device, &options, &mut |_, _| {})?;
        self.open_device(device)
    }

    /// Makes a volume in memory, which is gone with the last of its files and clones.
    ///
    /// # Errors
    /// [`Error::Invalid`] without a size, or with one that is too small.
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

    pub(super) fn volume(&self, fs: Arc<FileSystem>) -> Volume {
        Volume::new(fs, self.owner)
    }
}

const NO_SIZE: Error = Error::Invalid("a new volume needs a size");

/// How to open a file, as [`std::fs::OpenOptions`].
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

/// What is durable when a write returns.
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

/// Permissions of files that are made without telling any.
pub(super) const DEFAULT_FILE_MODE: u32 = 0o644;

impl OpenOptions {
    /// All off; at least one of read, write and append must be set before opening.
    pub fn new() -> Self {
        Self::default()
    }

    /// For reading.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    /// For writing.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    /// For writing at the end: every `write` goes to the end of the file as it is then, in one
    /// step, however many append at once.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.append = append;
        self
    }

    /// Cut an existing file to nothing. Needs write.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// Make the file if there is none. Needs write or append.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Make the file, and fail if there is anything of that name (a symbolic link, too). Needs
    /// write or append.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// Every write makes the file durable before it returns, as
    /// [`File::sync_data`](crate::File::sync_data) does: what `O_DSYNC` among the custom flags asks
    /// of [`std::fs`]. Overrides [`sync_all`](Self::sync_all) before it, and is overridden by one
    /// behind it.
    pub fn sync_data(&mut self, sync: bool) -> &mut Self {
        self.sync = sync.then_some(Synced::Data);
        self
    }

    /// The same as with [`File::sync_all`](crate::File::sync_all), times and names included: `O_SYNC`.
    pub fn sync_all(&mut self, sync: bool) -> &mut Self {
        self.sync = sync.then_some(Synced::All);
        self
    }

    /// Permissions of a file that is made. Default: `0o644`. The process's umask is not applied.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// Refuses what makes no sense, by the rules of `std::fs`.
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
