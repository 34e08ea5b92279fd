//! CairnFS: a crash-safe POSIX file system in one file or block device, as a library.
//!
//! A program embeds it like a database, and gets a tree of files: names, directories, links,
//! extended attributes, sparse files, with the calls of [`std::fs`].
//!
//! ```
//! use std::io::Write;
//! use cairnfs::Volume;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//! #   let dir = tempfile::tempdir()?;
//! #   std::env::set_current_dir(&dir)?;
//!     let volume = Volume::create("notes.cairn", 64 << 20)?;
//!     volume.create_dir_all("2024/march")?;
//!     volume.write("2024/march/todo", "water the plants")?;
//!
//!     let mut file = volume.create_file("journal")?;
//!     writeln!(file, "planted a tree")?;
//!     file.sync_all()?;
//!
//!     volume.rename("2024/march/todo", "2024/todo")?;
//!     volume.close()?;
//!
//!     let volume = Volume::open("notes.cairn")?;
//!     assert_eq!(volume.read_to_string("2024/todo")?, "water the plants");
//!     Ok(())
//! }
//! ```
//!
//! - [`Volume`]: the tree of files; [`VolumeOptions`]: how to open or create it.
//! - [`File`]: an open file; [`OpenOptions`]: how to open it.
//! - [`Error`]: all errors; `?` converts it to [`std::io::Error`] and back.
//!
//! Everything is `Send + Sync`; calls on different files do not wait for one another.
//!
//! # Guarantees
//! - Each call is atomic: after a power failure it has happened completely or not at all.
//! - Nothing survives a crash without what it depends on: `write` another file, `rename` it over
//!   the old one, and the name leads to the complete old or the complete new contents, without a
//!   sync.
//! - [`File::sync_all`] makes a file durable with its attributes and all its names;
//!   [`Volume::sync_dir`] a directory with all its entries; [`Volume::sync`] everything;
//!   [`Volume::sync_through`] everything up to a [`Sequence`].
//! - Every read returns the data that was written, or an error: all data and metadata have
//!   checksums.
//! - A failed write or flush stops all changes of the volume. A sync never succeeds if a change
//!   that it covers may have been lost.
//!
//! # For users of `std::fs`
//! The functions of [`std::fs`] are methods of [`Volume`], with the same names, arguments and
//! results; [paths](Volume#paths) mean the same. [`File`] implements [`Read`](std::io::Read),
//! [`Write`](std::io::Write), [`Seek`](std::io::Seek) and [`FileExt`](std::os::unix::fs::FileExt).
//!
//! | `std` | here |
//! |---|---|
//! | `File::open(path)`, `create`, `create_new` | [`Volume::open_file`], [`create_file`](Volume::create_file), [`create_new_file`](Volume::create_new_file) |
//! | `options.open(path)` | [`volume.open_with(path, &options)`](Volume::open_with) |
//! | `OpenOptionsExt::custom_flags(O_DSYNC)`, `O_SYNC` | [`OpenOptions::sync_data`], [`OpenOptions::sync_all`] |
//! | `chown`, `lchown`, `symlink` of `std::os::unix::fs` | methods of [`Volume`] |
//! | `set_permissions(path, permissions)` | the same; permissions are not checked |
//! | opening and syncing a directory | the same, or [`Volume::sync_dir`] |
//!
//! New files have the mode `0o644` and new directories `0o755`, without a umask. There are no file
//! locks. Copying a file to itself, and removing a tree through a path that ends with `.` or `..`,
//! are refused before they change anything.
//!
//! # Errors
//! [`Error`] converts to [`std::io::Error`] and back, and keeps its cause:
//!
//! ```
//! use std::io::{self, ErrorKind};
//! use cairnfs::{Error, Volume};
//!
//! fn publish(volume: &Volume, host: &std::path::Path) -> io::Result<()> {
//!     let text = std::fs::read(host)?;
//!     volume.write("draft", text)?;
//!     volume.rename("draft", "published")?;
//!     Ok(())
//! }
//!
//! # fn main() -> cairnfs::Result<()> {
//! let volume = Volume::in_memory(64 << 20)?;
//! # let dir = tempfile::tempdir()?;
//! # let host = dir.path().join("text");
//! # std::fs::write(&host, "text")?;
//! publish(&volume, &host)?;
//! volume.remove_file("published")?;
//! volume.create_dir("published")?;
//!
//! let failure = publish(&volume, &host).unwrap_err();
//! assert_eq!(failure.kind(), ErrorKind::IsADirectory);
//! assert_eq!(failure.to_string(), "published: is a directory");
//! assert!(matches!(Error::from(failure).cause(), Error::IsDirectory));
//! # Ok(())
//! # }
//! ```
//!
//! # Lower layers
//! [`device`] defines the storage of a volume; a program can implement its own device. [`fs`] is
//! the engine, addressed by inode number, for front ends such as a FUSE daemon.

#![deny(missing_docs)]

mod api;

pub use api::{
    Checkpoint, DirEntry, File, FileTimes, Metadata, OpenOptions, ReadDir, Volume, VolumeOptions,
    Walk,
};
#[doc(inline)]
pub use cairnfs_core::fs;
#[doc(no_inline)]
pub use cairnfs_core::fs::Sequence;
#[doc(hidden)]
pub use cairnfs_disk::mechanism::Mechanism;
#[doc(inline)]
pub use cairnfs_disk::types::{
    CheckpointId, Creds, DropProgress, Fallocate, FileKind, Flags, Loss, RemovedDamage, RenameMode,
    RootInfo, StatFs, Time, VolumeInfo, XattrMode,
};
#[doc(inline)]
pub use cairnfs_disk::{Conflict, ConflictKind, Corruption, Error, InUse, Result, Side};
#[doc(inline)]
pub use cairnfs_history::diff::{
    AttributeChange, FileChange, FilePath, Patches, Report, Status, Summary, XattrChange,
};
#[doc(hidden)]
pub use cairnfs_history::operations::{ChangedInode, Succession};
#[doc(inline)]
pub use cairnfs_history::operations::{Diff, PublishOptions, Published};

/// The storage of a volume: files, block devices, memory, or a custom [`Device`](device::Device).
pub mod device {
    #[doc(inline)]
    pub use cairnfs_disk::device::{Access, Device, FileDevice, MemoryDevice, Piece};
}

/// docs/languages.md, whose snippet compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/languages.md")]
struct Languages;
