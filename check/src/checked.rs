//! A root that is checked, and the walk of its tree.

use cairnfs_disk::error::Result;
use cairnfs_disk::format::root::{RawRoot, Root};

use crate::checked_volume::Volume;
use crate::log::Replay;
use crate::overlay::{Merge, Sink};
use crate::report::Ledger;
use crate::tree::Walker;
use crate::visit::{Inherited, Visitor};

/// A root to check.
pub(crate) struct Checked<'a> {
    pub(crate) root: &'a Root,
    pub(crate) inherited: Inherited,
    /// The tree of its parent.
    pub(crate) parent: Option<RawRoot>,
}

impl Checked<'_> {
    /// Walks the root's tree, and passes its items with the changes of the log to `visitor`.
    pub(crate) fn walk(
        &self,
        walker: &mut Walker<'_, '_>,
        visitor: &mut dyn Visitor,
        ledger: &mut Ledger<'_>,
    ) -> Result<()> {
        let tree = &self.root.tree;
        walker.walk(&tree.ptr, tree.height.get(), visitor, ledger)
    }

    /// Passes the items to `sink` once more. What is wrong with the tree was reported before.
    pub(crate) fn walk_again(
        &self,
        volume: &Volume<'_>,
        replay: &Replay,
        sink: &mut impl Sink,
    ) -> Result<()> {
        let mut ignore = |_| {};
        let mut ignored = Ledger::new(&mut ignore);
        let seed = volume.superblock.hash_seed.get();
        let mut merge = Merge::new(&replay.overlay, seed, sink);
        let mut walker = Walker::new(volume, replay.youngest);
        self.walk(&mut walker, &mut merge, &mut ignored)?;
        merge.finish(&mut ignored)
    }
}
