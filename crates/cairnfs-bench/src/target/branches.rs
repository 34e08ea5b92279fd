//! The files of a volume as a tree that is forked: a fork is a branch.

use std::path::Path;

use cairnfs::Volume;

use super::volume::dir;
use super::{Dir, Tree};
use crate::Result;

/// The branch of an open volume that forks begin with.
pub struct VolumeTree {
    volume: Volume,
    by_inode: bool,
    /// The directory of the files, the same in each fork.
    path: String,
}

impl VolumeTree {
    /// Makes the directory of the files.
    pub fn make(volume: Volume, by_inode: bool, parent: &str) -> Result<Self> {
        let path = format!("{parent}/tree");
        volume.create_dir(Path::new(&path))?;
        Ok(Self {
            volume,
            by_inode,
            path,
        })
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
        dir(volume, self.by_inode, &self.path)
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

    fn remove(&self, number: u64) -> Result<()> {
        self.volume.drop_root(&Self::name(number))?;
        while self.volume.file_system().drop_step()? {}
        Ok(())
    }
}
