//! A file of the host that has its name only when it is complete and durable.
//!
//! It is made without any name where the file system can do that, so that nothing is left of it
//! whatever ends this process; else, and if it replaces another file, under a temporary name beside
//! the final one. A file that got the final name meanwhile is replaced only if that was permitted.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use cairnfs::fs::inspect;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::pending::Pending;
use super::{descent, temporary_name, umask};
use crate::failure::{Explain, Failure};

/// A file that is being written. Without [`complete`](Self::complete), it is removed when this is
/// dropped.
pub struct WholeFile {
    dir: OwnedFd,
    name: OsString,
    shown: String,
    file: File,
    made: Made,
}

/// How the file is found until it has its name.
enum Made {
    Nameless,
    Apart(OsString),
    Replacing(Pending),
    Complete,
}

impl WholeFile {
    /// Begins a file at `path`, which messages call `shown`. `force` permits replacing a file;
    /// `otherwise` is what to do if something has the name that is not replaced.
    ///
    /// # Errors
    /// Something has the name that is not replaced; the directory takes no file.
    pub fn make(path: &Path, shown: String, force: bool, otherwise: &str) -> Result<Self, Failure> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Failure::new(shown, "is no name of a file"));
        };
        let dir = descent::open_named(above).explain(&shown)?;
        let pending = Pending::new(dir.as_fd(), name.as_bytes(), shown.clone())
            .map_err(|failure| failure.hint(otherwise))?;
        if pending.replaces() && !force {
            return Err(Failure::new(shown, "exists").hint(otherwise));
        }
        if pending.replaces() && inspect(path).is_ok() {
            return Err(
                Failure::new(shown, "is a CairnFS volume, and would be lost")
                    .hint("give another name, or remove it first"),
            );
        }
        let mode = !umask() & 0o666;
        let (file, made) = match pending.replaces() {
            true => (pending.file(dir.as_fd(), mode)?, Made::Replacing(pending)),
            false => new(dir.as_fd(), mode).explain(&shown)?,
        };
        Ok(Self {
            dir,
            name: name.to_owned(),
            shown,
            file,
            made,
        })
    }

    /// The file to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Makes the file durable, then gives it its name, durably.
    ///
    /// # Errors
    /// An error of the device; another file has the name by now.
    pub fn complete(mut self) -> Result<(), Failure> {
        self.file.sync_all().explain(&self.shown)?;
        let named = match &self.made {
            Made::Nameless => link(&self.file, self.dir.as_fd(), &self.name),
            Made::Apart(temporary) => name_it(self.dir.as_fd(), temporary, &self.name),
            Made::Replacing(pending) => {
                pending.publish(self.dir.as_fd())?;
                Ok(())
            }
            Made::Complete => Ok(()),
        };
        named.explain(&self.shown)?;
        self.made = Made::Complete;
        match rustix::fs::fsync(&self.dir) {
            // A directory that can be entered but not read cannot be synced.
            Err(Errno::BADF) => Ok(()),
            synced => synced.explain(&self.shown),
        }
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        match &self.made {
            Made::Apart(temporary) => {
                let _ = rustix::fs::unlinkat(&self.dir, temporary, AtFlags::empty());
            }
            Made::Replacing(pending) => pending.remove(self.dir.as_fd()),
            Made::Nameless | Made::Complete => {}
        }
    }
}

/// A new file, without a name if the file system can do that.
fn new(dir: BorrowedFd<'_>, mode: u32) -> rustix::io::Result<(File, Made)> {
    let mode = Mode::from_bits_truncate(mode);
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, ".", flags | OFlags::TMPFILE, mode) {
        Ok(file) => Ok((File::from(file), Made::Nameless)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {
            let name = OsString::from_vec(temporary_name());
            let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let file = rustix::fs::openat(dir, &name, flags, mode)?;
            Ok((File::from(file), Made::Apart(name)))
        }
        Err(error) => Err(error),
    }
}

/// Gives a file without a name its first one.
fn link(file: &File, dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    let found = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, found, dir, name, AtFlags::SYMLINK_FOLLOW)
}

/// Renames a file to a name that nothing has.
fn name_it(dir: BorrowedFd<'_>, temporary: &OsStr, name: &OsStr) -> rustix::io::Result<()> {
    let flags = RenameFlags::NOREPLACE;
    match rustix::fs::renameat_with(dir, temporary, dir, name, flags) {
        // Network file systems do not know the flag.
        Err(Errno::INVAL) => {
            rustix::fs::linkat(dir, temporary, dir, name, AtFlags::empty())?;
            // Both names are of the whole file.
            let _ = rustix::fs::unlinkat(dir, temporary, AtFlags::empty());
            Ok(())
        }
        renamed => renamed,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    fn names(dir: &Path) -> Vec<OsString> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|e| e.unwrap().file_name()).collect()
    }

    fn make(path: &Path, force: bool) -> Result<WholeFile, Failure> {
        WholeFile::make(path, "it".to_owned(), force, "")
    }

    #[test]
    fn file_has_its_name_when_it_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        let file = make(&path, false).unwrap();
        file.file().write_all(b"whole").unwrap();
        assert_ne!(names(dir.path()), ["new"]);
        file.complete().unwrap();
        assert_eq!(names(dir.path()), ["new"]);
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert!(make(&path, false).is_err());
        drop(make(&path, true).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        make(&path, true).unwrap().complete().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        assert_eq!(names(dir.path()), ["new"]);
    }

    #[test]
    fn name_that_another_file_has_got_is_left_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        let file = make(&path, false).unwrap();
        fs::write(&path, "other").unwrap();
        assert!(file.complete().is_err());
        assert_eq!(fs::read(&path).unwrap(), b"other");
        assert_eq!(names(dir.path()), ["new"]);
    }

    #[test]
    fn temporary_name_goes_with_the_final_one() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(".made"), "whole").unwrap();
        let held = descent::open_named(dir.path()).unwrap();
        let named = || name_it(held.as_fd(), OsStr::new(".made"), OsStr::new("new"));
        named().unwrap();
        assert_eq!(names(dir.path()), ["new"]);
        fs::write(dir.path().join(".made"), "second").unwrap();
        assert_eq!(named().unwrap_err(), Errno::EXIST);
        assert_eq!(fs::read(dir.path().join("new")).unwrap(), b"whole");
    }
}
