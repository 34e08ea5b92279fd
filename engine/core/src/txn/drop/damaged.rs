//! What a dropped root alone has, if its tree cannot be compared because a node of it, or of its child,
//! is damaged.
//!
//! What the damaged nodes have is not known. But all blocks that the index has are known from the
//! bitmaps, and what all other roots have from their trees: the rest was the dropped root's. That
//! reads all trees under the lock of merges, which is long, and nothing else ends the damage. If
//! another root is damaged too, nothing is freed: the blocks stay in use until a removal of damage,
//! and the check reports them.

use crate::index::Tree;
use crate::space::BlockRun;
use crate::txn::Core;
use crate::txn::blocks::BlockSet;
use crate::txn::roots::{Place, tree_of};
use crate::txn::superblocks::volume_tree;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::NODE_BLOCKS;
use cairnfs_disk::sync::atomic::Ordering;

impl Core {
    /// The blocks of the index that no root has but the one at `place`; none if another root cannot be
    /// read either. The volume is settled, under the lock of merges: no change of roots waits, so the
    /// list is what the index has, with pinned roots and those without a name.
    ///
    /// # Errors
    /// A damaged bitmap; the device's failure.
    pub(super) fn of_no_other(&self, place: &Place) -> Result<BlockSet> {
        let others = self.roots.list().into_iter();
        let others = others.filter(|(id, _)| *id != place.id).map(|(id, root)| {
            let inherited = if root.parent == place.id {
                // Its parent will be the parent of the one that goes.
                place.floor
            } else {
                self.roots.merged_inherited(id)
            };
            (tree_of(&root.tree), inherited)
        });
        let trees: Vec<(Tree, u64)> = others.collect();
        let mut alone = BlockSet::default();
        match self.blocks_of(&trees) {
            Ok(used) => {
                self.space.each_in_image(&mut |run| alone.insert(run))?;
                alone.subtract(&used);
            }
            Err(Error::Corrupt(damage)) => {
                self.drops.kept.store(true, Ordering::Release);
                tracing::warn!(
                    %damage,
                    "other snapshots or branches are damaged too, so that nobody knows which blocks \
                     are free without the dropped one: none is freed"
                );
            }
            Err(error) => return Err(error),
        }
        Ok(alone)
    }

    /// The blocks of the volume's own items and of these trees, each without what is older than a birth.
    fn blocks_of(&self, trees: &[(Tree, u64)]) -> Result<BlockSet> {
        let mut used = BlockSet::default();
        let newest = self.superblocks.newest();
        for unit in newest.copy_units() {
            used.insert(BlockRun::new(unit, NODE_BLOCKS));
        }
        self.note_blocks(&volume_tree(&newest), 0, &mut used)?;
        for (tree, inherited) in trees {
            self.note_blocks(tree, *inherited, &mut used)?;
        }
        Ok(used)
    }
}
