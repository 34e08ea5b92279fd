//! `cairnfs sync`: makes everything in a mounted volume durable, and waits for it.
//!
//! sync(2) does not reach a FUSE daemon; this command asks it directly.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cairnfs_fuse::control;
use serde_json::Value;

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
    let name = args.dir.display();
    match control::sync(&args.dir) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(e) if is_foreign(&e) => Err(format!("{name} is not in a mounted volume").into()),
        Err(e) => Err(format!("{name}: {}", told(&args.dir, &e)).into()),
    }
}

/// What a failed sync means.
fn told(dir: &Path, error: &io::Error) -> String {
    host_full(dir, error).unwrap_or_else(|| error.to_string())
}

/// What to say of a sync that failed because the file system that holds the volume is full.
pub fn host_full(dir: &Path, error: &io::Error) -> Option<String> {
    if error.kind() != io::ErrorKind::StorageFull {
        return None;
    }
    let counters: Value = serde_json::from_str(&control::counters(dir).ok()?).ok()?;
    let bytes = counters.get("held_bytes")?.as_u64().filter(|n| *n > 0)?;
    Some(format!(
        "the file system that holds {} is full: {bytes} bytes wait in memory until there is space",
        control::volume(dir).ok()?.display()
    ))
}

/// Other file systems know nothing of our attribute, or of attributes at all.
pub fn is_foreign(error: &io::Error) -> bool {
    let code = error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error);
    matches!(
        code,
        Some(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_elsewhere_are_refused() {
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
