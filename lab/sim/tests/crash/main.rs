//! Power failures at every event of many workloads: the contract must allow every recovered tree.
//!
//! Every failure prints its steps and the id of its state; [`support::replay`] tries that state
//! alone.
//!
//! Contract: atomic, dependency, durable.fsync, durable.directory, durable.sync, readonly
//! Contract: rot.front

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

mod bounded;
mod branches;
mod closure;
mod determined;
mod drops;
// Beside this directory, in one program with it: it links the library once.
#[path = "../fronts/main.rs"]
mod fronts;
mod hazards;
#[path = "../invariant.rs"]
mod invariant;
mod judged;
mod killed;
mod mechanisms;
mod named;
mod random;
mod renamed;
mod replay;
mod snapshots;
mod support;
mod threads;
mod trim;
mod values;
mod whole;
mod workers;
