//! The workloads, in one program: it links the library once. `tests/mounted.rs` is another program, which
//! works on mounts.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod ageing;
mod branches;
mod common;
mod fsmark;
mod neighbour;
mod plot;
mod syncs;
mod xattr;
