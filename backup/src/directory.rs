//! A directory as a store: an object is a file, which appears whole and durable, or not at all.
//!
//! It is written without a name where the file system has such files, so that nothing is left of it
//! whatever ends this process. Elsewhere it has a temporary name beside its own, NAME#NUMBER, which no
//! listing shows, and is locked (flock) while it is written: what is not locked was left by a process
//! that has ended. Numbers are random, so neither other writers nor leftovers are in the way. Reading,
//! listing and deleting is that of `object_store`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path as FilePath, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, linkat, openat};
use rustix::io::Errno;

/// Permissions of objects, before those that the umask takes.
const MODE: Mode = Mode::from_raw_mode(0o666);

/// What stands between the name of an object and the number of a temporary name.
const MARK: char = '#';

/// A directory that exists.
#[derive(Debug)]
pub(crate) struct Directory(LocalFileSystem);

impl Directory {
    /// Opens it.
    ///
    /// # Errors
    /// It cannot be found.
    pub fn open(dir: &FilePath) -> Result<Self> {
        let files = LocalFileSystem::new_with_prefix(dir)?;
        Ok(Self(files.with_fsync(true)))
    }
}

/// Removes what ended writers have left in a folder; what cannot be removed costs space only.
pub(crate) fn sweep(folder: &FilePath) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        if is_temporary(&entry.file_name()) {
            let _ = remove_unlocked(&entry.path());
        }
    }
}

fn is_temporary(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let number = name.rsplit_once(MARK).map(|(_, number)| number);
    number.is_some_and(|n| !n.is_empty() && n.chars().all(|c| c.is_ascii_digit()))
}

fn remove_unlocked(path: &FilePath) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(CWD, path, flags, Mode::empty())?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    fs::remove_file(path)
}

/// A file that is being written.
struct Staged {
    folder: File,
    file: File,
    /// Its temporary name; `None` if it has none.
    name: Option<OsString>,
}

impl Staged {
    /// Begins a file for the object of this name in a folder.
    fn begin(folder: File, object: &OsStr) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        match openat(&folder, ".", flags, MODE) {
            Ok(file) => Ok(Self {
                folder,
                file: file.into(),
                name: None,
            }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {
                Self::begin_named(folder, object)
            }
            Err(why) => Err(why.into()),
        }
    }

    fn begin_named(folder: File, object: &OsStr) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        loop {
            let name = temporary(object)?;
            let file = match openat(&folder, &name, flags, MODE) {
                Err(Errno::EXIST) => continue,
                opened => File::from(opened?),
            };
            // A sweep may have found it before it was locked, or removed it. Where there are no locks, it
            // removes nothing.
            if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
                continue;
            }
            if file.metadata()?.nlink() > 0 {
                let name = Some(name);
                return Ok(Self { folder, file, name });
            }
        }
    }

    /// Makes the file durable under the name of the object; `new` if nothing may have that.
    fn complete(mut self, object: &OsStr, new: bool) -> io::Result<()> {
        self.file.sync_all()?;
        match self.name.take() {
            None => self.link(object, new)?,
            Some(name) => self.rename(&name, object, new)?,
        }
        self.folder.sync_all()
    }

    fn link(&self, object: &OsStr, new: bool) -> io::Result<()> {
        let found = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link = |name: &OsStr| linkat(CWD, &found, &self.folder, name, AtFlags::SYMLINK_FOLLOW);
        match link(object) {
            Err(Errno::EXIST) if !new => {
                let name = temporary(object)?;
                link(&name)?;
                self.rename(&name, object, new)
            }
            linked => Ok(linked?),
        }
    }

    fn rename(&self, name: &OsStr, object: &OsStr, new: bool) -> io::Result<()> {
        let dir = &self.folder;
        let renamed = if new {
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(dir, name, dir, object, flags) {
                // Network file systems do not know the flag.
                Err(Errno::INVAL) => linkat(dir, name, dir, object, AtFlags::empty()),
                renamed => renamed,
            }
        } else {
            rustix::fs::renameat(dir, name, dir, object)
        };
        // A link leaves both names, a failure this one.
        let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
        Ok(renamed?)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty());
        }
    }
}

fn temporary(object: &OsStr) -> io::Result<OsString> {
    let number = getrandom::u64().map_err(io::Error::other)?;
    let mut name = object.to_owned();
    name.push(format!("{MARK}{number}"));
    Ok(name)
}

/// Opens the folder of an object. It is made if it is missing; the directory of the store is not, which
/// may have been unmounted.
fn folder(path: &FilePath) -> io::Result<File> {
    match File::open(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    match DirBuilder::new().create(path) {
        Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return Err(why),
        _ => {}
    }
    if let Some(above) = path.parent() {
        File::open(above)?.sync_all()?;
    }
    File::open(path)
}

fn put(path: &FilePath, payload: &PutPayload, new: bool) -> io::Result<()> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidFilename.into());
    };
    let mut staged = Staged::begin(folder(above)?, name)?;
    payload
        .iter()
        .try_for_each(|piece| staged.file.write_all(piece))?;
    staged.complete(name, new)
}

fn failed(path: PathBuf, why: io::Error) -> Error {
    match why.kind() {
        io::ErrorKind::AlreadyExists => Error::AlreadyExists {
            path: path.to_string_lossy().into_owned(),
            source: why.into(),
        },
        io::ErrorKind::PermissionDenied => Error::PermissionDenied {
            path: path.to_string_lossy().into_owned(),
            source: why.into(),
        },
        _ => Error::Generic {
            store: "directory",
            source: why.into(),
        },
    }
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Directory {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let new = match options.mode {
            PutMode::Create => true,
            PutMode::Overwrite => false,
            PutMode::Update(_) => return self.0.put_opts(location, payload, options).await,
        };
        let path = self.0.path_to_filesystem(location)?;
        let work = move || put(&path, &payload, new).map_err(|why| failed(path, why));
        tokio::task::spawn_blocking(work).await??;
        Ok(PutResult {
            e_tag: None,
            version: None,
            extensions: Default::default(),
        })
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.0.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &FilePath) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Begins a file with a temporary name, or without one.
    type Begin = fn(File, &OsStr) -> io::Result<Staged>;

    #[test]
    fn objects_appear_whole_and_new_ones_replace_nothing() {
        for begin in [Staged::begin as Begin, Staged::begin_named] {
            let dir = tempfile::tempdir().unwrap();
            let (path, name) = (dir.path().join("layers"), OsStr::new("x"));
            let store = |text: &str, new| {
                let mut staged = begin(folder(&path)?, name)?;
                staged.file.write_all(text.as_bytes())?;
                staged.complete(name, new)
            };
            let half = begin(folder(&path).unwrap(), name).unwrap();
            assert!(!path.join("x").exists());
            drop(half);
            assert_eq!(names(&path), [""; 0]);
            store("one", true).unwrap();
            let refused = store("two", true).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(fs::read_to_string(path.join("x")).unwrap(), "one");
            store("three", false).unwrap();
            assert_eq!(fs::read_to_string(path.join("x")).unwrap(), "three");
            assert_eq!(names(&path), ["x"]);
        }
    }

    #[test]
    fn a_sweep_leaves_what_is_being_written() {
        let dir = tempfile::tempdir().unwrap();
        for leftover in ["x#1", "x#18446744073709551615"] {
            fs::write(dir.path().join(leftover), "half").unwrap();
        }
        fs::write(dir.path().join("a#b"), "no number").unwrap();
        fs::create_dir(dir.path().join("d#1")).unwrap();
        let name = OsStr::new("x");
        let mut staged = Staged::begin_named(folder(dir.path()).unwrap(), name).unwrap();
        staged.file.write_all(b"whole").unwrap();
        sweep(dir.path());
        staged.complete(name, true).unwrap();
        assert_eq!(names(dir.path()), ["a#b", "d#1", "x"]);
        assert_eq!(fs::read_to_string(dir.path().join("x")).unwrap(), "whole");
    }

    #[test]
    fn a_store_that_was_taken_away_is_not_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store/layers/x");
        let refused = put(&path, &PutPayload::from_static(b"x"), true).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);
        assert_eq!(names(dir.path()), [""; 0]);
    }
}
