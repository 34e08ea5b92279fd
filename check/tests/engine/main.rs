//! Runs the engine and checks its volumes offline: whatever a workload does, the volume is sound
//! after a close, after a kill at any point, and after the mount that follows the kill.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

mod allocation;
mod appended;
mod charges;
mod checkpoints;
mod compared;
mod contents;
mod delayed;
mod drops;
mod filled;
mod filling;
mod forks;
mod full;
mod killed;
mod named;
mod ops;
mod parts;
mod removed;
mod replaced;
mod rewritten;
mod seen;
mod snapshots;
mod threads;
mod trimmed;
mod yielding;
