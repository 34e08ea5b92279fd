//! `cairnfs drop`: drops snapshots and branches.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::failure::{AnyError, Failure};
use crate::roots::{Roots, root_failure};
use crate::volume::Access;

const EXAMPLES: &str = "\
Examples:
  cairnfs drop disk.img monday tuesday
  cairnfs drop disk.img trial                 a branch that was a mistake

The name is gone at once. What belongs to the snapshot or branch alone is freed
in the background while the volume is in use; what others share with it stays.
This works on a full volume, too. There is no way back. The branch main cannot be
dropped.

Exit codes: 0 all were dropped, 1 one was not, 2 wrong arguments.";

/// Drop snapshots or branches
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File or block device
    volume: PathBuf,
    /// Snapshots and branches
    #[arg(required = true, value_name = "REF")]
    references: Vec<String>,
    /// Print nothing except errors
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let roots = Roots::open(&args.volume, Access::Write)?;
    let mut failed = 0;
    for reference in &args.references {
        match roots.volume().drop_root(reference) {
            Ok(()) if !args.quiet => println!("Dropped {reference}"),
            Ok(()) => {}
            Err(e) => {
                Failure::tell(&root_failure(roots.path(), reference, &e));
                failed += 1;
            }
        }
    }
    roots.close()?;
    Ok(ExitCode::from(u8::from(failed > 0)))
}
