//! `cairnfs snapshot`: makes a snapshot of a volume that is not mounted.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::failure::AnyError;
use crate::roots::{Roots, change_failure};
use crate::volume::Access;

const EXAMPLES: &str = "\
Examples:
  cairnfs snapshot disk.img monday
  cairnfs diff disk.img monday              what has changed since
  cairnfs restore disk.img monday           back to it

A snapshot is a read-only state of all files, made in a moment: its size does
not matter. It takes no space until files change. A name has up to 255 bytes,
without '/', '@' and control characters, and does not begin with '-'.

The volume must not be mounted. A program that uses the library makes snapshots
while it works: Volume::snapshot.

Exit codes: 0 made, 1 not made, 2 wrong arguments.";

/// Make a snapshot of a volume
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File or block device
    volume: PathBuf,
    /// Name of the snapshot
    name: String,
    /// The branch to make it of
    #[arg(long, value_name = "BRANCH", default_value = "main")]
    of: String,
    /// Print nothing except errors
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let roots = Roots::open(&args.volume, Access::Write)?;
    let made = roots.open_root(&args.of).and_then(|branch| {
        let made = branch.snapshot(&args.name);
        made.map_err(|e| change_failure(roots.path(), &args.name, &e))
    });
    made.and(roots.close())?;
    if !args.quiet {
        println!("Made the snapshot {}", args.name);
    }
    Ok(ExitCode::SUCCESS)
}
