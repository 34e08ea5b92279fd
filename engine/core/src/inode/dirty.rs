//! The dirty set of an inode: its items that are not yet in the index.
//!
//! A map from (kind, offset) to a slot with the newest value's log vector. The inode item, which
//! every change touches, has its own field, and so have new entries of a directory. Most files have
//! hardly any other items, so a single one is stored in the set itself, and few are stored in an
//! array.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::journal::vector::LogVector;
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::prefetch::prefetch;

/// An item's newest value.
#[derive(Clone)]
pub struct Slot {
    /// The value.
    pub vector: Arc<LogVector>,
    /// Whether the key also exists in the index, a sealed set or an earlier context. A deletion
    /// must then be kept as a tombstone.
    pub exists_below: bool,
}

/// Items that are not yet in the index.
#[derive(Default)]
pub struct DirtySet {
    inode: Option<Slot>,
    /// Used by directories only.
    entries: Option<Box<Entries>>,
    others: Others,
}

/// The items of an inode that a merge takes. Most inodes have only one, which needs no set.
#[derive(Clone)]
pub enum Sealed {
    /// The inode item.
    Lone(Slot),
    /// More than the inode item.
    Set(Arc<DirtySet>),
}

impl Sealed {
    /// The slot of an item.
    pub fn get(&self, kind: Kind, offset: u64) -> Option<&Slot> {
        match self {
            Sealed::Lone(slot) => Some(slot).filter(|_| kind == Kind::Inode),
            Sealed::Set(set) => set.get(kind, offset),
        }
    }

    /// The set, if there is more than the inode item.
    pub fn set(&self) -> Option<&Arc<DirtySet>> {
        match self {
            Sealed::Lone(_) => None,
            Sealed::Set(set) => Some(set),
        }
    }

    /// Number of keys that its items change in the index, about.
    pub fn keys(&self) -> usize {
        match self {
            Sealed::Lone(_) => 1,
            Sealed::Set(set) => set.keys(),
        }
    }

    /// Prefetches the vector of the inode item.
    pub fn prefetch(&self) {
        if let Some(slot) = self.get(Kind::Inode, 0) {
            prefetch(&*slot.vector);
        }
    }
}

/// Kind and offset of an item.
type Place = (Kind, u64);

/// Largest number of items in the array.
const FEW: usize = 8;

/// Slots by place, ascending.
enum Others {
    Few(SmallVec<[(Place, Slot); 1]>),
    Many(BTreeMap<Place, Slot>),
}

impl Default for Others {
    fn default() -> Self {
        Others::Few(SmallVec::new())
    }
}

impl Others {
    fn is_empty(&self) -> bool {
        match self {
            Others::Few(row) => row.is_empty(),
            Others::Many(map) => map.is_empty(),
        }
    }

    fn get(&self, place: &Place) -> Option<&Slot> {
        match self {
            Others::Few(row) => row.iter().find(|(at, _)| at == place).map(|(_, slot)| slot),
            Others::Many(map) => map.get(place),
        }
    }

    fn get_mut(&mut self, place: &Place) -> Option<&mut Slot> {
        match self {
            Others::Few(row) => {
                let found = row.iter_mut().find(|(at, _)| at == place);
                found.map(|(_, slot)| slot)
            }
            Others::Many(map) => map.get_mut(place),
        }
    }

    fn insert(&mut self, place: Place, slot: Slot) {
        match self {
            Others::Many(map) => {
                map.insert(place, slot);
            }
            Others::Few(row) => {
                let at = row.partition_point(|(before, _)| *before < place);
                if let Some((there, old)) = row.get_mut(at)
                    && *there == place
                {
                    *old = slot;
                } else if row.len() < FEW {
                    row.insert(at, (place, slot));
                } else {
                    let mut map: BTreeMap<_, _> = std::mem::take(row).into_iter().collect();
                    map.insert(place, slot);
                    *self = Others::Many(map);
                }
            }
        }
    }

    fn remove(&mut self, place: &Place) {
        match self {
            Others::Few(row) => row.retain(|(at, _)| at != place),
            Others::Many(map) => {
                map.remove(place);
            }
        }
    }

    /// The last slot up to and including a place.
    fn last_up_to(&self, to: Place) -> Option<(Place, &Slot)> {
        match self {
            Others::Few(row) => {
                let mut back = row.iter().rev();
                let found = back.find(|(at, _)| *at <= to);
                found.map(|(at, slot)| (*at, slot))
            }
            Others::Many(map) => {
                let found = map.range(..=to).next_back();
                found.map(|(at, slot)| (*at, slot))
            }
        }
    }

    fn range(&self, from: Place, to: Place) -> impl Iterator<Item = (Place, &Slot)> {
        let (row, map) = match self {
            Others::Few(row) => (row.as_slice(), None),
            Others::Many(map) => {
                let bounds = (Bound::Included(from), Bound::Included(to));
                (&[][..], Some(map.range(bounds)))
            }
        };
        let row = row.iter().filter(move |(at, _)| (from..=to).contains(at));
        let map = map.into_iter().flatten();
        row.map(|(at, slot)| (*at, slot))
            .chain(map.map(|(at, slot)| (*at, slot)))
    }
}

/// Slots of directory entries at consecutive indexes. A new entry gets the index after the last
/// one, so nearly all entries are here and are found by their position.
#[derive(Default)]
struct Entries {
    first: u64,
    slots: VecDeque<Option<Slot>>,
}

/// Longest gap between entries that [`Entries`] fills with empty slots to hold a further entry.
const GAP: u64 = 64;

impl Entries {
    fn place(&self, index: u64) -> Option<usize> {
        let place = index.checked_sub(self.first)?;
        (place < self.slots.len() as u64).then_some(place as usize)
    }

    fn get(&self, index: u64) -> Option<&Slot> {
        self.slots.get(self.place(index)?)?.as_ref()
    }

    fn get_mut(&mut self, index: u64) -> Option<&mut Slot> {
        let place = self.place(index)?;
        self.slots.get_mut(place)?.as_mut()
    }

    /// Stores a slot. Returns it if its index is outside the range held here.
    fn insert(&mut self, index: u64, slot: Slot) -> Option<Slot> {
        if self.slots.is_empty() {
            self.first = index;
        }
        if let Some(place) = self.place(index) {
            if let Some(at) = self.slots.get_mut(place) {
                *at = Some(slot);
            }
            return None;
        }
        let end = self.first + self.slots.len() as u64;
        if index < end || index - end > GAP {
            return Some(slot);
        }
        (end..index).for_each(|_| self.slots.push_back(None));
        self.slots.push_back(Some(slot));
        None
    }

    fn remove(&mut self, index: u64) -> bool {
        let Some(place) = self.place(index) else {
            return false;
        };
        let taken = self.slots.get_mut(place).and_then(Option::take);
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.first += 1;
        }
        taken.is_some()
    }

    fn from(&self, index: u64) -> impl Iterator<Item = ((Kind, u64), &Slot)> {
        let skipped = index
            .saturating_sub(self.first)
            .min(self.slots.len() as u64);
        let indexes = self.first + skipped..;
        let slots = self.slots.range(skipped as usize..);
        indexes
            .zip(slots)
            .filter_map(|(index, slot)| Some(((Kind::DirIndex, index), slot.as_ref()?)))
    }
}

impl DirtySet {
    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.inode.is_none() && self.has_no_more()
    }

    /// Number of keys that its items change in the index, about: an entry also changes a name item.
    pub fn keys(&self) -> usize {
        let entries = self.entries.as_deref().map_or(0, |e| 2 * e.slots.len());
        let others = match &self.others {
            Others::Few(row) => row.len(),
            Others::Many(map) => map.len(),
        };
        usize::from(self.inode.is_some()) + entries + others
    }

    /// Whether there is nothing except, perhaps, the inode item.
    fn has_no_more(&self) -> bool {
        let none = |entries: &Entries| entries.slots.is_empty();
        self.others.is_empty() && self.entries.as_deref().is_none_or(none)
    }

    /// Takes all items, if there are any.
    pub fn seal(&mut self) -> Option<Sealed> {
        if self.has_no_more() {
            // Empty lists may still hold much memory, so they are dropped.
            return std::mem::take(self).inode.map(Sealed::Lone);
        }
        Some(Sealed::Set(Arc::new(std::mem::take(self))))
    }

    /// Its vectors.
    pub fn into_vectors(self) -> impl Iterator<Item = Arc<LogVector>> {
        let entries = self.entries.into_iter().flat_map(|e| e.slots).flatten();
        let (row, map) = match self.others {
            Others::Few(row) => (row, BTreeMap::new()),
            Others::Many(map) => (SmallVec::new(), map),
        };
        let others = row.into_iter().chain(map).map(|(_, slot)| slot);
        let all = self.inode.into_iter().chain(entries).chain(others);
        all.map(|slot| slot.vector)
    }

    /// The slot of an item.
    pub fn get(&self, kind: Kind, offset: u64) -> Option<&Slot> {
        match kind {
            Kind::Inode => return self.inode.as_ref(),
            Kind::DirIndex => {
                if let Some(slot) = self.entries.as_deref().and_then(|e| e.get(offset)) {
                    return Some(slot);
                }
            }
            _ => {}
        }
        self.others.get(&(kind, offset))
    }

    /// The slot of an item, for modification.
    pub fn get_mut(&mut self, kind: Kind, offset: u64) -> Option<&mut Slot> {
        match kind {
            Kind::Inode => return self.inode.as_mut(),
            Kind::DirIndex => {
                let entries = self.entries.as_deref_mut();
                if let Some(slot) = entries.and_then(|e| e.get_mut(offset)) {
                    return Some(slot);
                }
            }
            _ => {}
        }
        self.others.get_mut(&(kind, offset))
    }

    /// Stores a slot.
    pub fn insert(&mut self, kind: Kind, offset: u64, slot: Slot) {
        let elsewhere = match kind {
            Kind::Inode => self.inode.replace(slot).and(None),
            // An entry that is in `others` already stays there.
            Kind::DirIndex if self.others.get(&(kind, offset)).is_none() => {
                self.entries.get_or_insert_default().insert(offset, slot)
            }
            _ => Some(slot),
        };
        if let Some(slot) = elsewhere {
            self.others.insert((kind, offset), slot);
        }
    }

    /// Removes a slot.
    pub fn remove(&mut self, kind: Kind, offset: u64) {
        match kind {
            Kind::Inode => self.inode = None,
            Kind::DirIndex if self.entries.as_mut().is_some_and(|e| e.remove(offset)) => {}
            _ => self.others.remove(&(kind, offset)),
        }
    }

    /// The last slot of one kind up to and including an offset. `kind` is not that of directory
    /// entries.
    pub fn last_up_to(&self, kind: Kind, to: u64) -> Option<(u64, &Slot)> {
        let found = self.others.last_up_to((kind, to));
        let found = found.filter(|((of, _), _)| *of == kind);
        found.map(|((_, offset), slot)| (offset, slot))
    }

    /// Slots of one kind from an offset on, ascending.
    pub fn range(&self, kind: Kind, from: u64) -> impl Iterator<Item = (u64, &Slot)> {
        let others = self.others.range((kind, from), (kind, u64::MAX));
        let entries = self.entries.as_deref();
        let entries = entries
            .filter(|_| kind == Kind::DirIndex)
            .map(|e| e.from(from));
        merged(others, entries.into_iter().flatten()).map(|((_, offset), slot)| (offset, slot))
    }

    /// All slots in key order; an orphan item, which belongs to another object, comes last.
    pub fn iter(&self) -> impl Iterator<Item = ((Kind, u64), &Slot)> {
        let others = self.others.range((Kind::Inode, 0), (Kind::Root, u64::MAX));
        let inode = self.inode.iter().map(|s| ((Kind::Inode, 0), s));
        let entries = self.entries.as_deref().map(|e| e.from(0));
        inode.chain(merged(others, entries.into_iter().flatten()))
    }
}

/// Merges two ascending sequences of slots.
fn merged<'a>(
    a: impl Iterator<Item = ((Kind, u64), &'a Slot)>,
    b: impl Iterator<Item = ((Kind, u64), &'a Slot)>,
) -> impl Iterator<Item = ((Kind, u64), &'a Slot)> {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    std::iter::from_fn(move || match (a.peek(), b.peek()) {
        (Some(first), Some(other)) if first.0 > other.0 => b.next(),
        (None, _) => b.next(),
        _ => a.next(),
    })
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::journal::vector::Change;
    use cairnfs_disk::format::key::Key;

    fn slot(tag: u64) -> Slot {
        let key = Key::new(1, Kind::DirIndex, tag);
        Slot {
            vector: LogVector::new(1, key, tag, &Change::Put(&[])),
            exists_below: false,
        }
    }

    /// Indexes near each other, and some far away.
    fn index() -> impl Strategy<Value = u64> {
        prop_oneof![4 => 0..40_u64, 1 => 500..520_u64, 1 => 60..130_u64]
    }

    proptest! {
        #[test]
        fn dirty_set_items_match_map_at_any_count(
            steps in proptest::collection::vec((0..3_u8, 0..24_u64), 1..100),
        ) {
            let (mut set, mut model) = (DirtySet::default(), BTreeMap::new());
            for (tag, (step, offset)) in (1000_u64..).zip(steps) {
                let kind = [Kind::Xattr, Kind::Extent][offset as usize % 2];
                if step > 0 {
                    set.insert(kind, offset, slot(tag));
                    model.insert((kind, offset), tag);
                } else {
                    set.remove(kind, offset);
                    model.remove(&(kind, offset));
                }
                let found = set.iter().map(|(at, slot)| (at, slot.vector.seq()));
                prop_assert!(found.eq(model.iter().map(|(at, tag)| (*at, *tag))));
                let range = set.range(kind, 7).map(|(offset, _)| (kind, offset));
                prop_assert!(range.eq(model.range((kind, 7)..=(kind, 99)).map(|(at, _)| *at)));
                let last = set.last_up_to(kind, offset + 1).map(|(offset, _)| (kind, offset));
                let before = model.range((kind, 0)..=(kind, offset + 1)).next_back();
                prop_assert_eq!(last, before.map(|(at, _)| *at));
                let one = set.get(kind, offset).map(|s| s.vector.seq());
                prop_assert_eq!(one, model.get(&(kind, offset)).copied());
                prop_assert_eq!(set.get_mut(kind, offset).is_some(), one.is_some());
                prop_assert_eq!(set.is_empty(), model.is_empty());
            }
        }

        #[test]
        fn dirty_set_entries_match_map_with_gaps(
            steps in proptest::collection::vec((any::<bool>(), index()), 1..200),
        ) {
            let (mut set, mut model) = (DirtySet::default(), BTreeMap::new());
            set.insert(Kind::Xattr, 3, slot(7));
            set.insert(Kind::Inline, 0, slot(8));
            for (tag, (put, index)) in (1000_u64..).zip(steps) {
                if put {
                    set.insert(Kind::DirIndex, index, slot(tag));
                    model.insert(index, tag);
                } else {
                    set.remove(Kind::DirIndex, index);
                    model.remove(&index);
                }
                let tagged = |(offset, slot): (u64, &Slot)| (offset, slot.vector.seq());
                let found = set.range(Kind::DirIndex, 20).map(tagged);
                let expected = model.range(20..).map(|(i, t)| (*i, *t));
                prop_assert!(found.eq(expected));
                let one = set.get(Kind::DirIndex, index).map(|s| s.vector.seq());
                prop_assert_eq!(one, model.get(&index).copied());
                prop_assert!(set.iter().map(|(key, _)| key).is_sorted());
                prop_assert_eq!(set.iter().count(), model.len() + 2);
            }
        }
    }
}
