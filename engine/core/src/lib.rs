//! The engine of CairnFS: from free space, the index and the log to files addressed by inode number.
//!
//! A part of the crate `cairnfs`, whose documentation has the whole. It knows nothing of comparing,
//! publishing and sending whole trees.

#![deny(missing_docs)]

pub mod data;
pub mod fs;
pub mod index;
mod inode;
mod journal;
pub mod refs;
pub mod source;
mod space;
pub mod txn;
mod values;

pub use inode::Inode;
