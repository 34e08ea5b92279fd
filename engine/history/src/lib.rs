//! Whole trees as the objects of operations: comparing, publishing, restoring, sending and receiving.
//!
//! A part of the crate `cairnfs`, whose documentation has the whole.

#![deny(missing_docs)]

pub mod diff;
pub mod operations;
pub mod publish;
pub mod stream;
