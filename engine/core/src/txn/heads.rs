//! The open roots of a volume: one [`ItemStore`] each, by id.
//!
//! [`Heads`] owns the table. A root is opened once, however many callers use it. It stays open while
//! a caller has it, and while it has changes that no merge has taken; [`Heads::close_unused`] drops
//! the others, so memory is bounded by what is in use. It also counts pins: a root that is pinned or
//! open is not dropped from the volume. A root that is only read by operations on whole trees may lose
//! its name meanwhile: such operations read states that their callers have not named.
//!
//! The lock of the table is a leaf, except that the table of [`Roots`] is read under it: an opening
//! sees either the lineage and tree before a change of them, and is corrected by that change, or
//! those after it. The life of a root in the volume is in [`super::roots`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::index::Tree;
use crate::txn::items::{DirtyInodes, ItemStore, OpenedRoot, SharedByTrees, in_order};
use crate::txn::roots::Roots;
use crate::txn::{Core, Limits};
use crate::values::TreeNumber;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::root::RootState;
use cairnfs_disk::hash::IntHash;
use cairnfs_disk::sync::Mutex;

/// Most roots that are open at one time.
const MAX_OPEN_ROOTS: usize = 1000;

/// The inodes of one head that a merge takes.
pub(super) struct HeadInput {
    /// The tree of the head.
    pub items: Arc<ItemStore>,
    /// Inodes with changes, in order of their numbers.
    pub inodes: DirtyInodes,
    /// Whether some of them may have changed orphan items.
    pub orphaned: bool,
}

/// The same, as it was taken from the threads' lists.
pub(super) struct TakenHead {
    /// The tree of the head.
    pub items: Arc<ItemStore>,
    lists: Vec<DirtyInodes>,
    orphaned: bool,
}

impl TakenHead {
    /// Brings the inodes into order, in up to `threads` threads.
    pub fn in_order(self, threads: usize) -> HeadInput {
        HeadInput {
            items: self.items,
            inodes: in_order(self.lists, threads),
            orphaned: self.orphaned,
        }
    }
}

/// How often a root is pinned.
#[derive(Default)]
struct Pins {
    /// With its name.
    named: usize,
    /// To be read, whether it has a name or not.
    read: usize,
}

impl Pins {
    fn of(&mut self, kind: PinKind) -> &mut usize {
        match kind {
            PinKind::Named => &mut self.named,
            PinKind::Read => &mut self.read,
        }
    }
}

#[derive(Clone, Copy)]
enum PinKind {
    Named,
    Read,
}

#[derive(Default)]
struct Table {
    open: BTreeMap<u32, Arc<ItemStore>>,
    pins: HashMap<u32, Pins, IntHash>,
    /// Roots that are being dropped: they are neither opened nor pinned.
    shut: HashSet<u32, IntHash>,
    /// The number of the tree that was opened last.
    number: TreeNumber,
}

/// The open roots.
pub struct Heads {
    shared: SharedByTrees,
    /// Clean inodes and bytes of names that a root keeps in memory.
    limits: (usize, i64),
    table: Arc<Mutex<Table>>,
}

/// Keeps a root in the volume while it is used without being open.
pub struct RootPin {
    table: Arc<Mutex<Table>>,
    id: u32,
    kind: PinKind,
}

impl RootPin {
    /// Id of the root.
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for RootPin {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        if let Some(pins) = table.pins.get_mut(&self.id) {
            *pins.of(self.kind) -= 1;
            if pins.named + pins.read == 0 {
                table.pins.remove(&self.id);
            }
        }
    }
}

impl Table {
    /// A number that no open tree has.
    fn new_number(&mut self, forget_places: impl FnOnce()) -> TreeNumber {
        let mut used: Vec<TreeNumber> = self.open.values().map(|items| items.number()).collect();
        used.sort_unstable();
        let mut forget = Some(forget_places);
        loop {
            self.number = self.number.wrapping_add(1);
            if self.number == 0
                && let Some(forget_places) = forget.take()
            {
                // From here on numbers are used again.
                forget_places();
            }
            if used.binary_search(&self.number).is_err() {
                return self.number;
            }
        }
    }

    fn close_unused(&mut self) {
        // Other references are made only from this one, under the table's lock.
        let unused =
            |items: &mut Arc<ItemStore>| Arc::strong_count(items) == 1 && !items.dirty().has_any();
        self.open.retain(|_, items| !unused(items));
    }
}

impl Heads {
    /// No open root. Each root keeps at most so many clean inodes and bytes of names in memory.
    pub(super) fn new(shared: SharedByTrees, limits: &Limits) -> Self {
        Self {
            shared,
            limits: (limits.inodes, limits.names),
            table: Arc::default(),
        }
    }

    /// The root, if it is open.
    pub fn get(&self, id: u32) -> Option<Arc<ItemStore>> {
        self.table.lock().open.get(&id).cloned()
    }

    /// Ids of the open roots, ascending.
    #[cfg(test)]
    #[cfg(not(shuttle))]
    pub fn ids(&self) -> Vec<u32> {
        self.table.lock().open.keys().copied().collect()
    }

    /// Opens a root that has a tree and was not dropped. It need not be open otherwise.
    pub(super) fn open(&self, id: u32, roots: &Roots) -> Result<Arc<ItemStore>> {
        let mut table = self.table.lock();
        if let Some(items) = table.open.get(&id) {
            return Ok(items.clone());
        }
        if table.shut.contains(&id) {
            return Err(Error::NotFound);
        }
        if table.open.len() >= MAX_OPEN_ROOTS {
            table.close_unused();
        }
        let held = |items: &&Arc<ItemStore>| Arc::strong_count(items) > 1;
        if table.open.values().filter(held).count() >= MAX_OPEN_ROOTS {
            return Err(Error::Busy(
                "1,000 branches and snapshots are open; close one of them first",
            ));
        }
        let (tree, inherited, merged_inherited) = roots.opened(id).ok_or(Error::NotFound)?;
        let opened = OpenedRoot {
            id,
            tree,
            inherited,
            merged_inherited,
            number: table.new_number(|| self.shared.values.forget_places()),
        };
        let items = ItemStore::new(self.shared.clone(), opened, self.limits);
        let items = Arc::new(items);
        table.open.insert(id, items.clone());
        Ok(items)
    }

    /// Closes the roots that no caller has and that have no changes.
    pub(super) fn close_unused(&self) {
        self.table.lock().close_unused();
    }

    /// Whether any head has changes that no merge has taken.
    pub(super) fn are_dirty(&self) -> bool {
        let table = self.table.lock();
        table.open.values().any(|items| items.dirty().has_any())
    }

    /// Takes the changed inodes of all heads. No thread commits.
    pub(super) fn take_dirty(&self) -> Vec<TakenHead> {
        let table = self.table.lock();
        let input = |items: &Arc<ItemStore>| {
            let (lists, orphaned) = (items.dirty().take(), items.dirty().take_orphaned());
            let items = items.clone();
            let taken = TakenHead {
                items,
                lists,
                orphaned,
            };
            (!taken.lists.is_empty()).then_some(taken)
        };
        table.open.values().filter_map(input).collect()
    }

    /// Calls `each` with every open root.
    pub(super) fn each(&self, each: impl FnMut(&Arc<ItemStore>)) {
        self.table.lock().open.values().for_each(each);
    }

    /// Keeps a root from being dropped until the returned value is. Returns none if it is being
    /// dropped already.
    pub(super) fn pin(&self, id: u32) -> Option<RootPin> {
        self.pin_as(id, PinKind::Named)
    }

    fn pin_as(&self, id: u32, kind: PinKind) -> Option<RootPin> {
        let mut table = self.table.lock();
        if table.shut.contains(&id) {
            return None;
        }
        *table.pins.entry(id).or_default().of(kind) += 1;
        let table = self.table.clone();
        Some(RootPin { table, id, kind })
    }

    /// Whether a root is open only because of changes that no merge has taken: no caller has it, and
    /// it is not pinned.
    pub(super) fn has_only_changes(&self, id: u32) -> bool {
        let table = self.table.lock();
        let unused = |items: &Arc<ItemStore>| Arc::strong_count(items) == 1;
        table.open.get(&id).is_some_and(unused) && !table.pins.contains_key(&id)
    }

    /// Refuses to open and to pin a root from here on. Returns `false`, and refuses nothing, if it
    /// is pinned, or open, or has changes that no merge has taken.
    pub(super) fn shut(&self, id: u32) -> bool {
        self.shut_unless(id, |pins| pins.named + pins.read > 0)
    }

    /// As [`Self::shut`], also for a root that is only [read](Core::pin_ancestor): it may lose its name,
    /// and no more than that.
    pub(super) fn shut_name(&self, id: u32) -> bool {
        self.shut_unless(id, |pins| pins.named > 0)
    }

    fn shut_unless(&self, id: u32, is_pinned: impl FnOnce(&Pins) -> bool) -> bool {
        let mut table = self.table.lock();
        table.close_unused();
        let used = table.open.contains_key(&id) || table.pins.get(&id).is_some_and(is_pinned);
        !used && table.shut.insert(id)
    }

    /// Ends [`Self::shut`].
    pub(super) fn admit(&self, id: u32) {
        let was_shut = self.table.lock().shut.remove(&id);
        assert!(
            was_shut,
            "root invariant 3: what is shut stays so until it is admitted"
        );
    }
}

impl Core {
    /// Opens a root; opened twice, it is the same. A head can be written; commits to a frozen root
    /// fail with [`Error::Stale`]. If the root has no tree yet, this merges first.
    /// Orphans of a head stay until the caller removes them.
    ///
    /// # Errors
    /// [`Error::NotFound`] without such a root, also if it is being dropped; [`Error::Busy`] if
    /// [`MAX_OPEN_ROOTS`] are open; those of a merge.
    pub fn open_root(&self, id: u32) -> Result<Arc<ItemStore>> {
        if let Some(open) = self.heads.get(id) {
            return Ok(open);
        }
        self.make_readable(id)?;
        self.heads.open(id, &self.roots)
    }

    /// The tree of a frozen root that is pinned, with everything that was committed to it. It may have
    /// been dropped: it is whole as long as it is pinned. So is that of a head whose volume is open
    /// read-only.
    ///
    /// # Errors
    /// [`Error::NotFound`] without such a root; those of a merge.
    pub fn frozen_tree(&self, pin: &RootPin) -> Result<Tree> {
        self.make_readable(pin.id())?;
        // A head that was frozen has its newest changes in memory until they are merged.
        let boundary = self.roots.get(pin.id()).map_or(0, |root| root.boundary);
        if self.superblocks.newest().merged_seq.get() < boundary {
            self.merge()?;
        }
        self.roots.tree(pin.id()).ok_or(Error::NotFound)
    }

    /// Merges if a root has no tree yet. The log need not be durable up to the root when this
    /// returns.
    pub(super) fn make_readable(&self, id: u32) -> Result<()> {
        if self.roots.awaits_merge(id) {
            self.merger.merge_roots(self)
        } else {
            Ok(())
        }
    }

    /// Keeps a root from being dropped until the returned value is dropped.
    ///
    /// # Errors
    /// [`Error::NotFound`] without such a root, also if it is being dropped.
    pub fn pin(&self, id: u32) -> Result<RootPin> {
        let pin = self.heads.pin(id).ok_or(Error::NotFound)?;
        let known = self.roots.get(id);
        let known = known.filter(|root| root.state != RootState::Dropping);
        known.map(|_| pin).ok_or(Error::NotFound)
    }

    /// Keeps a root in the volume to be [read](Self::frozen_tree), also one that was dropped and is not
    /// freed yet. It may lose its name meanwhile.
    ///
    /// # Errors
    /// [`Error::NotFound`] without such a root, also while it is being freed.
    pub fn pin_ancestor(&self, id: u32) -> Result<RootPin> {
        let pin = self.heads.pin_as(id, PinKind::Read);
        let pin = pin.ok_or(Error::NotFound)?;
        self.roots.get(id).map(|_| pin).ok_or(Error::NotFound)
    }

    /// The tree of a root with changes that the log lacks, which keep it open.
    pub(super) fn items_of(&self, root: u32) -> Option<Arc<ItemStore>> {
        self.heads.get(root)
    }

    /// Id of the root that an opening by default opens: the head named `main`.
    pub fn main_root(&self) -> u32 {
        self.roots.main()
    }
}
