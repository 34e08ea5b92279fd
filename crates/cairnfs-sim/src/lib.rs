//! Power cuts on a simulated disk, and a verdict on what a volume makes of them.
//!
//! [`record::Recording`] runs a workload on a [`disk::SimDisk`], which keeps what was written between
//! which flushes. [`states`] enumerates what a power cut may leave of that at every moment: any
//! subset of the unflushed writes, in part or whole. [`explore`] recovers each, and the [`model`] says
//! whether the recovered tree is allowed by the contract. Every state has a short id that replays it.

pub mod disk;
mod exercise;
pub mod explore;
pub mod image;
pub mod model;
pub mod record;
pub mod states;
pub mod tree;
pub mod workload;
