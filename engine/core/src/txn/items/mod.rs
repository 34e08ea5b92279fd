//! The items of one tree of files: its root in the index, its inodes in memory with their dirty
//! sets, and its names in memory.
//!
//! [`ItemStore`] owns what belongs to that tree; the node cache and the values of attributes belong
//! to the volume, and are held as references. Nothing here changes an item: commits change the
//! dirty sets of the inodes in the table, and a merge sets the root.
//!
//! An item is looked up in the current set, the sealed set and the index, in this order ([`read`]).
//! Attributes may refer to shared values ([`attributes`], [`values`]); names of directories are
//! known in memory as far as the budget allows ([`name_budget`]); inodes with a dirty set are listed for
//! the next merge ([`dirty`]).

mod attributes;
mod dirty;
mod name_budget;
mod read;
mod values;

use std::sync::Arc;

use arc_swap::ArcSwap;

pub(super) use attributes::bad_item;
pub use attributes::{Attribute, count_attributes};
pub(super) use dirty::{DirtyInodes, DirtyList, in_order};
pub use read::{Item, NameFound};
pub(super) use values::bad_value;
pub use values::value_at;

use self::name_budget::NameCache;
use crate::index::{Index, Tree};
use crate::inode::attrs::Attrs;
use crate::inode::dirty::DirtySet;
use crate::inode::table::InodeTable;
use crate::inode::{Inode, InodeState};
use crate::txn::commit::is_inherited;
use crate::txn::copies::{Payer, Unwritten};
use crate::values::{TreeNumber, Values};
use cairnfs_disk::device::Storage;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault};
use cairnfs_disk::format::checksum::name_hash;
use cairnfs_disk::format::geometry::Geometry;
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};

/// What all trees of files of a volume share.
#[derive(Clone)]
pub(super) struct SharedByTrees {
    /// Records damage that a lookup finds.
    pub storage: Arc<Storage>,
    pub geometry: Geometry,
    /// Seed of the hashes of names.
    pub hash_seed: u64,
    pub index: Arc<Index>,
    pub values: Arc<Values>,
}

/// A root as it is when it is opened.
pub(super) struct OpenedRoot {
    /// Its id.
    pub id: u32,
    /// Its tree.
    pub tree: Tree,
    /// The boundary of its parent as committers see it; [`NOT_A_HEAD`] of a frozen root.
    pub inherited: u64,
    /// The boundary of its parent as the index has it.
    pub merged_inherited: u64,
    /// See [`ItemStore::number`].
    pub number: TreeNumber,
}

/// In place of the boundary of a parent: the root cannot be written.
pub(super) const NOT_A_HEAD: u64 = u64::MAX;

/// The items of one tree of files.
pub struct ItemStore {
    /// Id of the root.
    root: u32,
    number: TreeNumber,
    shared: SharedByTrees,
    /// The newest root of the tree. Readers load it once per lookup.
    main: ArcSwap<Tree>,
    table: InodeTable,
    names: NameCache,
    dirty: DirtyList,
    /// The boundary of the root's parent, as committers see it; 0 without a parent, [`NOT_A_HEAD`]
    /// if the root is frozen. Changed only while no thread commits.
    inherited: AtomicU64,
    /// The same as the index has it.
    merged_inherited: AtomicU64,
    /// Leaves of the index that writing back the files' data may touch.
    unwritten: Unwritten,
}

impl ItemStore {
    /// The items of a root. Keeps at most `inodes` clean inodes and `names` bytes of names in
    /// memory.
    pub(super) fn new(
        shared: SharedByTrees,
        root: OpenedRoot,
        (inodes, names): (usize, i64),
    ) -> Self {
        Self {
            root: root.id,
            number: root.number,
            inherited: AtomicU64::new(root.inherited),
            merged_inherited: AtomicU64::new(root.merged_inherited),
            unwritten: Unwritten::default(),
            main: ArcSwap::from_pointee(root.tree),
            table: InodeTable::new(inodes),
            names: NameCache::new(shared.hash_seed, names),
            dirty: DirtyList::default(),
            shared,
        }
    }

    /// Id of the root.
    pub fn root(&self) -> u32 {
        self.root
    }

    /// The number of the tree among those in use, by which the places of attribute values in it are
    /// remembered.
    pub(super) fn number(&self) -> TreeNumber {
        self.number
    }

    /// Whether the root can be written. Without a hold of the context it may be frozen at any time;
    /// a commit decides again.
    pub fn is_head(&self) -> bool {
        self.inherited() != NOT_A_HEAD
    }

    /// The newest root.
    pub fn tree(&self) -> Tree {
        **self.main.load()
    }

    /// Replaces the root: later lookups read the new tree. Units of the old one may be reused only
    /// after this.
    pub(super) fn set_tree(&self, main: Tree) {
        self.main.store(Arc::new(main));
    }

    /// The boundary of the root's parent: blocks born up to it belong to frozen roots too. Does not
    /// change while the caller holds the context. 0 without a parent.
    pub fn inherited(&self) -> u64 {
        self.inherited.load(Ordering::Relaxed)
    }

    /// Sets the boundary of the root's parent, or [`NOT_A_HEAD`]; no thread commits.
    pub(super) fn set_inherited(&self, boundary: u64) {
        self.inherited.store(boundary, Ordering::Relaxed);
    }

    /// Sets what the index has as the boundary of the root's parent.
    pub(super) fn set_merged_inherited(&self, boundary: u64) {
        self.merged_inherited.store(boundary, Ordering::Relaxed);
    }

    /// Whether it is a head with a parent: its changes are charged for copies of inherited nodes.
    pub(super) fn is_heir(&self) -> bool {
        !matches!(self.inherited(), 0 | NOT_A_HEAD)
    }

    /// What copies of inherited nodes are charged to.
    pub(super) fn payer(&self) -> Payer<'_> {
        (self.root, &self.unwritten)
    }

    /// Whether a committed block of this birth is inherited. Without a hold of the context a fork
    /// may make it so at any time; a commit decides again.
    pub fn is_inherited(&self, birth: u64) -> bool {
        is_inherited(birth, self.inherited())
    }

    /// The same as the index has it: nodes and blocks that the index holds, born up to this
    /// context, stay in use when the tree gives them up.
    pub(super) fn merged_inherited(&self) -> u64 {
        fault::or(
            InjectedFault::LineageOfCommitters,
            || self.merged_inherited.load(Ordering::Relaxed),
            || self.inherited(),
        )
    }

    /// The inodes in memory.
    pub fn table(&self) -> &InodeTable {
        &self.table
    }

    /// The inodes that the next merge takes.
    pub(super) fn dirty(&self) -> &DirtyList {
        &self.dirty
    }

    /// The index that the tree is in.
    pub(super) fn index(&self) -> &Index {
        &self.shared.index
    }

    /// The values of attributes in memory.
    pub(super) fn values(&self) -> &Values {
        &self.shared.values
    }

    /// The seed of name hashes.
    pub(super) fn hash_seed(&self) -> u64 {
        self.shared.hash_seed
    }

    /// The hash of a name, by which it is found in the index.
    pub fn hash_of(&self, name: &[u8]) -> u64 {
        name_hash(self.shared.hash_seed, name)
    }

    /// Runs a lookup in the newest tree, and repeats it if the tree was replaced meanwhile.
    ///
    /// # Errors
    /// Those of `look`; damage is reported only if it is in the newest tree.
    pub(super) fn in_index<R>(&self, mut look: impl FnMut(&Tree) -> Result<R>) -> Result<R> {
        self.over_damage(|tree, _| look(tree))
            .map(|(found, _)| found)
    }

    /// As [`Self::in_index`], of a lookup that goes over what cannot be read and tells the first
    /// such error. Returns that error as well.
    fn over_damage<R>(
        &self,
        mut look: impl FnMut(&Tree, &mut Option<Error>) -> Result<R>,
    ) -> Result<(R, Option<Error>)> {
        loop {
            let main = self.main.load_full();
            let mut unread = None;
            let found = look(&main, &mut unread);
            if let Some(damage @ Error::Corrupt(_)) = found.as_ref().err().or(unread.as_ref()) {
                if !Arc::ptr_eq(&main, &self.main.load_full()) {
                    continue;
                }
                self.shared.storage.note(damage);
            }
            return found.map(|found| (found, unread));
        }
    }

    /// Returns the inode, loaded. It may be deleted by the time its state is locked.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no inode of that number; a damaged volume, the device's
    /// failure.
    pub fn inode(&self, ino: u64) -> Result<Arc<Inode>> {
        let inode = self.table.get_or_new(ino);
        if !inode.is_ready() {
            let mut state = inode.write();
            self.load(&inode, &mut state)?;
            if state.attrs.is_none() {
                return Err(Error::NotFound);
            }
            inode.set_ready(true);
        }
        Ok(inode)
    }

    /// Whether there may be an inode of that number: it is in memory, where it may have been
    /// deleted, or in the index. A number without an inode is not added to the table.
    pub fn may_exist(&self, ino: u64) -> Result<bool> {
        if self.table.peek(ino).is_some() {
            return Ok(true);
        }
        // It is not in memory, so all its items are in the index.
        let value = self.in_index(|tree| self.index().get(tree, &Key::inode(ino)))?;
        Ok(value.is_some())
    }

    /// The attributes of an inode that is not in memory, if the table is full. So a walk through
    /// more files than the table holds does not evict those in use.
    pub fn glance(&self, ino: u64) -> Result<Option<Attrs>> {
        if !self.table.is_full_without(ino) {
            return Ok(None);
        }
        // It is not in memory, so all its items are in the index; later changes came after this
        // call.
        let value = self.in_index(|tree| self.index().get(tree, &Key::inode(ino)))?;
        value.map(|value| Attrs::decode(ino, &value)).transpose()
    }

    /// Loads the attributes of an inode, if it exists.
    pub fn load(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        if state.loaded {
            return Ok(());
        }
        state.attrs = match self.item(inode, state, Kind::Inode, 0)? {
            Some(item) => Some(Attrs::decode(inode.ino, &item.value)?),
            None => None,
        };
        state.persisted = state.attrs.is_some();
        state.indexed = true;
        state.loaded = true;
        state.note_empty();
        Ok(())
    }

    /// Loads the attributes as they were committed last, in place of others that nothing can commit
    /// any more.
    pub fn load_again(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        let committed = self.item(inode, state, Kind::Inode, 0)?;
        let decode = |item: Item| Attrs::decode(inode.ino, &item.value);
        state.attrs = committed.map(decode).transpose()?;
        state.uncommitted = false;
        Ok(())
    }

    /// Inodes that may still have to be deleted or truncated, according to the dirty sets and the
    /// index. Merges may run.
    ///
    /// # Errors
    /// Damage in the index, the device's failure.
    pub fn orphans(&self) -> Result<Vec<u64>> {
        // The inodes in memory come first: a merge moves items from them to the index.
        let has_orphan = |set: &DirtySet| set.range(Kind::Orphan, 0).next().is_some();
        let is_orphan = |inode: &Arc<Inode>| {
            let state = inode.read();
            has_orphan(&state.current) || state.sealed_set().is_some_and(|set| has_orphan(set))
        };
        let changed = self.table.all().into_iter().filter(is_orphan);
        let changed: Vec<u64> = changed.map(|inode| inode.ino).collect();
        let mut found = self.in_index(|tree| {
            let mut found = changed.clone();
            let from = Key::orphan(0);
            self.index().scan(tree, &from, &mut |key, _| {
                let orphan = key.object == from.object && key.kind == Kind::Orphan;
                if orphan {
                    found.push(key.offset);
                }
                Ok(orphan)
            })?;
            Ok(found)
        })?;
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}
