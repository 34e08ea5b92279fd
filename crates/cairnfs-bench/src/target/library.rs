//! The library as programs use it: by path, through [`Volume`].

use cairnfs::{OpenOptions, Volume};

use super::{Dir, Image, Target};
use crate::Result;

/// An open volume.
pub struct Library {
    volume: Volume,
    image: Image,
}

impl Library {
    pub(super) fn new(volume: Volume, image: Image) -> Self {
        Self { volume, image }
    }
}

impl Target for Library {
    fn name(&self) -> &str {
        &self.image.name
    }

    fn interface(&self) -> &'static str {
        "library, by path"
    }

    fn make_dir(&self, path: &str) -> Result<()> {
        Ok(self.volume.create_dir(path)?)
    }

    fn remove_dir(&self, path: &str) -> Result<()> {
        Ok(self.volume.remove_dir(path)?)
    }

    fn dir<'a>(&'a self, path: &str) -> Result<Box<dyn Dir + 'a>> {
        Ok(Box::new(Subdirectory {
            volume: &self.volume,
            path: path.to_owned(),
        }))
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

struct Subdirectory<'a> {
    volume: &'a Volume,
    path: String,
}

impl Dir for Subdirectory<'_> {
    fn create(&self, name: &str, contents: &[u8], sync: bool) -> Result<()> {
        let mut new = OpenOptions::new();
        new.write(true).create_new(true);
        let file = self
            .volume
            .open_with(&new, format!("{}/{name}", self.path))?;
        file.write_all_at(contents, 0)?;
        if sync {
            file.sync_all()?;
        }
        Ok(())
    }

    fn walk(&self) -> Result<(u64, u64)> {
        let (mut entries, mut bytes) = (0, 0);
        for entry in self.volume.read_dir(&self.path)? {
            bytes += entry?.metadata()?.len();
            entries += 1;
        }
        Ok((entries, bytes))
    }

    fn remove(&self, name: &str) -> Result<()> {
        Ok(self.volume.remove_file(format!("{}/{name}", self.path))?)
    }
}
