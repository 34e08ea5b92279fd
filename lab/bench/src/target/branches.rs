//! The files of a volume as a tree that is forked: a fork is a branch.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cairnfs::{PublishOptions, Volume};

use super::{Dir, Tree, library};
use crate::Result;

/// The branch of an open volume that forks begin with.
pub struct VolumeTree {
    volume: Volume,
    /// The directory of the files, the same in each fork.
    path: String,
    /// Snapshots of the states before publications.
    kept: Mutex<Vec<String>>,
}

impl VolumeTree {
    /// Makes the directory of the files.
    pub fn make(volume: Volume, parent: &str) -> Result<Self> {
        let path = format!("{parent}/tree");
        volume.create_dir(Path::new(&path))?;
        Ok(Self {
            volume,
            path,
            kept: Mutex::default(),
        })
    }

    fn kept(&self) -> MutexGuard<'_, Vec<String>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self) -> Result<()> {
        while self.volume.file_system().drop_step()? {}
        Ok(())
    }

    fn name(number: u64) -> String {
        format!("fork-{number}")
    }
}

impl Tree for VolumeTree {
    fn is_constant(&self) -> bool {
        true
    }

    fn dir<'a>(&'a self, fork: Option<u64>) -> Result<Box<dyn Dir + 'a>> {
        let volume = match fork {
            None => self.volume.clone(),
            Some(number) => self.volume.open_branch(&Self::name(number))?,
        };
        Ok(Box::new(library::dir(volume, &self.path)))
    }

    fn fork(&self, number: u64) -> Result<()> {
        self.volume.branch(&Self::name(number))?;
        Ok(())
    }

    fn compares(&self) -> bool {
        true
    }

    fn compare(&self, number: u64) -> Result<u64> {
        let diff = self.volume.diff("main", &Self::name(number))?;
        Ok(diff.report().files.len() as u64)
    }

    fn fork_again(&self, origin: u64, number: u64) -> Result<()> {
        let origin = self.volume.open_branch(&Self::name(origin))?;
        origin.branch(&Self::name(number))?;
        Ok(())
    }

    fn publish(&self, number: u64, origin: u64) -> Result<()> {
        let options = PublishOptions {
            onto: Some(Self::name(origin)),
            ..PublishOptions::default()
        };
        let published = self.volume.publish(&Self::name(number), &options)?;
        match published.kept.filter(|_| !published.merged) {
            Some(kept) => self.kept().push(kept),
            None => return Err("the origin of a fork had changed".into()),
        }
        Ok(())
    }

    fn remove(&self, number: u64) -> Result<()> {
        self.volume.drop_root(&Self::name(number))?;
        self.free()
    }

    fn freed(&self) -> Result<()> {
        let kept = std::mem::take(&mut *self.kept());
        kept.iter()
            .try_for_each(|name| self.volume.drop_root(name))?;
        self.free()
    }
}
