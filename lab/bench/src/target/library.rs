//! The library as programs use it: by path, through [`Volume`].

use std::io::Write;
use std::path::Path;

use cairnfs::{File, OpenOptions, Volume};

use super::{Dir, Open, OpenFile, Paths};
use crate::Result;

/// Opens a directory by path.
pub fn dir(volume: Volume, path: &str) -> Subdirectory {
    Subdirectory {
        volume,
        paths: Paths::new(path.as_ref()),
    }
}

/// A directory of an open volume.
pub struct Subdirectory {
    volume: Volume,
    paths: Paths,
}

impl Dir for Subdirectory {
    fn open<'a>(&'a self, name: &str, how: Open) -> Result<Box<dyn OpenFile + 'a>> {
        let mut options = OpenOptions::new();
        match how {
            Open::New => options.write(true).create_new(true),
            Open::Existing => options.write(true),
            Open::Append => options.append(true).create(true),
        };
        let open = |path: &Path| self.volume.open_with(path, &options);
        let file = self.paths.with(name, open)?;
        Ok(Box::new(file))
    }

    fn walk(&self) -> Result<(u64, u64)> {
        let (mut entries, mut bytes) = (0, 0);
        for entry in self.volume.read_dir(self.paths.dir())? {
            bytes += entry?.metadata()?.len();
            entries += 1;
        }
        Ok((entries, bytes))
    }

    fn stat(&self, name: &str) -> Result<u64> {
        let stat = |path: &Path| self.volume.metadata(path);
        Ok(self.paths.with(name, stat)?.len())
    }

    fn read(&self, name: &str, into: &mut [u8]) -> Result<usize> {
        let options = OpenOptions::new().read(true).clone();
        let open = |path: &Path| self.volume.open_with(path, &options);
        Ok(self.paths.with(name, open)?.read_at(into, 0)?)
    }

    fn rename(&self, name: &str, to: &dyn Dir, to_name: &str) -> Result<()> {
        let to = to.path().join(to_name);
        let rename = |path: &Path| self.volume.rename(path, to);
        Ok(self.paths.with(name, rename)?)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let remove = |path: &Path| self.volume.remove_file(path);
        Ok(self.paths.with(name, remove)?)
    }

    fn set_xattr(&self, name: &str, attribute: &str, value: &[u8]) -> Result<()> {
        let set = |path: &Path| self.volume.set_xattr(path, attribute, value);
        Ok(self.paths.with(name, set)?)
    }

    fn get_xattr(&self, name: &str, attribute: &str, value: &mut [u8]) -> Result<Option<usize>> {
        let get = |path: &Path| self.volume.get_xattr(path, attribute);
        let found = self.paths.with(name, get)?;
        found.map(|found| copied(&found, value)).transpose()
    }

    fn sync(&self) -> Result<()> {
        Ok(self.volume.sync_dir(self.paths.dir())?)
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

/// Copies an attribute's value into the caller's buffer, as the kernel would; returns its length.
fn copied(found: &[u8], value: &mut [u8]) -> Result<usize> {
    let place = value
        .get_mut(..found.len())
        .ok_or("the attribute is longer than what was set")?;
    place.copy_from_slice(found);
    Ok(found.len())
}
