//! Damaged volumes: sound images made by the engine, a mutator that damages them in ways that
//! follow from a seed, and what must hold of any image, however it was damaged.
//!
//! For tests and fuzzing only. [`base`] makes the images, [`layout`] knows where their structures
//! lie, [`seal`] makes checksums right again so that the readers behind them are reached,
//! [`mutation`], [`graph`] and [`bytes`] damage, and [`survives`] opens, reads, uses and checks the result.
//!
//! What always holds: the same seed gives the same mutation of the same base.

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
pub mod seal;
pub mod survive;
mod usage;
mod walk;

pub use base::{Base, bases};
pub use image::Image;
pub use mutation::{CLASSES, Class, Mutation, mutate};
pub use survive::{Broken, Outcome, Verdict, survives};
