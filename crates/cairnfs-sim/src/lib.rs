//! Power cuts on a simulated disk, and a verdict on what a volume makes of them.
//!
//! [`record::Recording`] runs a workload on a [`disk::SimDisk`], which keeps what was written between
//! which flushes. [`states`] enumerates what a power cut may leave of that at every moment: any
//! subset of the unflushed writes, in part or whole. [`explore`] recovers each, and the [`model`] says
//! whether the recovered tree is allowed by the contract. Every state has a short id that replays it.
//!
//! # Testing a program of your own
//!
//! A program that keeps its files in a volume asks two things of a crash: that the volume keeps its
//! promises, and that what it left is something the program can go on from. The first is checked in
//! every state. The second only you know; say it as an invariant, a function that looks at a
//! recovered volume:
//!
//! ```
//! use cairnfs::Volume;
//! use cairnfs_sim::explore::{Crash, Depth, explore_with};
//! use cairnfs_sim::record::Recording;
//! use std::ops::ControlFlow;
//!
//! /// What is tested: a configuration is replaced as a whole.
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
//! // The configuration is one that was saved, and once the second save returned, the second.
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
//! A failure shows the id of its state; [`explore::replay_with`] tries that one alone, and
//! [`explore::image_of`] gives its disk. An invariant that cannot fail shows nothing: write the file
//! in place once, and see that it is found. `cairnfs crashtest` does the same for any program.

pub mod disk;
mod exercise;
pub mod explore;
pub mod image;
pub mod model;
pub mod record;
pub mod states;
pub mod tree;
pub mod workload;
