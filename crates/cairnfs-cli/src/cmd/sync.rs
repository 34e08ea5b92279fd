//! `cairnfs sync`: makes all changes in a mounted volume durable, and waits for it.
//!
//! sync(2) does not reach a FUSE daemon; this command sends the request to it.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use cairnfs_fuse::control;
use cairnfs_fuse::status::Status;

use crate::daemon;
use crate::failure::show_bytes;

/// Make everything in a mounted volume durable.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The mountpoint, or anything in it that can be read
    dir: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// The path cannot be opened, is in no mounted volume, or the volume has failed.
pub fn run(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    control::sync(&args.dir).map_err(|e| daemon::told(&args.dir, &e))?;
    let status = control::status(&args.dir).ok();
    if let Some(text) = status.as_ref().and_then(Status::displaced) {
        eprintln!("cairnfs sync: warning: {}", show_bytes(text.as_bytes()));
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_refuses_paths_outside_of_mounts() {
        let dir = tempfile::tempdir().unwrap();
        let args = Args {
            dir: dir.path().to_path_buf(),
        };
        assert!(
            run(args)
                .unwrap_err()
                .to_string()
                .contains("not in a mounted volume")
        );
    }
}
