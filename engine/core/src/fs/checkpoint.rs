//! Checkpoints of the whole volume, as blocks, for a backup that is made while it is used.
//!
//! As a fork, a checkpoint has every call on any tree that had returned: unwritten data is written
//! back before, outside of all locks.

use crate::fs::FileSystem;
use crate::txn::Capture;
use cairnfs_disk::error::Result;
use cairnfs_disk::format::NODE_BLOCKS;
use cairnfs_disk::types::CheckpointId;

impl FileSystem {
    /// Captures the volume at this moment, with every call that has returned. Nothing that it has
    /// then is reused before [`Self::end_capture`], unless it has to give way.
    ///
    /// # Errors
    /// [`Error::Busy`](cairnfs_disk::Error::Busy) while there is another capture; a read-only volume; no
    /// space; the device's failure.
    #[doc(hidden)]
    pub fn capture(&self, since: Option<CheckpointId>) -> Result<Capture> {
        self.engine.lifecycle.check_open()?;
        self.core().check_changeable()?;
        self.write_back_roots()?;
        self.with_room(|| self.core().capture(since))
    }

    /// The checkpoints that a new one can be compared with.
    #[doc(hidden)]
    pub fn known_checkpoints(&self) -> Vec<CheckpointId> {
        self.core().known_checkpoints()
    }

    /// The blocks before the data area, and those of the copies of the superblocks, in ascending order.
    #[doc(hidden)]
    pub fn own_blocks(&self, capture: &Capture) -> Vec<(u64, u64)> {
        let mut units: Vec<u64> = capture.copy_units().collect();
        units.sort_unstable();
        let fixed = [(0, self.core().geometry().data_start())];
        let copies = units.into_iter().map(|unit| (unit, NODE_BLOCKS));
        fixed.into_iter().chain(copies).collect()
    }

    /// As [`Core::gained`](crate::txn::Core::gained).
    #[doc(hidden)]
    pub fn gained(
        &self,
        capture: &Capture,
        each: impl FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        self.engine.lifecycle.check_open()?;
        self.core().gained(capture, each)
    }

    /// As [`Core::live`](crate::txn::Core::live).
    #[doc(hidden)]
    pub fn live(&self, capture: &Capture, each: impl FnMut(u64, u64) -> Result<()>) -> Result<()> {
        self.engine.lifecycle.check_open()?;
        self.core().live(capture, each)
    }

    /// As [`Core::read_captured`](crate::txn::Core::read_captured).
    #[doc(hidden)]
    pub fn read_captured(&self, capture: &Capture, block: u64, buf: &mut [u8]) -> Result<()> {
        self.engine.lifecycle.check_open()?;
        self.core().read_captured(capture, block, buf)
    }

    /// As [`Core::shipped`](crate::txn::Core::shipped).
    #[doc(hidden)]
    pub fn shipped(&self, capture: &Capture) -> Result<()> {
        self.core().shipped(capture)
    }

    /// As [`Core::end_capture`](crate::txn::Core::end_capture).
    #[doc(hidden)]
    pub fn end_capture(&self, capture: &Capture) -> Result<()> {
        self.core().end_capture(capture)
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fs::{MakeOptions, Options, make_device};
    use cairnfs_disk::device::{Device, MemoryDevice};
    use cairnfs_disk::format::{BLOCK_SIZE, ROOT_INO};
    use cairnfs_disk::types::Creds;

    const SIZE: u64 = 64 << 20;

    /// Writes what a capture has gained to a copy.
    fn ship(fs: &FileSystem, capture: &Capture, copy: &MemoryDevice) -> Result<()> {
        fs.gained(capture, |first, count| {
            let mut blocks = vec![0; count as usize * BLOCK_SIZE];
            fs.read_captured(capture, first, &mut blocks)?;
            copy.write(first * BLOCK_SIZE as u64, &blocks)
        })
    }

    /// Packing gives its nodes the birth of the newest merge, which may be the one that was captured.
    #[test]
    fn nodes_packed_after_a_capture_are_shipped() -> Result<()> {
        let device = MemoryDevice::new(SIZE);
        make_device(&device, &MakeOptions::default(), &mut |_, _| {})?;
        let options = Options {
            workers: false,
            durability_interval: None,
            ..Options::default()
        };
        let fs = FileSystem::open_device(Arc::new(device), &options)?;
        let name = |n: u32| format!("file{n}").into_bytes();
        for n in 0..4000 {
            let attr = fs.mknod(ROOT_INO, &name(n), 0o100_644, 0, Creds { uid: 0, gid: 0 })?;
            fs.forget(attr.ino, 1);
        }
        fs.merge()?;
        for n in (0..4000).filter(|n| n % 3 > 0) {
            fs.unlink(ROOT_INO, &name(n))?;
        }
        let copy = MemoryDevice::new(SIZE);
        let first = fs.capture(None)?;
        ship(&fs, &first, &copy)?;
        fs.shipped(&first)?;
        assert!(fs.core().compact()?, "leaves were sparse");
        let second = fs.capture(Some(first.id))?;
        assert!(!second.is_unchanged);
        ship(&fs, &second, &copy)?;
        fs.shipped(&second)?;
        let copy = FileSystem::open_device(Arc::new(copy), &options)?;
        for n in 0..4000 {
            let found = copy.lookup(ROOT_INO, &name(n));
            assert_eq!(found.is_ok(), n % 3 == 0, "file{n}");
        }
        Ok(())
    }
}
