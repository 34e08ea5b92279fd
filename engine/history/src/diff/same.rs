//! Whether two files hold the same bytes, wherever their blocks lie, and where they do not.
//!
//! Uses the trees. Memory is bounded: a part of each file is compared at a time.

use std::ops::Range;

use crate::diff::tree::{Blocks, FileTree};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::BLOCK_SIZE;

/// Blocks of each of two files that are compared at a time.
const CHUNK: usize = 64;

/// Most bytes of each of two files that are compared at a time.
const STEP: u64 = 1 << 20;

/// Whether a file of one tree and one of another have the same contents. What neither has written
/// is zeros in both, and is not read. Both are of the same type.
///
/// # Errors
/// A damaged volume, the device's failure.
pub fn same_contents(
    blocks: &dyn Blocks,
    (our_tree, ours): (&FileTree<'_>, u64),
    (their_tree, theirs): (&FileTree<'_>, u64),
) -> Result<bool> {
    let size = |tree: &FileTree<'_>, ino: u64| -> Result<Option<u64>> {
        Ok(tree.inode(ino)?.map(|i| i.size.get()))
    };
    let (our_size, their_size) = (size(our_tree, ours)?, size(their_tree, theirs)?);
    let (Some(size), true) = (our_size, our_size == their_size) else {
        return Ok(false);
    };
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < size {
        let our = our_tree.next_written(ours, at..size)?;
        let their = their_tree.next_written(theirs, at..size)?;
        at = our.start.min(their.start);
        let end = our
            .end
            .max(their.end)
            .min(at.saturating_add(STEP))
            .min(size);
        let len = usize::try_from(end.saturating_sub(at)).unwrap_or_default();
        if len == 0 {
            break;
        }
        a.resize(len, 0);
        b.resize(len, 0);
        our_tree.read(blocks, ours, at, &mut a)?;
        their_tree.read(blocks, theirs, at, &mut b)?;
        if a != b {
            return Ok(false);
        }
        at = end;
    }
    Ok(true)
}

/// The parts of `range`, in blocks, in which a file of one tree and one of another hold different
/// bytes; ascending, and not adjacent to each other. Both have the bytes of `range`, and are of the
/// same type.
///
/// Blocks with different checksums differ, and the same block is equal to itself: these are not read.
/// Two blocks with equal checksums are, as a checksum has 32 bits.
///
/// # Errors
/// A damaged volume, the device's failure.
pub(super) fn differing(
    blocks: &dyn Blocks,
    (old_tree, old): (&FileTree<'_>, u64),
    (new_tree, new): (&FileTree<'_>, u64),
    range: Range<u64>,
) -> Result<Vec<Range<u64>>> {
    let size = BLOCK_SIZE as u64;
    let mut found = Vec::new();
    let mut places = ([None; CHUNK], [None; CHUNK]);
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let mut at = range.start;
    while at < range.end {
        let a = old_tree.next_written(old, at..range.end)?;
        let b = new_tree.next_written(new, at..range.end)?;
        at = at.max(a.start.min(b.start));
        let first = at / size;
        let end = first.saturating_add(CHUNK as u64).saturating_mul(size);
        let end = end.min(range.end);
        let inline = old_tree.places(old, first, &mut places.0)?
            | new_tree.places(new, first, &mut places.1)?;
        // Blocks that have to be read, until now.
        let mut unread = at..at;
        let mut compare = |bytes: Range<u64>, found: &mut Vec<Range<u64>>| -> Result<()> {
            let len = usize::try_from(bytes.end - bytes.start).unwrap_or_default();
            left.resize(len, 0);
            right.resize(len, 0);
            old_tree.read(blocks, old, bytes.start, &mut left)?;
            new_tree.read(blocks, new, bytes.start, &mut right)?;
            let (mut left, mut right, mut at) = (&left[..], &right[..], bytes.start);
            while at < bytes.end {
                let end = (at / size + 1).saturating_mul(size).min(bytes.end);
                let len = usize::try_from(end - at).unwrap_or_default();
                let (a, b) = (left.split_at(len), right.split_at(len));
                if a.0 != b.0 {
                    add(found, at..end);
                }
                (left, right, at) = (a.1, b.1, end);
            }
            Ok(())
        };
        for (nth, pair) in (0..).zip(places.0.iter().zip(&places.1)) {
            let block = (first + nth).saturating_mul(size);
            let bytes = block.max(at)..block.saturating_add(size).min(end);
            let whole = bytes.end.saturating_sub(bytes.start) == size;
            let differs = match pair {
                _ if bytes.is_empty() => break,
                _ if inline => None,
                (a, b) if a == b => Some(false),
                (Some((_, a)), Some((_, b))) if a != b && whole => Some(true),
                _ => None,
            };
            let Some(differs) = differs else {
                unread.end = bytes.end;
                continue;
            };
            compare(unread, &mut found)?;
            unread = bytes.end..bytes.end;
            if differs {
                add(&mut found, bytes);
            }
        }
        compare(unread, &mut found)?;
        at = end;
    }
    Ok(found)
}

/// Adds a range behind the others.
pub(super) fn add(found: &mut Vec<Range<u64>>, range: Range<u64>) {
    match found.last_mut() {
        _ if range.is_empty() => {}
        Some(last) if last.end == range.start => last.end = range.end,
        _ => found.push(range),
    }
}
