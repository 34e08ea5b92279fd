//! What the checks of an object use besides its items, and what they leave for later checks.
//!
//! Data needed for comparisons across objects (entries and inodes) is collected in [`Found`], in
//! about 32 bytes per inode and per entry.

use std::collections::{BTreeMap, BTreeSet};

use cairnfs_disk::format::geometry::Geometry;

use crate::births::Births;
use crate::blocks::BlockSet;
use crate::checked_volume::Volume;
use crate::codes;
use crate::given_up::{GivenUp, Mapped};
use crate::holes::Holes;
use crate::log::Replay;
use crate::parent::Parent;
use crate::report::{Finding, Ledger};
use crate::visit::Inherited;

/// The fields of an inode that checks across objects use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InodeRecord {
    pub(crate) ino: u64,
    /// Type bits of the mode.
    pub(crate) kind: u32,
    pub(crate) nlink: u32,
    pub(crate) parent: u64,
    /// For a directory: number of entries that are directories.
    pub(crate) subdirs: u32,
    /// Whether it is a directory with entries.
    pub(crate) occupied: bool,
    /// For a directory: whether all its entries are known.
    pub(crate) whole: bool,
}

/// A directory entry; the order is by child inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Link {
    pub(crate) child: u64,
    pub(crate) dir: u64,
    pub(crate) index: u64,
    /// Type bits in the entry.
    pub(crate) kind: u32,
}

/// Blocks in use.
pub(crate) struct Claims {
    /// Nodes and units of large values.
    pub(crate) index: BlockSet,
    /// Extents in the index. With `index` they are what the bitmaps must describe.
    pub(crate) indexed: BlockSet,
    /// Extents in the logical state.
    pub(crate) live: BlockSet,
    /// Written extents among them.
    pub(crate) written: BlockSet,
    /// What the roots give up.
    pub(crate) waiting: BlockSet,
    /// Births of what frozen roots have; each belongs to the first of them.
    pub(crate) births: Births,
    /// Whether some blocks in use may be unknown.
    pub(crate) incomplete: bool,
}

impl Claims {
    /// No blocks yet.
    pub(crate) fn new(volume: &Volume<'_>, replay: &Replay) -> Self {
        let none = || BlockSet::new(&volume.geometry);
        Self {
            index: none(),
            indexed: none(),
            live: none(),
            written: none(),
            waiting: none(),
            births: Births::default(),
            incomplete: replay.incomplete,
        }
    }

    /// Adds the blocks of another root's extents.
    pub(crate) fn add(&mut self, other: Self) {
        self.indexed.add(&other.indexed);
        self.live.add(&other.live);
        self.written.add(&other.written);
        self.waiting.add(&other.waiting);
        self.births.add(other.births);
        self.incomplete |= other.incomplete;
    }
}

/// Results of the walk that later checks compare across objects.
pub(crate) struct Found {
    pub(crate) claims: Claims,
    pub(crate) holes: Holes,
    /// Whether entries may exist that are not in `links`.
    pub(crate) links_incomplete: bool,
    /// In ascending order of inode number.
    pub(crate) inodes: Vec<InodeRecord>,
    pub(crate) links: Vec<Link>,
    pub(crate) orphans: BTreeMap<u64, u8>,
    /// Inodes that were reported as missing their inode item.
    pub(crate) missing: BTreeSet<u64>,
}

/// What the checks of an object use besides its items.
pub(crate) struct Context<'a> {
    pub(crate) geometry: &'a Geometry,
    /// What the root inherits from its parent.
    pub(crate) inherited: Inherited,
    /// The parent's tree.
    pub(crate) parent: Option<Parent<'a, 'a>>,
    /// Whether the root cannot change, so that other roots may inherit from it.
    pub(crate) frozen: bool,
    /// Blocks of the roots checked before.
    pub(crate) held: &'a Claims,
    pub(crate) given_up: GivenUp<'a>,
    pub(crate) hash_seed: u64,
    /// Sequence of the newest context.
    pub(crate) seq: u64,
    /// Greatest birth that the index can have.
    pub(crate) youngest: u64,
    pub(crate) found: Found,
}

impl Context<'_> {
    /// What is wrong with an extent, considering the roots checked before. An extent of a leaf that is
    /// shared is in the parent with the leaf.
    pub(crate) fn wrongly_held(
        &mut self,
        extent: &Mapped,
        shared_leaf: bool,
    ) -> Option<(&'static str, String)> {
        let shared = |why: &str| {
            let Mapped { at, len, .. } = extent;
            let message = format!("file block {at}: {len} blocks {why}");
            Some((codes::BLOCK_SHARED, message))
        };
        let blocks = || extent.block..extent.block.saturating_add(extent.len);
        if !self.inherited.has(extent.birth) {
            return if blocks().any(|block| self.held.live.has(block)) {
                shared("used by another root, which they were not inherited from")
            } else {
                None
            };
        }
        let birth = extent.birth;
        match self.held.births.unlike(blocks(), birth) {
            Some(None) => shared("inherited from a root that does not have all of them"),
            Some(Some(other)) => {
                let at = extent.at;
                let message =
                    format!("file block {at}: born in context {birth}, in another root in {other}");
                Some((codes::EXTENT_BIRTH, message))
            }
            None if blocks().any(|block| self.held.written.has(block) != extent.written) => {
                shared("inherited, and written in one of the roots only")
            }
            None if !shared_leaf && self.parent.as_mut().is_some_and(|p| !p.has_extent(extent)) => {
                shared("inherited from a parent that has others in that place")
            }
            None => None,
        }
    }

    /// Remembers the births of what the root's children inherit from it alone.
    pub(crate) fn bequeath(&mut self, extent: &Mapped) {
        if self.frozen && !self.inherited.has(extent.birth) {
            let blocks = extent.block..extent.block.saturating_add(extent.len);
            self.found.claims.births.insert(blocks, extent.birth);
        }
    }

    /// An extent of the index that the log changes.
    pub(crate) fn replaced(&mut self, extent: &Mapped, ledger: &mut Ledger<'_>) {
        if self.inherited.has(extent.birth) {
            self.check_replaced(extent, ledger)
        } else {
            self.given_up.replaced(extent)
        }
    }

    /// Checks an extent that the log replaced. What another root has of it by mistake is found with
    /// the blocks that are given up. What it inherits must be in the parent all the same: a snapshot
    /// in the log may get the extent.
    pub(crate) fn check_replaced(&mut self, extent: &Mapped, ledger: &mut Ledger<'_>) {
        if let Some((code, why)) = self.wrongly_held(extent, false) {
            let message = format!("before the log changed it, {why}");
            ledger.add(Finding::new(code, message).of(extent.ino).at(extent.block));
        }
    }
}
