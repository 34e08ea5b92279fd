//! Crash testing on a simulated disk: enumerates the states that a power failure may leave and
//! checks what a volume recovers from each.
//!
//! [`record::Recording`] runs a workload on a [`disk::SimDisk`], which records all writes and
//! flushes. [`states`] enumerates what a power failure may leave at every point of that record: any
//! subset of the unflushed writes, each complete or torn. [`explore`] recovers each state, and
//! [`model`] decides whether the contract allows the recovered tree. Every state has a short id by
//! which it can be replayed. [`whole`] does this for calls on whole roots.
//!
//! # Testing your own program
//!
//! A program that keeps its files in a volume needs two things after a crash: the volume keeps its
//! promises, and the program can continue from what is left. The first is checked in every state.
//! The second is specific to the program. Express it as an invariant, a function that inspects a
//! recovered volume:
//!
//! ```
//! use cairnfs::Volume;
//! use cairnfs_sim::explore::{Crash, Depth, explore_with};
//! use cairnfs_sim::record::Recording;
//! use std::ops::ControlFlow;
//!
//! /// The code under test: replaces the configuration atomically.
//! fn save(volume: &Volume, text: &str) -> cairnfs::Result<()> {
//!     volume.write("config.new", text)?;
//!     volume.rename("config.new", "config")?;
//!     volume.sync()
//! }
//!
//! let recording = Recording::of_volume(|volume| {
//!     save(volume, "colour = red")?;
//!     save(volume, "colour = blue")
//! })?;
//!
//! // Either saved configuration may be found, and after the second save only the second.
//! let mut whole = |volume: &Volume, crash: &Crash<'_>| {
//!     let text = volume.read_to_string("config").unwrap_or_default();
//!     match (text.as_str(), crash.returned.syncs) {
//!         ("colour = blue", _) | ("colour = red", 0 | 1) | ("", 0) => Ok(()),
//!         (other, n) => Err(format!("{other:?} after {n} saves")),
//!     }
//! };
//! let tally = explore_with(&recording, &Depth::default(), &mut whole, &mut |_| {
//!     ControlFlow::Continue(())
//! });
//! assert!(tally.states > 50);
//! assert!(tally.failures.is_empty(), "{}", tally.failures[0]);
//! # Ok::<(), cairnfs::Error>(())
//! ```
//!
//! A failure carries the id of its state; [`explore::replay_with`] replays that state alone, and
//! [`explore::image_of`] returns its disk. An invariant that cannot fail proves nothing: write the
//! file in place once, and check that the test finds it. `cairnfs crashtest` does the same for any
//! program.

pub mod disk;
mod exercise;
pub mod explore;
pub mod image;
pub mod model;
pub mod record;
mod shipped;
mod shown;
pub mod spread;
pub mod states;
pub mod tree;
pub mod whole;
pub mod workload;
