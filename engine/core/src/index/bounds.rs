//! The range of keys that a node may contain, given by the pointers on the path to it.
//!
//! Uses the error type and the format. A pointer's key is the lower bound of the keys below it, and
//! the next pointer's key is the exclusive upper bound; the last child inherits the upper bound of
//! its parent. The ranges of a node's children do not overlap and no node is empty, so a node whose
//! keys are within its range has exactly one pointer in the tree: no walk visits it twice.

use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::key::Key;
use cairnfs_disk::format::node::Node;

/// A range of keys; by default unbounded, as for a root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The lower bound (inclusive).
    pub least: Option<Key>,
    /// Keys from here on are looked for in the node: as `least`, but smaller keys than those of its
    /// parent are looked for in the first child.
    pub from: Option<Key>,
    /// The upper bound (exclusive).
    pub end: Option<Key>,
}

impl Bounds {
    /// The range of child `i` of `node`, which has this range.
    pub(super) fn of_child(&self, node: &Node, i: usize) -> Self {
        Self {
            least: node.key(i),
            from: if i == 0 { self.from } else { node.key(i) },
            end: node.key(i + 1).or(self.end),
        }
    }

    /// The range of the items of the objects from `first` to below `end`.
    pub fn of_objects(first: Option<u64>, end: Option<u64>) -> Self {
        Self {
            least: first.map(Key::first_of),
            from: first.map(Key::first_of),
            end: end.map(Key::first_of),
        }
    }

    /// Whether this range begins within `other`, and not with it.
    pub(super) fn begins_inside(&self, other: &Self) -> bool {
        self.from
            .is_some_and(|from| other.from.is_none_or(|other| other < from))
    }

    /// Whether this range ends within `other`, and not with it.
    pub(super) fn ends_inside(&self, other: &Self) -> bool {
        self.end
            .is_some_and(|end| other.end.is_none_or(|other| end < other))
    }

    /// Whether a key is in the range.
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.least.is_none_or(|least| least <= *key) && self.reaches(key)
    }

    /// Whether another range is within this one.
    pub(super) fn has_all_of(&self, other: &Self) -> bool {
        !self.begins_inside(other) && !self.ends_inside(other)
    }

    /// Whether a key is before the upper bound.
    pub(super) fn reaches(&self, key: &Key) -> bool {
        self.end.is_none_or(|end| *key < end)
    }

    /// Checks that all keys of a node are within the range. They ascend, so the first and the last
    /// key suffice.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if one is not.
    pub(super) fn check(&self, node: &Node) -> Result<()> {
        let (first, last) = (node.key(0), node.key(node.len().saturating_sub(1)));
        let low = self.least.is_some() && first < self.least;
        let high = self.end.is_some() && last >= self.end;
        if low || high {
            let Self { least, end, .. } = self;
            return Err(Error::corrupt(
                node.header().block.get(),
                "index node keys",
                format!("keys from {least:?} to below {end:?}"),
                format!("{first:?} to {last:?}"),
            ));
        }
        Ok(())
    }
}
