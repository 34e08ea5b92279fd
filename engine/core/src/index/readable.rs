//! Scans that go over what cannot be read: a damaged node hides only the keys that it holds.
//!
//! Uses loading and bounds as every walk does. The range of keys of a node that cannot be read is
//! known from its parents. A failed read of the device hides a node as damage does.

use crate::index::bounds::Bounds;
use crate::index::read::{child, root_level};
use crate::index::{Index, Tree};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::key::Key;
use cairnfs_disk::format::node::CellValue;
use cairnfs_disk::format::pointer::RawPtr;

/// What a scan finds.
pub enum Found<'a> {
    /// An item.
    Item(&'a Key, &'a [u8]),
    /// A node or a large value that cannot be read.
    Unread(Unread),
}

/// A node or a large value that cannot be read.
#[derive(Debug)]
pub struct Unread {
    /// The keys that it may hold: those of a node, or the key of a large value.
    pub first: Key,
    /// The end of these keys, exclusive; `None` for the last ones of the tree.
    pub end: Option<Key>,
    /// The pointer to the node; `None` for a large value.
    pub node: Option<RawPtr>,
    /// Why it cannot be read.
    pub error: Error,
}

/// What a tree has.
pub enum Owned<'a> {
    /// A node, or a unit of a large value, by its first block.
    Unit(u64),
    /// An item in a leaf.
    Item(&'a Key, &'a [u8]),
}

/// Whether an error says that something on the device cannot be read.
pub fn hides(error: &Error) -> bool {
    matches!(error, Error::Corrupt(_) | Error::Io { .. })
}

/// The range of a scan, both ends inclusive.
type Range<'a> = (&'a Key, &'a Key);

type Each<'e> = dyn FnMut(Found<'_>) -> Result<bool> + 'e;

impl Index {
    /// Calls `each` with the items within `range`, both ends inclusive, and with what cannot be
    /// read there, in ascending order, until it returns `false`.
    ///
    /// # Errors
    /// Those of `each`; a tree that is too high.
    pub fn scan_readable(&self, tree: &Tree, range: Range<'_>, each: &mut Each<'_>) -> Result<()> {
        if let Some(level) = root_level(tree)? {
            self.readable_below((&tree.ptr, level), &Bounds::default(), range, each)?;
        }
        Ok(())
    }

    /// Scans the subtree at `ptr`. Returns whether the scan goes on.
    fn readable_below(
        &self,
        (ptr, level): (&RawPtr, u8),
        bounds: &Bounds,
        (from, upto): Range<'_>,
        each: &mut Each<'_>,
    ) -> Result<bool> {
        let loaded = self.load(ptr, level);
        let node = match loaded.and_then(|node| bounds.check(&node).map(|()| node)) {
            Ok(node) => node,
            Err(error) if hides(&error) => {
                return each(Found::Unread(Unread {
                    first: bounds.from.unwrap_or(Key::first_of(0)),
                    end: bounds.end,
                    node: Some(*ptr),
                    error,
                }));
            }
            Err(error) => return Err(error),
        };
        let Some(below) = level.checked_sub(1) else {
            for i in node.search(from).unwrap_or_else(|i| i)..node.len() {
                let Some(key) = node.key(i).filter(|key| key <= upto) else {
                    return Ok(false);
                };
                let goes_on = match self.with_cell(&node, i, |key, v| each(Found::Item(key, v))) {
                    Ok(goes_on) => goes_on?,
                    Err(error) if hides(&error) => each(Found::Unread(Unread {
                        first: key,
                        end: Some(key),
                        node: None,
                        error,
                    }))?,
                    Err(error) => return Err(error),
                };
                if !goes_on {
                    return Ok(false);
                }
            }
            return Ok(true);
        };
        for i in node.child_for(from)..node.len() {
            if i > 0 && node.key(i).is_none_or(|first| first > *upto) {
                return Ok(false);
            }
            let child = (&child(&node, i)?, below);
            if !self.readable_below(child, &bounds.of_child(&node, i), (from, upto), each)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The first error of what cannot be read within a range, both ends inclusive.
    ///
    /// # Errors
    /// As [`Index::scan_readable`].
    pub fn first_unread(&self, tree: &Tree, range: Range<'_>) -> Result<Option<Error>> {
        let mut first = None;
        self.scan_readable(tree, range, &mut |found| {
            if let Found::Unread(unread) = found {
                first = Some(unread.error);
            }
            Ok(first.is_none())
        })?;
        Ok(first)
    }

    /// Calls `each` with everything that a tree has, except nodes and large values born up to the
    /// context `older`, and what is below such nodes.
    ///
    /// # Errors
    /// Those of `each`; damage; the device's failure.
    pub fn owned(
        &self,
        tree: &Tree,
        older: u64,
        each: &mut dyn FnMut(Owned<'_>) -> Result<()>,
    ) -> Result<()> {
        match root_level(tree)? {
            Some(level) => self.owned_below((&tree.ptr, level), &Bounds::default(), older, each),
            None => Ok(()),
        }
    }

    fn owned_below(
        &self,
        (ptr, level): (&RawPtr, u8),
        bounds: &Bounds,
        older: u64,
        each: &mut dyn FnMut(Owned<'_>) -> Result<()>,
    ) -> Result<()> {
        if ptr.birth.get() <= older {
            return Ok(());
        }
        let node = self.load(ptr, level)?;
        bounds.check(&node)?;
        each(Owned::Unit(ptr.block.get()))?;
        for i in 0..node.len() {
            if let Some(below) = level.checked_sub(1) {
                let inner = bounds.of_child(&node, i);
                self.owned_below((&child(&node, i)?, below), &inner, older, each)?;
                continue;
            }
            match (node.key(i), node.value(i)) {
                (Some(key), Some(CellValue::Inline(value))) => each(Owned::Item(&key, value))?,
                (_, Some(CellValue::Overflow(address))) if address.birth.get() > older => {
                    let units = self.units_of(&address)?;
                    units
                        .into_iter()
                        .try_for_each(|unit| each(Owned::Unit(unit)))?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
