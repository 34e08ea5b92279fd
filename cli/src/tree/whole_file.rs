//! A file of the host that has its name only when it is complete and durable.
//!
//! It is made without any name where the file system can do that, so that nothing is left of it
//! whatever ends this process; else, and if it replaces another file, under a temporary name beside
//! the final one. A file that got the final name meanwhile is replaced only if that was permitted.

use std::fs::{File, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cairnfs::fs::inspect;
use cairnfs_daemon::failure::{Explain, Failure};
use rustix::io::Errno;

use super::pending::Pending;
use super::{descent, umask};

/// A file that is being written. Without [`complete`](Self::complete), it is removed when this is
/// dropped.
pub struct WholeFile {
    dir: OwnedFd,
    pending: Pending,
    file: File,
    /// Whether it has a temporary name, and not none at all.
    is_apart: bool,
}

impl WholeFile {
    /// Lets only its owner read it. For images, before anything is in it.
    ///
    /// # Errors
    /// The file system's.
    pub fn make_private(&self) -> Result<(), Failure> {
        let private = Permissions::from_mode(0o600);
        self.file
            .set_permissions(private)
            .explain(self.pending.shown())
    }

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
        let nameless = if pending.replaces() {
            None
        } else {
            pending.nameless(dir.as_fd(), mode)?
        };
        let is_apart = nameless.is_none();
        let pending = pending.apart();
        let file = nameless.map_or_else(|| pending.file(dir.as_fd(), mode), Ok)?;
        Ok(Self {
            dir,
            pending,
            file,
            is_apart,
        })
    }

    /// The file to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether another file has the name, and is to be replaced.
    pub fn replaces(&self) -> bool {
        self.pending.replaces()
    }

    /// Makes the file durable, then gives it its name, durably.
    ///
    /// # Errors
    /// An error of the device; another file has the name by now.
    pub fn complete(self) -> Result<(), Failure> {
        let shown = self.pending.shown();
        self.file.sync_all().explain(shown)?;
        if self.is_apart {
            self.pending.publish(self.dir.as_fd())?
        } else {
            self.pending.link(&self.file, self.dir.as_fd())?
        }
        match rustix::fs::fsync(&self.dir) {
            // A directory that can be entered but not read cannot be synced.
            Err(Errno::BADF) => Ok(()),
            synced => synced.explain(shown),
        }
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        // Once it is complete, nothing has this name.
        if self.is_apart {
            self.pending.remove(self.dir.as_fd());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
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
        let held = descent::open_named(dir.path()).unwrap();
        let begin = || Pending::new(held.as_fd(), b"new", "it".to_owned()).unwrap();
        let (first, second) = (begin().apart(), begin().apart());
        for (pending, contents) in [(&first, "whole"), (&second, "second")] {
            let mut file = pending.file(held.as_fd(), 0o600).unwrap();
            file.write_all(contents.as_bytes()).unwrap();
        }
        first.publish(held.as_fd()).unwrap();
        assert!(second.publish(held.as_fd()).is_err());
        assert_eq!(names(dir.path()), ["new"]);
        assert_eq!(fs::read(dir.path().join("new")).unwrap(), b"whole");
    }
}
