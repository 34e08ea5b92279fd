//! What a merge leaves for the time when its last superblock is durable.
//!
//! A caller that needs only the new trees does not wait for that superblock: its changes are durable
//! in the log, and the next flush for any purpose makes the superblock durable as well. Until then
//! the state on the device is that of the previous superblock with its tail of the log. So this
//! keeps all that the previous state needs: the log before the new tail, and the blocks and nodes
//! that the merge freed.

use crate::space::BlockRun;
use crate::txn::Core;
use crate::txn::merge::step_space::Retired;
use crate::txn::runs::{join_runs, subtract_runs};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::NODE_BLOCKS;

/// Whether a merge waits for its last superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::txn) enum Ending {
    /// It does.
    Settled,
    /// It leaves a [`Rest`].
    Left,
}

/// What a merge leaves.
pub(super) struct Rest {
    /// The new tail of the log, until it has moved, and whether the credit of merges closed the
    /// merge's last context.
    pub tail: Option<(u64, bool)>,
    /// The data blocks that the merge freed.
    pub freed: Vec<BlockRun>,
    /// The index nodes that its last step freed.
    pub retired: Retired,
    /// Blocks of the backlog that become usable.
    pub pending: u64,
}

impl Rest {
    /// Adds the freed nodes to the blocks that are known to become usable later.
    pub fn announce(&mut self, core: &Core) {
        let nodes = BlockRun::new(0, self.retired.units() * NODE_BLOCKS);
        core.merger.backlog.add_pending_free(&[nodes]);
        self.pending += nodes.len;
    }

    /// Makes the superblock durable before any later write, and moves the log's tail.
    ///
    /// # Errors
    /// The device's failure.
    pub fn move_tail(&mut self, core: &Core) -> Result<()> {
        core.superblocks.settle()?;
        if let Some((tail, credited)) = self.tail.take() {
            core.journal.merged(tail, credited);
        }
        Ok(())
    }

    /// Ends the merge: moves the log's tail and makes usable what was freed. Returns how many units
    /// are reserved again for merges.
    ///
    /// # Errors
    /// The device's failure, or a damaged bitmap.
    pub fn release(mut self, core: &Core) -> Result<u64> {
        self.move_tail(core)?;
        let mut freed = if core.cuts_damaged {
            // Blocks that a cut node referred to are still in the image: the removal of damage frees
            // them.
            let mut kept = Vec::new();
            core.space.each_in_image(&mut |run| kept.push(run))?;
            subtract_runs(self.freed, &kept)
        } else {
            join_runs(self.freed)
        };
        core.space.release(&mut freed, core.discard)?;
        let again = self.retired.release(core)?;
        core.merger.backlog.freed(self.pending);
        Ok(again)
    }
}
