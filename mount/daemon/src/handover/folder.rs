//! The directory that holds the sockets of a user's daemons, and the name of a volume's socket in it.
//!
//! The directory belongs to the user and nobody else may enter it, which is checked on the opened
//! directory; the socket is then reached through that descriptor, so nobody can put another one in
//! its place, and the length of the path does not matter. Symbolic links are not followed.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags, fstat, major, minor, mkdirat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The name of a volume's socket: it follows from the file or device, not from its path, as the lock
/// of the volume does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketName(String);

impl SocketName {
    /// Of an image file, by device and inode number.
    pub fn of_file(dev: u64, ino: u64) -> Self {
        Self(format!("{dev:x}-{ino:x}"))
    }

    /// Of the volume in this file or device.
    pub fn of(volume: &Metadata) -> Self {
        if volume.file_type().is_block_device() {
            let (major, minor) = (major(volume.rdev()), minor(volume.rdev()));
            Self(format!("block-{major}-{minor}"))
        } else {
            Self::of_file(volume.dev(), volume.ino())
        }
    }
}

impl fmt::Display for SocketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A directory that only its user can enter.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    opened: OwnedFd,
}

/// A place where the directory may be.
struct Candidate {
    parent: PathBuf,
    /// Whether the parent must belong to the user, too.
    owned: bool,
    name: String,
}

impl Folder {
    /// The directory of this process's user, which is made if it is missing. Calls `refused` for each
    /// better place that cannot be trusted.
    ///
    /// # Errors
    /// There is no place for it.
    pub fn make(refused: impl Fn(String)) -> io::Result<Self> {
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for candidate in candidates(geteuid().as_raw()) {
            match candidate.open(geteuid().as_raw(), true) {
                Ok(folder) => return Ok(folder),
                Err(error) => {
                    if error.kind() != io::ErrorKind::NotFound {
                        refused(format!("{}: {error}", candidate.path().display()));
                    }
                    failure = error;
                }
            }
        }
        Err(failure)
    }

    /// All places that exist and can be trusted, of this user. The daemon may have been started with
    /// another environment.
    pub fn all_of(user: u32) -> Vec<Self> {
        let opened = candidates(user).into_iter();
        opened.filter_map(|c| c.open(user, false).ok()).collect()
    }

    /// The names of all sockets.
    pub fn names(&self) -> Vec<SocketName> {
        let dir = std::fs::read_dir(format!("/proc/self/fd/{}", self.opened.as_raw_fd()));
        let entries = dir.into_iter().flatten().flatten();
        let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
        let names = sockets.filter_map(|entry| entry.file_name().into_string().ok());
        names.map(SocketName).collect()
    }

    /// The path of a socket, for messages.
    pub fn shown(&self, name: &SocketName) -> PathBuf {
        self.path.join(&name.0)
    }

    /// The path by which this process reaches a socket.
    pub fn reach(&self, name: &SocketName) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.opened.as_raw_fd()).into()
    }
}

impl Candidate {
    fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    fn open(&self, user: u32, make: bool) -> io::Result<Folder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = openat(CWD, &self.parent, flags, Mode::empty())?;
        if self.owned && fstat(&parent)?.st_uid != user {
            return Err(refusal("the directory above belongs to another user"));
        }
        if make {
            match mkdirat(&parent, &self.name, Mode::RWXU) {
                Err(Errno::EXIST) => {}
                made => made?,
            }
        }
        let opened = openat(&parent, &self.name, flags | OFlags::NOFOLLOW, Mode::empty()).map_err(
            |error| match error {
                Errno::LOOP | Errno::NOTDIR => refusal("is no directory"),
                other => other.into(),
            },
        )?;
        let stat = fstat(&opened)?;
        if stat.st_uid != user {
            return Err(refusal("belongs to another user"));
        }
        if stat.st_mode & 0o077 != 0 {
            return Err(refusal("others may enter it"));
        }
        Ok(Folder {
            path: self.path(),
            opened,
        })
    }
}

fn refusal(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// The places in their order. The environment tells about this process's user only.
fn candidates(user: u32) -> Vec<Candidate> {
    let own = user == geteuid().as_raw();
    let given = env::var_os("XDG_RUNTIME_DIR").filter(|_| own);
    from(user, given, env::temp_dir())
}

fn from(user: u32, runtime: Option<OsString>, temporary: PathBuf) -> Vec<Candidate> {
    let owned = |parent: PathBuf| Candidate {
        parent,
        owned: true,
        name: "cairnfs".into(),
    };
    let runtime = runtime.map(PathBuf::from).filter(|path| path.is_absolute());
    let system = match user {
        0 => "/run".into(),
        user => format!("/run/user/{user}").into(),
    };
    let last = Candidate {
        parent: temporary,
        owned: false,
        name: format!("cairnfs-{user}"),
    };
    let first = runtime.map(owned).into_iter();
    first.chain([owned(system), last]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    fn open(parent: &Path, make: bool) -> io::Result<Folder> {
        let user = geteuid().as_raw();
        let found = from(user, Some(parent.into()), "/none".into());
        found[0].open(user, make)
    }

    #[test]
    fn directory_is_made_for_its_user_alone() {
        let parent = tempfile::tempdir().unwrap();
        assert!(open(parent.path(), false).is_err());
        let folder = open(parent.path(), true).unwrap();
        let made = parent.path().join("cairnfs").metadata().unwrap();
        assert_eq!(made.permissions().mode() & 0o7777, 0o700);
        assert!(open(parent.path(), true).is_ok() && open(parent.path(), false).is_ok());
        let name = SocketName::of_file(0x1f, 7);
        assert_eq!(folder.shown(&name), parent.path().join("cairnfs/1f-7"));
        fs::write(folder.reach(&name), b"x").unwrap();
        assert!(folder.shown(&name).exists());
    }

    #[test]
    fn directories_of_squatters_are_refused() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("cairnfs");
        let refused = |why: &str| {
            for make in [false, true] {
                let error = open(parent.path(), make).unwrap_err().to_string();
                assert!(error.contains(why), "{error}");
            }
        };
        fs::write(&path, b"").unwrap();
        refused("is no directory");
        fs::remove_file(&path).unwrap();
        let private = parent.path().join("private");
        fs::create_dir(&private).unwrap();
        fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
        symlink(&private, &path).unwrap();
        refused("is no directory");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o710)).unwrap();
        refused("others may enter it");
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        let stranger = from(4_000_000, Some(parent.path().into()), "/none".into());
        let error = stranger[0].open(4_000_000, false).unwrap_err();
        assert!(error.to_string().contains("above belongs to another user"));
        let below = Candidate {
            parent: parent.path().into(),
            owned: false,
            name: "cairnfs".into(),
        };
        let error = below.open(4_000_000, false).unwrap_err();
        assert!(error.to_string().contains("belongs to another user"));
        assert!(open(parent.path(), false).is_ok());
    }

    #[test]
    fn places_are_tried_in_order() {
        let paths = |user, runtime: Option<&str>| -> Vec<PathBuf> {
            let found = from(user, runtime.map(Into::into), "/tmp".into());
            found.iter().map(Candidate::path).collect()
        };
        assert_eq!(
            paths(7, Some("/own")),
            ["/own/cairnfs", "/run/user/7/cairnfs", "/tmp/cairnfs-7"].map(PathBuf::from)
        );
        assert_eq!(
            paths(0, Some("relative")),
            ["/run/cairnfs", "/tmp/cairnfs-0"].map(PathBuf::from)
        );
    }
}
