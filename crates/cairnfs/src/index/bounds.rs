//! The range of keys that a node may contain, given by the pointers on the path to it.
//!
//! Uses the error type and the format. A pointer's key is the lower bound of the keys below it, and
//! the next pointer's key is the exclusive upper bound; the last child inherits the upper bound of
//! its parent. The ranges of a node's children do not overlap and no node is empty, so a node whose
//! keys are within its range has exactly one pointer in the tree: no walk visits it twice.

use crate::error::{Error, Result};
use crate::format::key::Key;
use crate::format::node::Node;

/// A range of keys; by default unbounded, as for a root.
#[derive(Clone, Copy, Default)]
pub(super) struct Bounds {
    /// The lower bound (inclusive).
    pub least: Option<Key>,
    /// The upper bound (exclusive).
    pub end: Option<Key>,
}

impl Bounds {
    /// The range of child `i` of `node`, which has this range.
    pub fn of_child(&self, node: &Node, i: usize) -> Self {
        Self {
            least: node.key(i),
            end: node.key(i + 1).or(self.end),
        }
    }

    /// Whether a key is before the upper bound.
    pub fn reaches(&self, key: &Key) -> bool {
        self.end.is_none_or(|end| *key < end)
    }

    /// Checks that all keys of a node are within the range. They ascend, so the first and the last
    /// key suffice.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if one is not.
    pub fn check(&self, node: &Node) -> Result<()> {
        let (first, last) = (node.key(0), node.key(node.len().saturating_sub(1)));
        let low = self.least.is_some() && first < self.least;
        let high = self.end.is_some() && last >= self.end;
        if low || high {
            let Self { least, end } = self;
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
