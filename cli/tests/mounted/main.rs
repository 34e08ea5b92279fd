//! The `cairnfs` command and its mounts under real programs, crashes and invalid input.
//!
//! Every test runs the built command as users do. A test that needs root, `/dev/fuse` or a
//! program that is missing is skipped with a line on standard error; with
//! `CAIRNFS_REQUIRE_FUSE=1` it fails instead. Each test has its own volume and mountpoint in a
//! temporary directory; both are removed even if it panics.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod attributes;
mod automatic;
mod backups;
mod bad_input;
mod branches;
mod budget;
mod compare;
mod contrib;
mod crashtest;
mod ends;
mod fill;
mod flags;
mod gate;
mod handles;
mod host;
mod inherited;
mod interrupted;
mod kill;
mod kill_load;
mod killed_verbs;
mod life;
mod listing;
mod locations;
mod long;
mod long_requests;
mod loops;
mod messages;
mod modes;
mod options;
mod overlay;
mod permissions;
mod place;
mod posix;
mod programs;
mod queues;
mod ran;
mod read_only;
mod readme;
mod refused;
mod shipped;
mod shipped_small;
mod shipped_syncs;
mod silent;
mod sockets;
mod space;
mod stopped;
mod syncs;
mod together;
mod transport;
mod tried;
mod tried_ends;
mod turmoil;
mod unnamed;
mod verbs;
mod writes;
