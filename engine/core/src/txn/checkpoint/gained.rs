//! The blocks that a captured state has gained since an earlier one, determined by births.
//!
//! Everything that the index has now and that was born up to the sequence of the earlier checkpoint
//! was in the index then, at the same place and with the same bytes: a node is never changed, a
//! block is born again when it is written, and what left the index does not come back. So subtrees
//! that are not younger are left out. What was lost since then is of no interest here, which alone
//! would need a comparison of trees.
//!
//! What a root inherits is found in the tree of its parent. So each node is read once, however many
//! roots have it.

use std::cell::RefCell;

use crate::index::{Limits, OldOnly, Tree};
use crate::space::BlockRun;
use crate::txn::Core;
use crate::txn::blocks::BlockSet;
use crate::txn::checkpoint::Capture;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::NODE_BLOCKS;
use cairnfs_disk::format::item::{EXTENT_UNWRITTEN, decode_extent_at};
use cairnfs_disk::format::key::{Key, Kind};

impl Core {
    /// Passes the runs of blocks that the image of a capture has and that of the checkpoint before
    /// has not, or has with other contents, to `each`, in ascending order: the first block, and how
    /// many. Unwritten blocks, which read as zeros whatever they contain, are not among them.
    ///
    /// # Errors
    /// [`Error::GaveWay`]; damage in the index, the device's failure; those of `each`.
    pub fn gained(
        &self,
        capture: &Capture,
        mut each: impl FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        if capture.is_unchanged {
            return Ok(());
        }
        let found = RefCell::new(BlockSet::default());
        for (tree, inherited) in &capture.trees {
            let since = capture.since.map_or(0, |since| since.seq);
            let walked = self.gained_by(tree, since.max(*inherited), &found);
            self.unless_gave_way(capture, walked)?;
        }
        let groups = 0..self.geometry.groups();
        let bitmaps = groups.filter(|group| capture.pinned.is_changed(*group));
        self.each_fixed(bitmaps, &mut each)?;
        let mut found = found.into_inner();
        let [superblock, _] = &capture.superblocks;
        for unit in superblock.copy_units() {
            found.insert(BlockRun::new(unit, NODE_BLOCKS));
        }
        let mut runs = found.groups().flatten();
        runs.try_for_each(|run| each(run.start, run.len))
    }

    /// Adds the blocks of a tree that were born after `since`.
    fn gained_by(&self, tree: &Tree, since: u64, found: &RefCell<BlockSet>) -> Result<()> {
        let limits = Limits {
            from: None,
            older: since,
            only: Some(Kind::Extent),
        };
        let empty = Tree::default();
        let mut walk = self.index.differences_within(tree, &empty, limits)?;
        walk.report_old_only(|only| {
            let units = match only {
                OldOnly::Node(ptr) => vec![ptr.block.get()],
                OldOnly::Value(address) if address.birth.get() > since => {
                    self.index.units_of(&address)?
                }
                OldOnly::Value(_) => Vec::new(),
            };
            let mut found = found.borrow_mut();
            let units = units.into_iter();
            units.for_each(|unit| found.insert(BlockRun::new(unit, NODE_BLOCKS)));
            Ok(())
        });
        while let Some(difference) = walk.next_difference()? {
            if let Some(value) = &difference.old
                && let Some(run) = self.written_since(difference.key, value, since)?
            {
                found.borrow_mut().insert(run);
            }
        }
        Ok(())
    }

    /// The blocks of an extent, if they were written after `since`.
    fn written_since(&self, key: Key, value: &[u8], since: u64) -> Result<Option<BlockRun>> {
        let (raw, _) = decode_extent_at(key.offset, value, &self.geometry).map_err(|found| {
            Error::corrupt(0, "extent item", format!("inode {}", key.object), found)
        })?;
        let written = raw.flags.get() & EXTENT_UNWRITTEN == 0;
        let run = BlockRun::new(raw.block.get(), raw.len.get().into());
        Ok((written && raw.birth.get() > since).then_some(run))
    }
}
