//! The inodes of a tree of files that have a dirty set, for the next merge.
//!
//! An inode is listed when the first item is put into its empty current set. It may be listed
//! twice, if all its changes died and it was changed again. The merge gets them in order of their
//! numbers ([`in_order`]).

use std::sync::Arc;

use crate::inode::Inode;
use cairnfs_disk::shard::Sharded;
use cairnfs_disk::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cairnfs_disk::sync::in_threads;

/// Inodes with their numbers.
pub(in crate::txn) type DirtyInodes = Vec<(u64, Arc<Inode>)>;

/// The inodes whose current set is not empty.
#[derive(Default)]
pub(in crate::txn) struct DirtyList {
    inodes: Sharded<(u64, Arc<Inode>)>,
    /// Whether some of them may have changed orphan items.
    orphaned: AtomicBool,
    /// The newest context in which an inode was listed since the opening, or that replay has read.
    newest: AtomicU64,
}

impl DirtyList {
    /// Adds an inode. If many of the inodes may be useless, removes and returns those whose changes
    /// all died in the open context `seq`. The caller holds no list of log dependencies.
    pub fn add(&self, inode: &Arc<Inode>, seq: u64) -> DirtyInodes {
        self.note_change(seq);
        let listed = (inode.ino, inode.clone());
        self.inodes
            .push_pruned(listed, |(_, i)| i.is_cancelled(seq))
    }

    /// Adds inodes that were taken, or that replay has filled.
    pub fn put_back(&self, inodes: impl IntoIterator<Item = (u64, Arc<Inode>)>) {
        inodes.into_iter().for_each(|inode| self.inodes.push(inode));
    }

    /// Records that something changes in the context `seq`. Written once for each context, because
    /// all threads read it.
    pub fn note_change(&self, seq: u64) {
        if self.newest.load(Ordering::Relaxed) < seq {
            self.newest.fetch_max(seq, Ordering::Relaxed);
        }
    }

    /// Whether something has changed in a context after `boundary`, which closed with a change of
    /// roots, also if a merge has taken it. What was merged before the opening is not known. No
    /// thread commits.
    pub fn changed_after(&self, boundary: u64) -> bool {
        self.newest.load(Ordering::Relaxed) > boundary
    }

    /// Records that an orphan item changes. Nearly every removal of a file in use does that, so the
    /// flag is read before it is written.
    pub fn note_orphan(&self) {
        if !self.orphaned.load(Ordering::Relaxed) {
            self.orphaned.store(true, Ordering::Relaxed);
        }
    }

    /// Whether any inode is listed.
    pub fn has_any(&self) -> bool {
        self.inodes.has_any()
    }

    /// Takes all inodes, in several lists.
    pub fn take(&self) -> Vec<DirtyInodes> {
        self.inodes.take_lists()
    }

    /// Takes and resets whether an orphan item may have changed.
    pub fn take_orphaned(&self) -> bool {
        self.orphaned.swap(false, Ordering::Relaxed)
    }
}

/// Inodes that are worth a thread.
const LONG: usize = 1 << 12;

/// Inodes of each range that are looked at to find where the ranges begin.
const SAMPLE: usize = 32;

/// Sorts the inodes of several lists by their numbers, in up to `threads` threads, and removes
/// duplicates: an inode whose changes all died and that was changed again is listed twice.
///
/// Each list is sorted and cut into the same ranges of numbers, then each range is brought into one
/// order; the caller only appends them.
pub(in crate::txn) fn in_order(lists: Vec<DirtyInodes>, threads: usize) -> DirtyInodes {
    let all: usize = lists.iter().map(Vec::len).sum();
    let threads = threads.min(all / LONG).max(1);
    let begins = ranges(&lists, (threads, all));
    let lists = in_threads(threads, lists.into_iter(), |list| cut(list, &begins));
    let mut of_range: Vec<Vec<DirtyInodes>> = vec![Vec::new(); begins.len() + 1];
    for list in lists {
        for (range, piece) in of_range.iter_mut().zip(list) {
            range.push(piece);
        }
    }
    append(in_threads(threads, of_range.into_iter(), join))
}

/// The inodes of all lists, one list after the other.
fn append(lists: Vec<DirtyInodes>) -> DirtyInodes {
    let mut lists = lists.into_iter();
    let mut inodes = lists.next().unwrap_or_default();
    inodes.reserve(lists.as_slice().iter().map(Vec::len).sum());
    lists.for_each(|mut list| inodes.append(&mut list));
    inodes
}

/// The first numbers of `count` ranges, except for the first range, of about equally many of the
/// `all` inodes.
fn ranges(lists: &[DirtyInodes], (count, all): (usize, usize)) -> Vec<u64> {
    let step = (all / (count * SAMPLE)).max(1);
    let some = lists.iter().flat_map(|list| list.iter().step_by(step));
    let mut sample: Vec<u64> = some.map(|(ino, _)| *ino).collect();
    sample.sort_unstable();
    let begin = |n| sample.get(n * sample.len() / count).copied();
    (1..count).filter_map(begin).collect()
}

/// Sorts a list and cuts it where the ranges begin.
fn cut(mut list: DirtyInodes, begins: &[u64]) -> Vec<DirtyInodes> {
    list.sort_unstable_by_key(|(ino, _)| *ino);
    let mut ranges = Vec::with_capacity(begins.len() + 1);
    for begin in begins.iter().rev() {
        let at = list.partition_point(|(ino, _)| ino < begin);
        ranges.push(list.split_off(at));
    }
    ranges.push(list);
    ranges.reverse();
    ranges
}

/// Joins sorted lists.
fn join(lists: Vec<DirtyInodes>) -> DirtyInodes {
    let mut inodes = append(lists);
    // Finds the sorted lists, and only merges them.
    inodes.sort_by_key(|(ino, _)| *ino);
    inodes.dedup_by_key(|(ino, _)| *ino);
    inodes
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    fn numbers(inodes: &DirtyInodes) -> Vec<u64> {
        inodes.iter().map(|(ino, _)| *ino).collect()
    }

    #[test]
    fn lists_come_into_one_order_without_duplicates() {
        // In a list of 20,000 nearly half of the numbers occur twice.
        for (count, len) in [(0, 0), (1, 1), (2, 20_000), (3, 5000), (16, 3000), (5, 17)] {
            let number = |list: u64, n: u64| (n * 7919 + list * 13) % 11_003;
            let inode = |ino| (ino, Arc::new(Inode::new(ino)));
            let list = |at| (0..len).map(|n| inode(number(at, n))).collect();
            let lists: Vec<DirtyInodes> = (0..count).map(list).collect();
            let mut expected: Vec<u64> = lists.iter().flat_map(numbers).collect();
            expected.sort_unstable();
            expected.dedup();
            for threads in [1, 2, 7] {
                let found = in_order(lists.clone(), threads);
                assert_eq!(numbers(&found), expected, "{count} {len} {threads}");
            }
        }
    }

    #[test]
    fn ranges_are_about_equal() {
        let list = |first: u64| -> DirtyInodes {
            let inodes = (first..).step_by(3).take(10_000);
            inodes.map(|ino| (ino, Arc::new(Inode::new(ino)))).collect()
        };
        let lists = [list(0), list(1), list(30_000)];
        let begins = ranges(&lists, (6, 30_000));
        let cuts: Vec<_> = lists.into_iter().map(|list| cut(list, &begins)).collect();
        for range in 0..6 {
            let len: usize = cuts.iter().map(|cut| cut[range].len()).sum();
            assert!((4500..5500).contains(&len), "{range} {len}");
        }
    }
}
