//! The commands, one module each, with its arguments and `run`.

pub mod backup;
pub mod branch;
pub mod cat;
pub mod check;
pub mod completions;
pub mod cp;
pub mod crashtest;
pub mod diff;
pub mod drop;
pub mod export;
pub mod import;
pub mod info;
pub mod log;
pub mod ls;
pub mod man;
pub mod mkdir;
pub mod mkfs;
pub mod mount;
pub mod publish;
pub mod receive;
pub mod rename;
pub mod restore;
#[path = "restore-from.rs"]
pub mod restore_from;
pub mod rm;
pub mod run;
pub mod send;
pub mod snapshot;
pub mod stats;
pub mod sync;
pub mod trim;
pub mod r#try;
pub mod umount;

use std::ffi::OsString;
use std::process::ExitCode;

use cairnfs_daemon::failure::Failure;

/// Calls `one` with each argument. A failure is reported, and the remaining arguments are
/// processed.
fn each(args: &[OsString], mut one: impl FnMut(&OsString) -> Result<(), Failure>) -> ExitCode {
    let failures = args.iter().filter_map(|arg| one(arg).err());
    let failed = failures.inspect(Failure::tell).count();
    ExitCode::from(u8::from(failed > 0))
}
