//! Metadata of a file, like [`std::fs::Metadata`], and times to set.
//!
//! Plain values over [`Attr`]; nothing here calls the engine.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

use cairnfs_disk::error::Result;
use cairnfs_disk::types::{Attr, FileKind, Flags, SetAttr, SetTime};

/// Metadata of a file or directory. A copy that does not reflect later changes.
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

    /// The kind of file.
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

    /// Whether it is a symbolic link; true only if it comes from
    /// [`Volume::symlink_metadata`](crate::Volume::symlink_metadata) or
    /// [`DirEntry::metadata`](crate::DirEntry::metadata).
    pub fn is_symlink(&self) -> bool {
        self.0.kind.is_symlink()
    }

    /// Size of a file in bytes; for a directory, the number of its entries.
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// The permissions. As with [`std::fs::Metadata`], their
    /// [`mode`](std::os::unix::fs::PermissionsExt::mode) includes the type bits.
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

    /// Number of hard links.
    pub fn nlink(&self) -> u64 {
        self.0.nlink.into()
    }

    /// Inode number. Not reused, except after a crash those of inodes that were not durable.
    pub fn ino(&self) -> u64 {
        self.0.ino
    }

    /// Space used, in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.0.blocks
    }

    /// Device number of a special file, as made by `makedev(3)`.
    pub fn rdev(&self) -> u64 {
        self.0.rdev
    }

    /// Inode flags, as lsattr(1) shows them.
    pub fn flags(&self) -> Flags {
        self.0.flags
    }

    /// Time of the last change of the contents.
    ///
    /// # Errors
    /// None: a result as in `std::fs`.
    pub fn modified(&self) -> Result<SystemTime> {
        Ok(self.0.mtime.into())
    }

    /// Time of the last access.
    ///
    /// # Errors
    /// None: a result as in `std::fs`.
    pub fn accessed(&self) -> Result<SystemTime> {
        Ok(self.0.atime.into())
    }

    /// Time of the last change of contents, attributes or names.
    ///
    /// # Errors
    /// None: a result as in `std::fs`.
    pub fn changed(&self) -> Result<SystemTime> {
        Ok(self.0.ctime.into())
    }

    /// Time of creation.
    ///
    /// # Errors
    /// None: a result as in `std::fs`.
    pub fn created(&self) -> Result<SystemTime> {
        Ok(self.0.btime.into())
    }

    /// The attributes in the engine's form.
    pub fn attr(&self) -> &Attr {
        &self.0
    }
}

/// Times to set; others stay unchanged. Like [`std::fs::FileTimes`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileTimes {
    accessed: Option<SystemTime>,
    modified: Option<SystemTime>,
}

impl FileTimes {
    /// No times to set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time of the last access.
    #[must_use]
    pub fn set_accessed(mut self, time: SystemTime) -> Self {
        self.accessed = Some(time);
        self
    }

    /// Sets the modification time.
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
