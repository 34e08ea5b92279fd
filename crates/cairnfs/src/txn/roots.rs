//! The roots of the volume: what their items say, and the changes that wait for a merge.
//!
//! [`Roots`] owns the table in memory. A change of roots is logged as the last entries of the
//! context that it closes ([`Fork`]), so it applies to the state after that context. The index gets
//! it with the merge of that context, in one superblock with the trees. Until then it is *pending*:
//! names and parents are valid for callers, but a new root has no tree yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use zerocopy::little_endian::U64;

use crate::error::{Error, Result};
use crate::format::NODE_BLOCKS;
use crate::format::item::RawTime;
use crate::format::key::{Key, Kind, MAIN_ROOT, VOLUME_ROOT};
use crate::format::root::{MAX_ROOTS, RawRoot, Root, RootState, is_root_name};
use crate::format::superblock::ROOTS;
use crate::index::{Index, Tree};
use crate::journal::vector::{Change, LogVector};
use crate::sync::Mutex;
use crate::txn::Core;

/// Roots by id.
pub(super) type RootItems = BTreeMap<u32, Root>;

/// Log bytes reserved for the changes of one fork.
const FORK_LOG: i64 = 2048;

#[derive(Default)]
struct Table {
    /// The items in the index.
    merged: RootItems,
    /// Items that the log has and the index does not.
    pending: RootItems,
}

impl Table {
    fn get(&self, id: u32) -> Option<&Root> {
        self.pending.get(&id).or_else(|| self.merged.get(&id))
    }

    fn ids(&self) -> impl Iterator<Item = u32> {
        let new = self.pending.keys();
        let new = new.filter(|id| !self.merged.contains_key(id));
        self.merged.keys().chain(new).copied()
    }

    fn named(&self, name: &str) -> Option<u32> {
        let is_named = |id: &u32| self.get(*id).is_some_and(|root| root.name == name);
        self.ids().find(is_named).filter(|_| !name.is_empty())
    }
}

/// The roots of a volume.
pub struct Roots {
    table: Mutex<Table>,
}

/// The key of a root's item in the volume tree.
pub(super) fn root_key(id: u32) -> Key {
    Key::new(u64::from(id), Kind::Root, 0)
}

fn bad_root(block: u64, expected: &str, found: String) -> Error {
    Error::corrupt(block, "root item", expected, found)
}

/// The tree of a root's item.
pub(super) fn tree_of(raw: &RawRoot) -> Tree {
    Tree {
        ptr: raw.ptr,
        height: raw.height.get(),
    }
}

impl Roots {
    /// Reads all root items of the volume tree, which begins at `block`.
    pub(super) fn read(index: &Index, volume: &Tree, block: u64) -> Result<Self> {
        let mut merged = RootItems::new();
        index.scan(volume, &root_key(VOLUME_ROOT), &mut |key, value| {
            let root = Root::decode(key.object, value);
            let root = root.map_err(|found| bad_root(block, "a root", found))?;
            if *key != root_key(key.object as u32) || merged.len() >= MAX_ROOTS as usize {
                return Err(bad_root(block, "items of roots only", format!("{key:?}")));
            }
            merged.insert(key.object as u32, root);
            Ok(true)
        })?;
        let roots = Self {
            table: Mutex::new(Table {
                merged,
                pending: RootItems::new(),
            }),
        };
        match roots.merged(MAIN_ROOT) {
            Some(_) => Ok(roots),
            None => Err(bad_root(block, "the tree of the files", "nothing".into())),
        }
    }

    /// The item of a root as the index has it.
    pub(super) fn merged(&self, id: u32) -> Option<Root> {
        self.table.lock().merged.get(&id).cloned()
    }

    /// The boundary of a root's parent as the index has it; 0 without a parent.
    pub(super) fn merged_inherited(&self, id: u32) -> u64 {
        let table = self.table.lock();
        let parent = table.merged.get(&id).map(|root| root.parent);
        let parent = parent.and_then(|parent| table.merged.get(&parent));
        parent.map_or(0, |parent| parent.boundary)
    }

    /// All roots, pending changes included.
    pub fn list(&self) -> Vec<(u32, Root)> {
        let table = self.table.lock();
        let known = table.ids().filter_map(|id| Some((id, table.get(id)?)));
        let mut list: Vec<_> = known.map(|(id, root)| (id, root.clone())).collect();
        list.sort_unstable_by_key(|(id, _)| *id);
        list
    }

    /// The root of that name, pending ones included.
    pub fn named(&self, name: &str) -> Option<u32> {
        self.table.lock().named(name)
    }

    /// Adds changes that the log has and no merge has taken.
    pub(super) fn add_pending(&self, changes: &RootItems) {
        let changes = changes.iter().map(|(id, root)| (*id, root.clone()));
        self.table.lock().pending.extend(changes);
    }

    /// Records the items that a durable superblock has. Pending changes of the same roots remain
    /// unless they are `done`.
    pub(super) fn set_merged(&self, items: RootItems, done: &RootItems) {
        let mut table = self.table.lock();
        let same = |id: &u32, root: &Root| done.get(id) == Some(root);
        table.pending.retain(|id, root| !same(id, root));
        table.merged.extend(items);
    }

    /// Checks that a root can get this name.
    fn check_new(&self, name: &str) -> Result<()> {
        if !is_root_name(name) {
            return Err(Error::Invalid(
                "a name for a snapshot has 1 to 255 bytes, no control characters, no `/` and `@`, \
                 and does not begin with `-`",
            ));
        }
        let table = self.table.lock();
        if table.named(name).is_some() {
            return Err(Error::Exists);
        }
        match table.ids().count() >= MAX_ROOTS as usize {
            true => Err(Error::Invalid(
                "the volume has as many snapshots as it can have",
            )),
            false => Ok(()),
        }
    }
}

/// A snapshot of the main root that is to be made: the main root is frozen under a new id, and
/// continues as its child.
pub(super) struct Fork {
    id: u32,
    name: String,
    created: RawTime,
}

impl Fork {
    /// The changes of roots that close the context `boundary`.
    fn changes(&self, main: Root, boundary: u64) -> RootItems {
        let frozen = Root {
            tree: RawRoot {
                birth: U64::new(boundary),
                ..RawRoot::default()
            },
            parent: main.parent,
            state: RootState::Frozen,
            boundary,
            created: self.created,
            origin: MAIN_ROOT,
            nodes: 0,
            name: self.name.clone(),
            freed_to: None,
        };
        let main = Root {
            tree: RawRoot {
                birth: main.tree.birth,
                ..RawRoot::default()
            },
            parent: self.id,
            ..main
        };
        [(self.id, frozen), (MAIN_ROOT, main)].into()
    }
}

/// The log vectors of changes of roots in the context `seq`.
pub(super) fn log_vectors(changes: &RootItems, seq: u64) -> Vec<Arc<LogVector>> {
    let vector = |(id, root): (&u32, &Root)| {
        let change = root.encode();
        LogVector::new(VOLUME_ROOT, root_key(*id), seq, &Change::Put(&change))
    };
    changes.iter().map(vector).collect()
}

impl Core {
    /// Makes a snapshot of the files as they are after everything committed so far; it is durable
    /// when this returns. The time does not depend on the number of files; it includes the merge of
    /// an earlier snapshot if that is not merged yet.
    ///
    /// # Errors
    /// [`Error::Exists`]; a name that no root can have, too many roots; a read-only volume; no
    /// space for the merge of an earlier snapshot; the device's failure.
    pub fn snapshot(&self, name: &str) -> Result<()> {
        self.check_changeable()?;
        self.roots.check_new(name)?;
        self.mark_roots()?;
        self.journal.reserve(FORK_LOG, self)?;
        let forked = self.merger.fork(self, FORK_LOG, || {
            self.roots.check_new(name)?;
            Ok(Fork {
                id: self.superblocks.new_root()?,
                name: name.into(),
                created: self.now().into(),
            })
        });
        self.journal.force(forked?, self)?;
        self.signals.want_merge();
        Ok(())
    }

    /// Number of nodes of the main root's tree. Counts them if the volume never had a fork; then
    /// they stay counted. The caller has the lock of merges, or no other thread uses the volume.
    pub(super) fn main_nodes(&self) -> Result<u64> {
        let known = self.roots.merged(MAIN_ROOT).map_or(0, |main| main.nodes);
        // A damaged item may tell any number.
        if (1..=self.geometry.total_blocks / NODE_BLOCKS).contains(&known) {
            return Ok(known);
        }
        let nodes = self.index.count_nodes(&self.items.tree())?;
        if let Some(main) = self.roots.table.lock().merged.get_mut(&MAIN_ROOT) {
            main.nodes = nodes;
        }
        Ok(nodes)
    }

    /// Sets the feature of roots in the superblock, before the log or the index has any.
    fn mark_roots(&self) -> Result<()> {
        let marked = || self.superblocks.newest().incompatible.get() & ROOTS != 0;
        if marked() {
            return Ok(());
        }
        self.merger.alone(|| match marked() {
            true => Ok(()),
            false => {
                let marked = self.superblocks.flip(|s| s.incompatible |= U64::new(ROOTS));
                marked.inspect_err(|e| self.storage.fail(e.clone()))
            }
        })
    }

    /// Applies a fork to the state after the context `boundary`; no thread commits. Returns its
    /// changes.
    pub(super) fn begin_fork(&self, fork: &Fork, boundary: u64) -> RootItems {
        let main = {
            let table = self.roots.table.lock();
            table.get(MAIN_ROOT).cloned().unwrap_or_default()
        };
        let changes = fork.changes(main, boundary);
        self.roots.add_pending(&changes);
        self.items.set_inherited(boundary);
        changes
    }
}
