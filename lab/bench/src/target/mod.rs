//! The file systems under test: the library, a directory by system calls, or a bare device.
//!
//! Workloads use only the three traits here. A target may return counters; columns of missing
//! counters are left out.

mod branches;
mod directory;
mod library;
pub mod raw;
mod trees;
mod volume_target;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub use directory::{Directory, Hooks};
pub use raw::Raw;
use volume_target::Opened;

use crate::settings::Place;
use crate::{Failure, Result};

/// A file system under test. Threads call it concurrently.
pub trait Target: Send + Sync {
    /// What the target is, and where.
    fn name(&self) -> &str;

    /// The kind of calls that use it.
    fn interface(&self) -> &'static str;

    /// Makes a directory; its parent exists. Paths are relative, without `.` and `..`.
    fn make_dir(&self, path: &str) -> Result<()>;

    /// Removes a directory and everything in it.
    fn remove_tree(&self, path: &str) -> Result<()>;

    /// Opens a directory to work in.
    fn dir<'a>(&'a self, path: &str) -> Result<Box<dyn Dir + 'a>>;

    /// Makes an empty tree of files that can be forked whole, in a directory where nothing else is;
    /// with `git` it is forked by that program.
    fn tree<'a>(&'a self, _path: &str, _git: bool) -> Result<Box<dyn Tree + 'a>> {
        Err("this target has no trees that can be forked".into())
    }

    /// Makes everything durable.
    fn sync(&self) -> Result<()>;

    /// Whether [`Target::reopen`] has an effect: the benchmark itself opened or mounted the target.
    fn can_reopen(&self) -> bool {
        false
    }

    /// Closes the target and opens it again, so that its caches are empty. No directory or file of
    /// it may be in use.
    fn reopen(&self) -> Result<()> {
        Ok(())
    }

    /// Closes the target if the benchmark opened it; this writes all buffered data.
    fn close(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the counters since the target was first opened; also valid after it was closed.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// A tree of files and its forks, which have numbers. Threads call it concurrently.
pub trait Tree: Send + Sync {
    /// Whether the time of a fork does not depend on the number of files.
    fn is_constant(&self) -> bool;

    /// Called once after the first files were made.
    fn filled(&self) -> Result<()> {
        Ok(())
    }

    /// Opens the directory of the files, of the tree or of a fork.
    fn dir<'a>(&'a self, fork: Option<u64>) -> Result<Box<dyn Dir + 'a>>;

    /// Forks the tree as it is now; the fork is durable when this returns.
    fn fork(&self, number: u64) -> Result<()>;

    /// Whether [`Tree::compare`], [`Tree::fork_again`] and [`Tree::publish`] are possible.
    fn compares(&self) -> bool {
        false
    }

    /// Compares a fork with the tree; returns the number of files that differ.
    fn compare(&self, _number: u64) -> Result<u64> {
        Err("nothing here compares a fork with its origin".into())
    }

    /// Forks a fork.
    fn fork_again(&self, _origin: u64, _number: u64) -> Result<()> {
        Err("nothing here forks a fork".into())
    }

    /// Makes the files of a fork those of its origin, which is a fork that has not changed since. This
    /// is durable when it returns, and ends the first one.
    fn publish(&self, _number: u64, _origin: u64) -> Result<()> {
        Err("nothing here publishes a fork".into())
    }

    /// Removes a fork. Its space is free when this and then [`Tree::freed`] have returned.
    fn remove(&self, number: u64) -> Result<()>;

    /// Waits until the space of all removed forks is free.
    fn freed(&self) -> Result<()> {
        Ok(())
    }
}

/// A directory that one thread works in.
pub trait Dir {
    /// Opens a file for writing.
    fn open<'a>(&'a self, name: &str, how: Open) -> Result<Box<dyn OpenFile + 'a>>;

    /// Creates a file with these bytes, and fsyncs it if `sync`.
    fn create(&self, name: &str, contents: &[u8], sync: bool) -> Result<()> {
        let file = self.open(name, Open::New)?;
        if !contents.is_empty() {
            file.write_at(contents, 0)?;
        }
        if sync { file.sync() } else { Ok(()) }
    }

    /// Lists the directory and gets the attributes of every entry; returns the number of entries
    /// and the sum of their sizes in bytes.
    fn walk(&self) -> Result<(u64, u64)>;

    /// Returns a file's size in bytes, from its attributes.
    fn stat(&self, name: &str) -> Result<u64>;

    /// Opens a file, reads at most `into.len()` bytes from its start, and closes it; returns the
    /// number of bytes read.
    fn read(&self, name: &str, into: &mut [u8]) -> Result<usize>;

    /// Moves a file to another directory of the same target.
    fn rename(&self, name: &str, to: &dyn Dir, to_name: &str) -> Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> Result<()>;

    /// Sets an extended attribute of a file.
    fn set_xattr(&self, name: &str, attribute: &str, value: &[u8]) -> Result<()>;

    /// Reads an extended attribute of a file into `value`; returns its length, `None` if it does
    /// not exist.
    fn get_xattr(&self, name: &str, attribute: &str, value: &mut [u8]) -> Result<Option<usize>>;

    /// Makes the directory's entries durable.
    fn sync(&self) -> Result<()>;

    /// Returns its path, for another directory of the same target.
    fn path(&self) -> &Path;
}

/// A file that is open for writing. All bytes are written, or the call fails.
pub trait OpenFile {
    /// Writes at an offset; not for a file that was opened for appending.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()>;

    /// Writes at the end; for a file that was opened for appending.
    fn append(&self, bytes: &[u8]) -> Result<()>;

    /// Makes the file durable.
    fn sync(&self) -> Result<()>;
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// Creates the file; it must not exist.
    New,
    /// Opens an existing file.
    Existing,
    /// Opens for appending; creates the file if it does not exist.
    Append,
}

/// Builds paths of a directory's entries in one reused buffer.
struct Paths {
    dir: PathBuf,
    /// The directory's path with a slash, and the last entry's name.
    bytes: RefCell<Vec<u8>>,
}

impl Paths {
    fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            bytes: RefCell::default(),
        }
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    /// Calls `what` with an entry's path.
    fn with<R>(&self, name: &str, what: impl FnOnce(&Path) -> R) -> R {
        let mut bytes = self.bytes.borrow_mut();
        let dir = self.dir.as_os_str().as_bytes();
        if bytes.is_empty() {
            bytes.extend_from_slice(&[dir, b"/"].concat())
        } else {
            bytes.truncate(dir.len() + 1)
        }
        bytes.extend_from_slice(name.as_bytes());
        what(Path::new(OsStr::from_bytes(&bytes)))
    }
}

/// Opens the target, or creates its volume.
pub fn open(place: &Place) -> Result<Box<dyn Target>> {
    let Some(path) = place.volume() else {
        return Ok(Box::new(Directory::open(&place.target, None)?));
    };
    let mut image = Image::at(path)?;
    if let Some(mechanism) = place.without {
        image.name = format!("{} without {}", image.name, mechanism.name());
    }
    Ok(Box::new(Opened::new(image, place)?))
}

/// The file or device that a volume is in.
struct Image {
    path: PathBuf,
    name: String,
    /// Removes the temporary directory, if there is one.
    _temporary: Option<tempfile::TempDir>,
}

impl Image {
    fn at(path: &str) -> Result<Self> {
        if !path.is_empty() {
            return Ok(Self {
                path: PathBuf::from(path),
                name: path.to_owned(),
                _temporary: None,
            });
        }
        let dir = tempfile::tempdir()?;
        Ok(Self {
            path: dir.path().join("bench.cairn"),
            name: format!("temporary volume in {}", parent_of(dir.path()).display()),
            _temporary: Some(dir),
        })
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

/// Adds the entry's path to an error.
pub fn at(path: impl std::fmt::Display, error: impl std::fmt::Display) -> Failure {
    format!("{path}: {error}").into()
}
