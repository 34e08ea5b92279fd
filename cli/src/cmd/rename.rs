//! `cairnfs rename`: gives a snapshot or branch another name.

use std::path::PathBuf;

use cairnfs::{Error, RootInfo};
use cairnfs_daemon::failure::AnyError;
use cairnfs_daemon::raw_path;
use cairnfs_daemon::reference::{change_failure, name_of, root_failure};
use serde::{Deserialize, Serialize};

use crate::opened_roots::{JsonRoot, Roots, Telling, show_name};

const EXAMPLES: &str = "\
Examples:
  cairnfs rename disk.img main.undo-20260131T101500Z before-upgrade

The branch main keeps its name, because it is what is opened without a name.

Exit codes: 0 renamed, 1 not renamed, 2 wrong arguments, 74 renamed, but that
could not be printed.";

/// Give a snapshot or branch another name
#[derive(Debug, clap::Args, Serialize, Deserialize)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume, or where it is mounted
    #[serde(with = "raw_path")]
    pub volume: PathBuf,
    /// The snapshot or branch
    #[arg(value_name = "REF")]
    reference: String,
    /// Its new name
    // What begins like an option is refused with the rules for names.
    #[arg(allow_hyphen_values = true)]
    name: String,
    #[command(flatten)]
    telling: Telling,
}

/// Performs the command.
pub fn perform(args: &Args, roots: &Roots<'_>) -> Result<u8, AnyError> {
    let old = roots.with(&[&args.reference], || {
        let old = roots.find(&args.reference)?;
        // A mount follows what replaces its branch by the name, so that stays until it has done that.
        let rename = || roots.volume().rename_root(name_of(&old), &args.name);
        let renamed = roots.replacing(&old, &[&args.name], rename);
        renamed.map(|()| old.clone()).map_err(|e| match &e {
            // It concerns the root, not the new name.
            Error::NotPermitted(_) => root_failure(roots.path(), &args.reference, &e),
            _ => change_failure(roots.path(), &args.name, &e),
        })
    })?;
    let new = RootInfo {
        name: Some(args.name.clone()),
        ..old.clone()
    };
    let line = format!("Renamed {} to {}", show_name(&old), show_name(&new));
    args.telling
        .tell(roots.stage(), &JsonRoot::from(&new), &[line])?;
    Ok(0)
}
