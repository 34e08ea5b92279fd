//! Power cuts at every moment of many workloads: what comes back is what the contract allows.
//!
//! Every failure names steps and a state; [`support::replay`] tries that one alone.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

mod bounded;
mod closure;
mod determined;
mod hazards;
mod judged;
mod killed;
mod mechanisms;
mod named;
mod random;
mod renamed;
mod replay;
mod support;
mod threads;
mod trim;
mod values;
mod workers;
