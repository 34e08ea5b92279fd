//! What the kernel shows of its FUSE connections: how many requests of one have no reply; and the
//! file by which one is ended.
//!
//! The kernel shows them in a file system of its own, for which systems have a directory below
//! `/sys`. Containers often do not mount it. A process of the superuser then mounts it for itself
//! alone, without a place in any tree. Uses system calls; knows nothing of mounts and sessions.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// Where systems mount the file system of the connections.
const SHOWN: &str = "/sys/fs/fuse/connections";

/// Most bytes of a number and the end of its line.
const NUMBER_MAX: u64 = 32;

/// One connection, by the device number of its mounts.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    minor: String,
}

impl Connection {
    /// The connection whose mounts have the device number `device`, `MAJOR:MINOR`.
    pub fn of(device: &str) -> Self {
        let (_, minor) = device.split_once(':').unwrap_or((device, device));
        Self {
            minor: minor.to_owned(),
        }
    }

    /// The number of its requests without a reply; `None` if the kernel does not show it to this
    /// process.
    pub fn unanswered(&self) -> Option<usize> {
        let mut text = String::new();
        let file = self.open("waiting", OFlags::RDONLY).ok()?;
        file.take(NUMBER_MAX).read_to_string(&mut text).ok()?;
        text.trim_end().parse().ok()
    }

    /// Ends the connection: all its requests, also later ones, are answered by an error.
    ///
    /// # Errors
    /// There is no such connection, or the kernel does not show it to this process.
    pub fn abort(&self) -> io::Result<()> {
        self.open("abort", OFlags::WRONLY)?.write_all(b"1")
    }

    fn open(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let file = PathBuf::from(&self.minor).join(name);
        let opened = match open_at(CWD, &Path::new(SHOWN).join(&file), flags) {
            Err(error) => own().map_or(Err(error), |root| open_at(root, &file, flags)),
            opened => opened,
        };
        Ok(File::from(opened?))
    }
}

fn open_at(dir: impl AsFd, file: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat(dir, file, flags, Mode::empty())?)
}

/// The file system of the connections, mounted for this process alone; `None` if that is not permitted.
fn own() -> Option<&'static OwnedFd> {
    static OWN: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let mounted = || {
        let made = mount();
        made.inspect_err(|error| tracing::debug!("cannot see the FUSE connections: {error}"))
            .ok()
    };
    OWN.get_or_init(mounted).as_ref()
}

fn mount() -> io::Result<OwnedFd> {
    let made = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&made)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mounted = rustix::mount::fsmount(&made, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok(mounted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_is_not_there_has_no_number_and_no_end() {
        for device in ["0:4294967295", "none", "0:../../.."] {
            let connection = Connection::of(device);
            assert_eq!(connection.unanswered(), None, "{device}");
            connection.abort().unwrap_err();
        }
    }
}
