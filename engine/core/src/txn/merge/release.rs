//! Release of the sealed sets that a merge has brought into the index.
//!
//! Inodes are released in order of their numbers and prefetched, because most of them have left the
//! processor's cache; with many processors by several threads. Threads that wait for memory are
//! woken as it becomes free.

use std::sync::Arc;

use crate::journal::vector::LogVector;
use crate::txn::Core;
use crate::txn::heads::HeadInput;
use crate::txn::items::{DirtyInodes, ItemStore};
use crate::txn::merge::backlog::Backlog;
use crate::txn::merge::edits::TOGETHER;
use crate::txn::merge::parts::PIECE;
use cairnfs_disk::prefetch::prefetch;
use cairnfs_disk::sync::atomic::{AtomicUsize, Ordering};
use cairnfs_disk::sync::in_threads;

/// Waiters for memory are woken each time this many inodes were released.
const WAKE_EVERY: usize = 1 << 14;

/// Releases the sealed sets of all heads, which the index has, and regularly wakes the threads that
/// wait for memory.
pub(super) fn release_sealed(core: &Core, backlog: &Backlog, heads: Vec<HeadInput>, seq: u64) {
    let release = Release {
        core,
        backlog,
        seq,
        together: heads.iter().map(|head| head.inodes.len()).sum(),
        sealed: backlog.sealed_bytes(),
        released: AtomicUsize::new(0),
    };
    for head in heads {
        release.head(head);
    }
    backlog.set_sealed_bytes(0);
}

/// The release of the sealed sets of one merge.
struct Release<'a> {
    core: &'a Core,
    backlog: &'a Backlog,
    seq: u64,
    /// Number of inodes, and bytes of their sealed sets.
    together: usize,
    sealed: i64,
    /// Number of inodes released so far.
    released: AtomicUsize,
}

impl Release<'_> {
    fn head(&self, head: HeadInput) {
        let together = head.inodes.len();
        let threads = self.core.merge_threads().min(together.div_ceil(PIECE));
        let mut inodes = head.inodes.into_iter();
        let pieces = std::iter::from_fn(|| {
            let piece: Vec<_> = inodes.by_ref().take(PIECE).collect();
            (!piece.is_empty()).then_some(piece)
        });
        in_threads(threads, pieces, |piece| {
            let len = piece.len();
            self.piece(&head.items, piece, together);
            self.wake(len);
        });
    }

    fn piece(&self, items: &ItemStore, inodes: DirtyInodes, together: usize) {
        let mut inodes = inodes.into_iter();
        let mut vectors = Vec::new();
        let mut clean = Vec::with_capacity(TOGETHER);
        while !inodes.as_slice().is_empty() {
            let next = inodes.as_slice().iter().take(TOGETHER);
            next.for_each(|(_, inode)| inode.prefetch());
            for (_, inode) in inodes.by_ref().take(TOGETHER) {
                if inode.release_sealed(self.seq, &mut vectors) {
                    clean.push(inode);
                }
            }
            drop_together(&mut vectors);
            let cleaned = |inode| items.table().cleaned(inode, together);
            clean.drain(..).for_each(cleaned);
        }
    }

    /// Counts released inodes, and wakes the threads that wait for memory, once enough were released
    /// since the last time.
    fn wake(&self, more: usize) {
        let before = self.released.fetch_add(more, Ordering::Relaxed);
        let left = self.together.saturating_sub(before + more);
        if (before + more) / WAKE_EVERY > before / WAKE_EVERY && left > 0 {
            let per_inode = self.sealed / self.together as i64;
            self.backlog
                .lower_sealed_bytes((per_inode * left as i64).max(1));
            self.core.journal.ring().wake();
        }
    }
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
