//! The name of an image file while it is open: whether it still is the one by which it was opened.
//!
//! The kernel is asked for the path of the open file. No path is looked up: that could lead into the
//! mount of the volume itself, which then would wait for this process.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::FileDevice;

/// What the kernel appends to the path of a file that is not there any more.
const DELETED: &str = " (deleted)";

/// The regular file that holds a volume, and its name now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFile {
    /// Number of the file system that holds it (`st_dev`).
    pub dev: u64,
    /// Its inode number there.
    pub ino: u64,
    /// Its path now, in the mount namespace of this process; `None` if it is not known.
    pub path: Option<PathBuf>,
    /// That it was moved, replaced or deleted since it was opened, in words; `None` if it was not.
    pub displaced: Option<String>,
}

/// The path of an open file, as the kernel has it.
pub(super) fn of(file: &OwnedFd) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

impl FileDevice {
    /// The file and its name; `None` for a block device, and where the kernel does not tell.
    pub(super) fn file_now(&self) -> Option<HostFile> {
        if self.block_device {
            return None;
        }
        let stat = self.stat().ok()?;
        let now = of(&self.file);
        let is_gone = |path: &PathBuf| path.to_string_lossy().ends_with(DELETED);
        let kept = stat.st_nlink > 0 && now == self.named;
        let path = now.filter(|path| kept || !is_gone(path));
        let displaced = (!kept).then(|| displaced(&self.path, stat.st_nlink > 0, path.as_deref()));
        Some(HostFile {
            dev: stat.st_dev,
            ino: stat.st_ino,
            path,
            displaced,
        })
    }
}

fn displaced(opened: &Path, has_names: bool, now: Option<&Path>) -> String {
    let opened = opened.display();
    match (has_names, now) {
        (false, _) => format!(
            "the file of {opened} was deleted or replaced while it was open: it has no name any more, \
             and all that is in the volume is lost when it is closed; copy what is needed out of it"
        ),
        (true, Some(now)) => format!(
            "the file of {opened} was moved while it was open: it is {} now, and what is written goes \
             there",
            now.display()
        ),
        (true, None) => format!(
            "the file of {opened} lost that name while it was open, and has another: what is written \
             goes there"
        ),
    }
}
