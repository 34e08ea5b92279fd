//! Any mounted file system, through system calls on a directory in it: those of `std::fs`, and
//! those for extended attributes.
//!
//! `sync` is `syncfs(2)`. A FUSE mount does not pass that on to its daemon, so without [`Hooks`]
//! the figures of a FUSE mount lack the data that the daemon still buffers.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::trees::DirectoryTree;
use super::{Dir, Open, OpenFile, Paths, Target, Tree, at};
use crate::Result;

/// Operations on the mounted file system that only its mounter can do. They are called only while
/// no file of it is in use.
pub trait Hooks: Send + Sync {
    /// Makes everything durable in the file system that contains this directory.
    fn sync(&self, path: &Path) -> Result<()>;

    /// Unmounts and mounts it again, with empty caches.
    fn remount(&self) -> Result<()>;

    /// Unmounts the file system.
    fn unmount(&self) -> Result<()>;
}

/// A directory of a mounted file system.
pub struct Directory {
    path: PathBuf,
    name: String,
    hooks: Option<Box<dyn Hooks>>,
}

impl Directory {
    /// Opens an existing directory as a target.
    pub fn open(path: &str, hooks: Option<Box<dyn Hooks>>) -> Result<Self> {
        if !fs::metadata(path).map_err(|e| at(path, e))?.is_dir() {
            return Err(at(path, "not a directory; a volume is given as lib:VOLUME"));
        }
        Ok(Self {
            path: PathBuf::from(path),
            name: path.to_owned(),
            hooks,
        })
    }
}

impl Target for Directory {
    fn name(&self) -> &str {
        &self.name
    }

    fn interface(&self) -> &'static str {
        "system calls"
    }

    fn make_dir(&self, path: &str) -> Result<()> {
        fs::create_dir(self.path.join(path)).map_err(|e| at(path, e))
    }

    fn remove_tree(&self, path: &str) -> Result<()> {
        fs::remove_dir_all(self.path.join(path)).map_err(|e| at(path, e))
    }

    fn dir<'a>(&'a self, path: &str) -> Result<Box<dyn Dir + 'a>> {
        let path = self.path.join(path);
        let handle = File::open(&path).map_err(|e| at(path.display(), e))?;
        let paths = Paths::new(&path);
        Ok(Box::new(Subdirectory { paths, handle }))
    }

    fn tree<'a>(&'a self, path: &str, git: bool) -> Result<Box<dyn Tree + 'a>> {
        let tree = DirectoryTree::make(self, self.path.join(path), git)?;
        Ok(Box::new(tree))
    }

    fn sync(&self) -> Result<()> {
        match &self.hooks {
            Some(hooks) => hooks.sync(&self.path),
            None => Ok(rustix::fs::syncfs(&File::open(&self.path)?)?),
        }
    }

    fn can_reopen(&self) -> bool {
        self.hooks.is_some()
    }

    fn reopen(&self) -> Result<()> {
        self.hooks.as_ref().map_or(Ok(()), |hooks| hooks.remount())
    }

    fn close(&self) -> Result<()> {
        self.hooks.as_ref().map_or(Ok(()), |hooks| hooks.unmount())
    }
}

struct Subdirectory {
    paths: Paths,
    handle: File,
}

impl Subdirectory {
    fn on<T, E: std::fmt::Display>(
        &self,
        name: &str,
        what: impl FnOnce(&Path) -> std::result::Result<T, E>,
    ) -> Result<T> {
        self.paths
            .with(name, |path| what(path).map_err(|e| at(path.display(), e)))
    }
}

impl Dir for Subdirectory {
    fn open<'a>(&'a self, name: &str, how: Open) -> Result<Box<dyn OpenFile + 'a>> {
        let mut options = File::options();
        match how {
            Open::New => options.write(true).create_new(true),
            Open::Existing => options.write(true),
            Open::Append => options.append(true).create(true),
        };
        let file = self.on(name, |path| options.open(path))?;
        Ok(Box::new(file))
    }

    fn walk(&self) -> Result<(u64, u64)> {
        let (mut entries, mut bytes) = (0, 0);
        for entry in fs::read_dir(self.paths.dir())? {
            bytes += entry?.metadata()?.len();
            entries += 1;
        }
        Ok((entries, bytes))
    }

    fn stat(&self, name: &str) -> Result<u64> {
        Ok(self.on(name, |path| fs::metadata(path))?.len())
    }

    fn read(&self, name: &str, into: &mut [u8]) -> Result<usize> {
        self.on(name, |path| File::open(path)?.read_at(into, 0))
    }

    fn rename(&self, name: &str, to: &dyn Dir, to_name: &str) -> Result<()> {
        let to = to.path().join(to_name);
        self.on(name, |path| fs::rename(path, to))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.on(name, |path| fs::remove_file(path))
    }

    fn set_xattr(&self, name: &str, attribute: &str, value: &[u8]) -> Result<()> {
        self.on(name, |path| {
            rustix::fs::setxattr(path, attribute, value, XattrFlags::empty())
        })
    }

    fn get_xattr(&self, name: &str, attribute: &str, value: &mut [u8]) -> Result<Option<usize>> {
        self.on(name, |path| {
            match rustix::fs::getxattr(path, attribute, value) {
                Ok(length) => Ok(Some(length)),
                Err(Errno::NODATA) => Ok(None),
                Err(e) => Err(e),
            }
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(self.handle.sync_all()?)
    }

    fn path(&self) -> &Path {
        self.paths.dir()
    }
}

impl OpenFile for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        Ok(self.write_all_at(bytes, offset)?)
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        let mut file: &File = self;
        Ok(file.write_all(bytes)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.sync_all()?)
    }
}
