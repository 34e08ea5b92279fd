//! Mounts a CairnFS volume through FUSE.
//!
//! Three layers, each of which knows only the next: [`adapter`] speaks fuser's trait, [`ops`] is
//! what a mounted file system does with each request, and the engine ([`cairnfs::fs::FileSystem`])
//! does it. Beside them stand the mounting itself ([`mounter`], [`mountinfo`], [`session`]), its
//! options ([`options`]), the channel over which commands reach a running daemon ([`control`],
//! [`opening`], [`status`]), and what a mount is measured against ([`noop`]). Only `adapter`, `convert`, `negotiate`, `noop` and
//! `session` name the crate `fuser`; the transport can be exchanged there.

pub mod adapter;
pub mod caller;
pub mod control;
pub mod convert;
mod door;
pub mod elsewhere;
pub mod ending;
mod full;
mod holders;
mod lists;
mod losses;
pub mod mounter;
pub mod mountinfo;
pub mod negotiate;
pub mod noop;
pub mod opening;
pub mod ops;
pub mod options;
pub mod session;
pub mod status;
pub mod syncs;
pub mod waiting;

pub use options::MountOptions;
pub use session::{ServeError, Served, Serving, serve};
