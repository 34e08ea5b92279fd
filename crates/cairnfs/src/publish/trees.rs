//! What the planner reads of the three trees beside their changes.
//!
//! [`Trees`] is small so that the planner can be tested with models; [`FrozenTrees`] reads an index.

use crate::diff::{Blocks, FileTree, Name, Paths};
use crate::error::Result;
use crate::format::item::RawInode;

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

/// Most bytes of each of two files that are compared at a time.
const STEP: u64 = 1 << 20;

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
        let (our_tree, their_tree) = (&self.ours, &self.theirs);
        let size = |tree: &FileTree<'_>, ino: u64| -> Result<Option<u64>> {
            Ok(tree.inode(ino)?.map(|i| i.size.get()))
        };
        let (our_size, their_size) = (size(our_tree, ours)?, size(their_tree, theirs)?);
        let (Some(size), true) = (our_size, our_size == their_size) else {
            return Ok(false);
        };
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < size {
            // What neither has written reads as zeros in both.
            let our = our_tree.next_written(ours, at..size)?;
            let their = their_tree.next_written(theirs, at..size)?;
            at = our.start.min(their.start);
            let end = our
                .end
                .max(their.end)
                .min(at.saturating_add(STEP))
                .min(size);
            let len = usize::try_from(end.saturating_sub(at)).unwrap_or_default();
            if len == 0 {
                break;
            }
            a.resize(len, 0);
            b.resize(len, 0);
            our_tree.read(self.blocks, ours, at, &mut a)?;
            their_tree.read(self.blocks, theirs, at, &mut b)?;
            if a != b {
                return Ok(false);
            }
            at = end;
        }
        Ok(true)
    }
}
