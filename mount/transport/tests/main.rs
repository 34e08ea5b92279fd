//! Requests, replies and sessions, against a fake of the kernel's side and on a mount, in one program.
//! `tests/idle.rs` and `tests/idle_ring.rs` measure their process, so they are programs of their own.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[allow(dead_code, reason = "`tests/idle.rs` uses the rest of it")]
mod fake;
mod hostile;
mod memory;
mod mounted;
mod operations;
mod sessions;
