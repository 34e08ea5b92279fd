//! The lineages of roots that are dropped: which can go, and what is left without them.

use std::collections::{BTreeMap, BTreeSet};

use crate::index::Tree;
use crate::txn::roots::history::{After, Afters, History};
use crate::txn::roots::{Roots, Table, tree_of};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{InjectedFault, is_injected};
use cairnfs_disk::format::key::VOLUME_ROOT;
use cairnfs_disk::format::root::{MAIN_NAME, RawRoot, Root, RootState};

/// Items of roots to write, or to remove from the volume tree.
pub(in crate::txn) type RootChanges = BTreeMap<u32, Option<Root>>;

/// A root between its neighbours in the history, as the index has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::txn) struct Place {
    /// The root.
    pub id: u32,
    /// Its boundary; the greatest number for a head.
    pub boundary: u64,
    /// The boundary of its parent; 0 without a parent.
    pub floor: u64,
    parent: u32,
}

/// Whether a root comes directly after another one.
fn is_after(root: &Root, id: u32) -> bool {
    root.parent == id || root.replaced.contains(&id)
}

impl Table {
    /// What comes directly after these roots in the index.
    fn afters(&self, of: impl Fn(u32) -> bool) -> Afters {
        Afters::of(self.merged.iter().map(|(id, root)| (*id, root)), of)
    }

    /// The history as the index has it.
    fn merged_history<'t>(&'t self) -> History<impl Fn(u32) -> Option<&'t Root>> {
        History(|id| self.merged.get(&id))
    }

    /// The place of a root in the index, unless others need it by what comes `after` it.
    fn place(&self, id: u32, after: After) -> Option<Place> {
        let root = self.merged.get(&id)?;
        let floor = self
            .merged
            .get(&root.parent)
            .map_or(0, |parent| parent.boundary);
        let place = Place {
            id,
            boundary: match root.state {
                RootState::Head => u64::MAX,
                RootState::Frozen | RootState::Dropping => root.boundary,
            },
            floor,
            parent: root.parent,
        };
        self.merged_history().can_go(id, after).then_some(place)
    }

    /// Whether a root has no name and is frozen: it stays as long as several roots come after it, or
    /// someone uses it.
    fn is_dropped(&self, id: u32) -> bool {
        let root = self.get(id);
        root.is_some_and(|root| root.state != RootState::Head && root.name.is_empty())
    }

    /// The places of the roots among `ids` that can be dissolved unless they are in use: no change of
    /// the root, or of one that comes directly after it, waits for a merge.
    fn dissolvable(&self, ids: &[u32]) -> Vec<Place> {
        let waits = |id: u32| {
            let mut pending = self.pending.iter();
            pending.any(|(other, root)| *other == id || is_after(root, id))
        };
        let ids = ids
            .iter()
            .filter(|id| self.is_dropped(**id) && !waits(**id));
        let ids: BTreeSet<u32> = ids.copied().collect();
        let afters = self.afters(|id| ids.contains(&id));
        let place = |id| self.place(id, afters.get(id));
        ids.into_iter().filter_map(place).collect()
    }
}

impl Roots {
    /// Checks that a root can be dropped.
    ///
    /// # Errors
    /// [`Error::NotFound`] without such a root, or if it was dropped; [`Error::NotPermitted`] for `main`.
    pub(in crate::txn) fn check_droppable(&self, id: u32) -> Result<()> {
        let is_one = |root: &Root| root.state == RootState::Head || !root.name.is_empty();
        let root = self.get(id).filter(is_one);
        if root.ok_or(Error::NotFound)?.name == MAIN_NAME {
            Err(Error::NotPermitted("main is what is opened by default"))
        } else {
            Ok(())
        }
    }

    /// The item of a root once it is dropped; a head is frozen at `boundary`. A root that was chosen by
    /// its name, or for having none, stays if it has another name by then.
    ///
    /// # Errors
    /// As [`Self::check_droppable`]; [`Error::NotFound`] if its name is another one than `name`.
    pub(in crate::txn) fn dropped(&self, id: u32, name: &str, boundary: u64) -> Result<Root> {
        let root = self.get(id).filter(|root| root.name == name);
        let root = root.ok_or(Error::NotFound)?;
        let is_head = root.state == RootState::Head;
        self.check_droppable(id)?;
        Ok(Root {
            // Its tree is the one that the index has.
            tree: RawRoot {
                birth: root.tree.birth,
                ..RawRoot::default()
            },
            state: RootState::Dropping,
            boundary: if is_head { boundary } else { root.boundary },
            name: String::new(),
            ..root
        })
    }

    /// Whether a root that was dropped waits for a merge: it was dropped since, or what comes directly
    /// after it was changed.
    pub(in crate::txn) fn has_waiting(&self) -> bool {
        let table = self.table.lock();
        let mut pending = table.pending.iter();
        pending.any(|(id, root)| {
            let mut before = root.replaced.iter().chain([id, &root.parent]);
            before.any(|id| table.is_dropped(*id))
        })
    }

    /// Whether any change waits for a merge.
    pub(in crate::txn) fn has_pending(&self) -> bool {
        !self.table.lock().pending.is_empty()
    }

    /// Whether the volume has more roots than one.
    pub fn are_several(&self) -> bool {
        self.table.lock().ids().nth(1).is_some()
    }

    /// The roots that can be dissolved, unless they are in use.
    pub(in crate::txn) fn dissolvable(&self) -> Vec<Place> {
        let table = self.table.lock();
        let known: Vec<u32> = table.merged.keys().copied().collect();
        table.dissolvable(&known)
    }

    /// The heads without a name, pending ones included.
    pub(in crate::txn) fn nameless_heads(&self) -> Vec<u32> {
        let table = self.table.lock();
        let nameless = |id: &u32| {
            let root = table.get(*id);
            root.is_some_and(|root| root.state == RootState::Head && root.name.is_empty())
        };
        table.ids().filter(nameless).collect()
    }

    /// The place of a root in the history; `None` if others that come after it need it.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub(in crate::txn) fn place_of(&self, id: u32) -> Result<Option<Place>> {
        let table = self.table.lock();
        if table.merged.contains_key(&id) {
            let afters = table.afters(|of| of == id);
            Ok(table.place(id, afters.get(id)))
        } else {
            Err(Error::NotFound)
        }
    }

    /// The newest trees of a root and of its child; an empty one without a child. A snapshot of the
    /// child may have become the child since the walk began: it keeps what its head gives up.
    pub(in crate::txn) fn tree_compared_with(&self, place: &Place) -> (Tree, Tree) {
        let table = self.table.lock();
        let tree = |id: u32| table.merged.get(&id).map(|root| tree_of(&root.tree));
        let (_, child) = table.afters(|id| id == place.id).get(place.id).children;
        let child = child.and_then(tree);
        let child = child.filter(|_| !is_injected(InjectedFault::ChildIgnored));
        (
            tree(place.id).unwrap_or_default(),
            child.unwrap_or_default(),
        )
    }

    /// Whether a root for which a walk was made can go. A snapshot of its child may have become the
    /// child.
    pub(in crate::txn) fn is_still(&self, place: &Place) -> bool {
        let now = self.table.lock().dissolvable(&[place.id]);
        let same = |now: &Place| (now.parent, now.floor) == (place.parent, place.floor);
        now.first().is_some_and(same)
    }

    /// The changes that remove a root: its child gets its parent, and what comes after it comes after
    /// what it came after.
    pub(in crate::txn) fn without(&self, place: &Place) -> RootChanges {
        let table = self.table.lock();
        let after = table.merged.iter();
        let after = after.filter(|(_, root)| is_after(root, place.id));
        let history = table.merged_history();
        let moved = after.map(|(id, root)| (*id, Some(history.without(place.id, root))));
        moved.chain([(place.id, None)]).collect()
    }

    /// Records that a durable superblock has these changes, which remove a root.
    pub(in crate::txn) fn set_dissolved(&self, place: &Place, changes: RootChanges) {
        let mut table = self.table.lock();
        let removed = table.merged.remove(&place.id);
        assert!(
            removed.is_some() && !table.pending.contains_key(&place.id),
            "root invariant 4: what goes is merged"
        );
        let left = changes.into_iter();
        table
            .merged
            .extend(left.filter_map(|(id, root)| Some((id, root?))));
    }

    /// Nodes of the parent of a root, of which it may inherit all.
    pub(in crate::txn) fn inherited_nodes(&self, id: u32) -> u64 {
        let table = self.table.lock();
        let parent = table
            .merged
            .get(&id)
            .map_or(VOLUME_ROOT, |root| root.parent);
        table.merged.get(&parent).map_or(0, |parent| parent.nodes)
    }
}
