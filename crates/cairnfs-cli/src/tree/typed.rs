//! The destination of a copy as it was typed, and what it leads to.
//!
//! Symbolic links of the typed path are followed, once and here; nothing that comes below it is
//! resolved this way. A pipe, a character device and standard output are written to where they
//! are; a regular file is replaced beside itself ([`super::pending`]), so the link stays. Uses
//! failures, and nothing else of the crate.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::descent;
use crate::failure::{Explain, Failure, shown};

/// What a typed destination that is no directory leads to.
pub enum Typed {
    /// A stream: contents are appended to it, and it keeps its attributes.
    Stream(File),
    /// A name in a directory, which is none of a symbolic link. It may be free, or not replaceable.
    Entry(PathBuf),
}

impl Typed {
    /// Resolves `path`.
    ///
    /// # Errors
    /// It is a symbolic link that leads to nothing, names a directory that there is not, or a
    /// stream that cannot be opened.
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

/// A name that leads to nothing.
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
    match descent::id(&opened) == descent::id(stat) {
        true => Ok(Typed::Stream(fd.into())),
        false => Err(Failure::new(
            shown(path),
            "was replaced while it was being opened",
        )),
    }
}

/// A symbolic link as the destination that leads to nothing. As by cp(1), no file is made there.
pub fn dangling(shown: String) -> Failure {
    Failure::new(shown, "is a symbolic link that leads to nothing")
        .hint("remove it first, or name the file itself")
}

/// A destination that must be a directory, by the slash behind its name, and is none.
pub fn not_directory(shown: String) -> Failure {
    Failure::new(shown, "is not a directory")
        .hint("make it first, or leave out the slash to name a file")
}
