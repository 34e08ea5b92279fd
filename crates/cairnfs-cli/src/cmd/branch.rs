//! `cairnfs branch`: makes a branch of a volume that is not mounted.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::failure::AnyError;
use crate::roots::{Roots, change_failure};
use crate::volume::Access;

const EXAMPLES: &str = "\
Examples:
  cairnfs branch disk.img trial               begins as main is now
  cairnfs branch disk.img old --from monday
  cairnfs diff disk.img main trial            what was done in it
  cairnfs publish disk.img trial              make it the new main
  cairnfs drop disk.img trial                 or throw it away

A branch is a tree of files that begins as another branch or snapshot and is
changed independently. It is made in a moment, whatever its size, and takes
space only for what changes. REF is NAME, BRANCH@SNAPSHOT or BRANCH@TIME.

Exit codes: 0 made, 1 not made, 2 wrong arguments.";

/// Make a branch of a volume
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File or block device
    volume: PathBuf,
    /// Name of the branch
    name: String,
    /// The branch or snapshot that it begins as
    #[arg(long, value_name = "REF", default_value = "main")]
    from: String,
    /// Print nothing except errors
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let roots = Roots::open(&args.volume, Access::Write)?;
    let made = roots.open_root(&args.from).and_then(|from| {
        let branch = from.branch(&args.name);
        branch
            .map(drop)
            .map_err(|e| change_failure(roots.path(), &args.name, &e))
    });
    made.and(roots.close())?;
    if !args.quiet {
        println!("Made the branch {}", args.name);
    }
    Ok(ExitCode::SUCCESS)
}
