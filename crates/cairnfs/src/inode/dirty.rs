//! The dirty set of an inode: its items that are not yet in the index.
//!
//! A map from (kind, offset) to a slot with the newest value's log vector. The inode item, which
//! every change touches, has a place of its own.

use std::collections::BTreeMap;
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
    others: BTreeMap<(Kind, u64), Slot>,
}

impl DirtySet {
    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.inode.is_none() && self.others.is_empty()
    }

    /// The slot of an item.
    pub fn get(&self, kind: Kind, offset: u64) -> Option<&Slot> {
        match kind {
            Kind::Inode => self.inode.as_ref(),
            _ => self.others.get(&(kind, offset)),
        }
    }

    /// The slot of an item, to be changed.
    pub fn get_mut(&mut self, kind: Kind, offset: u64) -> Option<&mut Slot> {
        match kind {
            Kind::Inode => self.inode.as_mut(),
            _ => self.others.get_mut(&(kind, offset)),
        }
    }

    /// Puts a slot in place.
    pub fn insert(&mut self, kind: Kind, offset: u64, slot: Slot) {
        match kind {
            Kind::Inode => self.inode = Some(slot),
            _ => {
                self.others.insert((kind, offset), slot);
            }
        }
    }

    /// Takes a slot out.
    pub fn remove(&mut self, kind: Kind, offset: u64) {
        match kind {
            Kind::Inode => self.inode = None,
            _ => {
                self.others.remove(&(kind, offset));
            }
        }
    }

    /// Slots of one kind from an offset on, ascending.
    pub fn range(&self, kind: Kind, from: u64) -> impl Iterator<Item = (u64, &Slot)> {
        self.others
            .range((
                Bound::Included((kind, from)),
                Bound::Included((kind, u64::MAX)),
            ))
            .map(|((_, offset), slot)| (*offset, slot))
    }

    /// All slots in key order; an orphan item, which lives under another object, comes last.
    pub fn iter(&self) -> impl Iterator<Item = ((Kind, u64), &Slot)> {
        self.inode
            .iter()
            .map(|s| ((Kind::Inode, 0), s))
            .chain(self.others.iter().map(|(k, s)| (*k, s)))
    }
}
