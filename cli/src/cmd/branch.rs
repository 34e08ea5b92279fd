//! `cairnfs branch`: makes a branch.

use cairnfs::Volume;
use cairnfs_daemon::failure::AnyError;
use serde::{Deserialize, Serialize};

use crate::opened_roots::{NewRoot, Roots};

const EXAMPLES: &str = "\
Examples:
  cairnfs branch disk.img trial               begins as main is now
  cairnfs branch disk.img old --from monday
  cairnfs diff disk.img main trial            what was done in it
  cairnfs publish disk.img trial              make it the new main
  cairnfs drop disk.img trial                 or throw it away

A branch is a tree of files that begins as another branch or snapshot and is
changed independently. It is made in a moment, whatever its size, and takes
space only for what changes. REF is NAME, BRANCH@SNAPSHOT or BRANCH@TIME. Of a
mounted volume it has every write that had returned before; to use it beside:
cairnfs mount -o branch=trial disk.img DIR

Exit codes: 0 made, 1 not made, 2 wrong arguments, 74 made, but that could not
be printed.";

/// Make a branch of a volume
#[derive(Debug, clap::Args, Serialize, Deserialize)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub new: NewRoot,
    /// The state that it begins as [default: main, or what is mounted there]
    #[arg(long, value_name = "REF")]
    from: Option<String>,
}

/// Performs the command.
pub fn perform(args: &Args, roots: &Roots<'_>) -> Result<u8, AnyError> {
    args.new
        .make(roots, args.from.as_deref(), Volume::branch_of)
}
