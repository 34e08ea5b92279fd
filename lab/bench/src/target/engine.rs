//! The library's engine as a FUSE daemon uses it: by inode number, with names looked up in a known
//! directory.

use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs::{Error, FileKind, RenameMode, Volume, XattrMode};
use cairnfs_disk::types::{Attr, Creds};

use super::{Dir, Handle, Open, OpenFile, copied};
use crate::Result;

/// Opens a directory by looking up the names of its path.
pub fn dir(volume: &Volume, path: &str) -> Result<DirRef> {
    let fs = Arc::clone(volume.file_system());
    let mut ino = ROOT;
    for name in path.split('/') {
        // The child's reference is taken before the parent's is returned.
        let above = DirRef {
            fs: Arc::clone(&fs),
            ino,
        };
        ino = above.fs.lookup(ino, name.as_bytes())?.ino;
    }
    Ok(DirRef { fs, ino })
}

const ROOT: u64 = cairnfs_disk::format::ROOT_INO;

/// A directory and the lookup reference to it. It keeps the engine alive.
pub struct DirRef {
    fs: Arc<FileSystem>,
    ino: u64,
}

impl Drop for DirRef {
    fn drop(&mut self) {
        forget(&self.fs, self.ino);
    }
}

impl DirRef {
    fn find(&self, name: &str) -> Result<Used<'_>> {
        let attr = self.fs.lookup(self.ino, name.as_bytes())?;
        Ok(Used::take(&self.fs, &attr))
    }

    fn make(&self, name: &str) -> Result<Used<'_>> {
        let mode = FileKind::File.mode_bits() | 0o644;
        let attr = self
            .fs
            .mknod(self.ino, name.as_bytes(), mode, 0, Creds::default())?;
        Ok(Used::take(&self.fs, &attr))
    }

    fn find_or_make(&self, name: &str) -> Result<Used<'_>> {
        match self.fs.lookup(self.ino, name.as_bytes()) {
            Ok(attr) => Ok(Used::take(&self.fs, &attr)),
            Err(Error::NotFound) => self.make(name),
            Err(e) => Err(e.into()),
        }
    }
}

/// A file and the lookup reference that its lookup or creation took.
struct Used<'a> {
    fs: &'a FileSystem,
    ino: u64,
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        forget(self.fs, self.ino);
    }
}

impl<'a> Used<'a> {
    fn take(fs: &'a FileSystem, attr: &Attr) -> Self {
        Self { fs, ino: attr.ino }
    }
}

fn forget(fs: &FileSystem, ino: u64) {
    if ino != ROOT {
        fs.forget(ino, 1);
    }
}

impl OpenFile for Used<'_> {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            at += self.fs.write(self.ino, offset + at as u64, rest, false)?;
        }
        Ok(())
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.fs.append(self.ino, bytes, false)?;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(self.fs.fsync(self.ino, false)?)
    }
}

impl Dir for DirRef {
    fn open<'a>(&'a self, name: &str, how: Open) -> Result<Box<dyn OpenFile + 'a>> {
        Ok(Box::new(match how {
            Open::New => self.make(name)?,
            Open::Existing => self.find(name)?,
            Open::Append => self.find_or_make(name)?,
        }))
    }

    fn walk(&self) -> Result<(u64, u64)> {
        /// About the number of entries in one READDIRPLUS reply to the kernel.
        const BATCH: usize = 64;
        let (mut entries, mut bytes, mut cookie) = (0, 0, 0);
        let mut held = Vec::with_capacity(BATCH);
        loop {
            let before = cookie;
            let listed = self.fs.readdir_plus(self.ino, cookie, &mut |entry, attr| {
                if held.len() == BATCH {
                    return false;
                }
                cookie = entry.cookie;
                if entry.name != b"." && entry.name != b".." {
                    held.push(entry.ino);
                    entries += 1;
                    bytes += attr.map_or(0, |attr| attr.size);
                }
                true
            });
            for ino in held.drain(..) {
                self.fs.forget(ino, 1);
            }
            listed?;
            if cookie == before {
                return Ok((entries, bytes));
            }
        }
    }

    fn stat(&self, name: &str) -> Result<u64> {
        let attr = self.fs.lookup(self.ino, name.as_bytes())?;
        let _held = Used::take(&self.fs, &attr);
        Ok(attr.size)
    }

    fn read(&self, name: &str, into: &mut [u8]) -> Result<usize> {
        let file = self.find(name)?;
        Ok(self.fs.read(file.ino, 0, into)?)
    }

    fn rename(&self, name: &str, to: &dyn Dir, to_name: &str) -> Result<()> {
        let to = to.handle().inode()?;
        let (name, to_name) = (name.as_bytes(), to_name.as_bytes());
        Ok(self
            .fs
            .rename(self.ino, name, to, to_name, RenameMode::default())?)
    }

    fn remove(&self, name: &str) -> Result<()> {
        Ok(self.fs.unlink(self.ino, name.as_bytes())?)
    }

    fn set_xattr(&self, name: &str, attribute: &str, value: &[u8]) -> Result<()> {
        let file = self.find(name)?;
        let attribute = attribute.as_bytes();
        Ok(self
            .fs
            .setxattr(file.ino, attribute, value, XattrMode::Set)?)
    }

    fn get_xattr(&self, name: &str, attribute: &str, value: &mut [u8]) -> Result<Option<usize>> {
        let file = self.find(name)?;
        match self.fs.getxattr(file.ino, attribute.as_bytes()) {
            Ok(found) => copied(&found, value).map(Some),
            Err(Error::NoAttribute) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn sync(&self) -> Result<()> {
        Ok(self.fs.fsync(self.ino, false)?)
    }

    fn handle(&self) -> Handle<'_> {
        Handle::Inode(self.ino)
    }
}
