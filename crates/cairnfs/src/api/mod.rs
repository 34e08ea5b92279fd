//! The library's public face: a [`Volume`] with the calls of `std::fs`, over the engine.
//!
//! Topmost floor: uses [`crate::fs`] and what values lie below it. It keeps no state of files
//! besides open handles; every use of an inode that the engine counts is held by a guard of
//! [`handle`]. Nothing here checks permissions: whoever can open the volume may do everything.

mod attributes;
mod contents;
mod file;
mod handle;
mod metadata;
mod names;
mod options;
mod path;
mod prefixes;
mod read_dir;
mod volume;

pub use file::File;
pub use metadata::{FileTimes, Metadata};
pub use options::{OpenOptions, VolumeOptions};
pub use read_dir::{DirEntry, ReadDir, Walk};
pub use volume::Volume;
