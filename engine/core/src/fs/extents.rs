//! Extents of a file: lookup, and replacing the mapping of a range of file blocks.

use std::sync::Arc;

use smallvec::SmallVec;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::fs::FileSystem;
use crate::fs::locked::attrs_mut;
use crate::fs::room::extent_growth;
use crate::inode::{Inode, InodeState};
use crate::space::BlockRun;
use crate::txn::{Births, Commit, Item};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault};
use cairnfs_disk::format::MAX_EXTENT_BLOCKS;
use cairnfs_disk::format::item::{EXTENT_UNWRITTEN, RawExtent, decode_extent};
use cairnfs_disk::format::key::Kind;

/// Largest value of an extent item, in bytes.
pub(super) const EXTENT_MAX: usize = size_of::<RawExtent>() + 4 * MAX_EXTENT_BLOCKS as usize;

/// Spare checksums for which a new extent has capacity.
const MORE: usize = 16;

/// Most files have at most two extents in a range.
pub(super) type Extents = SmallVec<[Extent; 2]>;

/// A run of file blocks and its place on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extent {
    /// First file block.
    pub at: u64,
    /// First device block.
    pub block: u64,
    /// Context sequence of its first commit; 0 before that.
    pub birth: u64,
    /// Length in blocks if unwritten; otherwise 0, and the length is that of `crcs`.
    unwritten: u64,
    /// A CRC32C for each block; empty if unwritten.
    pub crcs: Vec<u32>,
    /// The item was found below the current dirty set.
    pub below: bool,
}

impl Extent {
    /// A written extent that is not committed yet.
    pub fn written(at: u64, block: u64, crcs: Vec<u32>) -> Self {
        Self {
            at,
            block,
            birth: 0,
            unwritten: 0,
            crcs,
            below: false,
        }
    }

    /// An unwritten extent that is not committed yet; `len` in blocks.
    pub fn unwritten(at: u64, block: u64, len: u64) -> Self {
        Self {
            at,
            block,
            birth: 0,
            unwritten: len,
            crcs: Vec::new(),
            below: false,
        }
    }

    /// Decodes an item of the inode `ino`.
    pub fn decode(ino: u64, at: u64, item: &Item) -> Result<Self> {
        let (raw, crcs) = decode_extent(&item.value)
            .map_err(|found| Error::corrupt(0, "extent item", format!("inode {ino}"), found))?;
        let unwritten = raw.flags.get() & EXTENT_UNWRITTEN != 0;
        Ok(Self {
            at,
            block: raw.block.get(),
            birth: raw.birth.get(),
            unwritten: if unwritten {
                u64::from(raw.len.get())
            } else {
                0
            },
            crcs: crcs.iter().map(|c| c.get()).collect(),
            below: item.below,
        })
    }

    fn encode(&self, births: &Births) -> Vec<u8> {
        let raw = RawExtent {
            block: U64::new(self.block),
            birth: U64::new(fault::or(
                InjectedFault::WrongBirth,
                || births.of(self.birth),
                || births.seq,
            )),
            len: U32::new(self.len() as u32),
            flags: U32::new(if self.is_unwritten() {
                EXTENT_UNWRITTEN
            } else {
                0
            }),
        };
        let mut value = vec![0; size_of::<RawExtent>() + 4 * self.crcs.len()];
        let (head, sums) = value.split_at_mut(size_of::<RawExtent>());
        head.copy_from_slice(raw.as_bytes());
        for (to, crc) in sums.chunks_exact_mut(4).zip(&self.crcs) {
            to.copy_from_slice(&crc.to_le_bytes());
        }
        value
    }

    /// Length in blocks.
    pub fn len(&self) -> u64 {
        self.unwritten + self.crcs.len() as u64
    }

    /// Whether it was allocated but never written, and reads as zeros.
    pub fn is_unwritten(&self) -> bool {
        self.unwritten > 0
    }

    /// First file block after it.
    pub fn end(&self) -> u64 {
        self.at + self.len()
    }

    /// Its device blocks.
    pub fn run(&self) -> BlockRun {
        BlockRun {
            start: self.block,
            len: self.len(),
        }
    }

    /// The part of it in `from..to`, if any.
    pub fn part(&self, from: u64, to: u64) -> Option<Extent> {
        let run = self.run_in(from, to)?;
        let skip = run.start - self.block;
        let own = skip as usize..(skip + run.len) as usize;
        let own = self.crcs.get(own).unwrap_or_default();
        // A short piece is often joined to it afterwards.
        let mut crcs = Vec::with_capacity(own.len() + MORE);
        crcs.extend_from_slice(own);
        Some(Extent {
            at: self.at + skip,
            block: run.start,
            birth: self.birth,
            unwritten: if self.is_unwritten() { run.len } else { 0 },
            crcs,
            below: self.below,
        })
    }

    /// The device blocks of the part in `from..to`.
    fn run_in(&self, from: u64, to: u64) -> Option<BlockRun> {
        let (from, to) = (from.max(self.at), to.min(self.end()));
        (from < to).then(|| BlockRun::new(self.block + (from - self.at), to - from))
    }

    /// The birth of this extent and `next` as one; `None` if `next` does not continue it in the
    /// file and on the device, if the result would be too long, or if their births differ in what
    /// is inherited.
    pub fn joined_birth(&self, next: &Extent, births: &Births) -> Option<u64> {
        let fits = self.end() == next.at
            && self.block + self.len() == next.block
            && self.is_unwritten() == next.is_unwritten()
            && self.len() + next.len() <= MAX_EXTENT_BLOCKS;
        if fits {
            births.joined((self.birth, self.len()), (next.birth, next.len()))
        } else {
            None
        }
    }

    /// Appends `next` if both can be one extent. Returns whether it did.
    fn join(&mut self, next: &Extent, births: &Births) -> bool {
        let Some(birth) = self.joined_birth(next, births) else {
            return false;
        };
        self.birth = birth;
        self.unwritten += next.unwritten;
        self.crcs.extend_from_slice(&next.crcs);
        true
    }
}

/// Counts the blocks that no extent covers; both are in ascending order.
fn uncovered(extents: &[Extent], blocks: impl Iterator<Item = u64>) -> u64 {
    let mut extents = extents.iter().peekable();
    let uncovered = blocks.filter(|block| {
        while extents.next_if(|e| e.end() <= *block).is_some() {}
        extents.peek().is_none_or(|e| e.at > *block)
    });
    uncovered.count() as u64
}

/// The extent that begins at file block `at`; `extents` are in ascending order.
fn beginning_at(extents: &[Extent], at: u64) -> Option<&Extent> {
    let place = extents.binary_search_by_key(&at, |e| e.at).ok()?;
    extents.get(place)
}

impl FileSystem {
    /// The extents that touch `from..to`, ascending, at most `limit`.
    pub(super) fn extents(
        &self,
        inode: &Inode,
        state: &InodeState,
        from: u64,
        to: u64,
        limit: usize,
    ) -> Result<Extents> {
        let mut found = Extents::new();
        if to <= from || state.attrs.as_ref().is_none_or(|a| a.blocks == 0) {
            return Ok(found);
        }
        // An extent is at most MAX_EXTENT_BLOCKS long, so none that reaches `from` begins before
        // `least`. Among the extents that begin up to `from`, only the last can reach it.
        let least = (from + 1).saturating_sub(MAX_EXTENT_BLOCKS);
        self.items().scan_from_last(
            inode,
            state,
            Kind::Extent,
            (least, from, to - 1),
            &mut |at, item| {
                let extent = Extent::decode(inode.ino, at, &item)?;
                if extent.end() > from {
                    found.push(extent);
                }
                Ok(found.len() < limit)
            },
        )?;
        Ok(found)
    }

    /// Counts the blocks without an extent; `blocks` are ascending and within `from..to`.
    pub(super) fn unplaced(
        &self,
        inode: &Inode,
        state: &InodeState,
        (from, to): (u64, u64),
        blocks: impl Iterator<Item = u64>,
    ) -> Result<u64> {
        let mut blocks = blocks.peekable();
        if blocks.peek().is_none() {
            return Ok(0);
        }
        let extents = self.extents(inode, state, from, to, usize::MAX)?;
        Ok(uncovered(&extents, blocks))
    }

    /// Largest number of log bytes that [`Self::replace`] needs for `old` extents and new ones of
    /// `blocks` blocks in `pieces`; includes the remaining edges of the first and last old extent.
    pub(super) fn replace_need(old: usize, pieces: usize, blocks: u64) -> crate::txn::Need {
        let values = 3 * EXTENT_MAX + pieces * size_of::<RawExtent>() + 4 * blocks as usize;
        crate::txn::Need::items(pieces + 4, values + crate::fs::sizes::INODE_LEN, old + 1)
    }

    /// Maps `from..to` to `new` (ascending, within the range). `old`, all extents that touch the
    /// range, lose their part of it. Blocks that become unmapped are freed. Returns the largest
    /// number of bytes by which the index may grow.
    pub(super) fn replace(
        &self,
        commit: &mut Commit<'_>,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        (from, to): (u64, u64),
        old: &[Extent],
        new: Extents,
    ) -> Result<u64> {
        let births = commit.births();
        let mut unmapped: Vec<(BlockRun, u64)> = Vec::new();
        let added: u64 = new.iter().map(Extent::len).sum();
        let used = new
            .iter()
            .map(Extent::run)
            .collect::<SmallVec<[BlockRun; 1]>>();
        let mut pieces = new;
        for extent in old {
            pieces.extend(extent.part(extent.at, from));
            pieces.extend(extent.part(to, extent.end()));
            unmapped.extend(extent.run_in(from, to).map(|run| (run, extent.birth)));
        }
        let lost: u64 = unmapped.iter().map(|(run, _)| run.len).sum();
        for (run, birth) in unmapped {
            for run in crate::txn::subtract_runs(vec![run], &used) {
                commit.free(run, birth);
            }
        }
        pieces.sort_by_key(|p| p.at);
        let mut joined = Extents::new();
        for piece in pieces {
            if !joined.last_mut().is_some_and(|l| l.join(&piece, &births)) {
                joined.push(piece);
            }
        }
        for extent in old {
            // An item that gets another value is not deleted first.
            if beginning_at(&joined, extent.at).is_none() {
                commit.delete(inode, state, Kind::Extent, extent.at, &[], extent.below);
            }
        }
        for piece in &joined {
            let below = beginning_at(old, piece.at).is_some_and(|e| e.below);
            let value = piece.encode(&births);
            commit.put(inode, state, Kind::Extent, piece.at, &value, below);
        }
        let attrs = attrs_mut(state)?;
        attrs.blocks = (attrs.blocks + added).saturating_sub(lost);
        let bytes = |extents: &[Extent]| -> u64 {
            let items = extents.iter().map(|e| extent_growth(e.crcs.len()));
            items.sum()
        };
        Ok(bytes(&joined).saturating_sub(bytes(old)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncovered_counts_blocks_without_extent() {
        let extents = [
            Extent::unwritten(2, 50, 3),
            Extent::written(5, 90, vec![1]),
            Extent::written(8, 10, vec![1, 2]),
        ];
        assert_eq!(uncovered(&extents, 0..12), 2 + 2 + 2);
        assert_eq!(uncovered(&extents, [1, 3, 7, 9, 10].into_iter()), 3);
        assert_eq!(uncovered(&[], 0..3), 3);
        assert_eq!(uncovered(&extents, 0..0), 0);
    }

    #[test]
    fn extent_part_and_join_keep_blocks_and_checksums() {
        let whole = Extent::written(10, 100, vec![1, 2, 3, 4, 5]);
        let mut head = whole.part(0, 12).unwrap();
        let middle = whole.part(12, 13).unwrap();
        let tail = whole.part(13, 99).unwrap();
        assert_eq!(
            (middle.at, middle.block, middle.crcs.clone()),
            (12, 102, vec![3])
        );
        assert!(whole.part(15, 20).is_none());
        let births = Births {
            seq: 8,
            inherited: 0,
            captured: 0,
        };
        assert!(!head.join(&tail, &births));
        assert!(head.join(&middle, &births) && head.join(&tail, &births));
        assert_eq!(head, Extent { birth: 8, ..whole });
        let mut hole = Extent::unwritten(0, 50, 4);
        assert!(!hole.join(&Extent::written(4, 54, vec![9]), &births));
        assert!(hole.join(&Extent::unwritten(4, 54, 252), &births));
        assert!(!hole.join(&Extent::unwritten(256, 306, 1), &births));
    }

    #[test]
    fn join_across_boundary() {
        let births = Births {
            seq: 9,
            inherited: 5,
            captured: 0,
        };
        let joined = |a: u64, b: u64| {
            let mut first = Extent::written(0, 50, vec![1]);
            let mut next = Extent::written(1, 51, vec![2]);
            (first.birth, next.birth) = (a, b);
            first.join(&next, &births).then_some(first.birth)
        };
        // The boundary itself is inherited.
        for (old, new) in [(5, 6), (5, 0), (3, 9)] {
            assert_eq!((joined(old, new), joined(new, old)), (None, None));
        }
        assert_eq!((joined(5, 5), joined(3, 5)), (Some(5), None));
        // Nor is a part of it new after a checkpoint.
        let births = Births {
            captured: 7,
            ..births
        };
        let long = |a: u64, b: u64| births.joined((a, 17), (b, 1));
        assert_eq!((long(7, 8), long(6, 0)), (None, None));
        assert_eq!((long(7, 7), long(8, 0)), (Some(7), Some(9)));
        // Unless it is short.
        let short = |a: u64, b: u64| births.joined((a, 16), (b, 100));
        assert_eq!((short(7, 8), short(5, 8)), (Some(8), None));
        // The new blocks of an extent are never as old as its other blocks.
        for (a, b, birth) in [(6, 8, 8), (6, 0, 9), (0, 6, 9), (0, 0, 9)] {
            assert_eq!(joined(a, b), Some(birth), "{a} {b}");
        }
    }
}
