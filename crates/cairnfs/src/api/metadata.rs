//! What is known of a file, as [`std::fs::Metadata`] has it, and the times to set.
//!
//! Plain values over [`Attr`]; nothing here reaches the engine.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

use crate::error::Result;
use crate::types::{Attr, FileKind, Flags, SetAttr, SetTime};

/// What is known of a file or directory. A copy: it does not follow later changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata(Attr);

#[allow(
    clippy::len_without_is_empty,
    reason = "the length is an attribute, as in std::fs; nothing is contained here"
)]
impl Metadata {
    pub(super) fn new(attr: Attr) -> Self {
        Self(attr)
    }

    /// What it is.
    pub fn file_type(&self) -> FileKind {
        self.0.kind
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.0.kind.is_dir()
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.0.kind.is_file()
    }

    /// Whether it is a symbolic link; only [`Volume::symlink_metadata`](crate::Volume::symlink_metadata)
    /// and [`DirEntry::metadata`](crate::DirEntry::metadata) ever tell of one.
    pub fn is_symlink(&self) -> bool {
        self.0.kind.is_symlink()
    }

    /// Size of a file in bytes; of a directory, the number of its entries.
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// The permissions. As with [`std::fs::Metadata`], their
    /// [`mode`](std::os::unix::fs::PermissionsExt::mode) has the type bits, too.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.0.mode)
    }

    /// Type bits and permissions, as in `st_mode`.
    pub fn mode(&self) -> u32 {
        self.0.mode
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// Names that the inode has.
    pub fn nlink(&self) -> u64 {
        self.0.nlink.into()
    }

    /// Inode number. It is never given to another file of the volume.
    pub fn ino(&self) -> u64 {
        self.0.ino
    }

    /// Space taken, in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.0.blocks
    }

    /// Device number of a special file, as `makedev(3)` makes it.
    pub fn rdev(&self) -> u64 {
        self.0.rdev
    }

    /// Inode flags, as lsattr(1) shows them.
    pub fn flags(&self) -> Flags {
        self.0.flags
    }

    /// Last change of the contents.
    ///
    /// # Errors
    /// None: a result as in `std::fs`.
    pub fn modified(&self) -> Result<SystemTime> {
        Ok(self.0.mtime.into())
    }

    /// Last access.
    ///
    /// # Errors
    /// None: a result as in `std::fs`.
    pub fn accessed(&self) -> Result<SystemTime> {
        Ok(self.0.atime.into())
    }

    /// Last change of anything, attributes and names included.
    ///
    /// # Errors
    /// None: a result as in `std::fs`.
    pub fn changed(&self) -> Result<SystemTime> {
        Ok(self.0.ctime.into())
    }

    /// Birth.
    ///
    /// # Errors
    /// None: a result as in `std::fs`.
    pub fn created(&self) -> Result<SystemTime> {
        Ok(self.0.btime.into())
    }

    /// The attributes as the engine has them.
    pub fn attr(&self) -> &Attr {
        &self.0
    }
}

/// Times to set; what is not told stays. As [`std::fs::FileTimes`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileTimes {
    accessed: Option<SystemTime>,
    modified: Option<SystemTime>,
}

impl FileTimes {
    /// Sets nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time of the last access.
    #[must_use]
    pub fn set_accessed(mut self, time: SystemTime) -> Self {
        self.accessed = Some(time);
        self
    }

    /// Sets the time of the last change of the contents.
    #[must_use]
    pub fn set_modified(mut self, time: SystemTime) -> Self {
        self.modified = Some(time);
        self
    }

    pub(super) fn to_set(self) -> SetAttr {
        SetAttr {
            atime: self.accessed.map(|t| SetTime::At(t.into())),
            mtime: self.modified.map(|t| SetTime::At(t.into())),
            ..SetAttr::default()
        }
    }
}
