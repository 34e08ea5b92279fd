//! The name under which the backup of a volume is written.

use std::path::Path;

/// The name of the writer for a volume on this machine.
pub fn writer_name(volume: &Path) -> String {
    let machine = rustix::system::uname();
    let machine = machine.nodename().to_string_lossy();
    format!("{machine}:{}", volume.display())
}
