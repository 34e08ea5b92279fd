//! The public API: a [`Volume`] with the calls of `std::fs`, on top of the engine.
//!
//! Top floor: uses [`cairnfs_core::fs`] and the value types below it. It keeps no state of files except
//! open handles; every use of an inode is held by a guard of [`handle`]. Nothing here checks
//! permissions: a program that can open the volume may do everything.

mod attributes;
mod checkpoint;
mod contents;
mod file;
mod handle;
mod history;
mod metadata;
mod names;
mod options;
mod path;
mod prefixes;
mod read_dir;
mod volume;

pub use checkpoint::Checkpoint;
pub use file::File;
pub use metadata::{FileTimes, Metadata};
pub use options::{OpenOptions, VolumeOptions};
pub use read_dir::{DirEntry, ReadDir, Walk};
pub use volume::Volume;
