//! Sizes from which operations compute what they reserve, and into which steps they divide.

use crate::inode::InodeState;
use cairnfs_disk::format::MAX_NAME;
use cairnfs_disk::format::item::{DIR_ENTRY_HEADER, RawInode};

/// Largest value of a directory entry, in bytes.
pub(super) const ENTRY_MAX: usize = DIR_ENTRY_HEADER + MAX_NAME;
/// Bytes of an inode item's value.
pub(super) const INODE_LEN: usize = size_of::<RawInode>();

/// A size of steps: `usual`, or so small that a search of thread schedules reaches a second step
/// with a few items.
const fn step(usual: usize) -> usize {
    if cfg!(shuttle) { 2 } else { usual }
}

/// Items removed in one step.
pub(super) const ORPHAN_STEP: usize = step(512);
/// Most items of an inode that is removed in the transaction that removes its last name.
pub(super) const INLINE_REMOVAL: usize = step(64);
/// Extents that a truncation frees in one transaction.
pub(super) const TRUNCATION_STEP: usize = step(512);
/// Extents or pages that one step of a search for data or a hole examines under the state lock.
pub(super) const SEEK_STEP: usize = step(512);

/// Whether an inode has lost its last name and may have more items than one step removes.
pub(super) fn is_large_orphan(state: &InodeState) -> bool {
    let limit = ORPHAN_STEP as u64;
    state
        .attrs
        .as_ref()
        .is_some_and(|a| a.nlink == 0 && (a.blocks > limit || u64::from(a.xattrs) > limit))
}
