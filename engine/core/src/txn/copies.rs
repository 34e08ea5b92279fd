//! Units kept for the copies of index nodes that heads inherit.
//!
//! The first merge that changes an inherited node writes a copy, and the original is not freed. So
//! each change of a head that inherits is charged for the leaves that it may touch, and for the
//! nodes above them, before it is made: calls when they begin, unwritten data when it is accepted.
//! A head is never charged for more nodes than it inherits. A fork is charged for its root node
//! only, and a merge takes over what was charged for the changes that it takes.
//!
//! Besides, one *pool* of units is kept for all heads. On a full volume, removals and replacements
//! are charged to it, even those that free nothing. It holds as many units as the largest number of
//! nodes that a single head inherits, so every file of any one head can be removed. Copies caused by
//! removals empty the pool; units that become free later refill it before other requests get them.

use std::collections::HashMap;

use crate::index::NodeCounts;
use crate::space::{Class, Space};
use cairnfs_disk::error::Result;
use cairnfs_disk::fault::{InjectedFault, is_injected};
use cairnfs_disk::hash::IntHash;
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};

/// Reserves up to `units` units of this class. Returns how many.
pub(super) fn reserve_up_to(space: &Space, units: u64, class: Class) -> Result<u64> {
    let (mut promised, mut part) = (0, units);
    while part > 0 && promised < units {
        if space.reserve(0, part.min(units - promised), class)? {
            promised += part.min(units - promised)
        } else {
            part /= 2
        }
    }
    Ok(promised)
}

/// Leaves of the index that writing back the data of one root may touch. Counted in each root: it
/// may begin to inherit before the data is written.
#[derive(Default)]
pub(super) struct Unwritten(AtomicU64);

impl Unwritten {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub fn add(&self, leaves: u64) {
        self.0.fetch_add(leaves, Ordering::AcqRel);
    }

    pub fn sub(&self, leaves: u64) {
        let less = |n: u64| Some(n.saturating_sub(leaves));
        let before = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        debug_assert!(
            before.is_ok_and(|n| n >= leaves),
            "more unwritten leaves than there are"
        );
    }
}

/// A root by its id, with the leaves of its unwritten data.
pub(super) type Payer<'a> = (u32, &'a Unwritten);

/// Least number of units in the pool, if so many nodes are inherited: what any one call needs.
const LEAST_POOL: u64 = 96;

/// What a head that inherits is charged for.
#[derive(Default)]
struct Head {
    /// Inherited nodes: at most so many, once a merge has taken the fork.
    nodes: u64,
    /// Whether a merge has not taken the fork: it may add nodes.
    forked: bool,
    /// Nodes from a leaf up to the root, without the root.
    path: u64,
    /// Whether the root may be inherited.
    root: bool,
    /// Leaves charged for calls that run.
    running: u64,
    /// Leaves charged for data that no writeback has taken.
    unwritten: u64,
    /// Leaves charged for changes that were committed since the last boundary of a merge.
    committed: u64,
    /// Units that a merge has taken, without those that it has used for copies.
    handed: u64,
    /// Copies that the changes which a merge has taken may still need. Unlike units, not limited by
    /// the number of inherited nodes, which is as the volume tells it.
    due: u64,
}

impl Head {
    /// Nodes on the paths to `leaves` leaves.
    fn paths(&self, leaves: u64) -> u64 {
        // While a merge has units for this head, they include the root.
        let root = u64::from(self.root && self.handed == 0);
        leaves.saturating_mul(self.path).saturating_add(root)
    }

    /// Units for copies of `leaves` leaves and what is above them.
    fn cost(&self, leaves: u64) -> u64 {
        let units = self.paths(leaves);
        if self.forked {
            units
        } else {
            units.min(self.left())
        }
    }

    /// Inherited nodes for which no merge has units.
    fn left(&self) -> u64 {
        self.nodes.saturating_sub(self.handed)
    }

    fn needed(&self) -> u64 {
        self.cost(self.running + self.unwritten + self.committed)
    }
}

#[derive(Default)]
struct State {
    /// Units reserved and not handed to a merge.
    units: u64,
    heads: HashMap<u32, Head, IntHash>,
    /// Sum of what the heads need.
    needed: u64,
    /// Inherited nodes for which no merge has units: of all heads, and the most of one head.
    nodes: (u64, u64),
}

impl State {
    /// Changes a head, and the sums with it.
    fn change(&mut self, id: u32, change: impl FnOnce(&mut Head)) {
        let Some(head) = self.heads.get_mut(&id) else {
            return;
        };
        let (needed, left) = (head.needed(), head.left());
        change(head);
        self.needed = self.needed + head.needed() - needed;
        if head.left() != left {
            let left = || self.heads.values().map(Head::left);
            self.nodes = (left().sum(), left().max().unwrap_or(0));
        }
    }

    /// Changes the head of this tree, and brings what is known of its unwritten data up to date.
    fn update(&mut self, (id, unwritten): Payer<'_>, change: impl FnOnce(&mut Head)) {
        self.change(id, |head| {
            head.unwritten = unwritten.get();
            change(head);
        });
    }

    fn remove(&mut self, id: u32) {
        self.change(id, |head| *head = Head::default());
        self.heads.remove(&id);
    }

    /// Units of the pool if it is full.
    fn pool(&self, space: &Space) -> u64 {
        let (all, most) = self.nodes;
        let least = space.standing(Class::Delete).max(LEAST_POOL);
        most.max(least).min(all.saturating_sub(self.needed))
    }

    /// Units that should be reserved.
    fn wanted(&self, space: &Space) -> u64 {
        self.needed + self.pool(space)
    }

    /// Reserves what the heads need and what the pool lacks. Without space for both, a class that
    /// may use the pool is content with less in it. Returns whether there is enough.
    fn cover(&mut self, space: &Space, class: Class) -> Result<bool> {
        let left = match class {
            Class::Ordinary => self.pool(space),
            Class::Rewrite => self.pool(space) / 2,
            Class::Delete | Class::Merge => 0,
        };
        for enough in [self.wanted(space), self.needed + left] {
            let missing = enough.saturating_sub(self.units);
            if space.reserve(0, missing, Class::Ordinary)? {
                self.units += missing;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// As [`Self::cover`], for a fork. Without a pool (only heads that inherit make one), a class that
    /// may use the pool takes the little that is needed from the rest of the standing reserve.
    fn cover_fork(&mut self, space: &Space, class: Class) -> Result<bool> {
        let covered = self.cover(space, class)?;
        if covered || class == Class::Ordinary {
            return Ok(covered);
        }
        let missing = self.needed.saturating_sub(self.units);
        let reserved = space.reserve(0, missing, class)?;
        self.units += if reserved { missing } else { 0 };
        Ok(reserved)
    }

    /// Reserves as much as there is of what is missing, also of the space for merges.
    fn cover_partly(&mut self, space: &Space) -> Result<()> {
        let missing = self.needed.saturating_sub(self.units);
        self.units += reserve_up_to(space, missing, Class::Merge)?;
        let missing = self.wanted(space).saturating_sub(self.units);
        self.units += reserve_up_to(space, missing, Class::Ordinary)?;
        Ok(())
    }

    /// Gives back what is not needed any more.
    fn release(&mut self, space: &Space) {
        let surplus = self.units.saturating_sub(self.wanted(space));
        self.units -= surplus;
        space.unreserve(0, surplus);
    }
}

/// A merge has copied more nodes of a root than its changes were charged for. The space for merges has
/// given the rest. An index that lies about its nodes can cause that, so it ends no merge of users.
#[cold]
fn beyond_charges(root: u32, copied: u64, charged: u64) {
    tracing::error!(
        root,
        "a merge copied {copied} index nodes, its changes were charged for {charged}: this is a defect \
         of CairnFS, or the volume is damaged: run `cairnfs check`"
    );
    debug_assert!(
        false,
        "a merge copies {copied} nodes of root {root}, its changes were charged for {charged}"
    );
}

/// A head that begins to inherit all nodes of its tree, or does so since before the opening.
pub(super) struct Heir {
    /// Its id.
    pub id: u32,
    /// Nodes of the tree.
    pub nodes: u64,
    /// Levels of the tree.
    pub height: u64,
    /// Leaves for its data that is not written yet.
    pub unwritten: u64,
}

impl Heir {
    fn path(&self) -> u64 {
        self.height.saturating_sub(1).max(1)
    }
}

/// What a transaction was charged and has used.
pub(super) struct Used {
    /// Leaves that it was charged.
    pub charged: u64,
    /// Leaves that it may touch.
    pub touched: u64,
}

/// The units of all heads.
#[derive(Default)]
pub(super) struct Copies {
    state: Mutex<State>,
}

impl Copies {
    /// Charges a head for a call that may touch so many leaves. Returns whether there is space.
    pub fn charge(
        &self,
        space: &Space,
        payer: Payer<'_>,
        leaves: u64,
        class: Class,
    ) -> Result<bool> {
        let mut state = self.state.lock();
        state.update(payer, |head| head.running += leaves);
        let covered = state.cover(space, class);
        if !matches!(covered, Ok(true)) {
            state.update(payer, |head| {
                head.running = head.running.saturating_sub(leaves)
            });
        }
        covered
    }

    /// Takes a charge back.
    pub fn discharge(&self, space: &Space, payer: Payer<'_>, leaves: u64) {
        let mut state = self.state.lock();
        state.update(payer, |head| {
            head.running = head.running.saturating_sub(leaves)
        });
        state.release(space);
    }

    /// A call has committed: what it may touch waits for a merge. A call that began before its head
    /// inherited was not charged; what it needs is taken from the space for merges.
    pub fn commit(&self, space: &Space, payer: Payer<'_>, used: &Used) -> Result<()> {
        let mut state = self.state.lock();
        state.update(payer, |head| {
            head.running = head.running.saturating_sub(used.charged);
            head.committed += used.touched;
        });
        if state.needed > state.units {
            state.cover_partly(space)?;
        }
        state.release(space);
        Ok(())
    }

    /// Charges a head for its unwritten data, which has become more. Returns whether there is
    /// space.
    pub fn more_unwritten(&self, space: &Space, payer: Payer<'_>, class: Class) -> Result<bool> {
        let mut state = self.state.lock();
        state.update(payer, |_| {});
        state.cover(space, class)
    }

    /// The unwritten data of a head has become less.
    pub fn less_unwritten(&self, space: &Space, payer: Payer<'_>) {
        let mut state = self.state.lock();
        state.update(payer, |_| {});
        state.release(space);
    }

    /// Reserves what is missing for a fork after which these heads inherit; the pool need not be full
    /// if the class may use it. Returns whether there is space.
    pub fn reserve(&self, space: &Space, heirs: &[Heir], class: Class) -> Result<bool> {
        let mut state = self.state.lock();
        let before = (state.needed, state.nodes);
        for heir in heirs {
            state.needed += heir.unwritten * (heir.path() + 1) + 1;
            let (all, most) = &mut state.nodes;
            *all += heir.unwritten * (heir.path() + 1) + heir.nodes;
            *most = heir.nodes.max(*most);
        }
        let covered = state.cover_fork(space, class);
        (state.needed, state.nodes) = before;
        covered
    }

    /// Gives back what [`Self::reserve`] reserved for a fork that was refused.
    pub fn release(&self, space: &Space) {
        self.state.lock().release(space);
    }

    /// From here on the head inherits all nodes of its tree, also those that the next merge adds.
    pub fn inherits(&self, space: &Space, heir: &Heir) -> Result<()> {
        let mut state = self.state.lock();
        state.heads.entry(heir.id).or_default();
        state.change(heir.id, |head| {
            head.nodes = heir.nodes;
            head.forked = true;
            // The merge of the fork may add a level.
            head.path = heir.path() + 1;
            head.root = true;
            head.unwritten = heir.unwritten;
        });
        state.cover_partly(space)
    }

    /// After a merge of the fork, or at an opening: the head inherits at most the nodes that its tree
    /// has, and `committed` leaves are touched by changes that wait for a merge.
    pub fn has_inherited(&self, heir: &Heir, committed: u64) {
        let mut state = self.state.lock();
        state.heads.entry(heir.id).or_default();
        state.change(heir.id, |head| {
            head.nodes = heir.nodes;
            head.forked = false;
            head.path = heir.path();
            head.root = true;
            head.committed += committed;
        });
    }

    /// Hands what was charged for committed changes to a merge, while no thread commits. Returns
    /// the number of units.
    pub fn take(&self) -> u64 {
        let mut state = self.state.lock();
        let changed = state.heads.iter().filter(|(_, head)| head.committed > 0);
        let changed: Vec<u32> = changed.map(|(id, _)| *id).collect();
        let mut handed = 0;
        for id in changed {
            let left = state.units - handed;
            state.change(id, |head| {
                let units = head.cost(head.committed).min(left);
                head.due += head.paths(head.committed);
                head.committed = 0;
                head.handed += units;
                handed += units;
            });
        }
        state.units -= handed;
        handed
    }

    /// Units reserved and not handed to a merge.
    pub fn kept(&self) -> u64 {
        self.state.lock().units
    }

    /// Whether units are missing: the space is in use.
    pub fn lacks_units(&self, space: &Space) -> bool {
        let state = self.state.lock();
        state.units < state.wanted(space)
    }

    /// Units charged, if a merge may free some of them: until it has taken a fork, nothing limits
    /// what the head is charged.
    pub fn charged(&self) -> u64 {
        let state = self.state.lock();
        let waits = |head: &Head| head.committed > 0 || head.forked;
        if state.heads.values().any(waits) {
            state.needed
        } else {
            0
        }
    }

    /// Counts inherited nodes of a head that a step has replaced. It may have copied no more than
    /// what was charged for the changes that the merge has taken.
    pub fn replaced(&self, id: u32, nodes: &NodeCounts) {
        let NodeCounts {
            inherited, copied, ..
        } = *nodes;
        self.state.lock().change(id, |head| {
            // With the lineage of committers a merge copies what no change was charged for; tests show
            // that the volume is then found to be wrong, too.
            if copied > head.due && !is_injected(InjectedFault::LineageOfCommitters) {
                beyond_charges(id, copied, head.due);
            }
            head.due = head.due.saturating_sub(copied);
            if !head.forked {
                head.nodes = head.nodes.saturating_sub(inherited);
                head.root &= inherited == 0;
            }
            head.handed = head.handed.saturating_sub(inherited);
        });
    }

    /// A head inherits at most `nodes` nodes from here on: releases the units beyond that.
    pub fn lower(&self, space: &Space, id: u32, nodes: u64) {
        let mut state = self.state.lock();
        state.change(id, |head| head.nodes = nodes.min(head.nodes));
        state.release(space);
    }

    /// A root is not written any more.
    pub fn forget(&self, id: u32) {
        self.state.lock().remove(id);
    }

    /// Takes back `units` that a merge has left, and releases those that are not needed any more.
    pub fn put_back(&self, space: &Space, units: u64) -> Result<()> {
        let mut state = self.state.lock();
        let ids: Vec<u32> = state.heads.keys().copied().collect();
        for id in ids {
            state.change(id, |head| (head.handed, head.due) = (0, 0));
        }
        drop(state);
        self.refill(space, units)
    }

    /// Takes `more` units that a merge has freed after it ended, and reserves what is still missing
    /// as far as there is space.
    pub fn refill(&self, space: &Space, more: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.units += more;
        state.release(space);
        state.cover_partly(space)
    }
}
