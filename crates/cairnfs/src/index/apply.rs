//! Applying edits: the walk over the old tree, and merging the cells of a leaf with the edits.
//!
//! Uses [`Output`] to build the new tree. The walk visits only nodes with edits. It checks that the
//! keys of a node are within the bounds given by its parents, so cells reach the output in
//! ascending order even if the tree on the device is damaged.

use crate::error::{Error, Result};
use crate::format::key::Key;
use crate::format::node::{CellValue, Node};
use crate::format::pointer::RawPtr;
use crate::index::bounds::Bounds;
use crate::index::output::Output;
use crate::index::read::{child, no_cell, root_level};
use crate::index::{Edits, Index, NodeSpace, Tree};

/// Implements [`Index::apply`].
pub(super) fn run(
    index: &Index,
    tree: &Tree,
    edits: &mut dyn Edits,
    birth: u64,
    space: &dyn NodeSpace,
) -> Result<Tree> {
    let out = Output::new(index, birth, space);
    let mut walk = Walk {
        feed: Feed {
            edits,
            last: None,
            ended: false,
        },
        out: match space.is_short() {
            true => out.dense(),
            false => out,
        },
    };
    match root_level(tree)? {
        None => {
            walk.plant()?;
            walk.out.finish(0)
        }
        Some(level) => {
            let whole = Bounds::default();
            if walk.feed.next(&whole)?.is_some() && walk.visit(&tree.ptr, level, &whole)? {
                walk.out.finish(level)
            } else {
                Ok(*tree)
            }
        }
    }
}

/// The edits, with their order checked.
struct Feed<'a> {
    edits: &'a mut dyn Edits,
    last: Option<Key>,
    ended: bool,
}

impl Feed<'_> {
    /// The next key to change, if it is before the upper bound.
    fn next(&mut self, bounds: &Bounds) -> Result<Option<Key>> {
        let next = if self.ended { None } else { self.edits.peek()? };
        self.ended = next.is_none();
        if next.is_some() && next <= self.last {
            return Err(Error::Invalid("edits out of order"));
        }
        Ok(next.filter(|key| bounds.reaches(key)))
    }
}

/// The value of an edited key before the edit.
#[derive(Default)]
enum Old<'a> {
    #[default]
    Absent,
    Inline(&'a [u8]),
    Large {
        value: Vec<u8>,
        birth: u64,
        units: Vec<u64>,
    },
}

impl Old<'_> {
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Old::Absent => None,
            Old::Inline(value) => Some(value),
            Old::Large { value, .. } => Some(value),
        }
    }

    /// The birth and the blocks of the units of a large value.
    fn units(&self) -> (u64, &[u64]) {
        match self {
            Old::Large { birth, units, .. } => (*birth, units),
            _ => (0, &[]),
        }
    }
}

struct Walk<'a> {
    feed: Feed<'a>,
    out: Output<'a>,
}

impl Walk<'_> {
    /// Applies the edits to an empty tree.
    fn plant(&mut self) -> Result<()> {
        while let Some(key) = self.feed.next(&Bounds::default())? {
            self.feed.last = Some(key);
            if let Some(value) = self.feed.edits.take(&key, None)? {
                self.out.put(&key, &value, true)?;
            }
        }
        Ok(())
    }

    /// Applies the edits within `bounds` to the subtree at `ptr`; returns whether anything changed.
    fn visit(&mut self, ptr: &RawPtr, level: u8, bounds: &Bounds) -> Result<bool> {
        let node = self.out.index.load(ptr, level)?;
        bounds.check(&node)?;
        self.out.enter(node.clone(), *bounds);
        if let Some(below) = level.checked_sub(1) {
            self.children(&node, below, bounds)?;
        } else {
            self.leaf(&node, bounds)?;
        }
        self.out.leave()
    }

    fn children(&mut self, node: &Node, below: u8, bounds: &Bounds) -> Result<()> {
        let mut i = 0;
        loop {
            let next = self.feed.next(bounds)?;
            let edited = next.map_or(node.len(), |key| node.child_for(&key));
            // If space is short, the rest of a leaf that does not fill a node goes into the next
            // leaf.
            let goes_on = below == 0 && !self.feed.ended && self.out.wants_more();
            let goes_on = goes_on && (1..edited).contains(&i);
            if goes_on && !self.out.is_inherited(&child(node, i)?) {
                self.rewrite(node, i, bounds)?;
                i += 1;
                continue;
            }
            if next.is_none() {
                return Ok(());
            }
            i = edited.max(i);
            self.out.pass(i);
            self.visit(&child(node, i)?, below, &bounds.of_child(node, i))?;
            i += 1;
        }
    }

    /// Rewrites an unchanged leaf, so that its cells follow the cells that wait in the packer.
    fn rewrite(&mut self, parent: &Node, i: usize, bounds: &Bounds) -> Result<()> {
        let leaf = self.out.index.load(&child(parent, i)?, 0)?;
        let bounds = bounds.of_child(parent, i);
        bounds.check(&leaf)?;
        self.out.pass(i);
        self.out.enter(leaf.clone(), bounds);
        self.out.open()?;
        self.out.keep(&leaf, 0, leaf.len())?;
        self.out.leave()?;
        Ok(())
    }

    fn leaf(&mut self, leaf: &Node, bounds: &Bounds) -> Result<()> {
        let mut copied = 0;
        while let Some(key) = self.feed.next(bounds)? {
            self.feed.last = Some(key);
            let (at, behind, old) = match leaf.search_from(copied, &key) {
                Ok(i) => (i, i + 1, self.old(leaf, i)?),
                Err(i) => (i, i, Old::Absent),
            };
            let new = self.feed.edits.take(&key, old.bytes())?;
            if new.as_deref() == old.bytes() {
                continue;
            }
            self.out.open()?;
            self.out.keep(leaf, copied, at)?;
            copied = behind;
            let (birth, units) = old.units();
            units.iter().for_each(|unit| self.out.retire(*unit, birth));
            if let Some(value) = new {
                let appended = at == leaf.len();
                self.out.put(&key, &value, appended)?;
            }
        }
        if self.out.is_open() {
            self.out.keep(leaf, copied, leaf.len())?;
        }
        Ok(())
    }

    fn old<'n>(&self, leaf: &'n Node, i: usize) -> Result<Old<'n>> {
        match leaf.value(i).ok_or_else(|| no_cell(leaf, i))? {
            CellValue::Inline(value) => Ok(Old::Inline(value)),
            CellValue::Overflow(address) => {
                let mut units = Vec::new();
                let block = leaf.header().block.get();
                let mut note = |unit| units.push(unit);
                let value = self.out.index.large_value(block, &address, &mut note)?;
                Ok(Old::Large {
                    value,
                    birth: address.birth.get(),
                    units,
                })
            }
        }
    }
}
