//! The newest superblock, and what only it records: the root of the volume and the inode numbers
//! that were given.
//!
//! [`Superblocks::write_next`] is the only place that writes a new superblock to an open volume: to
//! its slot at the front, and to that of each copy in the data area. One flush covers all of them.
//! Everything a superblock refers to is durable before it is written. Once it is *settled*, it is
//! durable before any later write: then what only its predecessor refers to may be reused, the log
//! may name its generation, and another one may be prepared. [`Superblocks::flip`] does both.

use std::collections::BTreeMap;
use std::sync::Arc;

use zerocopy::little_endian::{U32, U64};

use crate::index::Tree;
use crate::journal::Journal;
use crate::space::{BlockRun, Space};
use cairnfs_disk::device::{Device, Storage};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault, is_injected};
use cairnfs_disk::format::geometry::Geometry;
use cairnfs_disk::format::numbers::{Given, MAX_RANGES, Part};
use cairnfs_disk::format::superblock::Superblock;
use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS};
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Inode numbers that a directory allocates at once for its children.
const INO_CHUNK: u64 = 64;

/// The volume's root, which refers to the roots of its trees of files.
pub(super) fn volume_tree(superblock: &Superblock) -> Tree {
    Tree {
        ptr: superblock.root,
        height: superblock.root_height.get(),
    }
}

/// The superblock of an open volume.
pub struct Superblocks {
    storage: Arc<Storage>,
    space: Arc<Space>,
    journal: Arc<Journal>,
    newest: Mutex<Superblock>,
    /// The stamp of the newest superblock, until it is settled.
    unsettled: Mutex<Option<u64>>,
    next_ino: AtomicU64,
    /// Ranges taken of inode numbers for files of other volumes.
    ranges: AtomicU32,
    /// The newest range that was taken for each part since the volume was opened. So streams that
    /// are received at the same time, or again after a failure, share it.
    taken: Mutex<BTreeMap<Part, u32>>,
    next_root: AtomicU32,
}

/// Most parts that are remembered. They may be those of hostile streams.
const MAX_REMEMBERED: usize = 1 << 16;

impl Superblocks {
    /// Continues from the superblock that was found.
    pub(super) fn new(
        storage: Arc<Storage>,
        space: Arc<Space>,
        journal: Arc<Journal>,
        found: Superblock,
    ) -> Self {
        Self {
            storage,
            space,
            journal,
            next_ino: AtomicU64::new(found.next_ino.get()),
            ranges: AtomicU32::new(found.ranges.get()),
            taken: Mutex::default(),
            next_root: AtomicU32::new(found.next_root.get()),
            newest: Mutex::new(found),
            unsettled: Mutex::new(None),
        }
    }

    /// The newest superblock, which may not be durable yet.
    pub fn newest(&self) -> Superblock {
        *self.newest.lock()
    }

    /// A number for a new inode, from the directory's `chunk`, which is refilled when it is used
    /// up.
    pub fn new_ino(&self, chunk: &mut (u64, u64)) -> u64 {
        if chunk.0 >= chunk.1 {
            let start = self.next_ino.fetch_add(INO_CHUNK, Ordering::Relaxed);
            *chunk = (start, start + INO_CHUNK);
        }
        chunk.0 += 1;
        chunk.0 - 1
    }

    /// The numbers that may have been given to inodes, and no other ones.
    pub fn given(&self) -> Given {
        Given {
            next: self.next_ino.load(Ordering::Acquire),
            ranges: self.ranges.load(Ordering::Acquire),
        }
    }

    /// The range that was taken last for a part, as far as that is remembered.
    pub(super) fn taken_range(&self, part: &Part) -> Option<u32> {
        self.taken.lock().get(part).copied()
    }

    /// Remembers that a range was taken, and is recorded.
    pub(super) fn remember_range(&self, part: Part, range: u32) {
        let mut taken = self.taken.lock();
        if taken.len() >= MAX_REMEMBERED {
            taken.clear();
        }
        taken.insert(part, range);
    }

    /// Takes a range of numbers for inodes of another volume, which the next superblock records.
    ///
    /// # Errors
    /// No range is left.
    pub(super) fn take_range(&self) -> Result<u32> {
        let next = |range: u32| range.checked_add(1).filter(|end| *end <= MAX_RANGES);
        let taken = self
            .ranges
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        taken.map_err(|_| {
            Error::Invalid(
                "the volume has no inode numbers left for files of other volumes: receive in a new one",
            )
        })
    }

    /// Records that replay has found an inode of this number, which is never given out again.
    pub(super) fn found_ino(&self, ino: u64) {
        let mut given = self.given();
        given.add(ino);
        self.next_ino.fetch_max(given.next, Ordering::AcqRel);
        self.ranges.fetch_max(given.ranges, Ordering::AcqRel);
    }

    /// An id for a new root.
    ///
    /// # Errors
    /// All ids were given out.
    pub(super) fn new_root(&self) -> Result<u32> {
        let next = |id: u32| id.checked_add(1);
        let given = self
            .next_root
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        given.map_err(|_| Error::Invalid("the volume has no id left for another snapshot"))
    }

    /// Records that replay has found a root of this id, which is never given out again.
    pub(super) fn found_root(&self, id: u32) {
        self.next_root
            .fetch_max(id.saturating_add(1), Ordering::AcqRel);
    }

    /// Writes the free space and a superblock changed by `change`; both are durable before any
    /// later write.
    pub(super) fn flip(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        self.write_next(change)?;
        self.settle()
    }

    /// Writes the free space and, when that and all earlier writes are durable, a superblock changed
    /// by `change`. It need not be durable before [`Self::settle`]: what it replaces is still the
    /// state of the volume until then.
    pub(super) fn write_next(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        // The inactive copies of the free space and of the superblock are those of its predecessor.
        self.settle()?;
        let table = self.space.write_image()?;
        fault::unless(InjectedFault::SuperblockBeforeIndex, || {
            self.journal.order()
        })?;
        let mut current = self.newest.lock();
        let mut next = *current;
        change(&mut next);
        next.generation = U64::new(current.generation.get() + 1);
        next.required_lsn = U64::new(self.journal.durable_lsn().max(next.tail_lsn.get()));
        if !is_injected(InjectedFault::NextInodeForgotten) {
            next.next_ino = U64::new(self.next_ino.load(Ordering::Acquire));
        }
        next.ranges = U32::new(self.ranges.load(Ordering::Acquire));
        next.next_root = U32::new(self.next_root.load(Ordering::Acquire));
        next.table_copy = U32::new(u32::from(table.copy));
        next.table_crc = U32::new(table.crc);
        next.free_blocks = U64::new(table.free_blocks);
        self.storage
            .write(next.slot_block() * BLOCK_SIZE as u64, &next.encode())?;
        // Only to places that a durable superblock names: these never change.
        let places = current.copy_blocks(next.slot());
        fault::unless(InjectedFault::SuperblockUncopied, || {
            self.write_copies(&next, places)
        })?;
        *current = next;
        drop(current);
        *self.unsettled.lock() = Some(self.storage.stamp());
        Ok(())
    }

    fn write_copies(&self, next: &Superblock, places: impl Iterator<Item = u64>) -> Result<()> {
        for place in places {
            self.storage
                .write(place * BLOCK_SIZE as u64, &next.encode_copy(place))?;
        }
        Ok(())
    }

    /// Takes the units for copies that the volume lacks, and returns all of them; none if nothing
    /// is to be recorded. The next superblock must record them.
    pub(super) fn claim_copies(&self, geometry: &Geometry) -> Result<Option<[u64; 2]>> {
        let newest = self.newest.lock();
        let known: Vec<u64> = newest.copy_units().collect();
        let mut units = newest.copies.map(|unit| match unit.get() {
            unit if known.contains(&unit) => unit,
            _ => 0,
        });
        drop(newest);
        let mut claimed = false;
        for (unit, goal) in units.iter_mut().zip(geometry.copy_goals()) {
            if *unit == 0
                && let Some(block) = self.space.alloc_unit_near(goal)?
            {
                self.space.image_add(BlockRun::new(block, NODE_BLOCKS))?;
                *unit = block;
                claimed = true;
            }
        }
        Ok(claimed.then_some(units))
    }

    /// Writes the newest superblock, which is settled and is the first one that names its copies, to
    /// them, then another one to all places: from then on each place has both slots.
    pub(super) fn fill_copies(&self) -> Result<()> {
        let newest = self.newest();
        self.write_copies(&newest, newest.copy_blocks(newest.slot()))?;
        self.flip(|_| ())
    }

    /// Makes the newest superblock durable before any later write.
    pub(super) fn settle(&self) -> Result<()> {
        let mut unsettled = self.unsettled.lock();
        let Some(stamp) = *unsettled else {
            return Ok(());
        };
        fault::unless(InjectedFault::SuperblockUnflushed, || {
            self.storage.order_through(stamp)
        })?;
        let generation = self.newest.lock().generation.get();
        self.journal.set_generation(generation);
        self.space.commit_image();
        *unsettled = None;
        Ok(())
    }
}
