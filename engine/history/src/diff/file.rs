//! How one file differs between two trees, without a walk of the trees.
//!
//! Uses the trees. Contents are compared as bytes: they differ as a whole or not at all.

use crate::diff::delta::{InodeDelta, Item};
use crate::diff::replaced::differing_xattrs;
use crate::diff::same::same_contents;
use crate::diff::tree::{Blocks, FileTree};
use cairnfs_disk::error::Result;

impl InodeDelta {
    /// The differences of a file that both trees have, without its names; `None` if one of the trees
    /// does not have it.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn of_file(
        ino: u64,
        (old, new): (&FileTree<'_>, &FileTree<'_>),
        blocks: &dyn Blocks,
    ) -> Result<Option<Self>> {
        let inode = |tree: &FileTree<'_>| -> Result<_> {
            Ok(tree.inode(ino)?.filter(|inode| inode.nlink.get() > 0))
        };
        let (Some(before), Some(after)) = (inode(old)?, inode(new)?) else {
            return Ok(None);
        };
        let item = Item {
            old: Some(before),
            new: Some(after),
        };
        let mut delta = Self {
            item: (before != after).then_some(item),
            xattrs: differing_xattrs((old, ino), (new, ino))?,
            ..Self::default()
        };
        if !same_contents(blocks, (old, ino), (new, ino))? {
            let end = before.size.get().max(after.size.get());
            delta.contents.push(0..end);
        }
        Ok(Some(delta))
    }
}
