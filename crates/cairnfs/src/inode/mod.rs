//! In-memory inodes: attributes, dirty sets, unwritten pages, and the table that finds them.
//!
//! Floor 3: uses journal vectors, format and types; knows nothing of transactions. An inode owns
//! its changes: everything of it that is not yet in the index hangs here, under one lock.

pub mod attrs;
pub mod dirty;
pub mod listings;
pub mod log_deps;
pub mod names;
pub mod pages;
#[cfg(test)]
#[cfg(shuttle)]
#[path = "tests/schedules.rs"]
mod schedules;
pub mod state;
pub mod table;

pub use state::{Inode, InodeState, KNOWN_ATTRIBUTES};
