//! Damaged volumes: sound images made by the engine, mutations of them that depend on a seed, and a
//! test of what must hold for any image.
//!
//! For tests and fuzzing only. [`base`] makes the images, [`layout`] finds their structures,
//! [`seal`] recomputes checksums so that the code behind them is reached, [`mutation`], [`graph`]
//! and [`bytes`] make the damage, and [`survives`] opens, reads, uses and checks the result.
//! [`stream`] does the same for streams of sent trees, [`received`] for volumes that receive them.
//!
//! Invariant: the same seed gives the same mutation of the same base.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "only tests use it, with sound base images; a mistake shall stop them"
)]

pub mod base;
pub mod bytes;
pub mod graph;
pub mod image;
pub mod layout;
pub mod mutation;
pub mod random;
pub mod received;
pub mod ring;
pub mod seal;
pub mod stream;
pub mod survive;
mod usage;
mod walk;

pub use base::{Base, bases};
pub use image::Image;
pub use mutation::{CLASSES, Class, Mutation, mutate};
pub use survive::{Broken, Outcome, Verdict, survives};
