//! Mounts a CairnFS volume through FUSE.
//!
//! Three layers, each of which uses only the next: [`adapter`] implements the trait of
//! [`cairnfs_transport`], [`ops`] defines what a mounted file system does with each request, and
//! the engine ([`cairnfs::fs::FileSystem`]) executes it. The other modules are: mounting
//! ([`mounter`], [`mountinfo`], [`mounted`], [`descriptors`]), the mounts that a process serves
//! ([`sessions`], [`session`]), what the kernel shows of their connections (`connections`), mount
//! options ([`options`]), and the channel from commands to a running daemon ([`control`], [`opening`],
//! [`status`]). [`messages`] counts what the kernel sends.

mod access_lists;
pub mod adapter;
mod admission;
pub mod apart;
mod cached_listings;
pub mod caller;
mod connections;
pub mod control;
pub mod convert;
mod deferrals;
pub mod descriptors;
pub mod elsewhere;
pub mod ending;
pub mod fault;
mod full;
pub mod holders;
mod known_dirs;
mod losses;
pub mod messages;
pub mod mounted;
pub mod mounter;
pub mod mountinfo;
pub mod negotiate;
pub mod opening;
pub mod ops;
pub mod options;
pub mod person;
mod program_counts;
mod program_files;
pub mod programs;
mod references;
pub mod session;
pub mod sessions;
pub mod status;
pub mod syncs;
mod trees;
pub mod waiting;

pub use cairnfs_transport::Transport;
pub use options::MountOptions;
pub use session::{Serving, serve};
pub use sessions::{ServeError, Served, Sessions};
