//! Any file system, by the system calls that `std::fs` makes on a directory in it.
//!
//! `sync` is `syncfs(2)`. A FUSE mount does not pass that on, so what its daemon still holds is
//! not in the figures then.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::{Dir, Target, at};
use crate::Result;

/// A directory of a mounted file system.
pub struct Directory {
    path: PathBuf,
    name: String,
    handle: File,
}

impl Directory {
    /// Opens an existing directory.
    pub fn open(path: &str) -> Result<Self> {
        let handle = File::open(path).map_err(|e| at(path, e))?;
        if !handle.metadata()?.is_dir() {
            return Err(at(path, "not a directory; a volume is given as lib:VOLUME"));
        }
        Ok(Self {
            path: PathBuf::from(path),
            name: path.to_owned(),
            handle,
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

    fn remove_dir(&self, path: &str) -> Result<()> {
        fs::remove_dir(self.path.join(path)).map_err(|e| at(path, e))
    }

    fn dir<'a>(&'a self, path: &str) -> Result<Box<dyn Dir + 'a>> {
        Ok(Box::new(Subdirectory(self.path.join(path))))
    }

    fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(&self.handle)?)
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

struct Subdirectory(PathBuf);

impl Subdirectory {
    fn on<T>(&self, name: &str, what: impl FnOnce(&Path) -> std::io::Result<T>) -> Result<T> {
        let path = self.0.join(name);
        what(&path).map_err(|e| at(path.display(), e))
    }
}

impl Dir for Subdirectory {
    fn create(&self, name: &str, contents: &[u8], sync: bool) -> Result<()> {
        self.on(name, |path| {
            let mut file = File::create_new(path)?;
            file.write_all(contents)?;
            match sync {
                true => file.sync_all(),
                false => Ok(()),
            }
        })
    }

    fn walk(&self) -> Result<(u64, u64)> {
        let (mut entries, mut bytes) = (0, 0);
        for entry in fs::read_dir(&self.0)? {
            bytes += entry?.metadata()?.len();
            entries += 1;
        }
        Ok((entries, bytes))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.on(name, |path| fs::remove_file(path))
    }
}
