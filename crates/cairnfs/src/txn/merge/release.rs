//! Release of the sealed sets that a merge has brought into the index.
//!
//! Inodes are released in order of their numbers and prefetched, because most of them have left the
//! processor's cache. Threads that wait for memory are woken as it becomes free.

use std::sync::Arc;

use crate::journal::vector::LogVector;
use crate::prefetch::prefetch;
use crate::txn::Core;
use crate::txn::items::DirtyInodes;
use crate::txn::merge::backlog::Backlog;
use crate::txn::merge::edits::TOGETHER;

/// Waiters for memory are woken each time this many inodes were released.
const WAKE_EVERY: usize = 1 << 14;

/// Releases sealed sets, which the index has, and regularly wakes the threads that wait for
/// memory.
pub(super) fn release_sealed(core: &Core, backlog: &Backlog, inodes: DirtyInodes, seq: u64) {
    let together = inodes.len();
    let sealed = backlog.sealed_bytes();
    let mut woken_at = together;
    let mut inodes = inodes.into_iter();
    let mut vectors = Vec::new();
    let mut clean = Vec::with_capacity(TOGETHER);
    while !inodes.as_slice().is_empty() {
        let next = inodes.as_slice().iter().take(TOGETHER);
        next.for_each(|(_, inode)| inode.prefetch());
        for (_, inode) in inodes.by_ref().take(TOGETHER) {
            if inode.release_sealed(seq, &mut vectors) {
                clean.push(inode);
            }
        }
        drop_together(&mut vectors);
        let cleaned = |inode| core.items.table().cleaned(inode, together);
        clean.drain(..).for_each(cleaned);
        let left = inodes.as_slice().len();
        if woken_at - left >= WAKE_EVERY && left > 0 {
            woken_at = left;
            let per_inode = sealed / together as i64;
            backlog.set_sealed_bytes((per_inode * left as i64).max(1));
            core.journal.ring().wake();
        }
    }
    backlog.set_sealed_bytes(0);
}

/// Drops vectors, with prefetching, because many have left the processor's cache.
fn drop_together(vectors: &mut Vec<Arc<LogVector>>) {
    while !vectors.is_empty() {
        let rest = vectors.len().saturating_sub(2 * TOGETHER);
        let last = vectors.get(rest..).unwrap_or_default();
        last.iter().for_each(|vector| prefetch(&**vector));
        vectors.truncate(rest);
    }
    // Otherwise the list of a large directory would be kept until all inodes are released.
    vectors.shrink_to(TOGETHER * TOGETHER);
}
