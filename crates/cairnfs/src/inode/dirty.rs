//! The dirty set of an inode: its items that are not yet in the index.
//!
//! A map from (kind, offset) to a slot with the newest value's log vector. The inode item, which
//! every change touches, has a place of its own, and so have new entries of a directory.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::format::key::Kind;
use crate::journal::vector::LogVector;

/// An item's newest value.
#[derive(Clone)]
pub struct Slot {
    /// The value.
    pub vector: Arc<LogVector>,
    /// The key exists elsewhere too: in the index, a frozen set or an earlier context. A deletion
    /// must then be kept as a tombstone.
    pub baseline: bool,
}

/// Items that are not yet in the index.
#[derive(Default)]
pub struct DirtySet {
    inode: Option<Slot>,
    entries: Entries,
    others: BTreeMap<(Kind, u64), Slot>,
}

/// Slots of directory entries at consecutive indexes. A new entry gets the index behind the last, so
/// nearly all are here, and are found by counting.
#[derive(Default)]
struct Entries {
    first: u64,
    slots: VecDeque<Option<Slot>>,
}

/// Indexes without an entry that [`Entries`] bridges to hold a further one.
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

    /// Puts a slot in place; gives it back if its index lies elsewhere.
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
        self.inode.is_none() && self.others.is_empty() && self.entries.slots.is_empty()
    }

    /// The slot of the inode item, if nothing else is in it.
    pub fn lone_inode(&self) -> Option<&Slot> {
        let alone = self.others.is_empty() && self.entries.slots.is_empty();
        self.inode.as_ref().filter(|_| alone)
    }

    /// Touches the vector of the inode item.
    pub fn touch(&self) {
        if let Some(slot) = &self.inode {
            slot.vector.touch();
        }
    }

    /// The slot of an item.
    pub fn get(&self, kind: Kind, offset: u64) -> Option<&Slot> {
        match kind {
            Kind::Inode => return self.inode.as_ref(),
            Kind::DirIndex => {
                if let Some(slot) = self.entries.get(offset) {
                    return Some(slot);
                }
            }
            _ => {}
        }
        self.others.get(&(kind, offset))
    }

    /// The slot of an item, to be changed.
    pub fn get_mut(&mut self, kind: Kind, offset: u64) -> Option<&mut Slot> {
        match kind {
            Kind::Inode => return self.inode.as_mut(),
            Kind::DirIndex => {
                if let Some(slot) = self.entries.get_mut(offset) {
                    return Some(slot);
                }
            }
            _ => {}
        }
        self.others.get_mut(&(kind, offset))
    }

    /// Puts a slot in place.
    pub fn insert(&mut self, kind: Kind, offset: u64, slot: Slot) {
        let elsewhere = match kind {
            Kind::Inode => self.inode.replace(slot).and(None),
            // What lies apart already stays there.
            Kind::DirIndex if !self.others.contains_key(&(kind, offset)) => {
                self.entries.insert(offset, slot)
            }
            _ => Some(slot),
        };
        if let Some(slot) = elsewhere {
            self.others.insert((kind, offset), slot);
        }
    }

    /// Takes a slot out.
    pub fn remove(&mut self, kind: Kind, offset: u64) {
        match kind {
            Kind::Inode => self.inode = None,
            Kind::DirIndex if self.entries.remove(offset) => {}
            _ => {
                self.others.remove(&(kind, offset));
            }
        }
    }

    /// Slots of one kind from an offset on, ascending.
    pub fn range(&self, kind: Kind, from: u64) -> impl Iterator<Item = (u64, &Slot)> {
        let others = self.others.range((
            Bound::Included((kind, from)),
            Bound::Included((kind, u64::MAX)),
        ));
        let entries = (kind == Kind::DirIndex).then(|| self.entries.from(from));
        merged(others.map(|(k, s)| (*k, s)), entries.into_iter().flatten())
            .map(|((_, offset), slot)| (offset, slot))
    }

    /// All slots in key order; an orphan item, which lives under another object, comes last.
    pub fn iter(&self) -> impl Iterator<Item = ((Kind, u64), &Slot)> {
        let others = self.others.iter().map(|(k, s)| (*k, s));
        let inode = self.inode.iter().map(|s| ((Kind::Inode, 0), s));
        inode.chain(merged(others, self.entries.from(0)))
    }
}

/// Two ascending rows of slots as one.
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
    use crate::format::key::Key;
    use crate::journal::vector::Change;

    fn slot(tag: u64) -> Slot {
        let key = Key::new(1, Kind::DirIndex, tag);
        Slot {
            vector: LogVector::new(1, key, tag, &Change::Put(&[])),
            baseline: false,
        }
    }

    /// Indexes near each other, and now and then one far away.
    fn index() -> impl Strategy<Value = u64> {
        prop_oneof![4 => 0..40_u64, 1 => 500..520_u64, 1 => 60..130_u64]
    }

    proptest! {
        #[test]
        fn entries_are_a_map_however_far_apart(
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
