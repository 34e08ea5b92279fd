//! The free-space image: bitmaps that match the index on disk, changed by the merge and written
//! with it.
//!
//! A changed bitmap is written to its inactive copy, and so is the group table. The active copies
//! stay intact until a superblock refers to the new table. Until the caller reports that this
//! superblock is durable, another write overwrites the same inactive copies.

use std::collections::BTreeSet;

use super::group::Bounds;
use super::table::{self, BitmapWriter};
use super::{BlockRun, Space, TableState, block_of, parts};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{InjectedFault, is_injected};
use cairnfs_disk::format::group::GroupEntry;
use cairnfs_disk::sync::atomic::Ordering;

/// The state of the table on disk.
pub(super) struct Image {
    /// The active table.
    table: Vec<GroupEntry>,
    /// The active copy of the table on disk (0 or 1).
    copy: u8,
    /// Groups whose image differs from the bitmap that `table` refers to.
    pending: BTreeSet<usize>,
    /// Entries written for the next superblock.
    written: Option<Vec<(usize, GroupEntry)>>,
}

impl Image {
    pub fn new(table: Vec<GroupEntry>, copy: u8) -> Self {
        Self {
            table,
            copy,
            pending: BTreeSet::new(),
            written: None,
        }
    }
}

impl Image {
    /// The active table.
    pub fn table(&self) -> &[GroupEntry] {
        &self.table
    }

    /// Whether a group's bitmap on disk is still the one that `opened` refers to.
    pub fn is_as_opened(&self, group: usize, opened: &[GroupEntry]) -> bool {
        let entry = |table: &[GroupEntry]| table.get(group).map(|e| (e.copy, e.crc.get()));
        !self.pending.contains(&group) && entry(&self.table) == entry(opened)
    }
}

/// What becomes of blocks of the image.
#[derive(Clone, Copy)]
enum Change {
    Add,
    Keep,
    Remove,
}

impl Space {
    /// Records that the index refers to these blocks as of the next superblock.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it already refers to one of them, or if one is not allocated.
    pub fn image_add(&self, run: BlockRun) -> Result<()> {
        self.change_image(run, Change::Add)
    }

    /// As [`Self::image_add`], but the image may have some of the blocks: a node that was cut out of the
    /// index may have referred to them.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if one of them is not allocated.
    pub fn image_keep(&self, run: BlockRun) -> Result<()> {
        self.change_image(run, Change::Keep)
    }

    /// Records that the index does not refer to these blocks as of the next superblock.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it did not refer to one of them before.
    pub fn image_remove(&self, run: BlockRun) -> Result<()> {
        self.change_image(run, Change::Remove)
    }

    /// Calls `each` with the blocks of the data area that the index refers to as of the next
    /// superblock, in runs.
    pub fn each_in_image(&self, each: &mut dyn FnMut(BlockRun)) -> Result<()> {
        for group in 0..self.geometry.groups() {
            let bounds = Bounds::of(&self.geometry, group);
            let maps = self.lock(group as usize)?;
            let mut bit = bounds.first;
            while let Some(used) = maps.image.first_used(bit, bounds.end.saturating_sub(bit)) {
                let left = bounds.end.saturating_sub(used);
                let free = maps.image.first_free(used, left).unwrap_or(bounds.end);
                let run = BlockRun::new(block_of(group as usize, used), u64::from(free - used));
                each(run);
                bit = free;
            }
        }
        Ok(())
    }

    fn change_image(&self, run: BlockRun, change: Change) -> Result<()> {
        self.check_run(run)?;
        for (index, bit, len) in parts(run) {
            let mut maps = self.lock(index)?;
            if maps.unread {
                continue;
            }
            let free = || {
                let free = maps.live.first_free(bit, len);
                free.map(|b| (b, "an allocated block", "a free block"))
            };
            let wrong = match change {
                Change::Add => maps
                    .image
                    .first_used(bit, len)
                    .map(|b| (b, "a block that the index does not have", "one that it has"))
                    .or_else(free),
                Change::Keep => free(),
                Change::Remove => maps
                    .image
                    .first_free(bit, len)
                    .map(|b| (b, "a block that the index has", "one that it does not have")),
            };
            if let Some((bit, expected, found)) = wrong {
                let block = block_of(index, bit);
                return Err(Error::corrupt(block, "free space", expected, found));
            }
            self.image_changes(index, &mut maps);
            match change {
                Change::Add | Change::Keep => maps.image.set(bit, len),
                Change::Remove => maps.image.clear(bit, len),
            }
            if !maps.image_changed {
                maps.image_changed = true;
                self.changed.lock().insert(index);
            }
        }
        Ok(())
    }

    /// Writes the changed bitmaps and the table to the inactive copies; does not flush. They become
    /// active when a superblock with the returned state is durable: then call
    /// [`Self::commit_image`].
    ///
    /// # Errors
    /// A device error. The call can be repeated.
    pub fn write_image(&self) -> Result<TableState> {
        let mut image = self.image.lock();
        image.written = None;
        let changed = std::mem::take(&mut *self.changed.lock());
        image.pending.extend(changed);
        let written = self.write_bitmaps(&image)?;
        let mut table = image.table.clone();
        for (index, entry) in &written {
            if let Some(slot) = table.get_mut(*index) {
                *slot = *entry;
            }
        }
        let other = !is_injected(InjectedFault::TableInPlace);
        let copy = (image.copy & 1) ^ u8::from(other);
        let state = table::write(&*self.device, &self.geometry, copy, &table)?;
        image.written = Some(written);
        Ok(state)
    }

    /// Writes the pending bitmaps, those of copy 0 first, so that adjacent bitmaps are joined into
    /// one write.
    fn write_bitmaps(&self, image: &Image) -> Result<Vec<(usize, GroupEntry)>> {
        let mut written = Vec::with_capacity(image.pending.len());
        let mut writer = BitmapWriter::new(&*self.device);
        for copy in [0, 1] {
            for index in &image.pending {
                if image.table.get(*index).is_none_or(|e| e.copy == copy) {
                    continue;
                }
                let mut maps = self.lock(*index)?;
                // From here on a change adds the group to `changed` again.
                maps.image_changed = false;
                let map = maps.image.clone();
                drop(maps);
                let block = self.geometry.bitmap_block(*index as u64, copy);
                written.push((*index, writer.push(block, &map, copy)?));
            }
        }
        writer.finish()?;
        Ok(written)
    }

    /// Makes the copies of the last [`Self::write_image`] active. Call it when the superblock with
    /// the returned state is durable.
    pub fn commit_image(&self) {
        let mut image = self.image.lock();
        let Some(written) = image.written.take() else {
            return;
        };
        for (index, entry) in written {
            if let Some(slot) = image.table.get_mut(index) {
                *slot = entry;
            }
        }
        image.copy = 1 - (image.copy & 1);
        image.pending.clear();
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }
}
