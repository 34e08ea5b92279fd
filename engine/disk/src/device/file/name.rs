//! The current name of an open image file, and whether it changed since the file was opened.
//!
//! The path comes from `/proc/self/fd`. No path is looked up, because the lookup could enter the
//! mount of this volume and deadlock: the request would wait for this process.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::FileDevice;

/// The suffix that the kernel appends to the path of a deleted file.
const DELETED: &str = " (deleted)";

/// The regular file that holds a volume, and its current name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFile {
    /// Device number of the host file system (`st_dev`).
    pub dev: u64,
    /// Inode number in the host file system.
    pub ino: u64,
    /// Current path in the mount namespace of this process; `None` if unknown.
    pub path: Option<PathBuf>,
    /// A message that it was moved, replaced or deleted since it was opened; `None` if it was not.
    pub displaced: Option<String>,
}

/// The path of an open file, as reported by the kernel.
pub(super) fn of(file: &OwnedFd) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

impl FileDevice {
    /// The file and its current name; `None` for a block device, or if `fstat` fails.
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
            "the file {opened} was deleted or replaced while it was open: it has no name, and the \
             content of the volume is lost when it is closed; copy the files you need out of it"
        ),
        (true, Some(now)) => format!(
            "the file {opened} was moved while it was open: it is {} now, and all writes go there",
            now.display()
        ),
        (true, None) => format!(
            "the file {opened} lost this name while it was open, but has another one: all writes go \
             there"
        ),
    }
}
