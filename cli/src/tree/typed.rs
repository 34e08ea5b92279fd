//! Resolves the destination of a copy as the user typed it.
//!
//! Symbolic links in the typed path are followed once, here; paths below it are not resolved this
//! way. A pipe, a character device and standard output are written in place. A regular file is
//! replaced by a new one in the same directory ([`super::pending`]), so that a link to it
//! remains. Uses failures, and nothing else of the crate.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cairnfs_daemon::failure::{Explain, Failure, shown};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::descent;

/// The object that a typed destination refers to, if it is not a directory.
pub enum Typed {
    /// A stream: contents are appended to it, and its attributes are kept.
    Stream(File),
    /// A directory entry that is not a symbolic link. The name may be free, or not replaceable.
    Entry(PathBuf),
}

impl Typed {
    /// Resolves `path`.
    ///
    /// # Errors
    /// A dangling symbolic link, the name of a directory that does not exist, or a stream that
    /// cannot be opened.
    pub fn find(path: &Path) -> Result<Self, Failure> {
        let stat = match rustix::fs::stat(path) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return free(path),
            Err(e) => return Err(e).explain(shown(path)),
        };
        let stdout = io::stdout();
        let ours = rustix::fs::fstat(&stdout);
        if ours.is_ok_and(|ours| descent::id(&ours) == descent::id(&stat)) {
            let fd = stdout.as_fd().try_clone_to_owned();
            return Ok(Typed::Stream(fd.explain(shown(path))?.into()));
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Fifo | FileType::CharacterDevice => stream(path, &stat),
            FileType::RegularFile => path.canonicalize().map(Typed::Entry).explain(shown(path)),
            _ => Ok(Typed::Entry(path.to_owned())),
        }
    }
}

/// A name that does not exist.
fn free(path: &Path) -> Result<Typed, Failure> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.ends_with(b"/") || bytes.ends_with(b"/.") {
        return Err(not_directory(shown(path)));
    }
    match rustix::fs::lstat(path) {
        Ok(_) => Err(dangling(shown(path))),
        Err(_) => Ok(Typed::Entry(path.to_owned())),
    }
}

fn stream(path: &Path, stat: &Stat) -> Result<Typed, Failure> {
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).explain(shown(path))?;
    let opened = rustix::fs::fstat(&fd).explain(shown(path))?;
    if descent::id(&opened) == descent::id(stat) {
        Ok(Typed::Stream(fd.into()))
    } else {
        Err(Failure::new(
            shown(path),
            "was replaced while it was being opened",
        ))
    }
}

/// The failure for a destination that is a dangling symbolic link. As with cp(1), no file is made
/// there.
pub fn dangling(shown: String) -> Failure {
    Failure::new(shown, "is a symbolic link that leads to nothing")
        .hint("remove it first, or name the file itself")
}

/// The failure for a destination with a trailing slash that is not a directory.
pub fn not_directory(shown: String) -> Failure {
    Failure::new(shown, "is not a directory")
        .hint("make it first, or leave out the slash to name a file")
}
