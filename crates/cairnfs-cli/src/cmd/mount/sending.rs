//! Makes the kernel send what it holds back of a mount of this process, by another process.
//!
//! [`cairnfs_fuse::mounted::send`] says why this process must not do it itself.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// The program that runs, also after its file was replaced.
const PROGRAM: &str = "/proc/self/exe";

/// Calls [`cairnfs_fuse::mounted::send`] for the mount of a device number on `dir`, and waits for it.
///
/// # Errors
/// As that; or the process could not be started.
pub fn send(dir: &Path, device: &str) -> io::Result<()> {
    let mut command = Command::new(PROGRAM);
    command.args(["sync", "--send", device, "--"]).arg(dir);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let text = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(text.trim_end().to_owned()))
        }
    }
}
