//! The commands, one module each: its arguments and `run`.

pub mod cat;
pub mod check;
pub mod completions;
pub mod cp;
pub mod crashtest;
pub mod export;
pub mod import;
pub mod info;
pub mod ls;
pub mod mkdir;
pub mod mkfs;
pub mod mount;
pub mod rm;
pub mod stats;
pub mod sync;
pub mod trim;
pub mod umount;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::failure::Failure;

/// Does something with each argument. One that fails is told, and the others are done.
fn each(args: &[OsString], mut one: impl FnMut(&OsString) -> Result<(), Failure>) -> ExitCode {
    let failures = args.iter().filter_map(|arg| one(arg).err());
    let failed = failures.inspect(Failure::tell).count();
    ExitCode::from(u8::from(failed > 0))
}
