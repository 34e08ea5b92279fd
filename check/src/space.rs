//! Compares the group table and the bitmaps with the blocks in use.
//!
//! The bitmaps describe the index on the device: its nodes, its large values, its extents, the
//! fixed areas, the copies of the superblock, and the range behind the end of the volume. Changes in
//! the log are not in them.

use cairnfs_disk::error::Result;
use cairnfs_disk::format::checksum;
use cairnfs_disk::format::geometry::{GROUP_BLOCKS, GROUP_ENTRY_SIZE};
use cairnfs_disk::format::group::GroupEntry;
use zerocopy::FromBytes;

use crate::blocks::GROUP_WORDS;
use crate::checked_volume::Volume;
use crate::codes;
use crate::context::Claims;
use crate::report::{Finding, Ledger};

/// Checks the group table, the bitmaps and the counts.
pub(crate) fn check(volume: &Volume<'_>, claims: &Claims, ledger: &mut Ledger<'_>) -> Result<()> {
    check_shared(volume, claims, ledger);
    let Some(table) = read_table(volume, ledger)? else {
        ledger.unchecked("the bitmaps of free space");
        return Ok(());
    };
    let groups = volume.geometry.groups();
    let mut checker = Checker {
        volume,
        claims,
        ledger,
        free: 0,
        all_read: true,
    };
    for (group, entry) in (0..groups).zip(table) {
        checker.ledger.progress("space", group, groups);
        checker.group(group, &entry)?;
    }
    checker.check_total();
    if claims.incomplete {
        ledger.unchecked("whether blocks are marked in use that nothing uses");
    }
    ledger.progress("space", groups, groups);
    Ok(())
}

/// Bits of a word of a bitmap that are blocks of copies of the superblock.
fn copies(volume: &Volume<'_>, first: u64) -> u64 {
    // A unit is aligned, so it is within one word.
    let units = volume.superblock.copy_units();
    let here = units.filter(|unit| (first..first + 64).contains(unit));
    here.map(|unit| 0xf << (unit - first)).sum()
}

/// Reports blocks used both by the index and by a file's extent, and blocks in use that a replaced
/// extent is still waiting to free.
fn check_shared(volume: &Volume<'_>, claims: &Claims, ledger: &mut Ledger<'_>) {
    let by_file = "the index and by a file";
    let by_waiting = "an extent that the log replaced and by something else";
    let by_copy = "a copy of the superblock and by something else";
    for group in 0..volume.geometry.groups() {
        let (mut shared, mut reused) = (BitRuns::default(), BitRuns::default());
        let mut copied = BitRuns::default();
        for word in 0..GROUP_WORDS {
            let index = claims.index.word(group, word);
            let live = claims.live.word(group, word);
            let waiting = claims.waiting.word(group, word) & (index | live);
            shared.add_word(word, index & live, |run| {
                report_shared(group, run, by_file, ledger);
            });
            reused.add_word(word, waiting, |run| {
                report_shared(group, run, by_waiting, ledger);
            });
            let indexed = claims.indexed.word(group, word);
            let copies = copies(volume, group * GROUP_BLOCKS + word as u64 * 64);
            copied.add_word(word, copies & (index | live | indexed), |run| {
                report_shared(group, run, by_copy, ledger);
            });
        }
        copied.finish(|run| report_shared(group, run, by_copy, ledger));
        shared.finish(|run| report_shared(group, run, by_file, ledger));
        reused.finish(|run| report_shared(group, run, by_waiting, ledger));
    }
}

fn report_shared(group: u64, run: BitRun, by: &str, ledger: &mut Ledger<'_>) {
    let message = format!("{} blocks are used by {by}", run.len);
    let block = group * GROUP_BLOCKS + run.start;
    ledger.add(Finding::new(codes::BLOCK_SHARED, message).at(block));
}

fn read_table(volume: &Volume<'_>, ledger: &mut Ledger<'_>) -> Result<Option<Vec<GroupEntry>>> {
    let copy = u8::from(volume.superblock.table_copy.get() == 1);
    let start = volume.geometry.table_start(copy);
    let bytes = volume.read(start, volume.geometry.table_blocks())?;
    let (expected, found) = (volume.superblock.table_crc.get(), checksum::crc(&bytes));
    if expected != found {
        let message = format!("expected {expected:08x}, found {found:08x}");
        ledger.add(Finding::new(codes::TABLE_CHECKSUM, message).at(start));
        return Ok(None);
    }
    let entries = bytes
        .chunks_exact(GROUP_ENTRY_SIZE as usize)
        .filter_map(|chunk| GroupEntry::read_from_bytes(chunk).ok());
    Ok(Some(entries.collect()))
}

struct Checker<'a, 'd, 'l, 'p> {
    volume: &'a Volume<'d>,
    claims: &'a Claims,
    ledger: &'l mut Ledger<'p>,
    /// Free blocks counted in the bitmaps so far.
    free: u64,
    all_read: bool,
}

impl Checker<'_, '_, '_, '_> {
    fn group(&mut self, group: u64, entry: &GroupEntry) -> Result<()> {
        if entry.copy > 1 {
            let message = format!("copy {} of the bitmap of group {group}", entry.copy);
            self.ledger.add(Finding::new(codes::TABLE_ENTRY, message));
            self.all_read = false;
            return Ok(());
        }
        let block = self.volume.geometry.bitmap_block(group, entry.copy);
        let bitmap = self.volume.read(block, 1)?;
        let (expected, found) = (entry.crc.get(), checksum::crc(&bitmap));
        if expected != found {
            let message = format!("group {group}: expected {expected:08x}, found {found:08x}");
            let finding = Finding::new(codes::BITMAP_CHECKSUM, message);
            self.ledger.add(finding.at(block));
            self.all_read = false;
            return Ok(());
        }
        let words = bitmap.as_chunks::<8>().0;
        let free: u64 = words
            .iter()
            .map(|w| u64::from(u64::from_le_bytes(*w).count_zeros()))
            .sum();
        if u64::from(entry.free.get()) != free {
            let message = format!(
                "group {group}: table tells {}, bitmap has {free}",
                entry.free
            );
            let finding = Finding::new(codes::GROUP_FREE_COUNT, message);
            self.ledger.add(finding.at(block));
        }
        self.free += free;
        self.compare(group, words);
        Ok(())
    }

    fn compare(&mut self, group: u64, words: &[[u8; 8]]) {
        let (mut missing, mut leaked) = (BitRuns::default(), BitRuns::default());
        for (i, word) in words.iter().enumerate() {
            let told = u64::from_le_bytes(*word);
            let used = self.used(group, i);
            missing.add_word(i, used & !told, |run| self.report_missing(group, run));
            leaked.add_word(i, told & !used, |run| self.report_leaked(group, run));
        }
        missing.finish(|run| self.report_missing(group, run));
        leaked.finish(|run| self.report_leaked(group, run));
    }

    /// The expected 64 bits of a word of a bitmap.
    fn used(&self, group: u64, word: usize) -> u64 {
        let first = group * GROUP_BLOCKS + word as u64 * 64;
        let geometry = &self.volume.geometry;
        let fixed = low_bits(geometry.data_start().saturating_sub(first));
        let inside = low_bits(geometry.total_blocks.saturating_sub(first));
        let claims = self.claims;
        let copies = copies(self.volume, first);
        fixed | !inside | copies | claims.index.word(group, word) | claims.indexed.word(group, word)
    }

    fn report_missing(&mut self, group: u64, run: BitRun) {
        let message = format!("{} blocks in use are marked free", run.len);
        let block = group * GROUP_BLOCKS + run.start;
        let finding = Finding::new(codes::BLOCK_NOT_ALLOCATED, message);
        self.ledger.add(finding.at(block));
    }

    fn report_leaked(&mut self, group: u64, run: BitRun) {
        if self.claims.incomplete {
            return;
        }
        let message = format!("{} blocks that nothing uses are marked in use", run.len);
        let block = group * GROUP_BLOCKS + run.start;
        let finding = Finding::new(codes::BLOCK_LEAKED, message);
        self.ledger.add(finding.at(block));
    }

    fn check_total(&mut self) {
        let told = self.volume.superblock.free_blocks.get();
        self.ledger.stats().free_blocks = self.free;
        if self.all_read && told != self.free {
            let message = format!("superblock tells {told}, bitmaps have {}", self.free);
            self.ledger.add(Finding::new(codes::FREE_COUNT, message));
        }
    }
}

/// A word with its `count` lowest bits set.
fn low_bits(count: u64) -> u64 {
    if count >= 64 {
        u64::MAX
    } else {
        (1 << count) - 1
    }
}

/// A run of blocks, as numbers within their group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BitRun {
    start: u64,
    len: u64,
}

/// Joins set bits into runs.
#[derive(Default)]
struct BitRuns {
    open: Option<BitRun>,
}

impl BitRuns {
    /// Takes the bits of the next word; calls `done` with each run that ends before them.
    fn add_word(&mut self, word: usize, mut bits: u64, mut done: impl FnMut(BitRun)) {
        while bits != 0 {
            let at = word as u64 * 64 + u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            match &mut self.open {
                Some(run) if run.start + run.len == at => run.len += 1,
                open => {
                    if let Some(run) = open.replace(BitRun { start: at, len: 1 }) {
                        done(run);
                    }
                }
            }
        }
    }

    fn finish(self, mut done: impl FnMut(BitRun)) {
        if let Some(run) = self.open {
            done(run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_join_into_runs_across_words() {
        let (mut runs, mut got) = (BitRuns::default(), Vec::new());
        runs.add_word(0, 0b101 | 1 << 63, |r| got.push((r.start, r.len)));
        runs.add_word(1, 0b11, |r| got.push((r.start, r.len)));
        runs.finish(|r| got.push((r.start, r.len)));
        assert_eq!(got, vec![(0, 1), (2, 1), (63, 3)]);
    }
}
