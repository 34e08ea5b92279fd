//! Listings: entries in bounded batches, and the recursive walk through a tree.
//!
//! Uses the engine's `readdir` with its stable cookies. The directory may change between two
//! batches: an entry that exists all the time is returned exactly once.

use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::handle::{Handle, lookup};
use super::metadata::Metadata;
use cairnfs_core::fs::FileSystem;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::types::FileKind;

/// Entries that a listing holds in memory.
const BATCH: usize = 256;

/// An entry as the engine delivers it.
pub(super) struct RawEntry {
    pub name: Vec<u8>,
    pub ino: u64,
    pub kind: FileKind,
}

/// A listing of a directory by inode number, without "." and "..".
#[derive(Default)]
pub(super) struct Listing {
    cookie: u64,
    entries: VecDeque<RawEntry>,
}

impl Listing {
    /// The next entry of `dir`, which must be the same directory in each call.
    pub(super) fn next(&mut self, fs: &FileSystem, dir: u64) -> Result<Option<RawEntry>> {
        if self.entries.is_empty() {
            self.fill(fs, dir)?;
        }
        Ok(self.entries.pop_front())
    }

    fn fill(&mut self, fs: &FileSystem, dir: u64) -> Result<()> {
        let Self { cookie, entries } = self;
        let listed = fs.readdir(dir, *cookie, &mut |entry| {
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
        });
        match listed {
            // The next call returns it, behind the entries that can be read.
            Err(_) if !entries.is_empty() => Ok(()),
            listed => listed,
        }
    }
}

/// The listed directory.
struct Dir {
    handle: Handle,
    path: PathBuf,
}

/// Iterator over the entries of a directory, without `.` and `..`, in the order of their creation.
/// Like [`std::fs::ReadDir`]. Its memory does not grow with the directory.
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

/// An entry of a directory, like [`std::fs::DirEntry`].
pub struct DirEntry {
    dir: Arc<Dir>,
    entry: RawEntry,
}

impl DirEntry {
    /// The name, without the path of the directory.
    pub fn file_name(&self) -> OsString {
        OsString::from_vec(self.entry.name.clone())
    }

    /// The path given to the listing, joined with the name.
    pub fn path(&self) -> PathBuf {
        self.dir.path.join(OsStr::from_bytes(&self.entry.name))
    }

    /// Inode number.
    pub fn ino(&self) -> u64 {
        self.entry.ino
    }

    /// The kind of file; a symbolic link is not followed. Costs nothing.
    ///
    /// # Errors
    /// None: a result as in `std::fs`.
    pub fn file_type(&self) -> Result<FileKind> {
        Ok(self.entry.kind)
    }

    /// The metadata of the inode; a symbolic link is not followed. The inode is found by its
    /// number, also if it was renamed meanwhile.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it was removed, or an error of the engine.
    pub fn metadata(&self) -> Result<Metadata> {
        match self.dir.handle.fs().getattr(self.entry.ino) {
            Ok(attr) => Ok(Metadata::new(attr)),
            Err(e) => Err(e.at(&self.path())),
        }
    }

    /// Lists it; `None` if the name is removed or not a directory.
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

/// Iterator over everything below a directory, each directory before its contents. Symbolic links
/// are returned, not followed. Its memory grows with the depth of the tree, and by some bytes for
/// each directory.
///
/// Each directory is entered only once: it may be reached by two entries if it was moved meanwhile,
/// or on a damaged volume, where a directory may even contain itself.
///
/// A directory that cannot be listed yields an error, and the walk continues after it. Files
/// removed meanwhile are left out.
#[derive(Debug)]
pub struct Walk {
    levels: Vec<ReadDir>,
    /// Inode numbers of the directories entered.
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
