//! The wait for a backup, which `cairnfs sync --backup` has the daemon of a mount perform.

use std::path::{Path, PathBuf};

use cairnfs_daemon::failure::{AnyError, Explain, Failure, shown};
use cairnfs_daemon::mounts::Shipping;
use cairnfs_daemon::raw_path;
use cairnfs_daemon::shell::word_of_path;
use cairnfs_fuse::mountinfo;
use serde::{Deserialize, Serialize};

use crate::opened_roots::Roots;

/// A wait for the backup, as the daemon performs it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ship {
    /// Where the volume is mounted.
    #[serde(with = "raw_path")]
    pub mount: PathBuf,
}

impl Ship {
    /// Of the mount that has a path.
    ///
    /// # Errors
    /// The table of mounts cannot be read.
    pub fn of(path: &Path) -> Result<Self, Failure> {
        let entry = mountinfo::holding(path).explain(shown(path))?;
        Ok(Self {
            mount: entry.map_or_else(|| path.to_path_buf(), |entry| entry.mountpoint),
        })
    }
}

/// Waits for the backup; everything is durable already.
///
/// # Errors
/// There is no backup, or not everything is in it.
pub fn ship(args: &Ship, roots: &Roots<'_>) -> Result<u8, AnyError> {
    let (name, volume) = (shown(&args.mount), word_of_path(&args.mount));
    match roots.ship()? {
        Shipping::Stored => Ok(0),
        Shipping::No => Err(Failure::new(name, "is not shipped to a backup")
            .hint(format_args!(
                "mount it with -o backup=URL, or store a moment now: cairnfs backup {volume} URL"
            ))
            .into()),
        Shipping::Failed(why) => Err(Failure::new(
            name,
            format_args!("is durable on this machine, but not in its backup: {why}"),
        )
        .into()),
    }
}
