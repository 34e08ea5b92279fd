//! What a walk of a tree passes on: items, holes, and the parts that another root may have, too.

use cairnfs_disk::error::Result;
use cairnfs_disk::format::key::Key;

use crate::holes::KeyRange;
use crate::report::Ledger;

/// An item of the logical state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item<'a> {
    pub(crate) key: Key,
    pub(crate) value: &'a [u8],
    /// First block of the leaf or log record that holds the item; none for a derived item.
    pub(crate) block: Option<u64>,
    /// Birth of the leaf that holds the item; none for an item of the log or a derived one.
    pub(crate) birth: Option<u64>,
    /// Whether the item is in the log. Attributes then contain their values.
    pub(crate) logged: bool,
}

/// Receives the items of a tree.
pub(crate) trait Visitor {
    /// An item, in key order.
    fn item(&mut self, item: &Item<'_>, ledger: &mut Ledger<'_>) -> Result<()>;
    /// A range of keys that cannot be read.
    fn hole(&mut self, hole: KeyRange, ledger: &mut Ledger<'_>) -> Result<()>;
}

/// The part of the root's tree that another root may have too: a root inherits from its parent
/// what was born up to the parent's boundary.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Inherited {
    /// The parent's boundary; 0 without a parent.
    pub(crate) boundary: u64,
}

impl Inherited {
    /// Whether what was born in this context belongs to the parent.
    pub(crate) fn has(self, birth: u64) -> bool {
        birth <= self.boundary
    }
}
