//! `cairnfs sync`: makes all changes in a mounted volume durable, and waits for it; with `--backup` also
//! until they are in the backup that the mount ships to.
//!
//! sync(2) does not reach a FUSE daemon; this command sends the request to it. The backup is asked for
//! as commands on snapshots and branches are performed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cairnfs_daemon::failure::AnyError;
use cairnfs_fuse::apart::perform as perform_apart;

use crate::daemon;
use crate::ship::Ship;
use crate::verbs::{self, Verb};

const NOTES: &str = "\
A daemon that works may take as long as it needs. One that does not answer, because its process
is stopped or what holds the volume hangs, is given up after --timeout seconds; changes may be
made durable later then.

With --backup it also waits until all that was done before is in the backup of the mount option
backup=, as long as the daemon tries to store it: a moment is stored at once, and if that fails, so
does this. Ctrl-C ends the wait, and nothing else. It is for the user who has mounted the volume.

Exit codes: 0 durable, and with --backup stored; 1 not durable, not stored, or not in a mounted
volume.";

/// The arguments of this program that make a call for a daemon, before those of the call.
pub const APART: &[&str] = &["sync", "--apart"];

/// Make everything in a mounted volume durable.
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub struct Args {
    /// Time to wait for a daemon that does not answer
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = super::stats::seconds)]
    timeout: Duration,
    /// Wait also until everything is in the backup that the volume is shipped to
    #[arg(long)]
    backup: bool,
    /// Only make a call for the daemon of the mount with this device number
    #[arg(long, value_names = ["CALL", "MAJOR:MINOR"], num_args = 2, hide = true)]
    apart: Option<Vec<String>>,
    /// The mountpoint, or anything in it that can be read
    dir: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// The path cannot be opened, is in no mounted volume, the volume has failed, its daemon does not
/// answer, or its backup was not stored.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    if let Some([call, device]) = args.apart.as_deref() {
        return Ok(ExitCode::from(perform_apart(call, &args.dir, device)));
    }
    let synced = daemon::sync(&args.dir, args.timeout).map_err(|e| e.about(&args.dir))?;
    for text in [synced.refused, synced.displaced].into_iter().flatten() {
        say!("cairnfs sync: warning: {text}");
    }
    if args.backup {
        verbs::run(&Verb::Ship(Ship::of(&args.dir)?))
    } else {
        Ok(ExitCode::SUCCESS)
    }
}
