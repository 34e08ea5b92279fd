//! Calls of [`Volume`] on attributes: metadata, owner, permissions, times, extended attributes; of
//! [`File`] on its owner and extended attributes.
//!
//! Each call resolves a path, or has an open file, and makes one call of the engine.

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::Volume;
use super::file::File;
use super::metadata::{FileTimes, Metadata};
use super::path::{Follow, on_inode};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::prefetch::prefetch;
use cairnfs_disk::types::{Flags, SetAttr, XattrMode};

impl Volume {
    /// Returns the metadata of a file or directory; symbolic links are followed.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::SymlinkLoop`].
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        let (_held, attr) = self.find(path.as_ref(), Follow::Yes)?;
        Ok(Metadata::new(attr))
    }

    /// Like [`metadata`](Self::metadata), but a symbolic link at the end of the path is not
    /// followed.
    ///
    /// # Errors
    /// As [`metadata`](Self::metadata).
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        let (_held, attr) = self.find(path.as_ref(), Follow::No)?;
        Ok(Metadata::new(attr))
    }

    /// Whether the path leads to a file or directory. False for a dangling symbolic link.
    ///
    /// # Errors
    /// Any error other than a missing file, such as [`Error::NotDirectory`].
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.cause(), Error::NotFound) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Sets the permissions, including set-id and sticky bits. Follows a symbolic link.
    ///
    /// ```
    /// use std::fs::Permissions;
    /// use std::os::unix::fs::PermissionsExt;
    /// # use cairnfs::Volume;
    ///
    /// # fn main() -> cairnfs::Result<()> {
    /// let volume = Volume::in_memory(64 << 20)?;
    /// volume.write("key", "secret")?;
    /// volume.set_permissions("key", Permissions::from_mode(0o600))?;
    /// assert_eq!(volume.metadata("key")?.permissions().mode() & 0o7777, 0o600);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`metadata`](Self::metadata).
    pub fn set_permissions(&self, path: impl AsRef<Path>, permissions: Permissions) -> Result<()> {
        let set = SetAttr {
            mode: Some(permissions.mode()),
            ..SetAttr::default()
        };
        self.set(path.as_ref(), Follow::Yes, &set)
    }

    /// Sets owner and group; `None` leaves one unchanged. Follows a symbolic link. Like
    /// [`std::os::unix::fs::chown`].
    ///
    /// # Errors
    /// As [`metadata`](Self::metadata).
    pub fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set(path.as_ref(), Follow::Yes, &owner(uid, gid))
    }

    /// Like [`chown`](Self::chown), but a symbolic link at the end of the path is not followed.
    /// Like [`std::os::unix::fs::lchown`].
    ///
    /// # Errors
    /// As [`metadata`](Self::metadata).
    pub fn lchown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set(path.as_ref(), Follow::No, &owner(uid, gid))
    }

    /// Sets access and modification times; follows a symbolic link.
    ///
    /// # Errors
    /// As [`metadata`](Self::metadata).
    pub fn set_times(&self, path: impl AsRef<Path>, times: FileTimes) -> Result<()> {
        self.set(path.as_ref(), Follow::Yes, &times.to_set())
    }

    /// Sets the inode flags of a file or directory, like chattr(1); follows a symbolic link.
    ///
    /// ```
    /// # use cairnfs::{Error, Flags, Volume};
    /// # fn main() -> cairnfs::Result<()> {
    /// let volume = Volume::in_memory(64 << 20)?;
    /// volume.write("log", "begun")?;
    /// volume.set_flags("log", Flags::APPEND)?;
    /// let refused = volume.remove_file("log").unwrap_err();
    /// assert!(matches!(refused.cause(), Error::NotPermitted(_)));
    /// volume.set_flags("log", Flags::NONE)?;
    /// volume.remove_file("log")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] for anything but a file or directory, [`Error::NotPermitted`] if an
    /// immutable inode would stay immutable, or as [`metadata`](Self::metadata).
    pub fn set_flags(&self, path: impl AsRef<Path>, flags: Flags) -> Result<()> {
        let set = SetAttr {
            flags: Some(flags),
            ..SetAttr::default()
        };
        self.set(path.as_ref(), Follow::Yes, &set)
    }

    /// Like [`set_times`](Self::set_times), but a symbolic link at the end of the path is not
    /// followed.
    ///
    /// # Errors
    /// As [`metadata`](Self::metadata).
    pub fn set_times_nofollow(&self, path: impl AsRef<Path>, times: FileTimes) -> Result<()> {
        self.set(path.as_ref(), Follow::No, &times.to_set())
    }

    fn set(&self, path: &Path, follow: Follow, set: &SetAttr) -> Result<()> {
        self.on(path, follow, |fs, attr| fs.setattr(attr.ino, set))?;
        Ok(())
    }

    /// Returns the value of an extended attribute; `None` if there is no such attribute.
    ///
    /// ```
    /// # use cairnfs::Volume;
    /// # fn main() -> cairnfs::Result<()> {
    /// let volume = Volume::in_memory(64 << 20)?;
    /// volume.write("photo", b"...")?;
    /// volume.set_xattr("photo", "user.place", b"Porto")?;
    /// assert_eq!(volume.get_xattr("photo", "user.place")?.as_deref(), Some(&b"Porto"[..]));
    /// assert_eq!(volume.list_xattrs("photo")?, ["user.place"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`metadata`](Self::metadata).
    pub fn get_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
    ) -> Result<Option<Vec<u8>>> {
        let (path, name) = (path.as_ref(), name.as_ref().as_bytes());
        match on_inode(self, path, |fs, inode| fs.getxattr_of(inode, name)) {
            Ok(value) => Ok(Some(value)),
            Err(Error::NoAttribute) => Ok(None),
            Err(e) => Err(e.at(path)),
        }
    }

    /// Creates or replaces an extended attribute. Follows a symbolic link.
    ///
    /// # Errors
    /// [`Error::AttributeTooLarge`] for a value over 64 KiB, or as [`metadata`](Self::metadata).
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.set_xattr_with(path, name, value, XattrMode::Set)
    }

    /// Sets an extended attribute that must, or must not, exist.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoAttribute`], or as [`set_xattr`](Self::set_xattr).
    pub fn set_xattr_with(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let (path, name) = (path.as_ref(), name.as_ref().as_bytes());
        let value = value.as_ref();
        // The value is fetched into the processor's cache during the path walk.
        prefetch(value);
        on_inode(self, path, |fs, inode| {
            fs.setxattr_of(inode, name, value, mode)
        })
        .map_err(|e| e.at(path))
    }

    /// Returns the names of all extended attributes.
    ///
    /// # Errors
    /// As [`metadata`](Self::metadata).
    pub fn list_xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        let names = self.on(path.as_ref(), Follow::Yes, |fs, attr| {
            fs.listxattr(attr.ino)
        })?;
        Ok(split_names(&names))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`], or as [`metadata`](Self::metadata).
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        let name = name.as_ref().as_bytes();
        self.on(path.as_ref(), Follow::Yes, |fs, attr| {
            fs.removexattr(attr.ino, name)
        })
    }
}

impl File {
    /// Sets owner and group; `None` leaves one unchanged. Like [`std::os::unix::fs::fchown`].
    ///
    /// # Errors
    /// [`Error::ReadOnly`], or an error of the engine.
    pub fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set(&owner(uid, gid))
    }

    /// Returns the value of an extended attribute; `None` if there is no such attribute.
    ///
    /// # Errors
    /// An error of the engine.
    pub fn get_xattr(&self, name: impl AsRef<OsStr>) -> Result<Option<Vec<u8>>> {
        let file = self.handle();
        let value = file.fs().getxattr(file.ino(), name.as_ref().as_bytes());
        match value {
            Ok(value) => Ok(Some(value)),
            Err(Error::NoAttribute) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Creates or replaces an extended attribute.
    ///
    /// # Errors
    /// [`Error::AttributeTooLarge`] for a value over 64 KiB, or an error of the engine.
    pub fn set_xattr(&self, name: impl AsRef<OsStr>, value: impl AsRef<[u8]>) -> Result<()> {
        self.set_xattr_with(name, value, XattrMode::Set)
    }

    /// Sets an extended attribute that must, or must not, exist.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoAttribute`], or as [`set_xattr`](Self::set_xattr).
    pub fn set_xattr_with(
        &self,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let (file, name) = (self.handle(), name.as_ref().as_bytes());
        file.fs().setxattr(file.ino(), name, value.as_ref(), mode)
    }

    /// Returns the names of all extended attributes.
    ///
    /// # Errors
    /// An error of the engine.
    pub fn list_xattrs(&self) -> Result<Vec<OsString>> {
        let file = self.handle();
        Ok(split_names(&file.fs().listxattr(file.ino())?))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`], or an error of the engine.
    pub fn remove_xattr(&self, name: impl AsRef<OsStr>) -> Result<()> {
        let file = self.handle();
        file.fs().removexattr(file.ino(), name.as_ref().as_bytes())
    }
}

/// The names in a list in which each ends with a zero byte.
fn split_names(list: &[u8]) -> Vec<OsString> {
    let names = list.split(|b| *b == 0).filter(|name| !name.is_empty());
    names.map(|n| OsString::from_vec(n.to_vec())).collect()
}

fn owner(uid: Option<u32>, gid: Option<u32>) -> SetAttr {
    SetAttr {
        uid,
        gid,
        ..SetAttr::default()
    }
}
