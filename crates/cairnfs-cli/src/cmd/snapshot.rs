//! `cairnfs snapshot`: makes a snapshot of a volume that is not mounted.

use std::process::ExitCode;

use cairnfs::{Error, Volume};

use crate::failure::AnyError;
use crate::roots::NewRoot;

const EXAMPLES: &str = "\
Examples:
  cairnfs snapshot disk.img monday
  cairnfs diff disk.img monday              what has changed since
  cairnfs restore disk.img monday           back to it

A snapshot is a read-only state of all files, made in a moment: its size does
not matter. It takes no space until files change. A name has up to 255 bytes,
without '/', '@' and control characters, does not begin with '-', and does not
begin or end with a blank; '.' and '..' are refused.

The volume must not be mounted. A program that uses the library makes snapshots
while it works: Volume::snapshot.

Exit codes: 0 made, 1 not made, 2 wrong arguments.";

/// Make a snapshot of a volume
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    new: NewRoot,
    /// The branch to make it of
    #[arg(long, value_name = "BRANCH", default_value = "main")]
    of: String,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let make = |branch: Volume, name: &str| match branch.is_read_only() {
        true => Err(Error::Invalid(
            "a snapshot of a snapshot is the same one: make a branch of it, or rename it",
        )),
        false => branch.snapshot(name),
    };
    args.new.make(&args.of, make)
}
