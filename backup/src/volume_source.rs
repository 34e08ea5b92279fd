//! A CairnFS volume as the source of a backup.

use std::time::SystemTime;

use cairnfs::{CheckpointId, Volume};

use crate::error::{Error, Result};
use crate::format::BLOCK;
use crate::ship::{Checkpoint, EachRun, Source};

/// An open volume, to be backed up.
pub struct VolumeSource<'a>(pub &'a Volume);

impl Source for VolumeSource<'_> {
    fn volume(&self) -> String {
        cairnfs_disk::types::uuid_text(&self.0.info().uuid)
    }

    fn known(&self) -> Vec<String> {
        let known = self.0.known_checkpoints().into_iter();
        known.map(|id| id.to_string()).collect()
    }

    fn checkpoint(&self, since: Option<&str>) -> Result<Box<dyn Checkpoint + '_>> {
        let since = since.map(str::parse::<CheckpointId>).transpose()?;
        Ok(Box::new(self.0.checkpoint(since)?))
    }
}

impl Checkpoint for cairnfs::Checkpoint {
    fn id(&self) -> String {
        self.id().to_string()
    }

    fn is_whole(&self) -> bool {
        self.is_full()
    }

    fn time(&self) -> SystemTime {
        self.time()
    }

    fn blocks(&self) -> u64 {
        self.image_size() / BLOCK as u64
    }

    fn is_unchanged(&self) -> bool {
        self.is_unchanged()
    }

    fn own_blocks(&self) -> Vec<(u64, u64)> {
        self.own_blocks()
    }

    fn for_each_gained(&self, each: &mut EachRun<'_>) -> Result<()> {
        passing(each, |each| self.for_each_gained(each))
    }

    fn for_each_live(&self, each: &mut EachRun<'_>) -> Result<()> {
        passing(each, |each| self.for_each_live(each))
    }

    fn read(&self, block: u64, buf: &mut [u8]) -> Result<()> {
        Ok(self.read(block, buf)?)
    }

    fn shipped(self: Box<Self>) -> Result<()> {
        Ok((*self).shipped()?)
    }
}

/// Has the engine tell runs to a function with errors of its own, which end it.
fn passing(
    each: &mut EachRun<'_>,
    tell: impl FnOnce(&mut dyn FnMut(u64, u64) -> cairnfs::Result<()>) -> cairnfs::Result<()>,
) -> Result<()> {
    let mut failed: Option<Error> = None;
    let told = tell(&mut |start, count| {
        each(start, count).map_err(|why| {
            failed = Some(why);
            cairnfs::Error::UnexpectedEnd
        })
    });
    match failed {
        Some(why) => Err(why),
        None => Ok(told?),
    }
}
