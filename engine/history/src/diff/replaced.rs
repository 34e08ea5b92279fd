//! Two inodes of different trees: what differs between them, as if they were one.
//!
//! Uses both trees and their data blocks. Editors and many programs write a file anew under a
//! temporary name and rename it; the report tells that as a change of the file. The comparison
//! reads only what is written in one of the two trees. What was written again in one file with the
//! same bytes is no change, either.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::diff::delta::{InodeDelta, Item, Values};
use crate::diff::same::{add, differing};
use crate::diff::tree::{Blocks, FileTree};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::item::RawInode;
use cairnfs_disk::types::FileKind;

/// The differences of two inodes, one of each tree, as if they were one.
///
/// # Errors
/// A damaged volume, the device's failure.
pub(super) fn delta(
    (old_tree, old): (FileTree<'_>, u64),
    (new_tree, new): (FileTree<'_>, u64),
    blocks: &dyn Blocks,
) -> Result<InodeDelta> {
    let item = Item {
        old: old_tree.inode(old)?,
        new: new_tree.inode(new)?,
    };
    let kind = item.new.and_then(|i| FileKind::from_mode(i.mode.get()));
    let contents = match (kind, item.old, item.new) {
        (Some(FileKind::File | FileKind::Symlink), Some(a), Some(b)) => {
            let all = 0..a.size.get().max(b.size.get());
            contents((old_tree, old, &a), (new_tree, new, &b), [all], blocks)?
        }
        _ => Vec::new(),
    };
    Ok(InodeDelta {
        item: Some(item),
        xattrs: differing_xattrs((&old_tree, old), (&new_tree, new))?,
        contents,
        ..InodeDelta::default()
    })
}

/// The extended attributes that differ between two inodes.
///
/// # Errors
/// A damaged volume, the device's failure.
pub(super) fn differing_xattrs(
    (old_tree, old): (&FileTree<'_>, u64),
    (new_tree, new): (&FileTree<'_>, u64),
) -> Result<BTreeMap<Vec<u8>, Values>> {
    let mut xattrs: BTreeMap<Vec<u8>, Values> = BTreeMap::new();
    old_tree.xattrs(old, &mut |name, value| {
        xattrs.entry(name).or_default().old = Some(value);
        Ok(())
    })?;
    new_tree.xattrs(new, &mut |name, value| {
        xattrs.entry(name).or_default().new = Some(value);
        Ok(())
    })?;
    xattrs.retain(|_, values| values.old != values.new);
    Ok(xattrs)
}

/// The parts of `ranges`, ascending and disjoint, in which two contents differ, and of what only the
/// longer one has.
fn contents(
    (old_tree, old, old_inode): (FileTree<'_>, u64, &RawInode),
    (new_tree, new, new_inode): (FileTree<'_>, u64, &RawInode),
    ranges: impl IntoIterator<Item = Range<u64>>,
    blocks: &dyn Blocks,
) -> Result<Vec<Range<u64>>> {
    let common = old_inode.size.get().min(new_inode.size.get());
    let mut found: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let both = range.start..range.end.min(common);
        let differing = differing(blocks, (&old_tree, old), (&new_tree, new), both)?;
        for part in differing {
            add(&mut found, part);
        }
        add(&mut found, range.start.max(common)..range.end);
    }
    Ok(found)
}

/// Leaves out of the changed ranges of an inode that both trees have what holds the same bytes in both:
/// blocks that were written again, or copied by a merge.
///
/// # Errors
/// A damaged volume, the device's failure.
pub(super) fn keep_differing(
    ino: u64,
    inode: &mut InodeDelta,
    (old_tree, new_tree): (FileTree<'_>, FileTree<'_>),
    blocks: &dyn Blocks,
) -> Result<()> {
    if inode.contents.is_empty() || inode.is_added() || inode.is_removed() {
        return Ok(());
    }
    let item = |stored: Option<RawInode>, tree: FileTree<'_>| match stored {
        Some(item) => Ok(Some(item)),
        None => tree.inode(ino),
    };
    let stored = inode.item.map_or((None, None), |item| (item.old, item.new));
    let (Some(old), Some(new)) = (item(stored.0, old_tree)?, item(stored.1, new_tree)?) else {
        return Ok(());
    };
    let ranges = std::mem::take(&mut inode.contents);
    inode.contents = contents((old_tree, ino, &old), (new_tree, ino, &new), ranges, blocks)?;
    Ok(())
}

/// Bytes of `ranges` that are written in a file, which has `size` bytes: without holes, and without
/// what was cut off.
pub(super) fn written(
    tree: FileTree<'_>,
    ino: u64,
    size: u64,
    ranges: &[Range<u64>],
) -> Result<u64> {
    let mut sum = 0u64;
    for range in ranges {
        let end = range.end.min(size);
        let mut at = range.start;
        while at < end {
            let next = tree.next_written(ino, at..end)?;
            sum = sum.saturating_add(next.end - next.start);
            at = next.end;
        }
    }
    Ok(sum)
}
