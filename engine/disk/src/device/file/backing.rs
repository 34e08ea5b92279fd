//! The file that a loop device is attached to.
//!
//! A volume can be reached by the path of its image and through loop devices on it. Each of these
//! files has a lock of its own, so an opening of a loop device locks the file below it, too. Found
//! through sysfs; a file that is not visible here, in another mount namespace or deleted, cannot be
//! locked, nor opened as a volume by its path.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

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
    let (offset, path) = attachment(Path::new(&format!("/sys/dev/block/{major}:{minor}")))?;
    (offset == 0).then_some(path)
}

/// The offset at which a loop device is attached, in bytes, and the path of the file or device
/// below. `sysfs` is the directory of the loop device; `None` if it is not attached.
pub(super) fn attachment(sysfs: &Path) -> Option<(u64, PathBuf)> {
    let attribute = |name: &str| fs::read(sysfs.join("loop").join(name)).ok();
    let offset = String::from_utf8(attribute("offset")?).ok()?;
    let mut path = attribute("backing_file")?;
    path.pop_if(|byte| *byte == b'\n');
    Some((offset.trim().parse().ok()?, OsString::from_vec(path).into()))
}
