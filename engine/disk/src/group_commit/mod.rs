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
//!
//! # Lives
//!
//! Each change of state is under the one lock of its type, and no work is done under that lock.
//!
//! | Type | From | To | Caused by |
//! |---|---|---|---|
//! | [`Watermark`] | not led | led | a caller whose mark is not reached |
//! | | led | not led, higher or not | its leader returns, fails or panics; all followers look again, and one of them leads |
//! | [`Batches`] | none open | open | a caller that finds none, which leads it |
//! | | open | closed | its leader, by [`BatchLeader::close`] or at the end |
//! | | closed | ended, with a result or without | [`BatchLeader::end`]; its drop, also in a panic |
//! | [`BatchQueue`] | waiting | taken | a leader, with everything that waits |
//! | | taken | served | the same leader, which then looks again |
//! | | a leader | none | it finds nothing waiting, or it panics |
//!
//! 1. A watermark has one leader at a time, and never falls.
//! 2. At most one batch is open. A request is in one batch, and no batch gets one after its closing.
//! 3. A batch ends once, and each follower gets its result.
//! 4. A queue has no more leaders than its limit, and at least one while requests wait, unless the
//!    last one has panicked: then the next request makes one.

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
