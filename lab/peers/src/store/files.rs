//! No store: each blob is a file in one directory of the host's file system.
//!
//! A durable put is fsync of the file and of the directory; of several, fsync of each file and one
//! of the directory.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cairnfs_bench::Result;

use super::{Session, Setup, Store};

struct Files {
    path: PathBuf,
    dir: File,
    durable: bool,
}

pub fn create(dir: &Path, setup: Setup) -> Result<Box<dyn Store>> {
    let path = dir.join("blobs");
    fs::create_dir(&path)?;
    Ok(Box::new(Files {
        dir: File::open(&path)?,
        path,
        durable: setup.durable,
    }))
}

impl Files {
    fn made_durable(&self) -> Result<()> {
        if self.durable {
            Ok(self.dir.sync_all()?)
        } else {
            Ok(())
        }
    }
}

impl Store for Files {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(self))
    }

    fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(&self.dir)?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Session for &Files {
    fn put(&mut self, blobs: &[(&str, &[u8])]) -> Result<()> {
        let mut written = Vec::with_capacity(blobs.len());
        for (name, blob) in blobs {
            let mut file = File::create_new(self.path.join(name))?;
            file.write_all(blob)?;
            if self.durable {
                written.push(file);
            }
        }
        for file in written {
            file.sync_all()?;
        }
        self.made_durable()
    }

    fn get(&mut self, name: &str, blob: &mut Vec<u8>) -> Result<bool> {
        blob.clear();
        match File::open(self.path.join(name)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            file => {
                file?.read_to_end(blob)?;
                Ok(true)
            }
        }
    }

    fn list(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        for entry in fs::read_dir(&self.path)? {
            each(entry?.file_name().as_bytes());
        }
        Ok(())
    }

    fn delete(&mut self, names: &[&str]) -> Result<()> {
        for name in names {
            fs::remove_file(self.path.join(name))?;
        }
        self.made_durable()
    }
}
