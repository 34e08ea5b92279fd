//! The blocks of a captured state: a volume of its own, with an empty log.
//!
//! The superblock is in both slots and in its copies, the group table and all bitmaps in copy 0,
//! whatever is true of the volume. The log's area is not part of the image and reads as zeros, so the log ends where
//! it begins. Everything else is at its place on the device.

use zerocopy::little_endian::{U32, U64};

use crate::txn::Core;
use crate::txn::checkpoint::Capture;
use cairnfs_disk::device::Device;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::geometry::SUPERBLOCK_SLOTS;
use cairnfs_disk::format::superblock::{Superblock, copy_blocks_of};
use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS, checksum};

/// The superblocks of an image, encoded, by their slots. They differ in their generation only, so either
/// of them alone is the same volume.
pub(super) fn superblocks(newest: &Superblock, table: &[u8], free_blocks: u64) -> [Superblock; 2] {
    let generation = newest.generation.get();
    // Even ones are in the first slot.
    let newer = generation + generation % 2;
    [newer, newer.saturating_sub(1)].map(|generation| Superblock {
        generation: U64::new(generation),
        required_lsn: newest.tail_lsn,
        table_copy: U32::new(0),
        table_crc: U32::new(checksum::crc(table)),
        free_blocks: U64::new(free_blocks),
        ..*newest
    })
}

impl Core {
    /// Passes the runs of the blocks that belong to no tree to `each`, in ascending order, with the
    /// bitmaps of these groups.
    pub(super) fn each_fixed(
        &self,
        bitmaps: impl Iterator<Item = u64>,
        each: &mut impl FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        for slot in SUPERBLOCK_SLOTS {
            each(slot, 1)?;
        }
        each(self.geometry.table_start(0), self.geometry.table_blocks())?;
        let mut row: Option<(u64, u64)> = None;
        for group in bitmaps {
            let block = self.geometry.bitmap_block(group, 0);
            match &mut row {
                Some((start, len)) if *start + *len == block => *len += 1,
                row => {
                    if let Some((start, len)) = row.replace((block, 1)) {
                        each(start, len)?;
                    }
                }
            }
        }
        row.map_or(Ok(()), |(start, len)| each(start, len))
    }

    /// Passes the runs of all blocks that the image of a capture has to `each`, in ascending order:
    /// the first block, and how many. Unwritten blocks are among them.
    ///
    /// # Errors
    /// [`Error::GaveWay`]; a damaged bitmap; those of `each`.
    pub fn live(
        &self,
        capture: &Capture,
        mut each: impl FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        self.each_fixed(0..self.geometry.groups(), &mut each)?;
        let pinned = &capture.pinned;
        self.space
            .each_pinned(pinned, |run| each(run.start, run.len))
    }

    /// Reads whole blocks of the image of a capture, from `block` on. Those that it does not have
    /// read as anything.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range that is not within the volume or not of whole blocks;
    /// [`Error::GaveWay`]; the device's failure.
    pub fn read_captured(&self, capture: &Capture, block: u64, buf: &mut [u8]) -> Result<()> {
        let blocks = (buf.len() / BLOCK_SIZE) as u64;
        let end = block.checked_add(blocks);
        let inside = end.is_some_and(|end| end <= self.geometry.total_blocks);
        if !inside || !buf.len().is_multiple_of(BLOCK_SIZE) {
            return Err(Error::Invalid("blocks beyond the end of the volume"));
        }
        let fixed = self.geometry.data_start().saturating_sub(block).min(blocks);
        let (fixed, data) = buf.split_at_mut(fixed as usize * BLOCK_SIZE);
        for (at, buf) in (block..).zip(fixed.chunks_exact_mut(BLOCK_SIZE)) {
            self.read_fixed(capture, at, buf)?;
        }
        if data.is_empty() {
            return Ok(());
        }
        let at = block.max(self.geometry.data_start());
        let read = self.storage.read(at * BLOCK_SIZE as u64, data);
        for (at, buf) in (at..).zip(data.chunks_exact_mut(BLOCK_SIZE)) {
            read_copy(capture, at, buf);
        }
        self.unless_gave_way(capture, read)
    }

    /// Makes a block before the data area.
    fn read_fixed(&self, capture: &Capture, block: u64, buf: &mut [u8]) -> Result<()> {
        let geometry = &self.geometry;
        let mut slots = SUPERBLOCK_SLOTS.into_iter().zip(&capture.superblocks);
        let slot = slots.find(|(slot, _)| *slot == block);
        let table = block.checked_sub(geometry.table_start(0));
        let table = table.filter(|at| *at < geometry.table_blocks());
        let bitmap = block.checked_sub(geometry.bitmap_block(0, 0));
        let bitmap = bitmap.filter(|group| *group < geometry.groups());
        match (slot, table, bitmap) {
            (_, _, Some(group)) => return self.space.read_pinned(&capture.pinned, group, buf),
            (_, Some(at), _) => copy(&capture.table, at as usize * BLOCK_SIZE, buf),
            (Some((_, superblock)), _, _) => copy(&superblock.encode(), 0, buf),
            (None, None, None) => buf.fill(0),
        }
        Ok(())
    }
}

/// Makes a block of the data area, if it belongs to the copies of the superblock.
fn read_copy(capture: &Capture, block: u64, buf: &mut [u8]) {
    let [even, _] = &capture.superblocks;
    let units = even.copy_units();
    for unit in units.filter(|unit| (*unit..unit + NODE_BLOCKS).contains(&block)) {
        let slots = copy_blocks_of(unit).into_iter().zip(&capture.superblocks);
        buf.fill(0);
        for (_, superblock) in slots.filter(|(place, _)| *place == block) {
            copy(&superblock.encode_copy(block), 0, buf);
        }
    }
}

fn copy(from: &[u8], at: usize, to: &mut [u8]) {
    let from = from.get(at..).unwrap_or_default();
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}
