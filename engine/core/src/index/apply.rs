//! Applying edits: merging the cells of leaves with the edits, in their order.
//!
//! [`Feed`] is the source of a walk over the old tree, for a whole tree or for a part of it: the
//! items of a range of objects. A leaf that lies in several parts is rewritten by all of them, by
//! each the cells of its own range; so a part visits the leaves at its ends also if it has no edit
//! there.

use crate::index::bounds::Bounds;
use crate::index::output::Output;
use crate::index::read::{no_cell, root_level, sound};
use crate::index::walk::{Source, Target, Walk};
use crate::index::{Edits, Index, NodeSpace, Tree};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::key::Key;
use cairnfs_disk::format::node::{CellValue, Node};
use cairnfs_disk::format::pointer::RawPtr;

/// Implements [`Index::apply`].
pub(super) fn run(
    index: &Index,
    tree: &Tree,
    edits: &mut dyn Edits,
    birth: u64,
    space: &dyn NodeSpace,
) -> Result<Tree> {
    let out = Output::new(index, birth, space);
    let out = if space.is_short() { out.dense() } else { out };
    let source = Feed::new(edits, Bounds::default());
    let mut walk = Walk { source, out };
    match root_level(tree)? {
        None => {
            plant(&mut walk)?;
            walk.out.finish(0)
        }
        Some(level) => {
            let whole = Bounds::default();
            if walk.source.next_edit()?.is_some() && walk.visit(&tree.ptr, level, &whole)? {
                walk.out.finish(level)
            } else {
                Ok(*tree)
            }
        }
    }
}

/// Applies the edits to an empty tree.
pub(super) fn plant<T: Target>(walk: &mut Walk<Feed<'_>, T>) -> Result<()> {
    let feed = &mut walk.source;
    while let Some(key) = feed.next_edit()? {
        feed.last = Some(key);
        if let Some(value) = feed.edits.take(&key, None)? {
            walk.out.put(&key, &value, true)?;
        }
    }
    Ok(())
}

/// The edits, with their order checked.
pub(super) struct Feed<'a> {
    edits: &'a mut dyn Edits,
    /// The range of the part. Its ends lie between objects.
    range: Bounds,
    last: Option<Key>,
    ended: bool,
    /// Keys in the leaves at the ends of the range that were not visited yet.
    first: Option<Key>,
    end: Option<Key>,
}

impl<'a> Feed<'a> {
    /// The edits of the items of some objects.
    pub fn new(edits: &'a mut dyn Edits, range: Bounds) -> Self {
        Self {
            edits,
            range,
            last: None,
            ended: false,
            first: range.least,
            end: range
                .end
                .map(|end| Key::last_of(end.object.saturating_sub(1))),
        }
    }

    /// The next key to change.
    fn next_edit(&mut self) -> Result<Option<Key>> {
        let next = if self.ended { None } else { self.edits.peek()? };
        self.ended = next.is_none();
        if next.is_some() && next <= self.last {
            return Err(Error::Invalid("edits out of order"));
        }
        if next.is_some_and(|key| !self.range.contains(&key)) {
            return Err(Error::Invalid("an edit outside its part"));
        }
        Ok(next)
    }

    /// The cells of a leaf that belong to the range.
    fn cells(&self, leaf: &Node) -> (usize, usize) {
        let at = |key: &Key| leaf.search(key).unwrap_or_else(|i| i);
        let first = self.range.least.as_ref().map_or(0, at);
        (first, self.range.end.as_ref().map_or(leaf.len(), at))
    }
}

impl<T: Target> Source<T> for Feed<'_> {
    fn next(&mut self, bounds: &Bounds) -> Result<Option<Key>> {
        let next = match self.first {
            Some(first) => Some(first),
            None => self.next_edit()?.or(self.end),
        };
        Ok(next.filter(|key| bounds.reaches(key)))
    }

    fn goes_on(&self) -> bool {
        !self.ended
    }

    fn leaf(&mut self, out: &mut T, ptr: &RawPtr, bounds: &Bounds) -> Result<Option<Error>> {
        let leaf = &match sound(out.index().load(ptr, 0), bounds)? {
            Ok(leaf) => leaf,
            Err(damage) => return Ok(Some(damage)),
        };
        out.enter(leaf.clone(), *bounds);
        let (mut copied, end) = self.cells(leaf);
        if self.range.begins_inside(bounds) || self.range.ends_inside(bounds) {
            out.open()?;
        }
        self.first = self.first.filter(|key| !bounds.reaches(key));
        while let Some(key) = self.next_edit()?.filter(|key| bounds.reaches(key)) {
            self.last = Some(key);
            let (at, behind, old) = match leaf.search_from(copied, &key) {
                Ok(i) => match old(out.index(), leaf, i) {
                    Err(Error::Corrupt(_)) => (i, i + 1, Old::Hidden),
                    old => (i, i + 1, old?),
                },
                Err(i) => (i, i, Old::Absent),
            };
            let new = match old {
                Old::Hidden => self.edits.take_hidden(&key)?,
                _ => self.edits.take(&key, old.bytes())?,
            };
            if new.as_deref() == old.bytes() && !matches!(old, Old::Hidden) {
                continue;
            }
            out.open()?;
            out.keep(leaf, copied, at)?;
            copied = behind;
            let (birth, units) = old.units();
            units.iter().for_each(|unit| out.retire(*unit, birth));
            if let Some(value) = new {
                let appended = at == leaf.len();
                out.put(&key, &value, appended)?;
            }
        }
        if self.ended {
            self.end = self.end.filter(|key| !bounds.reaches(key));
        }
        if out.is_open() {
            out.keep(leaf, copied, end)?;
        }
        Ok(None)
    }

    /// What is hidden may be taken for removed, so edits that only remove are done. Others need a
    /// node: the damaged one is cut out, or they are left out, or they fail.
    fn damaged(&mut self, out: &mut T, level: u8, bounds: &Bounds, damage: Error) -> Result<bool> {
        self.first = self.first.filter(|key| !bounds.reaches(key));
        let entered = out.enter_cut(level, bounds, &damage)?;
        while let Some(key) = self.next_edit()?.filter(|key| bounds.reaches(key)) {
            self.last = Some(key);
            match self.edits.take_hidden(&key)? {
                Some(value) if entered > 0 => out.put(&key, &value, true)?,
                Some(_) if !out.leaves_out() => return Err(damage),
                _ => {}
            }
        }
        if self.ended {
            self.end = self.end.filter(|key| !bounds.reaches(key));
        }
        for _ in 0..entered {
            out.leave()?;
        }
        Ok(entered > 0)
    }
}

/// The value of an edited key before the edit.
#[derive(Default)]
enum Old<'a> {
    #[default]
    Absent,
    /// A large value that is damaged. Its units stay in use.
    Hidden,
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
            Old::Absent | Old::Hidden => None,
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

fn old<'n>(index: &Index, leaf: &'n Node, i: usize) -> Result<Old<'n>> {
    match leaf.value(i).ok_or_else(|| no_cell(leaf, i))? {
        CellValue::Inline(value) => Ok(Old::Inline(value)),
        CellValue::Overflow(address) => {
            let mut units = Vec::new();
            let block = leaf.header().block.get();
            let mut note = |unit| units.push(unit);
            let value = index.large_value(block, &address, &mut note)?;
            Ok(Old::Large {
                value,
                birth: address.birth.get(),
                units,
            })
        }
    }
}
