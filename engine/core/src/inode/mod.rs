//! In-memory inodes: attributes, dirty sets, unwritten pages, and the table that finds them.
//!
//! Uses journal vectors, format and types; does not know transactions. An inode owns its
//! changes: all of its items that are not yet in the index are in its state, under one lock.

pub mod attrs;
pub mod dirty;
pub mod known_names;
pub mod listing_ends;
pub mod log_deps;
pub mod pages;
#[cfg(test)]
#[cfg(shuttle)]
#[path = "tests/schedules.rs"]
mod schedules;
pub mod state;
pub mod table;

pub use state::{Inode, InodeState, KNOWN_ATTRIBUTES};
