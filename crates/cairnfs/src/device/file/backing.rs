//! The file that a loop device is attached to.
//!
//! A volume can be reached by the path of its image and through loop devices on it. The lock of each
//! of these is another one, so whoever opens a loop device locks what is below it as well. Found
//! through sysfs; a file that is not visible here, in another mount namespace or deleted, cannot be
//! locked, nor opened as a volume by its path.

use std::fs;
use std::path::PathBuf;

use rustix::fs::{FileType, Stat, major, minor};

/// Deepest stack of loop devices that is followed.
pub(super) const MAX_DEPTH: usize = 8;

/// The path of the file or device that a loop device is attached to at offset 0; another offset is
/// another volume. `None` for anything but a loop device.
pub(super) fn path_below(stat: &Stat) -> Option<PathBuf> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return None;
    }
    let (major, minor) = (major(stat.st_rdev), minor(stat.st_rdev));
    let attribute = |name: &str| {
        let path = format!("/sys/dev/block/{major}:{minor}/loop/{name}");
        fs::read_to_string(path).ok()
    };
    let offset = attribute("offset")?;
    let path = attribute("backing_file")?;
    (offset.trim() == "0").then(|| PathBuf::from(path.trim_end_matches('\n')))
}
