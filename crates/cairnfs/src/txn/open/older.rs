//! The state before the newest one, where the list of all trees is lost.
//!
//! A merge writes new nodes beside the old ones, and the superblock before the newest stays in its
//! slot. So the old list is there until its units were used again, and every pointer has the checksum
//! of its node: what was overwritten is found out. Its log is not replayed, because the tail has left
//! the records behind. Only an opening without recovery reads it; any other one looks whether it could
//! be read, and says so.

use std::sync::Arc;

use super::OpenMode;
use super::identity::Identity;
use crate::device::Storage;
use crate::error::{Corruption, Error, Result};
use crate::format::ROOT_INO;
use crate::format::key::{Key, Kind};
use crate::index::{Found, Tree};
use crate::inode::attrs::Attrs;
use crate::txn::Core;
use crate::txn::roots::tree_of;
use crate::types::{OlderState, Time};

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
    /// Opens the newest state; without recovery, the one before if the list of its trees is lost.
    pub(super) fn open_newest(
        storage: Arc<Storage>,
        identity: Identity,
        mode: OpenMode,
    ) -> Result<Self> {
        match Self::open_found(storage.clone(), identity, mode) {
            Err(Error::Corrupt(damage)) if damage.what == LIST => {
                let older = identity.before();
                let older = older.and_then(|before| Self::open_before(storage, before, mode));
                match older {
                    Some(mut core) if !mode.recovery => {
                        let older = OlderState {
                            damage: *damage,
                            generation: core.superblocks.newest().generation.get(),
                            changed: core.last_change(),
                        };
                        tracing::warn!("the state before the newest is read: {}", older.damage);
                        core.older = Some(older);
                        Ok(core)
                    }
                    Some(_) => Err(Error::Corrupt(Box::new(Corruption {
                        what: NEWEST_LIST,
                        ..*damage
                    }))),
                    None => Err(Error::Corrupt(damage)),
                }
            }
            opened => opened,
        }
    }

    /// The state before the newest, if its root directory can be read.
    fn open_before(storage: Arc<Storage>, before: Identity, mode: OpenMode) -> Option<Self> {
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
