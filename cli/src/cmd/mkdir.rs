//! `cairnfs mkdir`: makes directories in volumes.

use std::ffi::OsString;
use std::process::ExitCode;

use cairnfs_daemon::failure::{AnyError, Explain, Failure};

use crate::cmd::each;
use crate::spec::VolumePath;
use crate::tree;
use crate::volume_by_path::{Access, LastLink, Volume, caller, ends_in_dots, split_last};

const EXAMPLES: &str = "\
Examples:
  cairnfs mkdir disk.img:/home
  cairnfs mkdir -p disk.img:/a/b/c

Exit codes: 0 all was made, 1 something was not, 2 wrong arguments.";

/// Make directories in a volume
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Make missing parents too; no error if it exists
    #[arg(short, long)]
    parents: bool,
    /// Directories, as VOLUME:PATH, or VOLUME@NAME:/PATH in a branch
    #[arg(required = true, value_name = "VOLUME[@NAME]:PATH")]
    directories: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    Ok(each(&args.directories, |arg| {
        let place = VolumePath::parse(arg)?;
        let volume = Volume::open(&place, Access::Write)?;
        let mode = 0o777 & !tree::umask();
        let made = if args.parents {
            volume.make_dirs(&place.inside, mode).map(drop)
        } else {
            one(&volume, &place, mode)
        };
        made.and(volume.close())
    }))
}

fn one(volume: &Volume, place: &VolumePath, mode: u32) -> Result<(), Failure> {
    let exists = || Failure::new(place.shown(), "exists");
    if ends_in_dots(&place.inside) {
        let found = volume.find(&place.inside, LastLink::Follow);
        return found.and_then(|_| Err(exists()));
    }
    let (above, name) = split_last(&place.inside).ok_or_else(exists)?;
    let dir = volume
        .find(&above, LastLink::Follow)
        .map_err(|f| f.hint("make the missing directories too with: cairnfs mkdir -p"))?;
    volume
        .fs()
        .mkdir(dir.ino(), &name, mode, caller())
        .map(|attr| drop(volume.hold(attr)))
        .explain(place.shown())
}
