//! Whether two files hold the same bytes, wherever their blocks lie.
//!
//! Uses the trees. Memory is bounded: a part of each file is compared at a time.

use crate::diff::tree::{Blocks, FileTree};
use crate::error::Result;

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
