//! An entry of a host directory that is being made.
//!
//! It is made under its own name if that is free, else, or if that is asked for, under a temporary
//! one. It replaces a file or symbolic link only when it is complete, so nothing is ever written
//! through an existing entry; and only one that was there when it was begun. ([`super::typed`] first resolves links in the last argument of a command.) Directories,
//! devices, FIFOs and sockets are not replaced. All calls are relative to a held directory
//! descriptor.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use cairnfs_daemon::failure::{Explain, Failure};
use cairnfs_disk::types::{FileKind, Time};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::descent::{self, Id};
use super::{Meta, temporary_name};

/// The final name of an entry, and the name under which it is made.
pub struct Pending {
    name: Vec<u8>,
    temporary: Option<Vec<u8>>,
    /// Another entry has the final name.
    replaces: bool,
    /// As shown in messages.
    shown: String,
}

impl Pending {
    /// Begins an entry `name` of `dir`.
    ///
    /// # Errors
    /// An entry that is not replaced has the name.
    pub fn new(dir: BorrowedFd<'_>, name: &[u8], shown: String) -> Result<Self, Failure> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let replaces = match rustix::fs::statat(dir, OsStr::from_bytes(name), flags) {
            Err(Errno::NOENT) => false,
            Err(e) => return Err(e).explain(shown),
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile | FileType::Symlink => true,
                FileType::Directory => {
                    return Err(
                        Failure::new(shown, "is a directory; a file cannot replace it")
                            .hint("remove it first, or copy to another place"),
                    );
                }
                _ => {
                    return Err(Failure::new(
                        shown,
                        "is a device, FIFO or socket; it is not replaced",
                    )
                    .hint("to write a file's contents to it: cairnfs cat VOLUME:PATH > FILE"));
                }
            },
        };
        Ok(Self {
            name: name.to_vec(),
            temporary: replaces.then(temporary_name),
            replaces,
            shown,
        })
    }

    /// Has the entry made under a temporary name, also if its own is free.
    pub fn apart(mut self) -> Self {
        self.temporary.get_or_insert_with(temporary_name);
        self
    }

    /// As shown in messages.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The name under which the entry is made.
    pub fn made_as(&self) -> &OsStr {
        OsStr::from_bytes(self.temporary.as_ref().unwrap_or(&self.name))
    }

    /// Whether another entry already has the final name.
    pub fn replaces(&self) -> bool {
        self.replaces
    }

    /// Creates an empty regular file that has no name; `None` if the file system has no such files.
    pub fn nameless(&self, dir: BorrowedFd<'_>, mode: u32) -> Result<Option<File>, Failure> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::openat(dir, ".", flags, Mode::from_bits_truncate(mode)) {
            Ok(fd) => Ok(Some(File::from(fd))),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => Ok(None),
            Err(e) => Err(e).explain(&self.shown),
        }
    }

    /// Gives a file without a name the final one.
    ///
    /// # Errors
    /// Another entry has it by then.
    pub fn link(&self, file: &File, dir: BorrowedFd<'_>) -> Result<(), Failure> {
        let found = format!("/proc/self/fd/{}", file.as_raw_fd());
        let name = OsStr::from_bytes(&self.name);
        rustix::fs::linkat(CWD, found, dir, name, AtFlags::SYMLINK_FOLLOW).explain(&self.shown)
    }

    /// Creates the entry as an empty regular file with the permissions `mode`.
    pub fn file(&self, dir: BorrowedFd<'_>, mode: u32) -> Result<File, Failure> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_bits_truncate(mode);
        let fd = rustix::fs::openat(dir, self.made_as(), flags, mode).explain(&self.shown)?;
        Ok(File::from(fd))
    }

    /// Opens the entry just made, after a check that it is of the given kind and that no other
    /// user can have made it.
    ///
    /// # Errors
    /// Another user has replaced the entry.
    pub fn held(&self, dir: BorrowedFd<'_>, kind: FileKind, rdev: u64) -> Result<InodeFd, Failure> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd =
            rustix::fs::openat(dir, self.made_as(), flags, Mode::empty()).explain(&self.shown)?;
        let stat = rustix::fs::fstat(&fd).explain(&self.shown)?;
        let ours = FileKind::from_mode(stat.st_mode) == Some(kind)
            && stat.st_uid == rustix::process::geteuid().as_raw()
            && stat.st_nlink == 1
            && (stat.st_rdev == rdev || !is_device(kind));
        if ours {
            Ok(InodeFd::Located(fd))
        } else {
            Err(Failure::new(
                &self.shown,
                "was replaced while it was being made; its owner and mode were left alone",
            )
            .hint("copy again when no other user changes the destination"))
        }
    }

    /// Renames the entry to its final name.
    ///
    /// # Errors
    /// The entry that has the name by then cannot be replaced, or was not there in the beginning.
    pub fn publish(&self, dir: BorrowedFd<'_>) -> Result<(), Failure> {
        let Some(temporary) = &self.temporary else {
            return Ok(());
        };
        let (from, to) = (OsStr::from_bytes(temporary), OsStr::from_bytes(&self.name));
        let renamed = if self.replaces {
            rustix::fs::renameat(dir, from, dir, to)
        } else {
            match rustix::fs::renameat_with(dir, from, dir, to, RenameFlags::NOREPLACE) {
                // Network file systems do not know the flag.
                Err(Errno::INVAL) => rustix::fs::linkat(dir, from, dir, to, AtFlags::empty()),
                renamed => renamed,
            }
        };
        // link(2), and rename(2) between two names of one inode, leave both, so the temporary name
        // is removed here; this also cleans up after a failure.
        let _ = rustix::fs::unlinkat(dir, from, AtFlags::empty());
        renamed.explain(&self.shown)
    }

    /// Removes the entry under the name that it was made with.
    pub fn remove(&self, dir: BorrowedFd<'_>) {
        let _ = rustix::fs::unlinkat(dir, self.made_as(), AtFlags::empty());
    }

    /// Device and inode number of the entry.
    pub fn id(&self, dir: BorrowedFd<'_>) -> Result<Id, Failure> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let stat = rustix::fs::statat(dir, self.made_as(), flags).explain(&self.shown)?;
        Ok(descent::id(&stat))
    }
}

fn is_device(kind: FileKind) -> bool {
    matches!(kind, FileKind::CharDevice | FileKind::BlockDevice)
}

/// A descriptor of an inode whose attributes are set.
pub enum InodeFd {
    /// Open for its contents.
    Open(OwnedFd),
    /// Opened with `O_PATH`. Calls that refuse such a descriptor use its link in `/proc/self/fd`,
    /// which always refers to that inode.
    Located(OwnedFd),
}

impl InodeFd {
    fn fd(&self) -> &OwnedFd {
        match self {
            InodeFd::Open(fd) | InodeFd::Located(fd) => fd,
        }
    }

    fn link(&self) -> String {
        format!("/proc/self/fd/{}", self.fd().as_fd().as_raw_fd())
    }

    /// Sets owner and group.
    pub fn set_owner(&self, meta: &Meta) -> rustix::io::Result<()> {
        let owner = (Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)));
        rustix::fs::chownat(self.fd(), "", owner.0, owner.1, AtFlags::EMPTY_PATH)
    }

    /// Sets the permission bits.
    pub fn set_mode(&self, mode: u32) -> rustix::io::Result<()> {
        let mode = Mode::from_bits_truncate(mode);
        match self {
            InodeFd::Open(fd) => rustix::fs::fchmod(fd, mode),
            InodeFd::Located(_) => rustix::fs::chmod(self.link(), mode),
        }
    }

    /// Sets the times of access and of modification.
    pub fn set_times(&self, meta: &Meta) -> rustix::io::Result<()> {
        let times = Timestamps {
            last_access: timespec(meta.atime),
            last_modification: timespec(meta.mtime),
        };
        rustix::fs::utimensat(self.fd(), "", &times, AtFlags::EMPTY_PATH)
    }

    /// Sets one extended attribute.
    pub fn set_xattr(&self, name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
        let (name, flags) = (OsStr::from_bytes(name), XattrFlags::empty());
        match self {
            InodeFd::Open(fd) => rustix::fs::fsetxattr(fd, name, value, flags),
            InodeFd::Located(_) => rustix::fs::setxattr(self.link(), name, value, flags),
        }
    }
}

fn timespec(time: Time) -> Timespec {
    Timespec {
        tv_sec: time.secs,
        tv_nsec: time.nanos.into(),
    }
}
