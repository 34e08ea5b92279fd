//! What the planner reads of the three trees beside their changes.
//!
//! [`Trees`] is small so that the planner can be tested with models; [`FrozenTrees`] reads an index.

use crate::diff::{Blocks, FileTree, Name, Paths, same_contents};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::item::RawInode;

/// One of the three trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The state from which both sides came.
    Base,
    /// The tree that receives.
    Ours,
    /// The tree that is published.
    Theirs,
}

/// Reads of the three trees.
pub trait Trees {
    /// The item of an inode in the base.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    fn base(&mut self, ino: u64) -> Result<Option<RawInode>>;

    /// A name of an inode in the base.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    fn base_name(&mut self, ino: u64) -> Result<Option<Name>>;

    /// The path of a name in one of the trees; its directory is in that tree.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    fn path(&mut self, version: Version, name: &Name) -> Result<Vec<u8>>;

    /// Whether a file of our tree and one of their tree have the same contents. Both are of the
    /// same type.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    fn same_contents(&mut self, ours: u64, theirs: u64) -> Result<bool>;
}

/// Three frozen trees of one volume.
pub struct FrozenTrees<'a> {
    base: FileTree<'a>,
    ours: FileTree<'a>,
    theirs: FileTree<'a>,
    paths: [Paths<'a>; 3],
    blocks: &'a dyn Blocks,
}

impl<'a> FrozenTrees<'a> {
    /// Base, ours and theirs, whose data is read through `blocks`.
    pub fn new([base, ours, theirs]: [FileTree<'a>; 3], blocks: &'a dyn Blocks) -> Self {
        Self {
            base,
            ours,
            theirs,
            paths: [base, ours, theirs].map(Paths::new),
            blocks,
        }
    }
}

impl Trees for FrozenTrees<'_> {
    fn base(&mut self, ino: u64) -> Result<Option<RawInode>> {
        let inode = self.base.inode(ino)?;
        Ok(inode.filter(|i| i.nlink.get() > 0))
    }

    fn base_name(&mut self, ino: u64) -> Result<Option<Name>> {
        let [base, ..] = &mut self.paths;
        Ok(base.names(std::iter::once(ino))?.remove(&ino))
    }

    fn path(&mut self, version: Version, name: &Name) -> Result<Vec<u8>> {
        let [base, ours, theirs] = &mut self.paths;
        match version {
            Version::Base => base.of(name),
            Version::Ours => ours.of(name),
            Version::Theirs => theirs.of(name),
        }
    }

    fn same_contents(&mut self, ours: u64, theirs: u64) -> Result<bool> {
        same_contents(self.blocks, (&self.ours, ours), (&self.theirs, theirs))
    }
}
