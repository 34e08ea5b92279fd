//! Sending a tree as a stream, and receiving one.
//!
//! Uses the comparison of trees, the format and errors. The bytes are those of
//! docs/stream-format.md. [`send()`] writes the changes from one frozen tree to another; a whole tree
//! is the changes from the empty one. [`receive()`] checks a stream and applies it to a [`Target`]:
//! a tree that nobody sees until this has returned.
//!
//! Invariants:
//! - A checksum is no trust: what a stream asks for is checked against the tree that it builds, and
//!   the first record that does not fit ends it.
//! - Memory on both sides: one frame and a few numbers, whatever the stream has in it. What came
//!   before is looked up in the target.

mod check;
mod reader;
mod receive;
mod send;
mod target;
#[cfg(test)]
mod tests;
mod writer;

pub use check::MOST_LEVELS;
pub use reader::StreamReader;
pub use receive::receive;
pub use send::send;
pub use target::Target;
pub use writer::StreamWriter;
