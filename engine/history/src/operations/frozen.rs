//! Trees of roots that stay as they are while they are read.
//!
//! Uses the core. A frozen root is read as it is: it may lose its name meanwhile, and its blocks stay. Of a
//! branch that may be changed, a snapshot without a name is made, which is dropped when it is not read
//! any more.

use std::sync::Arc;

use crate::diff::FileTree;
use cairnfs_core::fs::{FileSystem, ReaderEnds};
use cairnfs_core::index::Tree;
use cairnfs_core::txn::{ForkKind, RootPin};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::types::RootInfo;

/// A tree that does not change.
#[derive(Clone)]
pub(super) struct Frozen {
    /// The root that was frozen or is frozen.
    pub root: RootInfo,
    tree: Tree,
    pin: Arc<RootPin>,
    /// After the pin.
    _ends: ReaderEnds,
}

impl Frozen {
    /// The tree of `root` as it is now, with every call that has returned; that of a branch that was
    /// replaced is what it was then. A root that was dropped while others were forked from it has its
    /// tree still.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] for a branch of a volume that is open read-only and whose log has
    /// changes; no such root; no space for a snapshot; the device's failure.
    pub fn of(fs: &FileSystem, root: RootInfo) -> Result<Self> {
        let core = fs.core();
        let pin = match (root.writable, core.read_only()) {
            (true, true) if core.replayed() > 0 => return Err(Error::ReadOnly),
            (true, false) => match fs.fork_unnamed(root.id, ForkKind::Frozen) {
                // It was replaced meanwhile, and is frozen as it was then.
                Err(Error::Stale) => core.pin_ancestor(root.id)?,
                made => made?,
            },
            _ => core.pin_ancestor(root.id)?,
        };
        let tree = core.frozen_tree(&pin)?;
        Ok(Self {
            root,
            tree,
            pin: Arc::new(pin),
            _ends: fs.reader_ends(),
        })
    }

    /// The state in which two roots have parted; `None` if they have none in common.
    ///
    /// # Errors
    /// [`Error::NotFound`] if one of them is gone: what it was forked from is not known then; as
    /// [`Self::of`].
    pub fn parted(fs: &FileSystem, a: u32, b: u32) -> Result<Option<Self>> {
        let known = fs.core().roots();
        loop {
            let parted = known.parted(a, b);
            let roots = fs.roots();
            let find = |id: u32| roots.iter().find(|root| root.id == id);
            if find(a).is_none() || find(b).is_none() {
                return Err(Error::NotFound);
            }
            let Some(id) = parted else {
                return Ok(None);
            };
            let state = match find(id) {
                Some(found) => Self::of(fs, found.clone()),
                None => Err(Error::NotFound),
            };
            match state {
                // It was dissolved meanwhile, and an older one stands for it.
                Err(Error::NotFound) if known.parted(a, b) != Some(id) => {}
                state => return state.map(Some),
            }
        }
    }

    /// Id of the frozen root.
    pub fn id(&self) -> u32 {
        self.pin.id()
    }

    /// Whether both have the same tree, because neither has changed since they had one.
    pub fn is_same(&self, other: &Self) -> bool {
        self.tree == other.tree
    }

    /// Its files.
    pub fn files<'f>(&self, fs: &'f FileSystem) -> FileTree<'f> {
        files(fs, self.tree)
    }
}

/// The tree without anything, not even a root directory.
pub(super) fn empty(fs: &FileSystem) -> FileTree<'_> {
    files(fs, Tree::default())
}

fn files(fs: &FileSystem, tree: Tree) -> FileTree<'_> {
    let core = fs.core();
    FileTree::new(core.index(), tree, core.geometry())
}
