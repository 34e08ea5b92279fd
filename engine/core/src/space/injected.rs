//! Wrong steps of the free space that exist only for injected faults.
//!
//! Each returns whether the fault was injected; without the feature `fault-injection` that is a
//! constant `false`.

use crate::space::{BlockRun, Space};
use cairnfs_disk::fault::{InjectedFault, is_injected};
use cairnfs_disk::format::NODE_BLOCKS;

impl Space {
    /// Makes freed data blocks allocatable before a merge has freed them in the index.
    #[inline]
    pub(crate) fn wrongly_reuses_blocks(&self, run: BlockRun) -> bool {
        is_injected(InjectedFault::FreedBlocksReused) && self.release(&mut vec![run], false).is_ok()
    }

    /// Makes a retired index node allocatable before the superblock without it is durable.
    #[inline]
    pub(crate) fn wrongly_reuses_node(&self, block: u64) -> bool {
        let run = BlockRun::new(block, NODE_BLOCKS);
        is_injected(InjectedFault::FreedUnitsReused)
            && self.image_remove(run).is_ok()
            && self.release(&mut vec![run], false).is_ok()
    }
}
