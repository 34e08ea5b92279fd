//! The items in which two trees differ, in key order.
//!
//! Uses the reader and the cache. Two cursors go through the trees together. A subtree is skipped
//! in both trees if both have the same pointer (block, birth, checksum): the same node holds the
//! same items. Nothing is skipped by birth alone: of a leaf that vanished as a whole no younger
//! node is left in the new tree. Everything else is decided by items, so nodes that were split,
//! joined or moved to another parent yield nothing unless an item differs.
//!
//! Invariants:
//! - The cursor with the lesser key moves, or the one at the higher node if the keys are equal. All
//!   keys of the other tree before that key have been passed, so an item that is taken from one
//!   tree alone is not in the other, and cursors arrive at a shared node together. Only if the two
//!   trees have other bounds around it may a shared node be read.
//! - Memory: one node for each level of each tree, and one value of each.
//! - Each tree is walked as a scan does, with the keys of every node checked against its bounds.
//!
//! A walk for a drop is limited ([`Limits`]): it begins at a key, passes over what is too old to
//! matter, and may be left at any element and continued in other trees from there.

use std::cmp::Ordering;

use crate::index::bounds::Bounds;
use crate::index::read::{Step, child, no_cell, root_level};
use crate::index::{Index, Tree};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::format::node::{CellValue, RawOverflow};
use cairnfs_disk::format::pointer::RawPtr;

/// An item that two trees do not have in common; at least one of `old` and `new` is `Some`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Key of the item.
    pub key: Key,
    /// Its value in the old tree.
    pub old: Option<Vec<u8>>,
    /// Its value in the new tree.
    pub new: Option<Vec<u8>>,
}

/// What only the old tree refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldOnly {
    /// A node.
    Node(RawPtr),
    /// The units of a large value.
    Value(RawOverflow),
}

/// What a walk leaves out.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Items before this key are left out; so are nodes that have no others.
    pub from: Option<Key>,
    /// Subtrees born up to this context are left out, in both trees.
    pub older: u64,
    /// Items of other kinds are left out, and their values not read. What only the old tree refers to
    /// is reported all the same.
    pub only: Option<Kind>,
}

impl Limits {
    fn have(&self, key: &Key) -> bool {
        self.only.is_none_or(|kind| kind == key.kind)
    }
}

/// Takes what only the old tree refers to.
struct Reported<'a> {
    new: Tree,
    to: Box<dyn FnMut(OldOnly) -> Result<()> + 'a>,
}

/// What a cursor is at.
#[derive(Clone, Copy)]
struct Element {
    /// An item's key, or the lower bound of a subtree's keys.
    least: Key,
    /// The subtree; `None` for an item.
    subtree: Option<(RawPtr, u8)>,
}

impl Element {
    /// Position in the order in which cursors move: by key, and higher nodes first.
    fn turn(&self, other: &Self) -> Ordering {
        let height = |e: &Self| e.subtree.map_or(0, |(_, level)| level + 1);
        let by_key = self.least.cmp(&other.least);
        by_key.then_with(|| height(other).cmp(&height(self)))
    }

    fn is_same_subtree(&self, other: &Self) -> bool {
        self.subtree.is_some() && self.subtree == other.subtree
    }
}

/// A position in a tree.
struct Cursor<'a> {
    index: &'a Index,
    /// The root, until it is entered or skipped.
    root: Option<(RawPtr, u8)>,
    path: Vec<Step>,
    limits: Limits,
    nodes: u64,
    /// Elements passed or entered.
    moves: u64,
    reported: Option<Reported<'a>>,
}

impl<'a> Cursor<'a> {
    fn new(index: &'a Index, tree: &Tree, limits: Limits) -> Result<Self> {
        Ok(Self {
            index,
            root: root_level(tree)?.map(|level| (tree.ptr, level)),
            path: Vec::new(),
            limits,
            nodes: 0,
            moves: 0,
            reported: None,
        })
    }

    /// The current element that the limits do not leave out; `None` at the end.
    fn next(&mut self) -> Result<Option<Element>> {
        loop {
            let element = self.element()?;
            let is_old = |(ptr, _): (RawPtr, u8)| ptr.birth.get() <= self.limits.older;
            if element.and_then(|e| e.subtree).is_some_and(is_old) {
                self.skip()
            } else {
                return Ok(element);
            }
        }
    }

    /// The current element; `None` at the end.
    fn element(&self) -> Result<Option<Element>> {
        if let Some(subtree) = self.root {
            return Ok(Some(Element {
                least: Key::first_of(0),
                subtree: Some(subtree),
            }));
        }
        let Some(Step { node, at, .. }) = self.path.last() else {
            return Ok(None);
        };
        let least = node.key(*at).ok_or_else(|| no_cell(node, *at))?;
        let subtree = match node.level().checked_sub(1) {
            Some(level) => Some((child(node, *at)?, level)),
            None => None,
        };
        Ok(Some(Element { least, subtree }))
    }

    /// Moves behind the current element.
    fn skip(&mut self) {
        self.moves += 1;
        if self.root.take().is_some() {
            return;
        }
        while let Some(step) = self.path.last_mut() {
            step.at += 1;
            if step.at < step.node.len() {
                return;
            }
            self.path.pop();
        }
    }

    /// Moves to the first element within the current subtree.
    fn enter(&mut self, (ptr, level): (RawPtr, u8)) -> Result<()> {
        let node = self.index.load_hot(&ptr, level)?;
        let bounds = match self.path.last() {
            Some(parent) => parent.bounds_of(&node)?,
            None => Bounds::default(),
        };
        if let (Some(reported), Some(first)) = (&mut self.reported, node.key(0))
            && !self.index.refers_to(&reported.new, &first, (&ptr, level))?
        {
            (reported.to)(OldOnly::Node(ptr))?;
        }
        self.root = None;
        self.nodes += 1;
        self.moves += 1;
        let at = match self.limits.from {
            Some(from) if level == 0 => node.search(&from).unwrap_or_else(|behind| behind),
            Some(from) => node.child_for(&from),
            None => 0,
        };
        let is_passed = at >= node.len();
        self.path.push(Step { node, bounds, at });
        if is_passed {
            self.path.pop();
            self.skip();
        }
        Ok(())
    }

    /// The value of the current item, as stored in its leaf.
    fn cell(&self) -> Option<CellValue<'_>> {
        let Step { node, at, .. } = self.path.last()?;
        node.value(*at)
    }

    /// Reports the units of the current item, if it has a large value.
    fn report_value(&mut self) -> Result<()> {
        let Some(CellValue::Overflow(address)) = self.cell() else {
            return Ok(());
        };
        match &mut self.reported {
            Some(reported) => (reported.to)(OldOnly::Value(address)),
            None => Ok(()),
        }
    }

    /// The value of the current item.
    fn value(&self) -> Result<Option<Vec<u8>>> {
        let Some(Step { node, at, .. }) = self.path.last() else {
            return Ok(None);
        };
        let read = |_: &Key, value: &[u8]| value.to_vec();
        self.index.with_cell(node, *at, read).map(Some)
    }

    /// Enters the current subtree, or takes the current item unless the limits leave it out.
    fn advance(&mut self, element: &Element) -> Result<Option<(Key, Option<Vec<u8>>)>> {
        if let Some(subtree) = element.subtree {
            self.enter(subtree)?;
            return Ok(None);
        }
        self.report_value()?;
        let taken = if self.limits.have(&element.least) {
            Some((element.least, self.value()?))
        } else {
            None
        };
        self.skip();
        Ok(taken)
    }
}

/// How far a walk has come.
#[derive(Debug)]
pub enum Progress {
    /// The next item that differs.
    Found(Difference),
    /// All items before this key were compared. It may be the lower bound of a subtree.
    Pause(Key),
    /// The walk is complete.
    End,
}

/// A walk through the differences of two trees, from `Index::differences`.
pub struct Differences<'a> {
    old: Cursor<'a>,
    new: Cursor<'a>,
    new_tree: Tree,
}

impl Index {
    /// The items in which two trees differ. The trees must not be changed or freed meanwhile.
    ///
    /// # Errors
    /// [`Error::Corrupt`](cairnfs_disk::Error::Corrupt) if a tree is too high.
    pub fn differences(&self, old: &Tree, new: &Tree) -> Result<Differences<'_>> {
        self.differences_within(old, new, Limits::default())
    }

    /// The same without what the limits leave out.
    ///
    /// # Errors
    /// As [`Self::differences`].
    pub fn differences_within(
        &self,
        old: &Tree,
        new: &Tree,
        limits: Limits,
    ) -> Result<Differences<'_>> {
        Ok(Differences {
            old: Cursor::new(self, old, limits)?,
            new: Cursor::new(self, new, limits)?,
            new_tree: *new,
        })
    }

    /// The first blocks of the units of a large value, which are read for that.
    ///
    /// # Errors
    /// As [`Self::differences`], and a device error.
    pub fn units_of(&self, address: &RawOverflow) -> Result<Vec<u64>> {
        let mut units = Vec::new();
        self.large_value(address.block.get(), address, &mut |unit| units.push(unit))?;
        Ok(units)
    }

    /// Whether a tree has the node at `ptr` with this level and this first key. That the walk has read
    /// a node does not show this: it also reads a node of both trees if its bounds differ.
    fn refers_to(&self, tree: &Tree, first: &Key, (ptr, level): (&RawPtr, u8)) -> Result<bool> {
        let Some(mut at) = root_level(tree)? else {
            return Ok(false);
        };
        let mut found = tree.ptr;
        while at > level {
            let node = self.load_hot(&found, at)?;
            found = child(&node, node.child_for(first))?;
            at -= 1;
        }
        Ok(at == level && found == *ptr)
    }
}

impl<'a> Differences<'a> {
    /// Passes to `to` what only the old tree refers to, as the walk gets there: each node that the
    /// new tree does not have, and each large value that it does not have under the same key. Must
    /// be called before the walk begins.
    pub fn report_old_only(&mut self, to: impl FnMut(OldOnly) -> Result<()> + 'a) {
        let new = self.new_tree;
        let to = Box::new(to);
        self.old.reported = Some(Reported { new, to });
    }

    /// The next item that differs, in ascending order of the keys.
    ///
    /// # Errors
    /// [`Error::Corrupt`](cairnfs_disk::Error::Corrupt) (damage, or an outdated tree: see the module
    /// `index`), or a device error. The walk cannot be continued after an error.
    pub fn next_difference(&mut self) -> Result<Option<Difference>> {
        Ok(match self.advance(u64::MAX)? {
            Progress::Found(difference) => Some(difference),
            Progress::Pause(_) | Progress::End => None,
        })
    }

    /// As [`Self::next_difference`], but pauses as soon as the walk has made this many moves.
    ///
    /// # Errors
    /// As [`Self::next_difference`].
    pub fn advance(&mut self, moves: u64) -> Result<Progress> {
        loop {
            let (old, new) = (self.old.next()?, self.new.next()?);
            if self.moves() >= moves
                && let Some(next) = old.iter().chain(&new).map(|e| e.least).min()
            {
                return Ok(Progress::Pause(next));
            }
            let turn = match (&old, &new) {
                (None, None) => return Ok(Progress::End),
                (Some(a), Some(b)) if a.is_same_subtree(b) => {
                    self.old.skip();
                    self.new.skip();
                    continue;
                }
                (Some(a), Some(b)) => a.turn(b),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
            };
            let found = match (turn, old, new) {
                (Ordering::Equal, Some(a), Some(b)) if a.subtree.is_none() => {
                    self.compare(b.least)?
                }
                (Ordering::Less | Ordering::Equal, Some(a), _) => {
                    let taken = self.old.advance(&a)?;
                    taken.map(|(key, old)| Difference {
                        key,
                        old,
                        new: None,
                    })
                }
                (_, _, Some(b)) => {
                    let taken = self.new.advance(&b)?;
                    taken.map(|(key, new)| Difference {
                        key,
                        old: None,
                        new,
                    })
                }
                (_, _, None) => None,
            };
            if let Some(difference) = found {
                return Ok(Progress::Found(difference));
            }
        }
    }

    /// Takes the item that both cursors are at; `None` if its values are equal, or if the limits leave it
    /// out.
    fn compare(&mut self, key: Key) -> Result<Option<Difference>> {
        let mut difference = None;
        // An equal address of a large value includes its birth and checksum, as an equal pointer.
        if self.old.cell() != self.new.cell() {
            self.old.report_value()?;
            if self.old.limits.have(&key) {
                let (old, new) = (self.old.value()?, self.new.value()?);
                difference = (old != new).then_some(Difference { key, old, new });
            }
        }
        self.old.skip();
        self.new.skip();
        Ok(difference)
    }

    /// Number of moves so far: items passed, subtrees entered or skipped.
    pub fn moves(&self) -> u64 {
        self.old.moves + self.new.moves
    }

    /// Number of nodes read so far, from the cache or the device.
    pub fn nodes_read(&self) -> u64 {
        self.old.nodes + self.new.nodes
    }
}
