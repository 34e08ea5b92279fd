//! Existence and names of inodes in the merged tree, from the changes of both sides.
//!
//! Uses the changes only. The names of an inode may be decided for one side: then the changes of the
//! other side to them do not count. *Effective* changes are those that count.

use std::collections::{BTreeMap, BTreeSet};

use crate::diff::{InodeDelta, Name, TreeDelta};
use crate::publish::decided::{Decided, Part};
use crate::publish::outcome::Side;
use cairnfs_disk::format::item::RawInode;

/// The effective changes of one side to a name.
#[derive(Default)]
pub(super) struct SlotChange {
    /// Whether the inode that has the name in the base lost it.
    lost: bool,
    /// The inodes that got it.
    gained: BTreeSet<u64>,
}

/// A name that at least one side changed.
#[derive(Default)]
pub(super) struct Slot {
    base: Option<u64>,
    ours: SlotChange,
    theirs: SlotChange,
}

impl Slot {
    fn change(&mut self, side: Side) -> &mut SlotChange {
        match side {
            Side::Ours => &mut self.ours,
            Side::Theirs => &mut self.theirs,
        }
    }

    /// The inodes with this name on one side.
    pub fn holders(&self, side: Side) -> BTreeSet<u64> {
        let change = match side {
            Side::Ours => &self.ours,
            Side::Theirs => &self.theirs,
        };
        let kept = self.base.filter(|_| !change.lost);
        change.gained.iter().copied().chain(kept).collect()
    }

    /// The inodes with this name in the merged tree; more than one is a conflict.
    pub fn merged(&self) -> BTreeSet<u64> {
        let kept = self.base.filter(|_| !self.ours.lost && !self.theirs.lost);
        let gained = self.ours.gained.union(&self.theirs.gained);
        gained.copied().chain(kept).collect()
    }

    /// Whether both sides changed it, and not to the same.
    pub fn differs(&self) -> bool {
        let changed = |change: &SlotChange| change.lost || !change.gained.is_empty();
        let both = changed(&self.ours) && changed(&self.theirs);
        both && self.holders(Side::Ours) != self.holders(Side::Theirs)
    }

    /// All inodes that have it anywhere.
    pub fn inodes(&self) -> BTreeSet<u64> {
        let gained = self.ours.gained.union(&self.theirs.gained);
        gained.copied().chain(self.base).collect()
    }
}

/// The changes of both sides, put together.
pub(super) struct Merged<'a> {
    ours: &'a TreeDelta,
    theirs: &'a TreeDelta,
    decided: &'a Decided,
    unchanged: InodeDelta,
}

impl<'a> Merged<'a> {
    pub fn new(ours: &'a TreeDelta, theirs: &'a TreeDelta, decided: &'a Decided) -> Self {
        Self {
            ours,
            theirs,
            decided,
            unchanged: InodeDelta::default(),
        }
    }

    /// All changes of one side.
    pub fn side(&self, side: Side) -> &'a TreeDelta {
        match side {
            Side::Ours => self.ours,
            Side::Theirs => self.theirs,
        }
    }

    /// The changes of one side to an inode.
    pub fn delta(&self, side: Side, ino: u64) -> &InodeDelta {
        let found = self.side(side).inodes.get(&ino);
        found.unwrap_or(&self.unchanged)
    }

    /// The changes of one side to the names of an inode, if they count.
    fn effective(&self, side: Side, ino: u64) -> &InodeDelta {
        match self.decided(ino, &Part::Names) {
            Some(decided) if decided != side => &self.unchanged,
            _ => self.delta(side, ino),
        }
    }

    /// The side that a part of an inode is decided for.
    pub fn decided(&self, ino: u64, part: &Part) -> Option<Side> {
        self.decided.side(ino, part)
    }

    /// The inodes that their side changed, and those of which something is decided.
    pub fn touched(&self) -> BTreeSet<u64> {
        let changed = self.theirs.inodes.keys().copied();
        changed.chain(self.decided.inodes()).collect()
    }

    /// The inodes that either side changed.
    pub fn changed(&self) -> BTreeSet<u64> {
        let all = self.ours.inodes.keys().chain(self.theirs.inodes.keys());
        all.copied().collect()
    }

    /// The item in the base, if a side changed it; `Some(None)` if there is no such inode.
    pub fn base_item(&self, ino: u64) -> Option<Option<RawInode>> {
        let sides = [Side::Ours, Side::Theirs].into_iter();
        let mut items = sides.filter_map(|side| self.delta(side, ino).item);
        items.next().map(|item| item.old)
    }

    pub fn in_base(&self, ino: u64) -> bool {
        self.base_item(ino).is_none_or(|item| item.is_some())
    }

    pub fn exists(&self, side: Side, ino: u64) -> bool {
        match self.delta(side, ino).item {
            Some(item) => item.new.is_some(),
            None => self.in_base(ino),
        }
    }

    /// Whether an inode is in the merged tree, unless it is in conflict.
    pub fn survives(&self, ino: u64) -> bool {
        let (ours, theirs) = (self.exists(Side::Ours, ino), self.exists(Side::Theirs, ino));
        match self.decided(ino, &Part::Names) {
            Some(Side::Ours) => ours,
            Some(Side::Theirs) => theirs,
            None if self.in_base(ino) => ours && theirs,
            None => ours || theirs,
        }
    }

    /// The names of the base that an inode does not have in the merged tree.
    pub fn lost(&self, ino: u64) -> BTreeSet<&Name> {
        let (ours, theirs) = self.both(ino);
        ours.lost.iter().chain(&theirs.lost).collect()
    }

    /// The names that an inode has in the merged tree and not in the base.
    pub fn gained(&self, ino: u64) -> BTreeSet<&Name> {
        let (ours, theirs) = self.both(ino);
        ours.gained.iter().chain(&theirs.gained).collect()
    }

    /// The effective changes of both sides to an inode.
    pub fn both(&self, ino: u64) -> (&InodeDelta, &InodeDelta) {
        (
            self.effective(Side::Ours, ino),
            self.effective(Side::Theirs, ino),
        )
    }

    /// All names that a side changed. A side that counts for nothing leaves a name as in the base.
    pub fn slots(&self) -> BTreeMap<&'a Name, Slot> {
        let mut slots: BTreeMap<&Name, Slot> = BTreeMap::new();
        for side in [Side::Ours, Side::Theirs] {
            for (ino, inode) in &self.side(side).inodes {
                let decided = self.decided(*ino, &Part::Names);
                let counts = decided.is_none_or(|decided| decided == side);
                for name in &inode.lost {
                    let slot = slots.entry(name).or_default();
                    slot.base = Some(*ino);
                    slot.change(side).lost = counts;
                }
                for name in &inode.gained {
                    let slot = slots.entry(name).or_default();
                    if counts {
                        slot.change(side).gained.insert(*ino);
                    }
                }
            }
        }
        slots
    }
}
