//! Two inodes of different trees: what differs between them, as if they were one.
//!
//! Uses both trees and their data blocks. Editors and many programs write a file anew under a
//! temporary name and rename it; the report tells that as a change of the file. The comparison
//! reads only what is written in one of the two trees.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::diff::delta::{InodeDelta, Item, Values};
use crate::diff::tree::{Blocks, FileTree};
use crate::error::Result;
use crate::format::BLOCK_SIZE;
use crate::format::item::RawInode;
use crate::types::FileKind;

/// Bytes that are compared at a time.
const CHUNK: usize = 64 * BLOCK_SIZE;

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
            contents((old_tree, old, &a), (new_tree, new, &b), blocks)?
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

/// The blocks in which two contents differ, and what only the longer one has.
fn contents(
    (old_tree, old, old_inode): (FileTree<'_>, u64, &RawInode),
    (new_tree, new, new_inode): (FileTree<'_>, u64, &RawInode),
    blocks: &dyn Blocks,
) -> Result<Vec<Range<u64>>> {
    let (old_size, new_size) = (old_inode.size.get(), new_inode.size.get());
    let common = old_size.min(new_size);
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut add = |range: Range<u64>| match found.last_mut() {
        _ if range.is_empty() => {}
        Some(last) if last.end == range.start => last.end = range.end,
        _ => found.push(range),
    };
    let (mut left, mut right) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut at = 0;
    while at < common {
        let a = old_tree.next_written(old, at..common)?;
        let b = new_tree.next_written(new, at..common)?;
        at = a.start.min(b.start);
        let len = usize::try_from(common - at).map_or(CHUNK, |rest| rest.min(CHUNK));
        left.truncate(len);
        right.truncate(len);
        old_tree.read(blocks, old, at, &mut left)?;
        new_tree.read(blocks, new, at, &mut right)?;
        for (a, b) in left.chunks(BLOCK_SIZE).zip(right.chunks(BLOCK_SIZE)) {
            let end = at + a.len() as u64;
            if a != b {
                add(at..end);
            }
            at = end;
        }
    }
    add(common..old_size.max(new_size));
    Ok(found)
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
