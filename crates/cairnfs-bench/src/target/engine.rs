//! The library's engine as a FUSE daemon uses it: by inode, names looked up in a directory that
//! is known already.

use cairnfs::fs::FileSystem;
use cairnfs::types::{Attr, Creds};
use cairnfs::{FileKind, Volume};

use super::{Dir, Image, Target};
use crate::Result;

/// An open volume.
pub struct Engine {
    volume: Volume,
    image: Image,
}

impl Engine {
    pub(super) fn new(volume: Volume, image: Image) -> Self {
        Self { volume, image }
    }
}

impl Target for Engine {
    fn name(&self) -> &str {
        &self.image.name
    }

    fn interface(&self) -> &'static str {
        "library, by inode"
    }

    fn make_dir(&self, path: &str) -> Result<()> {
        Ok(self.volume.create_dir(path)?)
    }

    fn remove_dir(&self, path: &str) -> Result<()> {
        Ok(self.volume.remove_dir(path)?)
    }

    fn dir<'a>(&'a self, path: &str) -> Result<Box<dyn Dir + 'a>> {
        let fs: &FileSystem = self.volume.file_system();
        let mut dir = Subdirectory { fs, ino: ROOT };
        for name in path.split('/') {
            let ino = fs.lookup(dir.ino, name.as_bytes())?.ino;
            dir = Subdirectory { fs, ino };
        }
        Ok(Box::new(dir))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.volume.sync()?)
    }

    fn close(&self) -> Result<()> {
        Ok(self.volume.clone().close()?)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.volume.file_system().counters()
    }
}

const ROOT: u64 = cairnfs::format::ROOT_INO;

/// A directory with the use of it that its look-up took.
struct Subdirectory<'a> {
    fs: &'a FileSystem,
    ino: u64,
}

impl Drop for Subdirectory<'_> {
    fn drop(&mut self) {
        if self.ino != ROOT {
            self.fs.forget(self.ino, 1);
        }
    }
}

impl Subdirectory<'_> {
    fn fill(&self, file: &Attr, contents: &[u8], sync: bool) -> cairnfs::Result<()> {
        let mut at = 0;
        while let Some(rest) = contents.get(at..).filter(|rest| !rest.is_empty()) {
            at += self.fs.write(file.ino, at as u64, rest, false)?;
        }
        match sync {
            true => self.fs.fsync(file.ino, false),
            false => Ok(()),
        }
    }
}

impl Dir for Subdirectory<'_> {
    fn create(&self, name: &str, contents: &[u8], sync: bool) -> Result<()> {
        let mode = FileKind::File.mode_bits() | 0o644;
        let file = self
            .fs
            .mknod(self.ino, name.as_bytes(), mode, 0, Creds::default())?;
        let filled = self.fill(&file, contents, sync);
        self.fs.forget(file.ino, 1);
        Ok(filled?)
    }

    fn walk(&self) -> Result<(u64, u64)> {
        /// As many entries as a reply to the kernel holds, about.
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
                    bytes += attr.size;
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

    fn remove(&self, name: &str) -> Result<()> {
        Ok(self.fs.unlink(self.ino, name.as_bytes())?)
    }
}
