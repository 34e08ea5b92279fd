//! What a CairnFS volume is made of: devices, the format on disk, errors and types, and what all
//! layers share. All bytes, no policy: nothing here knows of transactions or files.
//!
//! A part of the crate `cairnfs`, whose documentation has the whole. The offline check depends on this
//! crate alone, so that it shares nothing with the engine that it checks.

#![deny(missing_docs)]

pub mod acl;
pub mod clock;
pub mod device;
pub mod error;
pub mod fault;
pub mod format;
pub mod group_commit;
pub mod hash;
pub mod mechanism;
pub mod metrics;
pub mod prefetch;
pub mod shard;
pub mod sync;
pub mod types;

pub use error::{Conflict, ConflictKind, Corruption, Error, InUse, Result, Side};
