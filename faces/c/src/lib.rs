//! The C API of CairnFS: `cairnfs.h`, `libcairnfs.so`, `libcairnfs.a`.
//!
//! A thin face over the calls of [`cairnfs::Volume`] and [`cairnfs::File`]; nothing of the file
//! system is here. `docs/c-api.md` describes it for C programmers. The same rules hold for every
//! function:
//!
//! - Objects are numbers (`handles.rs`). A number that is not open is `EBADF`.
//! - The result is 0 or an errno value; `error.rs` keeps the message of the last failure per thread.
//! - A panic ends in `boundary.rs`, and becomes `EIO`.
//! - A null pointer is `EFAULT`, except where a function allows it.
//! - Structs begin with their size in the caller's version of the header (`structs.rs`).
//!
//! # Safety
//! One contract for all functions: a pointer is null, or valid for the bytes that the function
//! reads or writes there: for a string up to its zero byte, for a buffer the given length, for a
//! struct the size in its first field. No other thread changes these bytes during the call. The
//! API keeps no pointer after a call.

#![allow(
    unsafe_code,
    reason = "pointers of C are read and written here, and nowhere else in the workspace"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "all functions have the contract in the documentation of the crate"
)]
#![allow(
    non_camel_case_types,
    reason = "the names of types are those of the header"
)]

mod attributes;
mod boundary;
mod branch_calls;
mod entries;
mod error;
mod file;
mod fork;
mod handles;
mod history;
mod listing;
mod name_calls;
mod report;
mod structs;
mod times;
mod volume_calls;
mod xattrs;

pub use attributes::*;
pub use branch_calls::*;
pub use error::cairnfs_message;
pub use file::*;
pub use handles::{cairnfs_dir, cairnfs_file, cairnfs_report, cairnfs_volume};
pub use history::*;
pub use listing::*;
pub use name_calls::*;
pub use report::*;
pub use structs::*;
pub use times::{cairnfs_futimens, cairnfs_utimens};
pub use volume_calls::*;
pub use xattrs::*;

use std::ffi::{c_char, c_int};

/// The version of the binary interface in this header. A library of the same version has every
/// function and struct of it; functions and fields are only added, and each addition increases the
/// version.
pub const CAIRNFS_ABI_VERSION: u32 = 2;

/// The version of the binary interface in the library: at least `CAIRNFS_ABI_VERSION` of the
/// header if the library is not older than the header.
#[unsafe(no_mangle)]
pub extern "C" fn cairnfs_abi_version() -> u32 {
    CAIRNFS_ABI_VERSION
}

/// The version of the library as text, for example "0.1.0". It is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn cairnfs_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Whether an argument of C means true.
fn is_true(value: c_int) -> bool {
    value != 0
}
