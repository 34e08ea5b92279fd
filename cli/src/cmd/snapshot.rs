//! `cairnfs snapshot`: makes a snapshot.

use cairnfs::Volume;
use cairnfs_daemon::failure::AnyError;
use serde::{Deserialize, Serialize};

use crate::opened_roots::{NewRoot, Roots};

const EXAMPLES: &str = "\
Examples:
  cairnfs snapshot disk.img monday
  cairnfs diff disk.img monday              what has changed since
  cairnfs restore disk.img monday           back to it
  cairnfs snapshot ~/disk monday            of a mounted volume

A snapshot is a read-only state of all files, made in a moment: its size does
not matter. It takes no space until files change. A name has up to 255 bytes,
without '/', '@' and control characters, does not begin with '-', and does not
begin or end with a blank; '.' and '..' are refused, and names that end in
.auto-TIME or .undo-TIME, which snapshots have that are dropped by themselves.

A mounted volume goes on meanwhile; every write that had returned before is in
the snapshot. A program that uses the library makes them by Volume::snapshot.

Exit codes: 0 made, 1 not made, 2 wrong arguments, 74 made, but that could not
be printed.";

/// Make a snapshot of a volume
#[derive(Debug, clap::Args, Serialize, Deserialize)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub new: NewRoot,
    /// The branch to make it of [default: main, or what is mounted there]
    #[arg(long, value_name = "BRANCH")]
    of: Option<String>,
}

/// Performs the command.
pub fn perform(args: &Args, roots: &Roots<'_>) -> Result<u8, AnyError> {
    args.new
        .make(roots, args.of.as_deref(), Volume::snapshot_of)
}
