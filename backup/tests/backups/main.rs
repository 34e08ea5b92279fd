//! Backups over stores that fail: every moment that is kept restores to exactly the image that it was
//! made of, whatever the store does, and wherever a writer ends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod crashes;
mod heads;
mod hostile;
mod maintenance;
mod refused;
mod rotten;
mod scale;
mod sealed;
mod steps;
mod store;
mod tidy;
mod volume;
mod words;
mod writers;
