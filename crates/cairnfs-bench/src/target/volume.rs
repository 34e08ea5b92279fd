//! A volume that a target can close and reopen, with counters summed over all openings.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use cairnfs::fs::LEVELS;
use cairnfs::{Volume, VolumeOptions};

use super::Image;
use crate::Result;
use crate::args::Place;

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

    /// Returns the volume; it is valid until the next [`Opened::reopen`].
    pub fn volume(&self) -> Volume {
        self.now().volume.clone()
    }

    /// Returns its description for reports.
    pub fn name(&self) -> &str {
        &self.image.name
    }

    /// Closes the volume and opens it again.
    pub fn reopen(&self) -> Result<()> {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        now.volume.clone().close()?;
        now.before = now.counters();
        now.volume = self.options.open(&self.image.path)?;
        Ok(())
    }

    /// Closes the volume.
    pub fn close(&self) -> Result<()> {
        Ok(self.volume().close()?)
    }

    /// Returns the counters since it was first opened.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.now().counters()
    }

    fn now(&self) -> RwLockReadGuard<'_, Now> {
        self.now.read().unwrap_or_else(PoisonError::into_inner)
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
