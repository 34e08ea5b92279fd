//! CairnFS: a crash-safe POSIX file system in one file or block device, as a library.
//!
//! A program embeds it as it would a database, and gets a tree of files: names, directories,
//! links, extended attributes, sparse files, with the calls of [`std::fs`].
//!
//! ```
//! use std::io::Write;
//! use cairnfs::Volume;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let image = dir.path().join("notes.cairn");
//! let volume = Volume::create(&image, 64 << 20)?;
//! volume.create_dir_all("2024/march")?;
//! volume.write("2024/march/todo", "water the plants")?;
//!
//! let mut file = volume.create_file("journal")?;
//! writeln!(file, "planted a tree")?;
//! file.sync_all()?;
//!
//! volume.rename("2024/march/todo", "2024/todo")?;
//! volume.close()?;
//!
//! let volume = Volume::open(&image)?;
//! assert_eq!(volume.read_to_string("2024/todo")?, "water the plants");
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//! - Each call happens wholly or not at all, however the power fails.
//! - Nothing survives a crash without what it depends on: `write` another file, `rename` it over
//!   the old one, and the name leads to the whole old or the whole new contents, without a sync.
//! - After [`File::sync_all`] the file is durable with its attributes and every name it has;
//!   after [`Volume::sync_dir`] a directory with all its entries; after [`Volume::sync`]
//!   everything, after [`Volume::sync_through`] everything up to a [`Sequence`].
//! - Every read gives what was written, or an error: all data and metadata have checksums.
//! - A failed write or flush makes the volume read-only, and a sync never succeeds after what it
//!   should have made durable could have been lost.
//!
//! # What is where
//! [`Volume`] is the tree of files, [`File`] an open file, [`VolumeOptions`] and [`OpenOptions`]
//! say how to open them. Below them, [`fs::FileSystem`] does the same by inode number, for fronts
//! such as a FUSE daemon; a [`device::Device`] is where the bytes go, which programs may
//! implement themselves.
//!
//! Everything is `Send + Sync`; calls on different files do not wait for one another.

pub mod acl;
mod api;
mod clocked;
mod data;
#[doc(hidden)]
pub mod deliberate;
pub mod device;
pub mod error;
mod fetch;
pub mod format;
pub mod fs;
mod index;
mod inode;
mod journal;
mod mechanism;
mod shard;
mod source;
mod space;
mod sync;
mod txn;
pub mod types;
mod values;

pub use api::{
    DirEntry, File, FileTimes, Metadata, OpenOptions, ReadDir, Volume, VolumeOptions, Walk,
};
pub use error::{Error, Result};
pub use fs::Sequence;
pub use mechanism::Mechanism;
pub use types::{FileKind, Flags, RenameMode, StatFs, VolumeInfo, XattrMode};
