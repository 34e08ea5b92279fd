//! Who keeps the times of a regular file's contents: the volume, or the kernel of a mount.
//!
//! A kernel with a writeback cache stamps a file when a program writes to it, and sends the times
//! later. The volume must not replace them by the times at which data reaches it.

use crate::inode::attrs::Attrs;
use cairnfs_disk::types::Time;

/// Sets mtime and ctime of changed contents, unless a front end does.
pub(super) struct ContentTimes {
    by_volume: bool,
}

impl ContentTimes {
    /// `by_volume`: a change of contents or size sets the times.
    pub fn new(by_volume: bool) -> Self {
        Self { by_volume }
    }

    /// Whether only `setattr` sets this inode's mtime and ctime.
    pub fn kept_by_front(&self, attrs: &Attrs) -> bool {
        !self.by_volume && attrs.is_file()
    }

    /// Updates mtime and ctime of a regular file whose contents or size change; calls `now` only
    /// if the volume keeps them.
    pub fn touch(&self, attrs: &mut Attrs, now: impl FnOnce() -> Time) {
        if !self.kept_by_front(attrs) {
            attrs.ctime = now();
            attrs.mtime = attrs.ctime;
        }
    }
}
