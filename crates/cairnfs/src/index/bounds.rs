//! The range of keys that a node may hold, as the pointers on the way to it tell.
//!
//! Uses the error type and the format. A pointer's key is the lower bound of the keys below it, the
//! next pointer's key the upper one; the last child has the upper bound of its parent. The ranges of
//! a node's children do not overlap and no node is empty, so a node whose keys lie within its range
//! has one pointer in the tree: no walk meets it twice.

use crate::error::{Error, Result};
use crate::format::key::Key;
use crate::format::node::Node;

/// A range of keys; by default that of a root, which is all.
#[derive(Clone, Copy, Default)]
pub(super) struct Bounds {
    /// The smallest key.
    pub least: Option<Key>,
    /// The smallest key of the nodes behind.
    pub end: Option<Key>,
}

impl Bounds {
    /// The range of child `i` of a node that has this range.
    pub fn of_child(&self, node: &Node, i: usize) -> Self {
        Self {
            least: node.key(i),
            end: node.key(i + 1).or(self.end),
        }
    }

    /// Whether a key lies before the end.
    pub fn reaches(&self, key: &Key) -> bool {
        self.end.is_none_or(|end| *key < end)
    }

    /// Checks that all keys of a node, which ascend, lie within the range.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if they do not.
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
