//! Written data that the kernel had accepted and the volume refused.
//!
//! If a write from the kernel's cache is refused, the kernel drops the data, and the program that
//! wrote it learns of the error only by fsync or close. The kernel also keeps one error for the
//! whole mount and reports it to the next syncfs(2), even if the file was deleted. So the daemon
//! records which byte ranges of which files are missing until they are written again, truncated, or
//! deleted with their file, and reports them once, to the next sync of the whole volume.
//!
//! A file that was replaced, by a publish or a restore, is recorded with its path: its number may lead
//! to the file that is in its place.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::convert::Refusal;

/// A file: the ids of its root and of its inode.
pub type File = (u32, u64);

/// The loss of data of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The inode number.
    pub ino: u64,
    /// The errno value of the last refusal.
    pub errno: i32,
    /// The path that the file had, if it was replaced by a publish or a restore.
    pub replaced: Option<PathBuf>,
}

/// Maximum number of ranges recorded per file; beyond that the two nearest ranges are merged, with
/// the gap between them.
const RANGES: usize = 64;

struct Missing {
    /// Ascending disjoint byte ranges that cover all missing bytes.
    ranges: Vec<Range<u64>>,
    why: Refusal,
    /// As [`Loss::replaced`].
    replaced: Option<PathBuf>,
}

impl Missing {
    /// Adds a missing range of bytes.
    fn add(&mut self, mut bytes: Range<u64>) {
        self.ranges.retain(|range| {
            let apart = range.end < bytes.start || bytes.end < range.start;
            if !apart {
                bytes = bytes.start.min(range.start)..bytes.end.max(range.end);
            }
            apart
        });
        let place = self.ranges.partition_point(|r| r.start < bytes.start);
        self.ranges.insert(place, bytes);
        self.join_nearest();
    }

    /// Removes a range of bytes that is not missing any more.
    fn remove(&mut self, bytes: &Range<u64>) {
        let parts = |range: &Range<u64>| {
            let before = range.start..range.end.min(bytes.start);
            let behind = range.start.max(bytes.end)..range.end;
            [before, behind].into_iter().filter(|part| !part.is_empty())
        };
        self.ranges = self.ranges.iter().flat_map(parts).collect();
        self.join_nearest();
    }

    fn join_nearest(&mut self) {
        while self.ranges.len() > RANGES {
            let gaps = self.ranges.windows(2).enumerate();
            let nearest = gaps.min_by_key(|(_, pair)| match pair {
                [a, b] => b.start.saturating_sub(a.end),
                _ => u64::MAX,
            });
            let Some(at) = nearest.map(|(at, _)| at) else {
                return;
            };
            let behind = self.ranges.remove(at + 1);
            if let Some(range) = self.ranges.get_mut(at) {
                range.end = behind.end;
            }
        }
    }
}

/// The recorded losses of a mount.
#[derive(Default)]
pub struct Losses {
    files: Mutex<BTreeMap<File, Missing>>,
    /// Whether `files` is nonempty; changed under the lock. Lets each write skip the lock.
    some: AtomicBool,
    /// Whether one was refused since the last report.
    told: AtomicBool,
    /// Number of refused writes.
    count: AtomicU64,
}

impl Losses {
    /// Number of refused writes since the mount began, including those written again later.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Records that a range of bytes of a file was refused. `replaced` returns the path of a file that
    /// was replaced; it is called for the first loss of a file. Returns whether it is the
    /// first since the last [`Self::take`].
    pub fn refused(
        &self,
        file: File,
        bytes: Range<u64>,
        why: Refusal,
        replaced: impl FnOnce() -> Option<PathBuf>,
    ) -> bool {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut files = self.files.lock();
        let missing = files.entry(file).or_insert_with(|| Missing {
            ranges: Vec::new(),
            why,
            replaced: replaced(),
        });
        missing.add(bytes);
        missing.why = why;
        self.some.store(true, Ordering::Release);
        !self.told.swap(true, Ordering::Relaxed)
    }

    /// Records that a range of bytes of a file was written.
    pub fn written(&self, file: File, bytes: Range<u64>) {
        self.narrow(file, || Some(bytes));
    }

    /// Records that a file was truncated or extended to `size` bytes.
    pub fn truncated(&self, file: File, size: u64) {
        self.narrow(file, || Some(size..u64::MAX));
    }

    /// Drops the losses of a file if `is_gone` returns true; it is called only if the file has any.
    pub fn forget(&self, file: File, is_gone: impl FnOnce() -> bool) {
        self.narrow(file, || is_gone().then_some(0..u64::MAX));
    }

    /// Removes the range that `found` returns; it is called only if the file has missing bytes.
    fn narrow(&self, file: File, found: impl FnOnce() -> Option<Range<u64>>) {
        if !self.some.load(Ordering::Acquire) {
            return;
        }
        let mut files = self.files.lock();
        if let Some(missing) = files.get_mut(&file)
            && let Some(bytes) = found()
        {
            missing.remove(&bytes);
            if missing.ranges.is_empty() {
                files.remove(&file);
            }
        }
        self.some.store(!files.is_empty(), Ordering::Release);
    }

    /// Files of the root `from` are files of the root `to` now, except those for which `replaced`
    /// returns the path that they had.
    pub fn switch(&self, (from, to): (u32, u32), replaced: impl Fn(u64) -> Option<PathBuf>) {
        if !self.some.load(Ordering::Acquire) {
            return;
        }
        let mut files = self.files.lock();
        let all = std::mem::take(&mut *files).into_iter();
        *files = all
            .map(|((root, ino), mut missing)| {
                if root != from {
                    return ((root, ino), missing);
                }
                missing.replaced = replaced(ino);
                match missing.replaced {
                    Some(_) => ((from, ino), missing),
                    None => ((to, ino), missing),
                }
            })
            .collect();
    }

    /// Takes all losses, and returns those of files for which `exists` returns true. They count as
    /// reported then.
    pub fn take(&self, mut exists: impl FnMut(File) -> bool) -> Vec<Loss> {
        self.told.store(false, Ordering::Relaxed);
        if !self.some.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut files = self.files.lock();
        self.some.store(false, Ordering::Release);
        let all = std::mem::take(&mut *files).into_iter();
        let existing = all.filter(|(file, _)| exists(*file));
        existing
            .map(|((_, ino), missing)| Loss {
                ino,
                errno: missing.why.0,
                replaced: missing.replaced,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Refusal = Refusal(libc::ENOSPC);

    fn refuse(losses: &Losses, file: File, bytes: Range<u64>, why: Refusal) {
        losses.refused(file, bytes, why, || None);
    }

    fn left(losses: &Losses) -> Vec<u64> {
        losses.take(|_| true).into_iter().map(|l| l.ino).collect()
    }

    #[test]
    fn loss_is_reported_once() {
        let losses = Losses::default();
        assert!(left(&losses).is_empty());
        refuse(&losses, (1, 7), 0..10, Refusal(libc::EIO));
        refuse(&losses, (1, 7), 20..30, FULL);
        let loss = Loss {
            ino: 7,
            errno: libc::ENOSPC,
            replaced: None,
        };
        assert_eq!(losses.take(|(_, ino)| ino == 7), [loss]);
        assert!(left(&losses).is_empty());
        assert_eq!(losses.count(), 2);
    }

    #[test]
    fn losses_follow_files_to_another_tree() {
        let losses = Losses::default();
        refuse(&losses, (1, 7), 0..10, FULL);
        refuse(&losses, (1, 8), 0..10, FULL);
        losses.switch((1, 2), |ino| (ino == 8).then(|| PathBuf::from("/f")));
        losses.written((1, 7), 0..10);
        losses.written((2, 8), 0..10);
        let mut files = Vec::new();
        losses.take(|file| {
            files.push(file);
            true
        });
        assert_eq!(files, [(1, 8), (2, 7)]);
    }

    /// The path is that of the time of the loss, or of the switch after it.
    #[test]
    fn replaced_files_are_told_by_their_paths() {
        let losses = Losses::default();
        refuse(&losses, (1, 7), 0..10, FULL);
        losses.switch((1, 2), |_| Some(PathBuf::from("/d/before")));
        let stale = Refusal(libc::ESTALE);
        losses.refused((1, 8), 0..1, stale, || Some(PathBuf::from("/first")));
        losses.refused((1, 8), 1..2, stale, || panic!("asked once"));
        let told = losses.take(|_| true).into_iter();
        let told: Vec<_> = told.map(|l| (l.ino, l.replaced)).collect();
        let paths = ["/d/before", "/first"].map(|path| Some(PathBuf::from(path)));
        assert_eq!(told, [7, 8].into_iter().zip(paths).collect::<Vec<_>>());
    }

    #[test]
    fn rewritten_bytes_are_not_lost() {
        let losses = Losses::default();
        refuse(&losses, (1, 7), 10..20, FULL);
        refuse(&losses, (1, 7), 20..30, FULL);
        losses.written((1, 7), 0..15);
        losses.written((1, 7), 25..40);
        losses.written((1, 8), 0..100);
        losses.written((1, 7), 17..19);
        losses.written((1, 7), 15..25);
        assert!(left(&losses).is_empty());
        refuse(&losses, (1, 7), 10..30, FULL);
        losses.written((1, 7), 15..25);
        assert_eq!(left(&losses), [7], "both ends are missing");
    }

    #[test]
    fn disjoint_ranges_written_again_are_not_lost() {
        let losses = Losses::default();
        refuse(&losses, (1, 7), 10..20, FULL);
        refuse(&losses, (1, 7), 1000..1010, FULL);
        losses.written((1, 7), 1000..1010);
        losses.written((1, 7), 10..20);
        assert!(left(&losses).is_empty());
    }

    #[test]
    fn ranges_of_one_file_are_merged_beyond_limit() {
        let mut missing = Missing {
            ranges: Vec::new(),
            why: FULL,
            replaced: None,
        };
        let at = |i: u64| i * 100 + i % 7;
        (0..500).for_each(|i| missing.add(at(i)..at(i) + 10));
        assert_eq!(missing.ranges.len(), RANGES);
        let covered = |i: &u64| missing.ranges.iter().any(|r| r.contains(&at(*i)));
        assert!((0..500).all(|i| covered(&i)), "none is forgotten");
        (0..500).for_each(|i| missing.remove(&(at(i)..at(i + 1))));
        assert_eq!(missing.ranges, []);
    }

    #[test]
    fn truncated_or_deleted_data_is_not_lost() {
        let losses = Losses::default();
        for ino in [1, 2, 3, 4, 5] {
            refuse(&losses, (1, ino), 10..20, FULL);
        }
        losses.truncated((1, 1), 10);
        losses.truncated((1, 2), 15);
        losses.forget((1, 3), || true);
        losses.forget((1, 4), || false);
        let existing = losses.take(|(_, ino)| ino != 5);
        assert_eq!(existing.iter().map(|l| l.ino).collect::<Vec<_>>(), [2, 4]);
    }
}
