//! A volume as a target. It can be closed and opened again; its counters
//! are summed over all openings.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use cairnfs::fs::LEVELS;
use cairnfs::{Volume, VolumeOptions};

use super::branches::VolumeTree;
use super::{Dir, Image, Target, Tree, library};
use crate::Result;
use crate::settings::Place;

/// The open volume, and the sums of counters of earlier openings.
pub struct Opened {
    now: RwLock<Now>,
    image: Image,
    options: VolumeOptions,
}

struct Now {
    volume: Volume,
    before: Vec<(&'static str, u64)>,
}

impl Opened {
    /// Opens the volume in `image`, or creates it with the settings of `place`.
    pub fn new(image: Image, place: &Place) -> Result<Self> {
        let mut options = Volume::options().create(true).size(place.volume_size);
        if let Some(bytes) = place.cache {
            options = options.cache_budget(usize::try_from(bytes)?);
        }
        if let Some(mechanism) = place.without {
            options = options.ablate(mechanism);
        }
        let options = options.label("bench");
        let volume = options.open(&image.path)?;
        let before = Vec::new();
        Ok(Self {
            now: RwLock::new(Now { volume, before }),
            image,
            options,
        })
    }

    /// Returns the volume; it is valid until the next reopening.
    fn volume(&self) -> Volume {
        self.now().volume.clone()
    }

    fn now(&self) -> RwLockReadGuard<'_, Now> {
        self.now.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Target for Opened {
    fn name(&self) -> &str {
        &self.image.name
    }

    fn interface(&self) -> &'static str {
        "in-process, library by path"
    }

    fn make_dir(&self, path: &str) -> Result<()> {
        Ok(self.volume().create_dir(path)?)
    }

    fn remove_tree(&self, path: &str) -> Result<()> {
        Ok(self.volume().remove_dir_all(path)?)
    }

    fn dir<'a>(&'a self, path: &str) -> Result<Box<dyn Dir + 'a>> {
        Ok(Box::new(library::dir(self.volume(), path)))
    }

    fn tree<'a>(&'a self, path: &str, git: bool) -> Result<Box<dyn Tree + 'a>> {
        if git {
            Err("git forks directories only: --target DIRECTORY".into())
        } else {
            Ok(Box::new(VolumeTree::make(self.volume(), path)?))
        }
    }

    fn sync(&self) -> Result<()> {
        Ok(self.volume().sync()?)
    }

    fn can_reopen(&self) -> bool {
        true
    }

    fn reopen(&self) -> Result<()> {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        now.volume.clone().close()?;
        now.before = now.counters();
        now.volume = self.options.open(&self.image.path)?;
        Ok(())
    }

    fn close(&self) -> Result<()> {
        Ok(self.volume().close()?)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.now().counters()
    }
}

impl Now {
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.volume.file_system().counters();
        for (name, value) in &mut counters {
            if LEVELS.contains(name) {
                continue;
            }
            let before = self.before.iter().find(|(n, _)| n == name);
            *value += before.map_or(0, |(_, value)| *value);
        }
        counters
    }
}
