//! CairnFS: a crash-safe POSIX file system in one file or block device, as a library.
//!
//! A program embeds it as it would a database, and gets a tree of files: names, directories,
//! links, extended attributes, sparse files, with the calls of [`std::fs`].
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
//! - [`Volume`]: the tree of files; [`VolumeOptions`] says how it is opened or made.
//! - [`File`]: an open file; [`OpenOptions`] says how it is opened.
//! - [`Error`]: what can go wrong; `?` converts it to [`std::io::Error`] and back.
//!
//! Everything is `Send + Sync`; calls on different files do not wait for one another.
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
//! | `set_permissions(path, permissions)` | the same; nothing checks permissions here |
//! | a directory opened and synced | the same, or [`Volume::sync_dir`] |
//!
//! What is made has the mode `0o644` or `0o755`, without a umask. There are no file locks. Copying a
//! file to itself, and removing a tree that is named by `.` or `..`, are refused before they change
//! anything.
//!
//! # What lies below
//! [`device`] has what holds the bytes of a volume, which a program may implement itself. [`fs`] is
//! the engine by inode number, for fronts such as a FUSE daemon.

#![deny(missing_docs)]

#[doc(hidden)]
pub mod acl;
mod api;
mod data;
pub mod device;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod fault;
#[doc(hidden)]
pub mod format;
pub mod fs;
mod index;
mod inode;
mod journal;
mod mechanism;
mod metrics;
mod prefetch;
mod shard;
mod source;
mod space;
mod sync;
mod txn;
#[doc(hidden)]
pub mod types;
mod values;

pub use api::{
    DirEntry, File, FileTimes, Metadata, OpenOptions, ReadDir, Volume, VolumeOptions, Walk,
};
#[doc(inline)]
pub use error::{Corruption, Error, Result};
pub use fs::Sequence;
#[doc(hidden)]
pub use mechanism::Mechanism;
#[doc(inline)]
pub use types::{Creds, FileKind, Flags, RenameMode, StatFs, Time, VolumeInfo, XattrMode};

/// README.md, whose snippets compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
