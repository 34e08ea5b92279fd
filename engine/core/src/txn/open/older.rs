//! The state before the newest one, where the list of all trees is lost, or the top node of main.
//!
//! A merge writes new nodes beside the old ones, and the superblock before the newest stays in its
//! slot. So the old nodes are there until their units were used again, and every pointer has the
//! checksum of its node: what was overwritten is found out. The log is not replayed, because its tail
//! has left the records behind. Only an opening without recovery reads that state. Any other one fails
//! without a list, and says whether there is an older one; without the top of main it reads the other
//! trees.

use std::sync::Arc;

use super::OpenMode;
use super::identity::Identity;
use crate::index::{Found, Tree};
use crate::inode::attrs::Attrs;
use crate::txn::Core;
use crate::txn::roots::tree_of;
use cairnfs_disk::device::Storage;
use cairnfs_disk::error::{Corruption, Error, Result};
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::types::{OlderState, Time};

/// What is damaged if no list of trees can be read.
const LIST: &str = "list of branches";
/// What is damaged if the list before the newest can be read.
const NEWEST_LIST: &str = "newest list of branches";

/// The error for a list of trees that cannot be read.
pub(super) fn no_roots(error: Error) -> Error {
    match error {
        Error::Corrupt(damage) => {
            let Corruption {
                block,
                what,
                expected,
                found,
            } = *damage;
            Error::corrupt(block, LIST, format_args!("{what}: {expected}"), found)
        }
        other => other,
    }
}

impl Core {
    /// Opens the newest state; without recovery, the one before if the list of its trees or the top of
    /// main is lost.
    pub(super) fn open_newest(
        storage: Arc<Storage>,
        identity: Identity,
        mode: OpenMode,
    ) -> Result<Self> {
        match Self::open_found(storage.clone(), identity, mode) {
            Err(Error::Corrupt(damage)) if damage.what == LIST => {
                match Self::open_before(storage, identity, mode) {
                    Some(core) if !mode.recovery => Ok(core.instead_of(*damage)),
                    Some(_) => Err(Error::Corrupt(Box::new(Corruption {
                        what: NEWEST_LIST,
                        ..*damage
                    }))),
                    None => Err(Error::Corrupt(damage)),
                }
            }
            Ok(newest) if !mode.recovery => match newest.damage_of_main() {
                Some(damage) => Ok(Self::open_before(storage, identity, mode)
                    .map_or(newest, |core| core.instead_of(damage))),
                None => Ok(newest),
            },
            opened => opened,
        }
    }

    /// The same, as what is read for a state of which this is damaged.
    fn instead_of(mut self, damage: Corruption) -> Self {
        tracing::warn!("the state before the newest is read: {damage}");
        self.older = Some(OlderState {
            damage,
            generation: self.superblocks.newest().generation.get(),
            changed: self.last_change(),
        });
        self
    }

    /// The damage of the top node of main, without which none of its files is found.
    fn damage_of_main(&self) -> Option<Corruption> {
        let root = self.roots.merged(self.main_root())?;
        let (tree, first) = (tree_of(&root.tree), Key::first_of(0));
        let mut damage = None;
        let scanned = self
            .index
            .scan_readable(&tree, (&first, &first), &mut |found| {
                if let Found::Unread(unread) = found
                    && unread.node.is_some_and(|ptr| ptr.block == tree.ptr.block)
                    && let Error::Corrupt(why) = unread.error
                {
                    damage = Some(*why);
                }
                Ok(false)
            });
        scanned.ok().and(damage)
    }

    /// The state before the newest, if its root directory can be read.
    fn open_before(storage: Arc<Storage>, newest: Identity, mode: OpenMode) -> Option<Self> {
        let before = newest.before()?;
        let reading = OpenMode {
            read_only: true,
            recovery: false,
            damaged_log: false,
            cuts_damaged: false,
            ..mode
        };
        let core = Self::open_found(storage, before, reading).ok()?;
        let main = core.open_root(core.main_root()).ok()?;
        main.inode(ROOT_INO).ok()?;
        Some(core)
    }

    /// The newest change of a file of any branch, as far as that can be read.
    fn last_change(&self) -> Option<Time> {
        let heads = self.roots.merged_heads().into_iter();
        let trees = heads.filter_map(|id| self.roots.merged(id));
        trees
            .filter_map(|root| self.last_change_of(&tree_of(&root.tree)))
            .max()
    }

    fn last_change_of(&self, tree: &Tree) -> Option<Time> {
        let all = (&Key::first_of(0), &Key::last_of(u64::MAX));
        let mut last = None;
        let scanned = self.index.scan_readable(tree, all, &mut |found| {
            if let Found::Item(key, value) = found
                && key.kind == Kind::Inode
                && let Ok(attrs) = Attrs::decode(key.object, value)
            {
                last = last.max(Some(attrs.ctime));
            }
            Ok(true)
        });
        scanned.ok().and(last)
    }
}
