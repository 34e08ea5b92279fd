//! Units kept for the copies of index nodes that heads inherit.
//!
//! The first merge that changes an inherited node writes a copy, and the original is not freed. No
//! transaction can reserve that: which nodes it touches is known only to the merge. So a fork
//! reserves a unit for each node of the tree, for each head that inherits it, and is refused without
//! them; merges draw from these units like from those reserved for growth. As many stay reserved as
//! inherited nodes may be left in all heads.

use std::collections::HashMap;

use crate::error::Result;
use crate::hash::IntHash;
use crate::space::{Class, Space};
use crate::sync::Mutex;
use crate::txn::merge::step_space::reserve_up_to;

#[derive(Default)]
struct State {
    /// Units reserved.
    units: u64,
    /// For each head, the nodes of its tree that may be inherited, at most.
    inherited: HashMap<u32, u64, IntHash>,
    /// Nodes that become inherited with forks that no merge has taken.
    forked: u64,
}

/// The units of all heads. Changed under the lock of merges only.
#[derive(Default)]
pub(in crate::txn) struct Copies {
    state: Mutex<State>,
}

impl Copies {
    /// Reserves what is missing for a fork after which `more` nodes are inherited. Returns how many
    /// units that were; none if there is not enough space.
    ///
    /// # Errors
    /// A damaged bitmap.
    pub fn reserve(&self, space: &Space, more: u64) -> Result<Option<u64>> {
        let mut state = self.state.lock();
        let wanted = state.inherited.values().sum::<u64>() + state.forked + more;
        let missing = wanted.saturating_sub(state.units);
        let reserved = space.reserve(0, missing, Class::Ordinary)?;
        if reserved {
            state.units += missing;
            state.forked += more;
        }
        Ok(reserved.then_some(missing))
    }

    /// Nodes of a head that may be inherited, at most.
    pub fn inherited(&self, id: u32) -> u64 {
        let state = self.state.lock();
        state.inherited.get(&id).copied().unwrap_or(0)
    }

    /// Gives back what [`Self::reserve`] reserved for a fork that was refused.
    pub fn release(&self, space: &Space, (units, more): (u64, u64)) {
        let mut state = self.state.lock();
        state.units -= units;
        state.forked -= more;
        drop(state);
        space.unreserve(0, units);
    }

    /// Hands the units to a merge.
    pub fn take(&self) -> u64 {
        std::mem::take(&mut self.state.lock().units)
    }

    /// Counts inherited nodes of a head that a step has replaced by copies.
    pub fn copied(&self, id: u32, nodes: u64) {
        if let Some(left) = self.state.lock().inherited.get_mut(&id) {
            *left = left.saturating_sub(nodes);
        }
    }

    /// All `nodes` nodes of a head are inherited from here on.
    pub fn inherits(&self, id: u32, nodes: u64) {
        self.state.lock().inherited.insert(id, nodes);
    }

    /// A head inherits at most `nodes` nodes from here on: releases the units beyond that.
    ///
    /// # Errors
    /// A damaged bitmap.
    pub fn lower(&self, space: &Space, id: u32, nodes: u64) -> Result<()> {
        if let Some(inherited) = self.state.lock().inherited.get_mut(&id) {
            *inherited = nodes.min(*inherited);
        }
        let units = self.take();
        self.put_back(space, units, false)
    }

    /// A root is not written any more.
    pub fn forget(&self, id: u32) {
        self.state.lock().inherited.remove(&id);
    }

    /// Takes `more` units that a merge has freed after it ended, and reserves what is still missing
    /// as far as there is space for merges.
    ///
    /// # Errors
    /// A damaged bitmap.
    pub fn refill(&self, space: &Space, more: u64) -> Result<()> {
        let mut state = self.state.lock();
        let units = state.units + more;
        let wanted = state.inherited.values().sum::<u64>() + state.forked;
        space.unreserve(0, units.saturating_sub(wanted));
        let kept = units.min(wanted);
        state.units = kept + reserve_up_to(space, wanted - kept)?;
        Ok(())
    }

    /// Takes back `units` that a merge has left, and releases those that are not needed any more.
    /// With `forked`, a merge has taken all forks: what is missing then is reserved, as far as there
    /// is space for merges.
    ///
    /// # Errors
    /// A damaged bitmap.
    pub fn put_back(&self, space: &Space, units: u64, forked: bool) -> Result<()> {
        let mut state = self.state.lock();
        if forked {
            state.forked = 0;
        }
        let wanted = state.inherited.values().sum::<u64>() + state.forked;
        space.unreserve(0, units.saturating_sub(wanted));
        let mut kept = units.min(wanted);
        if forked {
            kept += reserve_up_to(space, wanted - kept)?;
        }
        state.units = kept;
        Ok(())
    }
}
