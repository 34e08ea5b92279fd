//! Checkpoints: the blocks of a volume at one moment, for a backup.

use std::time::SystemTime;

use super::Volume;
use super::handle::Engine;
use crate::error::Result;
use crate::txn::Capture;
use crate::types::CheckpointId;

/// A volume at one moment, with all its branches and snapshots, as blocks of 4 KiB by their place on
/// the device: from [`Volume::checkpoint`].
///
/// Written to their places in an otherwise empty file or device of [`image_size`](Self::image_size)
/// bytes, the blocks are a volume of their own. The *image* of a checkpoint is what all blocks so
/// written make; that of the checkpoint before with the [gained](Self::for_each_gained) blocks
/// written over it is the same volume.
///
/// While this lives, what the volume had at that moment is not reused, so it can be read slowly, and
/// nothing waits for it. If the volume runs out of space, that ends before any call fails for it:
/// then this returns [`Error::GaveWay`](crate::Error::GaveWay).
pub struct Checkpoint {
    engine: Engine,
    capture: Capture,
}

/// # Backup
impl Volume {
    /// Captures the whole volume at this moment, with every call that has returned. There can be one
    /// checkpoint at a time. With `since`, the [`id`](Checkpoint::id) of the last checkpoint that was
    /// stored, only what has changed since then must be shipped. The volume knows the last two
    /// checkpoints that it made, also when it is opened again after a crash: the one last made, and
    /// the one which that was compared with. Any other one, or one of another volume, makes the
    /// checkpoint [full](Checkpoint::is_full).
    ///
    /// It takes as long as merging what was changed since the last merge, and no other call waits for
    /// it longer than for any merge.
    ///
    /// ```
    /// use cairnfs::Volume;
    /// use cairnfs_disk::device::{Device, MemoryDevice};
    ///
    /// # fn main() -> cairnfs::Result<()> {
    /// let volume = Volume::in_memory(64 << 20)?;
    /// volume.write("notes", "water the plants")?;
    /// let checkpoint = volume.checkpoint(None)?;
    /// let copy = MemoryDevice::new(checkpoint.image_size());
    /// checkpoint.for_each_gained(|first, count| {
    ///     let mut blocks = vec![0; count as usize * 4096];
    ///     checkpoint.read(first, &mut blocks)?;
    ///     copy.write(first * 4096, &blocks)
    /// })?;
    /// checkpoint.shipped()?;
    /// let copy = Volume::options().open_device(std::sync::Arc::new(copy))?;
    /// assert_eq!(copy.read("notes")?, b"water the plants");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Busy`](crate::Error::Busy) while another checkpoint lives;
    /// [`Error::ReadOnly`](crate::Error::ReadOnly); [`Error::NoSpace`](crate::Error::NoSpace)
    /// without space for a merge; the device's failure.
    pub fn checkpoint(&self, since: Option<CheckpointId>) -> Result<Checkpoint> {
        let engine = self.engine().clone();
        let capture = engine.capture(since)?;
        Ok(Checkpoint { engine, capture })
    }

    /// The checkpoints that a new one can be compared with.
    pub fn known_checkpoints(&self) -> Vec<CheckpointId> {
        self.engine().known_checkpoints()
    }
}

impl Checkpoint {
    /// Its name, by which a later checkpoint can be compared with it.
    pub fn id(&self) -> CheckpointId {
        self.capture.id
    }

    /// Whether it is compared with nothing, so that all of it must be shipped.
    pub fn is_full(&self) -> bool {
        self.capture.since.is_none()
    }

    /// When it was made.
    pub fn time(&self) -> SystemTime {
        self.capture.time.into()
    }

    /// Size of the volume in bytes.
    pub fn image_size(&self) -> u64 {
        self.engine.info().size
    }

    /// Whether nothing has changed since the checkpoint with which it is compared. Then it has that
    /// one's id, and nothing need be shipped.
    pub fn is_unchanged(&self) -> bool {
        self.capture.is_unchanged
    }

    /// The runs of blocks of its image, as first block and number, that each checkpoint makes for itself:
    /// superblocks, the map of free space, and the copies of the superblocks, in ascending order. Two
    /// checkpoints may differ there although nothing has changed; elsewhere they do not.
    pub fn own_blocks(&self) -> Vec<(u64, u64)> {
        self.engine.own_blocks(&self.capture)
    }

    /// Passes the runs of blocks, as first block and number, that differ from the image with which it
    /// is compared, in ascending order. It reads the parts of the index that have changed, and takes
    /// memory for a bit for each block in each 128 MiB in which anything has.
    ///
    /// # Errors
    /// [`Error::GaveWay`](crate::Error::GaveWay); a damaged volume, the device's failure; those of
    /// `each`.
    pub fn for_each_gained(&self, each: impl FnMut(u64, u64) -> Result<()>) -> Result<()> {
        self.engine.gained(&self.capture, each)
    }

    /// Passes the runs of all blocks that its image has, in ascending order. Of these, blocks that
    /// were allocated and never written may not be among the gained ones of any checkpoint: they may
    /// contain anything.
    ///
    /// # Errors
    /// As [`Self::for_each_gained`].
    pub fn for_each_live(&self, each: impl FnMut(u64, u64) -> Result<()>) -> Result<()> {
        self.engine.live(&self.capture, each)
    }

    /// Reads whole blocks of its image, from `block` on. What the image does not have may read as
    /// anything. Nothing is verified here beyond what [`Self::for_each_gained`] has read.
    ///
    /// # Errors
    /// [`Error::GaveWay`](crate::Error::GaveWay); [`Error::Invalid`](crate::Error::Invalid) for what
    /// is not whole blocks within the volume; the device's failure.
    pub fn read(&self, block: u64, buf: &mut [u8]) -> Result<()> {
        self.engine.read_captured(&self.capture, block, buf)
    }

    /// Ends it, after all of it was stored. The next one that is compared with it leaves out what is
    /// unchanged of the map of free space, too.
    ///
    /// # Errors
    /// A damaged volume.
    pub fn shipped(self) -> Result<()> {
        self.engine.shipped(&self.capture)
    }
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        // A failure stops the volume.
        let _stopped = self.engine.end_capture(&self.capture);
    }
}
