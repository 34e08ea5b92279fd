//! The roots of the volume: what their items say, and the changes that wait for a merge.
//!
//! [`Roots`] owns the table in memory. A change of roots is logged as the last entries of the
//! context that it closes ([`Core::change_roots`]), so it applies to the state after that context.
//! The index gets it with the merge of that context, in one superblock with the trees. Until then it
//! is *pending*: names and lineages are valid for callers, but a new root has a tree only if the one
//! that it was forked from had no changes that the index lacks.
//! What changes of roots there are is in [`lineage`](super::lineage).
//!
//! # The life of a root
//!
//! A change of roots holds the lock of merges, and is decided while no thread commits. *Durable* is
//! its record, after the flush that it waits for; it is in the index with the next merge.
//!
//! | From | To | Caused by | Durable then |
//! |---|---|---|---|
//! | | head or frozen, pending, pinned | a fork, a new empty head ([`Core::change_roots`]) | the record |
//! | | the same as before | the change refuses, or a crash before its record is durable | |
//! | pending | merged | the last step of the merge of its context ([`Roots::set_merged`]) | a superblock with its tree |
//! | head | head | commits; forks and renames, which change its item only | as those say |
//! | head | frozen | `Core::freeze_head`; a publish or restore: the head that is *replaced* | the record |
//! | head, frozen | dropping, shut meanwhile | `Core::drop_root`; the background for a head without a name | the record |
//! | dropping, or frozen without a name | shut | `begin_walk`: it has no user, and one root at most comes after it | nothing more |
//! | shut | the same, admitted | its lineage is another one when the walk ends; no space | nothing more |
//! | shut | gone | `dissolve`, under the lock of merges | the superblock without it |
//! | open | closed | no caller has it and no change of it waits: [`Heads`](super::heads::Heads), under its lock | nothing more |
//!
//! 1. An id is given once, and never means another tree. A root that is no head does not become one.
//! 2. A pending change is in the record that closed its context, or the volume has failed.
//! 3. A root that is pinned or open is not shut, and the reverse: its blocks stay while it is used. To
//!    lose its name a root that is pinned to be read only is shut for a moment: it keeps its blocks.
//! 4. A root goes from the volume only if it is merged and shut. Its child gets its parent, and what
//!    came after it comes after what it came after.
//! 5. A head named `main` is there before and after each change.

mod drop;
mod history;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use zerocopy::little_endian::U64;

use crate::index::{Index, Tree};
use crate::journal::vector::{Change, LogVector};
use crate::txn::Core;
use crate::txn::copies::Heir;
use crate::txn::items::NOT_A_HEAD;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::NODE_BLOCKS;
use cairnfs_disk::format::key::{Key, Kind, MAIN_ROOT, VOLUME_ROOT};
use cairnfs_disk::format::numbers::Part;
use cairnfs_disk::format::root::{MAIN_NAME, MAX_ROOTS, RawRoot, Root, RootState, is_root_name};
use cairnfs_disk::format::superblock::{RANGES, REPLACED, ROOTS};
use cairnfs_disk::hash::IntHash;
use cairnfs_disk::sync::Mutex;

pub(super) use self::drop::{Place, RootChanges};
use self::history::{Afters, History};

/// Roots by id.
pub(super) type RootItems = BTreeMap<u32, Root>;

/// Log bytes reserved for a change of roots: five items with the longest names.
pub(super) const ROOTS_LOG: i64 = 2560;

#[derive(Default)]
struct Table {
    /// The items in the index.
    merged: RootItems,
    /// Items that the log has and the index does not.
    pending: RootItems,
    /// Heads whose trees in the index lack changes from before the pending items.
    behind: BTreeSet<u32>,
    /// Ids by name, as the pending items leave them.
    names: HashMap<String, u32>,
}

impl Table {
    fn get(&self, id: u32) -> Option<&Root> {
        self.pending.get(&id).or_else(|| self.merged.get(&id))
    }

    fn ids(&self) -> impl Iterator<Item = u32> {
        self.merged.keys().copied().chain(self.new_ids())
    }

    /// Ids of the roots that the index lacks.
    fn new_ids(&self) -> impl Iterator<Item = u32> {
        let new = self.pending.keys();
        new.filter(|id| !self.merged.contains_key(id)).copied()
    }

    fn set_name(&mut self, id: u32, name: &str) {
        if !name.is_empty() {
            self.names.insert(name.into(), id);
        }
    }

    fn unset_name(&mut self, id: u32) {
        let Some(old) = self.pending.get(&id).or_else(|| self.merged.get(&id)) else {
            return;
        };
        if self.names.get(&old.name) == Some(&id) {
            self.names.remove(&old.name);
        }
    }

    fn add_pending(&mut self, changes: &RootItems) {
        changes.keys().for_each(|id| self.unset_name(*id));
        for (id, root) in changes {
            self.set_name(*id, &root.name);
            self.pending.insert(*id, root.clone());
        }
    }

    /// The root of the index from which a root has its tree: that itself, or what a pending one was
    /// forked from. None if it begins empty.
    fn source(&self, id: u32) -> Option<u32> {
        let mut id = id;
        for _ in 0..=self.pending.len() {
            if self.merged.contains_key(&id) {
                return Some(id);
            }
            match self.pending.get(&id) {
                Some(root) if root.origin != id => id = root.origin,
                _ => break,
            }
        }
        None
    }

    /// The tree of a root; none if it must be merged first.
    fn tree(&self, id: u32) -> Option<Tree> {
        let known = self.merged.get(&id).map(|root| tree_of(&root.tree));
        known.or_else(|| {
            self.pending.get(&id)?;
            match self.source(id) {
                Some(source) if self.behind.contains(&source) => None,
                Some(source) => self.tree(source),
                None => Some(Tree::default()),
            }
        })
    }

    /// The boundary of a root's parent, by these items; 0 without a parent.
    fn inherited<'a>(root: &Root, get: impl Fn(u32) -> Option<&'a Root>) -> u64 {
        get(root.parent).map_or(0, |parent| parent.boundary)
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
        let mut table = Table {
            merged,
            ..Table::default()
        };
        for (id, root) in &table.merged {
            if !root.name.is_empty() && table.names.insert(root.name.clone(), *id).is_some() {
                let found = format!("two roots named {:?}", root.name);
                return Err(bad_root(block, "names of one root each", found));
            }
        }
        let main = table.names.get(MAIN_NAME).and_then(|id| table.get(*id));
        if main.is_none_or(|main| main.state != RootState::Head) {
            let expected = "a writable root named main";
            return Err(bad_root(block, expected, "none".into()));
        }
        Ok(Self {
            table: Mutex::new(table),
        })
    }

    /// The item of a root as the index has it.
    pub(super) fn merged(&self, id: u32) -> Option<Root> {
        self.table.lock().merged.get(&id).cloned()
    }

    /// The item of a root, pending changes included.
    pub fn get(&self, id: u32) -> Option<Root> {
        self.table.lock().get(id).cloned()
    }

    /// The parent of a root as the index has it; [`VOLUME_ROOT`] without one.
    pub(super) fn merged_parent(&self, id: u32) -> u32 {
        let table = self.table.lock();
        table
            .merged
            .get(&id)
            .map_or(VOLUME_ROOT, |root| root.parent)
    }

    /// The boundary of a root's parent as the index has it; 0 without a parent.
    pub(super) fn merged_inherited(&self, id: u32) -> u64 {
        let table = self.table.lock();
        let root = table.merged.get(&id);
        root.map_or(0, |root| Table::inherited(root, |id| table.merged.get(&id)))
    }

    /// The same as committers see it, pending changes included; [`NOT_A_HEAD`] for a root that
    /// cannot be written.
    pub(super) fn inherited(&self, id: u32) -> u64 {
        let table = self.table.lock();
        match table.get(id) {
            Some(root) if root.state == RootState::Head => {
                Table::inherited(root, |id| table.get(id))
            }
            _ => NOT_A_HEAD,
        }
    }

    /// What an opening of a root needs: its tree, and the boundary of its parent as committers see
    /// it and as the index has it. None for a root that [awaits a merge](Self::awaits_merge), and for
    /// one that was dropped.
    pub(super) fn opened(&self, id: u32) -> Option<(Tree, u64, u64)> {
        let tree = self.tree(id)?;
        let dropped = self.get(id)?.state == RootState::Dropping;
        (!dropped).then(|| (tree, self.inherited(id), self.merged_inherited(id)))
    }

    /// The tree that a root has in the index; none for one that [awaits a merge](Self::awaits_merge).
    pub(super) fn tree(&self, id: u32) -> Option<Tree> {
        self.table.lock().tree(id)
    }

    /// Whether a root has no tree before the next merge: it is pending, and its source had changes
    /// that are not in the index. Otherwise it begins with the tree that its source has there, which
    /// no merge changes before it has taken the root.
    pub(super) fn awaits_merge(&self, id: u32) -> bool {
        let table = self.table.lock();
        table.get(id).is_some() && table.tree(id).is_none()
    }

    /// A root of the index, and the pending ones that have their trees from it.
    pub(super) fn readers_of(&self, id: u32) -> Vec<u32> {
        let table = self.table.lock();
        let pending = table.new_ids().filter(|new| table.source(*new) == Some(id));
        std::iter::once(id).chain(pending).collect()
    }

    /// Whether the log has a root that the index lacks.
    pub(super) fn is_only_logged(&self, id: u32) -> bool {
        let table = self.table.lock();
        table.pending.contains_key(&id) && !table.merged.contains_key(&id)
    }

    /// The trees of all roots that the index has, each with the boundary of its parent.
    pub(super) fn merged_trees(&self) -> Vec<(Tree, u64)> {
        let table = self.table.lock();
        let inherited = |root: &Root| Table::inherited(root, |id| table.merged.get(&id));
        let roots = table.merged.values();
        roots
            .map(|root| (tree_of(&root.tree), inherited(root)))
            .collect()
    }

    /// The heads that the index has, ascending.
    pub(super) fn merged_heads(&self) -> Vec<u32> {
        let table = self.table.lock();
        let heads = table.merged.iter();
        let heads = heads.filter(|(_, root)| root.state == RootState::Head);
        heads.map(|(id, _)| *id).collect()
    }

    /// Id of the head named `main`, which is always there.
    pub(super) fn main(&self) -> u32 {
        self.named(MAIN_NAME).unwrap_or(MAIN_ROOT)
    }

    /// All roots, pending changes included.
    pub fn list(&self) -> Vec<(u32, Root)> {
        let table = self.table.lock();
        let known = table.ids().filter_map(|id| Some((id, table.get(id)?)));
        let mut list: Vec<_> = known.map(|(id, root)| (id, root.clone())).collect();
        list.sort_unstable_by_key(|(id, _)| *id);
        list
    }

    /// All roots as in [`Self::list`], each with whether it has no name and goes as soon as nobody uses
    /// it, because no others need it.
    pub fn list_with_going(&self) -> Vec<(u32, Root, bool)> {
        let list = self.list();
        let by_id: HashMap<u32, &Root, IntHash> =
            list.iter().map(|(id, root)| (*id, root)).collect();
        let history = History(|id| by_id.get(&id).copied());
        let unnamed = |id: u32| {
            let root = by_id.get(&id);
            root.is_some_and(|root| root.state != RootState::Head && root.name.is_empty())
        };
        let afters = Afters::of(list.iter().map(|(id, root)| (*id, root)), unnamed);
        let goes = |id: u32| unnamed(id) && history.can_go(id, afters.get(id));
        let going: Vec<bool> = list.iter().map(|(id, _)| goes(*id)).collect();
        let list = list.into_iter().zip(going);
        list.map(|((id, root), going)| (id, root, going)).collect()
    }

    /// The state in which two roots have parted; `None` if they have none in common, or one of them is
    /// gone.
    pub fn parted(&self, a: u32, b: u32) -> Option<u32> {
        let table = self.table.lock();
        History(|id| table.get(id)).parted(a, b)
    }

    /// What the head `staged` names as replaced once it takes the place of the head `base`, which it
    /// names `always`, or only if others of its history may have parted from it.
    pub(super) fn taking_place(&self, staged: u32, base: u32, always: bool) -> Vec<u32> {
        let table = self.table.lock();
        let replaced = History(|id| table.get(id)).taking_place(staged, base, always);
        replaced.unwrap_or_default()
    }

    /// The root of that name, pending ones included.
    pub fn named(&self, name: &str) -> Option<u32> {
        self.table.lock().names.get(name).copied()
    }

    /// Adds changes that the log has and no merge has taken.
    pub(super) fn add_pending(&self, changes: &RootItems) {
        self.begin(changes, std::iter::empty());
    }

    /// The same. The heads `behind` have changes from before, which no merge has taken.
    fn begin(&self, changes: &RootItems, behind: impl Iterator<Item = u32>) {
        let mut table = self.table.lock();
        table.add_pending(changes);
        if !changes.is_empty() {
            table.behind.extend(behind);
        }
    }

    /// Which of these changes make a head inherit nodes that it did not inherit before: a new head,
    /// or one with another parent.
    pub(super) fn inheriting(&self, changes: &RootItems) -> Vec<u32> {
        let table = self.table.lock();
        let moved = |(id, root): &(&u32, &Root)| {
            let parent = table.get(**id).map(|known| known.parent);
            root.state == RootState::Head && parent != Some(root.parent)
        };
        changes.iter().filter(moved).map(|(id, _)| *id).collect()
    }

    /// Records the items that a durable superblock has. Pending changes of the same roots remain
    /// unless they are `done`.
    pub(super) fn set_merged(&self, items: RootItems, done: &RootItems) {
        let mut table = self.table.lock();
        let same = |id: &u32, root: &Root| done.get(id) == Some(root);
        table.pending.retain(|id, root| !same(id, root));
        if !done.is_empty() {
            table.behind.clear();
        }
        table.merged.extend(items);
    }

    /// Checks that a root can get this name. Which names users may give is decided by those who ask
    /// them.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::Invalid`] for a name that no root can have.
    pub(super) fn check_name(&self, name: &str) -> Result<()> {
        if !is_root_name(name) {
            return Err(Error::Invalid("no snapshot or branch can have this name"));
        }
        match self.named(name) {
            Some(_) => Err(Error::Exists),
            None => Ok(()),
        }
    }

    /// Checks that the volume can have `more` roots.
    pub(super) fn check_room(&self, more: usize) -> Result<()> {
        let table = self.table.lock();
        if table.merged.len() + table.new_ids().count() + more > MAX_ROOTS as usize {
            Err(Error::Invalid(
                "the volume has as many snapshots and branches as it can have; drop some",
            ))
        } else {
            Ok(())
        }
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
    /// Number of nodes of a root's tree. Counts them if the item does not tell, which is so for the
    /// main root of a volume that never had a fork; then they stay counted. The caller has the lock
    /// of merges, or no other thread uses the volume.
    pub(super) fn nodes_of(&self, id: u32) -> Result<u64> {
        let Some(root) = self.roots.merged(id) else {
            return Ok(0);
        };
        // A damaged item may tell any number.
        let most = self.geometry.total_blocks / NODE_BLOCKS;
        if root.tree.height.get() == 0 || (1..=most).contains(&root.nodes) {
            return Ok(root.nodes.min(most));
        }
        let nodes = self.index.count_nodes(&tree_of(&root.tree))?;
        if let Some(root) = self.roots.table.lock().merged.get_mut(&id) {
            root.nodes = nodes;
        }
        Ok(nodes)
    }

    /// Number of nodes that a root's tree in the index does not inherit. The caller has the lock of
    /// merges, or no other thread uses the volume.
    pub(super) fn own_nodes(&self, id: u32) -> Result<u64> {
        let tree = self.roots.merged(id).map(|root| tree_of(&root.tree));
        let tree = tree.unwrap_or_default();
        self.index
            .count_younger(&tree, self.roots.merged_inherited(id))
    }

    /// A root as a head that begins to inherit the tree that the index has of it; of a root that the
    /// index lacks, the tree of its origin. The caller has the lock of merges, or no other thread
    /// uses the volume.
    pub(super) fn heir(&self, id: u32) -> Result<Heir> {
        let mut of = id;
        while let Some(root) = self.roots.get(of).filter(|root| root.origin < of)
            && self.roots.merged(of).is_none()
        {
            of = root.origin;
        }
        let tree = self.roots.merged(of).map(|root| root.tree);
        Ok(Heir {
            id,
            nodes: self.nodes_of(of)?,
            height: tree.map_or(0, |tree| tree.height.get().into()),
            unwritten: self.heads.get(id).map_or(0, |items| items.payer().1.get()),
        })
    }

    /// Sets the feature of roots in the superblock, before the log or the index has any; for those that
    /// have `replaced` others, also the feature of these.
    pub(super) fn mark_roots(&self, replaced: bool) -> Result<()> {
        let features = ROOTS | if replaced { REPLACED } else { 0 };
        let marked = || self.superblocks.newest().incompatible.get() & features == features;
        if marked() {
            return Ok(());
        }
        self.merger.alone(|| {
            if marked() {
                Ok(())
            } else {
                let marked = self
                    .superblocks
                    .flip(|s| s.incompatible |= U64::new(features));
                marked.inspect_err(|e| self.storage.fail(e.clone()))
            }
        })
    }

    /// A range of inode numbers for a part of those of another volume: the one that was taken for it
    /// since the volume was opened, unless a `new` one is needed. It is recorded before any inode
    /// has such a number, with a feature that keeps programs from writing that would give it again.
    ///
    /// # Errors
    /// No range is left; the device's failure.
    pub fn take_range(&self, part: Part, new: bool) -> Result<u32> {
        self.merger.alone(|| {
            if let Some(range) = self.superblocks.taken_range(&part).filter(|_| !new) {
                return Ok(range);
            }
            let range = self.superblocks.take_range()?;
            let recorded = self
                .superblocks
                .flip(|s| s.ro_compatible |= U64::new(RANGES));
            recorded.inspect_err(|e| self.storage.fail(e.clone()))?;
            self.superblocks.remember_range(part, range);
            Ok(range)
        })
    }

    /// Applies changes of roots to the state after the context that they close; no thread commits.
    /// The heads `behind` have changes up to that context that no merge has taken. Returns the heads
    /// that inherit all of their nodes from here on.
    pub(super) fn begin_changes(
        &self,
        changes: &RootItems,
        behind: impl Iterator<Item = u32>,
    ) -> Vec<u32> {
        for (id, root) in changes {
            let known = self.roots.get(*id);
            assert!(
                known.is_none_or(|known| known.state == RootState::Head)
                    || root.state != RootState::Head,
                "root invariant 1: what is no head does not become one"
            );
        }
        let inheriting = self.roots.inheriting(changes);
        self.roots.begin(changes, behind);
        for id in changes.keys() {
            if let Some(items) = self.heads.get(*id) {
                items.set_inherited(self.roots.inherited(*id));
            }
        }
        inheriting
    }
}
