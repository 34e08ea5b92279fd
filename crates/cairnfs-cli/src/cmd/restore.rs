//! `cairnfs restore`: brings a branch, or files of it, back to an earlier state.

use std::path::PathBuf;
use std::process::ExitCode;

use cairnfs::Error;
use serde::Serialize;

use crate::failure::{AnyError, Failure, shown};
use crate::roots::{Roots, Telling, root_failure, take_back};
use crate::volume::Access;

const EXAMPLES: &str = "\
Examples:
  cairnfs restore disk.img monday             all files as they were on monday
  cairnfs restore disk.img main@-1h etc/fstab home/notes
  cairnfs restore disk.img monday --branch trial

REF is NAME, BRANCH@SNAPSHOT or BRANCH@TIME. With PATH, only the files at and
below these paths are replaced, by copies; without PATH, the whole branch goes
back, in a moment. Either is one atomic step. The state before stays as a
snapshot, whose name is printed: restoring that takes the restore back.

Exit codes: 0 restored, 1 not restored and nothing changed, 2 wrong arguments.";

/// Bring a branch, or files of it, back to an earlier state
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File or block device
    volume: PathBuf,
    /// The state to go back to
    #[arg(value_name = "REF")]
    reference: String,
    /// Restore only what is at and below these paths
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The branch that is changed
    #[arg(short, long, default_value = "main")]
    branch: String,
    #[command(flatten)]
    telling: Telling,
}

#[derive(Serialize)]
struct Json<'a> {
    branch: &'a str,
    /// The snapshot of the state before.
    kept: &'a str,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let roots = Roots::open(&args.volume, Access::Write)?;
    let restored = roots
        .volume()
        .restore(&args.reference, &args.branch, &args.paths);
    let restored = restored.map_err(|e| failure(&args, &e));
    let closed = roots.close();
    let kept = restored?;
    closed?;
    let branch = &args.branch;
    let lines = [
        format!("Restored {branch}; its state before is the snapshot {kept}"),
        take_back(&args.volume, &kept, branch),
    ];
    let kept = &kept;
    args.telling.tell(&Json { branch, kept }, &lines)?;
    Ok(ExitCode::SUCCESS)
}

fn failure(args: &Args, why: &Error) -> Failure {
    match why {
        Error::NoRoot { reference, .. } => root_failure(&args.volume, reference, why),
        Error::At { source, .. } if matches!(**source, Error::NotFound) => {
            Failure::new(why, format_args!("{} does not have it", args.reference)).hint(
                format_args!(
                    "to see what differs: cairnfs diff {} {} {}",
                    shown(&args.volume),
                    args.reference,
                    args.branch
                ),
            )
        }
        other => Failure::engine(shown(&args.volume), other),
    }
}
