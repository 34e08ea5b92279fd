//! Sizes from which operations compute what they reserve, and into which steps they divide.

use crate::format::MAX_NAME;
use crate::format::item::{DIR_ENTRY_HEADER, RawInode};
use crate::inode::InodeState;

/// Largest value of a directory entry, in bytes.
pub(super) const ENTRY_MAX: usize = DIR_ENTRY_HEADER + MAX_NAME;
/// Bytes of an inode item's value.
pub(super) const INODE_LEN: usize = size_of::<RawInode>();

/// Items removed in one step.
pub(super) const ORPHAN_STEP: usize = 512;

/// Whether an inode has lost its last name and may have more items than one step removes.
pub(super) fn is_large_orphan(state: &InodeState) -> bool {
    let limit = ORPHAN_STEP as u64;
    state
        .attrs
        .as_ref()
        .is_some_and(|a| a.nlink == 0 && (a.blocks > limit || u64::from(a.xattrs) > limit))
}
