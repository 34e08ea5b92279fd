//! The front without a kernel, in one program: it links the library once. `tests/replaced_mounted` is
//! another program, which mounts.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod bites;
mod deferrals;
mod handles;
mod lists;
mod looks;
mod option_table;
mod programs;
#[path = "replaced/main.rs"]
mod replaced;
