//! `cairnfs branch`: makes a branch of a volume that is not mounted.

use std::process::ExitCode;

use cairnfs::Volume;

use crate::failure::AnyError;
use crate::roots::NewRoot;

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
    #[command(flatten)]
    new: NewRoot,
    /// The branch or snapshot that it begins as
    #[arg(long, value_name = "REF", default_value = "main")]
    from: String,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let make = |from: Volume, name: &str| from.branch(name).map(drop);
    args.new.make(&args.from, make)
}
