//! The engine against the check: whatever a workload does, the volume it leaves is sound, when it
//! was closed, when the process was killed at any moment, and when it was mounted again after that.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

mod allocation;
mod appended;
mod contents;
mod delayed;
mod filled;
mod filling;
mod full;
mod killed;
mod named;
mod ops;
mod removed;
mod rewritten;
mod seen;
mod threads;
mod trimmed;
