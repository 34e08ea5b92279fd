//! `cairnfs sync`: makes all changes in a mounted volume durable, and waits for it.
//!
//! sync(2) does not reach a FUSE daemon; this command sends the request to it.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cairnfs_fuse::apart::perform;

use crate::daemon;

const NOTES: &str = "\
A daemon that works may take as long as it needs. One that does not answer, because its process
is stopped or what holds the volume hangs, is given up after --timeout seconds; changes may be
made durable later then.

Exit codes: 0 durable, 1 not durable, or not in a mounted volume.";

/// The arguments of this program that make a call for a daemon, before those of the call.
pub const APART: &[&str] = &["sync", "--apart"];

/// Make everything in a mounted volume durable.
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub struct Args {
    /// Time to wait for a daemon that does not answer
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = super::stats::seconds)]
    timeout: Duration,
    /// Only make a call for the daemon of the mount with this device number
    #[arg(long, value_names = ["CALL", "MAJOR:MINOR"], num_args = 2, hide = true)]
    apart: Option<Vec<String>>,
    /// The mountpoint, or anything in it that can be read
    dir: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// The path cannot be opened, is in no mounted volume, the volume has failed, or its daemon does
/// not answer.
pub fn run(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    if let Some([call, device]) = args.apart.as_deref() {
        return Ok(ExitCode::from(perform(call, &args.dir, device)));
    }
    let synced = daemon::sync(&args.dir, args.timeout).map_err(|e| e.about(&args.dir))?;
    for text in [synced.refused, synced.displaced].into_iter().flatten() {
        eprintln!("cairnfs sync: warning: {text}");
    }
    Ok(ExitCode::SUCCESS)
}
