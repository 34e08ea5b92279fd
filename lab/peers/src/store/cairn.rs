//! The CairnFS library: each blob is a file in one directory of a volume, which is a sparse file.
//!
//! A single durable put is made durable by fsync of its file, a single durable delete by fsync of
//! the directory, several by one sync that concurrent callers share.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cairnfs::{OpenOptions, Volume};
use cairnfs_bench::Result;

use super::{Session, Setup, Store};

const DIR: &str = "blobs";

struct Cairn {
    volume: Volume,
    durable: bool,
}

pub fn create(dir: &Path, setup: Setup) -> Result<Box<dyn Store>> {
    let size = (setup.payload * 3).max(1 << 30);
    let volume = Volume::options()
        .create(true)
        .size(size)
        .cache_budget(setup.cache.max(64 << 20))
        .durability_interval(None)
        .open(dir.join("volume.cairn"))?;
    volume.create_dir(DIR)?;
    volume.sync()?;
    let durable = setup.durable;
    Ok(Box::new(Cairn { volume, durable }))
}

impl Store for Cairn {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(self))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.volume.sync()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.volume.close()?)
    }
}

impl Session for &Cairn {
    fn put(&mut self, blobs: &[(&str, &[u8])]) -> Result<()> {
        let mut create = OpenOptions::new();
        create.write(true).create_new(true);
        for (name, blob) in blobs {
            let file = self.volume.open_with(path(name), &create)?;
            file.write_all_at(blob, 0)?;
            if self.durable && blobs.len() == 1 {
                file.sync_all()?;
            }
        }
        if self.durable && blobs.len() > 1 {
            self.volume.sync_through(self.volume.sequence())?;
        }
        Ok(())
    }

    fn get(&mut self, name: &str, blob: &mut Vec<u8>) -> Result<bool> {
        *blob = match self.volume.read(path(name)) {
            Err(cairnfs::Error::NotFound) => return Ok(false),
            found => found?,
        };
        Ok(true)
    }

    fn list(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        for entry in self.volume.read_dir(DIR)? {
            each(entry?.file_name().as_bytes());
        }
        Ok(())
    }

    fn delete(&mut self, names: &[&str]) -> Result<()> {
        for name in names {
            self.volume.remove_file(path(name))?;
        }
        match (self.durable, names.len()) {
            (false, _) => {}
            (true, 1) => self.volume.sync_dir(DIR)?,
            (true, _) => self.volume.sync_through(self.volume.sequence())?,
        }
        Ok(())
    }
}

fn path(name: &str) -> String {
    format!("{DIR}/{name}")
}
