//! A position in a tree of the host's file system, held by directory descriptors.
//!
//! A path is resolved one component at a time, each relative to the descriptor of its parent
//! directory and without following symbolic links (`O_NOFOLLOW`). Names contain no slash and are
//! never "..", so this is equivalent to `openat2` with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`;
//! it also works where a seccomp filter refuses `openat2`. Another user who swaps components can
//! only make a step fail. Paths may be longer than `PATH_MAX`.
//!
//! At most [`OPEN`] descriptors are held besides the base. A level whose descriptor was closed is
//! entered again through ".." of the level below, or from the base by its names; in both cases
//! the device and inode numbers must be those seen before. Uses failures, and nothing else of the
//! crate.
//! and inode numbers must be those seen before. Uses failures, and nothing else of the crate.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cairnfs_daemon::failure::{Explain, Failure, shown};
use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{push_name, shared};

/// Maximum number of descriptors for the levels below the base.
const OPEN: usize = 32;

/// Device and inode number.
pub type Id = (u64, u64);

/// The directory that a walk has reached.
pub struct Descent {
    base: OwnedFd,
    base_path: PathBuf,
    path: Vec<u8>,
    levels: Vec<Level>,
}

struct Level {
    /// Length of its path.
    end: usize,
    id: Id,
    fd: Option<OwnedFd>,
}

impl Descent {
    /// Begins at `base`, shown as `base_path` in messages.
    pub fn new(base: OwnedFd, base_path: PathBuf) -> Self {
        Self {
            base,
            base_path,
            path: Vec::new(),
            levels: Vec::new(),
        }
    }

    /// The current directory.
    ///
    /// # Errors
    /// It was moved or replaced while its descriptor was closed.
    pub fn dir(&self) -> Result<BorrowedFd<'_>, Failure> {
        match self.levels.last() {
            None => Ok(self.base.as_fd()),
            Some(level) => level.fd.as_ref().map(AsFd::as_fd).ok_or_else(|| {
                Failure::new(
                    self.shown(b""),
                    "the directory was moved or replaced during the copy",
                )
                .hint("copy again when nothing else changes the tree")
            }),
        }
    }

    /// Device and inode number of the current directory; `None` for the base.
    pub fn id(&self) -> Option<Id> {
        self.levels.last().map(|level| level.id)
    }

    /// How the entry `name` of the current directory is shown.
    pub fn shown(&self, name: &[u8]) -> String {
        let mut path = self.path.clone();
        if !name.is_empty() {
            push_name(&mut path, name);
        }
        if path.is_empty() {
            shown(&self.base_path)
        } else {
            shown(&self.base_path.join(OsStr::from_bytes(&path)))
        }
    }

    /// Goes one level down, to the directory `name`, which is open as `fd`.
    pub fn enter(&mut self, name: &[u8], fd: OwnedFd, id: Id) {
        push_name(&mut self.path, name);
        self.levels.push(Level {
            end: self.path.len(),
            id,
            fd: Some(fd),
        });
        let above = self.levels.len().checked_sub(OPEN + 1);
        if let Some(level) = above.and_then(|at| self.levels.get_mut(at)) {
            level.fd = None;
        }
    }

    /// Goes one level up.
    pub fn leave(&mut self) {
        let below = self.levels.pop().and_then(|level| level.fd);
        let end = self.levels.last().map_or(0, |level| level.end);
        self.path.truncate(end);
        let Some(id) = self.levels.last().filter(|l| l.fd.is_none()).map(|l| l.id) else {
            return;
        };
        let above = below.and_then(|fd| verified(fd.as_fd(), OsStr::new(".."), id));
        let fd = above.or_else(|| self.reopened());
        if let Some(level) = self.levels.last_mut() {
            level.fd = fd;
        }
    }

    /// Goes to the existing directory at `path`.
    ///
    /// # Errors
    /// A component is missing, is not a directory, or may not be entered.
    pub fn go(&mut self, path: &[u8]) -> Result<(), Failure> {
        let kept = shared(&self.path, path);
        while self.levels.last().is_some_and(|level| level.end > kept) {
            self.leave();
        }
        let rest = path.get(self.path.len()..).unwrap_or_default();
        for name in rest.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            let (fd, stat) = open_dir(self.dir()?, name).explain(self.shown(name))?;
            self.enter(name, fd, id(&stat));
        }
        Ok(())
    }

    /// Opens the current directory again, from the base by its names.
    fn reopened(&self) -> Option<OwnedFd> {
        let mut fd: Option<OwnedFd> = None;
        let names = self.path.split(|b| *b == b'/');
        for (name, level) in names.zip(&self.levels) {
            let dir = fd.as_ref().map_or(self.base.as_fd(), AsFd::as_fd);
            fd = Some(verified(dir, OsStr::from_bytes(name), level.id)?);
        }
        fd
    }
}

/// Opens a directory if it has the id `expected`.
fn verified(dir: BorrowedFd<'_>, name: &OsStr, expected: Id) -> Option<OwnedFd> {
    let (fd, stat) = open_dir(dir, name.as_bytes()).ok()?;
    (id(&stat) == expected).then_some(fd)
}

/// Opens the directory `name` of `dir`; with `O_PATH` if it may be searched but not read.
///
/// # Errors
/// `ENOTDIR` or `ELOOP` for anything else of that name, symbolic links included.
pub fn open_dir(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<(OwnedFd, Stat)> {
    let name = OsStr::from_bytes(name);
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |access| rustix::fs::openat(dir, name, flags | access, Mode::empty());
    let fd = match open(OFlags::RDONLY) {
        Err(Errno::ACCESS) => open(OFlags::PATH)?,
        other => other?,
    };
    let stat = rustix::fs::fstat(&fd)?;
    Ok((fd, stat))
}

/// Opens a directory named by the user; symbolic links on the way are followed, once.
///
/// # Errors
/// It does not exist, is not a directory, or may not be entered.
pub fn open_named(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    match rustix::fs::open(path, flags | OFlags::RDONLY, Mode::empty()) {
        Err(Errno::ACCESS) => rustix::fs::open(path, flags | OFlags::PATH, Mode::empty()),
        other => other,
    }
}

/// Device and inode number of a stat result.
pub fn id(stat: &Stat) -> Id {
    (stat.st_dev, stat.st_ino)
}
