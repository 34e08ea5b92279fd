//! The library that `cairnfs run` has loaded into programs (`LD_PRELOAD`). It takes the place of those
//! functions of libc that make, write and change what the daemon of a mount can do without the kernel, and
//! asks the daemon by a channel ([`cairnfs_channel`]). What it does not understand goes to libc, and so to
//! the kernel and the mount, which gives the same result.
//!
//! Files that were made or opened so have a *placeholder*: an `O_PATH` descriptor of the root of the mount, which has
//! the number that the program knows, keeps the mount in use as an open file does, and refuses what is done
//! with it behind the back of this library. Before anything is done with it that is not served here, a
//! descriptor of the kernel takes its place ([`files::swap`]).
//!
//! 1. Nothing here allocates, takes a lock that a signal handler could wait for, or unwinds. System calls
//!    are made directly, so `errno` changes only where a function of libc fails.
//! 2. The state of an open file is the daemon's; here is only its number ([`files`]).
//! 3. A process that has the memory of another one (`vfork`) and one that was forked behind the back of
//!    libc serve nothing ([`session::is_here`]).
//! 4. Every call has a way to libc. The daemon refuses only what it is sure of: a name that is not there, or is
//!    there already.

#![cfg(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
#![allow(unsafe_code, reason = "it takes the place of functions of C")]

mod copies;
mod counters;
mod descriptors;
mod dirs;
mod files;
mod gates;
mod life;
mod limits;
mod looks;
mod mounts;
mod names;
mod next;
mod raw;
mod reads;
mod session;
mod times;
mod umask;
mod worth;

extern "C" fn begin() {
    names::find();
    copies::find();
    descriptors::find();
    dirs::find();
    gates::find();
    looks::find();
    reads::find();
    life::begin();
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
