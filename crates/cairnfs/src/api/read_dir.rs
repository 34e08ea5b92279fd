//! Listings: entries in batches of bounded size, and the walk through a tree.
//!
//! Uses the engine's `readdir` with its stable cookies. Between two batches the directory may
//! change: an entry that is there all the time is delivered exactly once.

use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::handle::{Handle, lookup};
use super::metadata::Metadata;
use crate::error::{Error, Result};
use crate::fs::FileSystem;
use crate::types::FileKind;

/// Entries that a listing holds at a time.
const BATCH: usize = 256;

/// An entry as the engine delivers it.
pub(super) struct RawEntry {
    pub name: Vec<u8>,
    pub ino: u64,
    pub kind: FileKind,
}

/// A listing by inode, without "." and "..".
#[derive(Default)]
pub(super) struct Listing {
    cookie: u64,
    entries: VecDeque<RawEntry>,
}

impl Listing {
    /// The next entry of `dir`, which must be the same each time.
    pub(super) fn next(&mut self, fs: &FileSystem, dir: u64) -> Result<Option<RawEntry>> {
        if self.entries.is_empty() {
            self.fill(fs, dir)?;
        }
        Ok(self.entries.pop_front())
    }

    fn fill(&mut self, fs: &FileSystem, dir: u64) -> Result<()> {
        let Self { cookie, entries } = self;
        fs.readdir(dir, *cookie, &mut |entry| {
            if entries.len() == BATCH {
                return false;
            }
            *cookie = entry.cookie;
            if !entry.is_dots() {
                entries.push_back(RawEntry {
                    name: entry.name.to_vec(),
                    ino: entry.ino,
                    kind: entry.kind,
                });
            }
            true
        })
    }
}

/// The directory that entries come from.
struct Dir {
    handle: Handle,
    path: PathBuf,
}

/// The entries of a directory, without `.` and `..`, in the order in which they were made. As
/// [`std::fs::ReadDir`]. Memory does not grow with the directory.
pub struct ReadDir {
    dir: Arc<Dir>,
    listing: Listing,
    failed: bool,
}

impl ReadDir {
    pub(super) fn new(handle: Handle, path: &Path) -> Self {
        Self {
            dir: Arc::new(Dir {
                handle,
                path: path.to_path_buf(),
            }),
            listing: Listing::default(),
            failed: false,
        }
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let handle = &self.dir.handle;
        match self.listing.next(handle.fs(), handle.ino()) {
            Ok(entry) => Some(Ok(DirEntry {
                dir: Arc::clone(&self.dir),
                entry: entry?,
            })),
            Err(e) => {
                self.failed = true;
                Some(Err(e.at(&self.dir.path)))
            }
        }
    }
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadDir").field(&self.dir.path).finish()
    }
}

/// An entry of a directory, as [`std::fs::DirEntry`].
pub struct DirEntry {
    dir: Arc<Dir>,
    entry: RawEntry,
}

impl DirEntry {
    /// The name, without the directory.
    pub fn file_name(&self) -> OsString {
        OsString::from_vec(self.entry.name.clone())
    }

    /// The path: that given to the listing, and the name.
    pub fn path(&self) -> PathBuf {
        self.dir.path.join(OsStr::from_bytes(&self.entry.name))
    }

    /// Inode number.
    pub fn ino(&self) -> u64 {
        self.entry.ino
    }

    /// What it is; of a symbolic link that, not what it points to. Costs nothing.
    ///
    /// # Errors
    /// None: a result as in `std::fs`.
    pub fn file_type(&self) -> Result<FileKind> {
        Ok(self.entry.kind)
    }

    /// What is known of it; of a symbolic link that, not what it points to. It is found by its
    /// number, whatever it is called by now.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it is gone by now, or the engine's.
    pub fn metadata(&self) -> Result<Metadata> {
        match self.dir.handle.fs().getattr(self.entry.ino) {
            Ok(attr) => Ok(Metadata::new(attr)),
            Err(e) => Err(e.at(&self.path())),
        }
    }

    /// Lists it, if it still is the directory that the entry named.
    fn read_dir(&self) -> Result<Option<ReadDir>> {
        let dir = &self.dir.handle;
        match lookup(dir.fs(), dir.inode(), &self.entry.name) {
            Ok((child, attr)) if attr.kind.is_dir() => {
                let handle = child.keep(dir.engine());
                Ok(Some(ReadDir::new(handle, &self.path())))
            }
            Ok(_) | Err(Error::NotFound) => Ok(None),
            Err(e) => Err(e.at(&self.path())),
        }
    }
}

impl fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DirEntry").field(&self.path()).finish()
    }
}

/// Everything below a directory, each directory before what it holds. Symbolic links are
/// delivered, not followed. Memory grows with the depth of the tree, and by some bytes for each
/// directory.
///
/// A directory is entered once: two entries lead to it if it was moved meanwhile, or on a damaged
/// volume, whose directories may even contain themselves.
///
/// A directory that cannot be listed gives an error, and the walk goes on behind it. What is
/// removed meanwhile is left out.
#[derive(Debug)]
pub struct Walk {
    levels: Vec<ReadDir>,
    /// Directories that were entered.
    entered: HashSet<u64>,
    failure: Option<Error>,
}

impl Walk {
    pub(super) fn new(top: ReadDir) -> Self {
        Self {
            entered: HashSet::from([top.dir.handle.ino()]),
            levels: vec![top],
            failure: None,
        }
    }

    fn enter(&mut self, entry: &DirEntry) {
        if !entry.entry.kind.is_dir() || !self.entered.insert(entry.ino()) {
            return;
        }
        match entry.read_dir() {
            Ok(Some(listing)) => self.levels.push(listing),
            Ok(None) => {}
            Err(e) => self.failure = Some(e),
        }
    }
}

impl Iterator for Walk {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(e) = self.failure.take() {
            return Some(Err(e));
        }
        loop {
            match self.levels.last_mut()?.next() {
                Some(Ok(entry)) => {
                    self.enter(&entry);
                    return Some(Ok(entry));
                }
                Some(Err(e)) => return Some(Err(e)),
                None => {
                    self.levels.pop();
                }
            }
        }
    }
}
