//! Group commit: a leader does in one go what it and its followers would each have to do.
//!
//! Uses `sync` only. There are three types because callers ask for three things:
//!
//! | Type | A caller asks for | While another thread leads |
//! |---|---|---|
//! | [`Watermark`] | everything up to a number | it sleeps, and leads if that was not enough |
//! | [`Batches`] | one request to be in a batch | it sleeps until the batch has a result |
//! | [`BatchQueue`] | an answer to one request, later | it continues without waiting |
//!
//! A leader that fails or panics ends its turn like any other, so no follower sleeps for ever.

mod batches;
mod queue;
mod watermark;

pub use batches::{BatchLeader, Batches, Joined};
pub use queue::BatchQueue;
pub use watermark::Watermark;

#[cfg(test)]
#[cfg(shuttle)]
#[path = "tests/schedules.rs"]
mod schedules;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
