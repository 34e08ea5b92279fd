//! `cairnfs rename`: gives a snapshot or branch another name.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::failure::AnyError;
use crate::roots::{JsonRoot, Roots, Telling, change_failure, root_failure, show_name};
use crate::volume::Access;

const EXAMPLES: &str = "\
Examples:
  cairnfs rename disk.img main.undo-20260131T101500Z before-upgrade

The branch main keeps its name, because it is what is opened without a name.

Exit codes: 0 renamed, 1 not renamed, 2 wrong arguments.";

/// Give a snapshot or branch another name
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File or block device
    volume: PathBuf,
    /// The snapshot or branch
    #[arg(value_name = "REF")]
    reference: String,
    /// Its new name
    name: String,
    #[command(flatten)]
    telling: Telling,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let roots = Roots::open(&args.volume, Access::Write)?;
    let found = roots.volume().find_root(&args.reference);
    let found = found.map_err(|e| root_failure(roots.path(), &args.reference, &e));
    let renamed = found.and_then(|root| {
        let old = root.name.clone().unwrap_or_default();
        let renamed = roots.volume().rename_root(&old, &args.name);
        let renamed = renamed.and_then(|()| roots.volume().find_root(&args.name));
        let renamed = renamed.map_err(|e| change_failure(roots.path(), &args.name, &e));
        Ok((root, renamed?))
    });
    let closed = roots.close();
    let (old, new) = renamed?;
    closed?;
    let line = format!("Renamed {} to {}", show_name(&old), show_name(&new));
    args.telling.tell(&JsonRoot::from(&new), &[line])?;
    Ok(ExitCode::SUCCESS)
}
