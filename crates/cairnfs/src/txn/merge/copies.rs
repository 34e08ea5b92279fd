//! Units kept for the copies of index nodes that a tree inherits.
//!
//! The first merge that changes an inherited node writes a copy, and the original is not freed. No
//! transaction can reserve that: which nodes it touches is known only to the merge. So a fork
//! reserves a unit for each node of the tree, and is refused without them; merges draw from these
//! units like from those reserved for growth. As many stay reserved as inherited nodes may be left.

use crate::error::Result;
use crate::space::{Class, Space};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::txn::merge::step_space::reserve_up_to;

/// The units of one tree. Changed under the lock of merges only.
#[derive(Default)]
pub(in crate::txn) struct Copies {
    /// Units reserved.
    units: AtomicU64,
    /// Nodes of the tree that may be inherited, at most.
    inherited: AtomicU64,
}

impl Copies {
    /// Reserves what is missing for a fork of a tree of `nodes` nodes. Returns whether there was
    /// enough space.
    ///
    /// # Errors
    /// A damaged bitmap.
    pub fn reserve(&self, space: &Space, nodes: u64) -> Result<bool> {
        let missing = nodes.saturating_sub(self.units.load(Ordering::Relaxed));
        let reserved = space.reserve(0, missing, Class::Ordinary)?;
        if reserved {
            self.units.fetch_add(missing, Ordering::Relaxed);
        }
        Ok(reserved)
    }

    /// Hands the units to a merge.
    pub fn take(&self) -> u64 {
        self.units.swap(0, Ordering::Relaxed)
    }

    /// Counts inherited nodes that a step has replaced by copies.
    pub fn copied(&self, nodes: u64) {
        let left = self.inherited.load(Ordering::Relaxed);
        let left = left.saturating_sub(nodes);
        self.inherited.store(left, Ordering::Relaxed);
    }

    /// Takes back `units` that a merge has left, and releases those that are not needed any more.
    /// With `all`, all nodes of the tree, so many, are inherited from here on; what is missing for
    /// them is reserved, as far as there is space for merges.
    ///
    /// # Errors
    /// A damaged bitmap.
    pub fn put_back(&self, space: &Space, units: u64, all: Option<u64>) -> Result<()> {
        if let Some(nodes) = all {
            self.inherited.store(nodes, Ordering::Relaxed);
        }
        let wanted = self.inherited.load(Ordering::Relaxed);
        space.unreserve(0, units.saturating_sub(wanted));
        let mut kept = units.min(wanted);
        if all.is_some() {
            kept += reserve_up_to(space, wanted - kept)?;
        }
        self.units.store(kept, Ordering::Relaxed);
        Ok(())
    }
}
