//! Allocation groups: free space in memory and on disk.
//!
//! Uses error, format and device. Each group has two bitmaps. **live** is the bitmap that
//! allocation uses: all blocks that the live file system refers to, and freed blocks that must not
//! be reused yet. **image** has the blocks that the index on disk refers to as of the next
//! superblock; it is a subset of live. A bitmap is read on first use, so opening reads the group
//! table only.
//!
//! Blocks (data) and units (4 aligned blocks, the size of an index node) are two resources: data
//! breaks a free unit only if enough units remain for reservations and for the standing reserve of
//! merges and deletes. An allocation from a reservation never fails for lack of space.
//!
//! Lock order: `verified`, `counting`, what is pinned with the image, one group, the list of changed groups, what
//! is pinned without a group. No thread holds the locks of two groups. The only I/O under a group's lock is reading its own bitmap.

mod alloc;
mod bitmap;
mod budget;
mod delayed;
mod group;
mod host;
mod image;
mod injected;
mod pinned;
mod release;
mod table;
#[cfg(test)]
mod tests;
mod trim;
mod unread;
mod verify;

use std::collections::BTreeSet;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use bitmap::Bitmap;
use budget::{Budget, Floors, Short};
use cairnfs_disk::device::Device;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::geometry::{GROUP_BLOCKS, Geometry};
use cairnfs_disk::format::group::GroupEntry;
use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS};
use cairnfs_disk::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use cairnfs_disk::sync::{MappedMutexGuard, Mutex, MutexGuard};
use delayed::DelayedGrowth;
use group::{Bounds, Group, Maps};
use host::Host;
use image::Image;
use pinned::Pinning;
use trim::Trimming;
use unread::Unread;

pub use delayed::{Delayed, growth_units};
pub use pinned::PinnedTable;
pub use table::TableState;

/// A run of contiguous blocks on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRun {
    /// The first block.
    pub start: u64,
    /// Length in blocks.
    pub len: u64,
}

impl BlockRun {
    /// `len` blocks from `start`.
    pub fn new(start: u64, len: u64) -> Self {
        Self { start, len }
    }

    /// The block behind the last one.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// How far a reservation may use the standing reserve. Data is reserved as `Ordinary` or `Rewrite`
/// only, so the units that deletes and merges need stay whole wherever the data is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// May not use the reserve.
    Ordinary,
    /// May use the part for replacements: overwritten data, edges of a punched hole. The replaced
    /// blocks become free with the next merge.
    Rewrite,
    /// May also use the part for deletes.
    Delete,
    /// May use the whole reserve.
    Merge,
}

impl Class {
    /// Whether the reservation may take blocks that the device never held, so that the host file
    /// system needs space for them.
    fn takes_new_blocks(self) -> bool {
        matches!(self, Class::Ordinary | Class::Rewrite)
    }
}

/// The reservation that an allocation uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Funding {
    /// An earlier reservation by [`Space::reserve`], which covers the whole request.
    Reserved,
    /// A new reservation of this class, made by the allocation.
    New(Class),
}

/// Number of slots over which allocating threads are spread; each slot has its own current group.
const SLOTS: usize = 16;

/// The free space of a volume.
pub struct Space {
    device: Arc<dyn Device>,
    geometry: Geometry,
    /// The table as it was at open: where the bitmap of an unread group is.
    opened: Vec<GroupEntry>,
    groups: Vec<Group>,
    budget: Budget,
    delayed: DelayedGrowth,
    host: Host,
    image: Mutex<Image>,
    pinning: Pinning,
    /// Groups whose image changed since it was last written to the device.
    changed: Mutex<BTreeSet<usize>>,
    /// Number of groups whose free units are known by a lower bound only.
    uncounted: AtomicUsize,
    /// The group at which the search for uncounted groups continues.
    counting: Mutex<usize>,
    /// Identifies this space in the threads' cached slot numbers.
    id: u64,
    next_slot: AtomicUsize,
    trimming: Trimming,
    unread: Unread,
    /// The bitmaps of the groups before this one were verified or used.
    verified: Mutex<usize>,
    /// The group from which each slot allocates data.
    slots: [CachePadded<AtomicUsize>; SLOTS],
    /// The group from which nodes are allocated.
    unit_group: AtomicUsize,
    /// Number of merges, so that each merge restarts its node search at the front.
    epoch: AtomicU64,
}

/// Minimum number of units for a merge, so that it can proceed in steps on a full volume.
const LEAST_MERGE_UNITS: u64 = 48;

/// The standing reserve of a volume of this size.
fn floors(geometry: &Geometry) -> Floors {
    let merge = (geometry.total_blocks / 256).clamp(LEAST_MERGE_UNITS, 4096);
    Floors {
        merge,
        delete: (merge / 8).max(8),
        rewrite: (merge / 8).max(8),
        replaced: (merge / 8).max(8),
    }
}

impl Space {
    /// Opens the free space that the superblock describes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the group table contradicts the superblock or is invalid.
    pub fn open(device: Arc<dyn Device>, geometry: Geometry, state: TableState) -> Result<Self> {
        geometry.validate().map_err(Error::Invalid)?;
        let opened = table::read(&*device, &geometry, state)?;
        let unread = Unread::default();
        Ok(Self::with_table(device, geometry, state, opened, unread))
    }

    /// The free space of a table.
    fn with_table(
        device: Arc<dyn Device>,
        geometry: Geometry,
        state: TableState,
        opened: Vec<GroupEntry>,
        unread: Unread,
    ) -> Self {
        let groups: Vec<Group> = (0..)
            .zip(&opened)
            .map(|(g, e)| Group::unread(Bounds::of(&geometry, g), e.free.get().into()))
            .collect();
        let units = groups.iter().map(|g| u64::from(g.units())).sum();
        let floors = floors(&geometry);
        static IDS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let count = groups.len();
        Self {
            device,
            geometry,
            budget: Budget::new(state.free_blocks, units, floors),
            delayed: DelayedGrowth::default(),
            host: Host::new(floors.merge + floors.delete + floors.rewrite),
            image: Mutex::new(Image::new(opened.clone(), state.copy)),
            pinning: Pinning::default(),
            changed: Mutex::default(),
            uncounted: AtomicUsize::new(groups.iter().filter(|g| !g.is_counted()).count()),
            counting: Mutex::new(0),
            id: IDS.fetch_add(1, Ordering::Relaxed),
            next_slot: AtomicUsize::new(0),
            trimming: Trimming::default(),
            unread,
            verified: Mutex::new(0),
            slots: std::array::from_fn(|slot| {
                let apart = (count / SLOTS).max(1);
                CachePadded::new(AtomicUsize::new(slot * apart % count.max(1)))
            }),
            unit_group: AtomicUsize::new(count / 2),
            epoch: AtomicU64::new(0),
            opened,
            groups,
        }
    }

    /// Reserves `blocks` for data and `units` for nodes. Returns false if the volume, or for new
    /// blocks the host file system, has not enough space.
    ///
    /// # Errors
    /// A damaged or unreadable bitmap: near the limit, bitmaps are read to count units exactly.
    pub fn reserve(&self, blocks: u64, units: u64, class: Class) -> Result<bool> {
        if class.takes_new_blocks() {
            let more = blocks.saturating_add(units.saturating_mul(NODE_BLOCKS));
            if !self.host.permits(&*self.device, &self.budget, more) {
                return Ok(false);
            }
        }
        if self.reserve_free(blocks, units, class)? {
            return Ok(true);
        }
        // A merge has no other way.
        let unpinned = class == Class::Merge && self.unpin_image(false)?;
        Ok(unpinned && self.reserve_free(blocks, units, class)?)
    }

    fn reserve_free(&self, blocks: u64, units: u64, class: Class) -> Result<bool> {
        loop {
            match self.budget.reserve(blocks, units, class) {
                Ok(()) => return Ok(true),
                Err(Short::Blocks) => return Ok(false),
                Err(Short::Units) => {
                    if !self.count_one()? {
                        // Another thread may have counted the last group meanwhile.
                        return Ok(self.budget.reserve(blocks, units, class).is_ok());
                    }
                }
            }
        }
    }

    /// Returns the unused part of a reservation.
    pub fn unreserve(&self, blocks: u64, units: u64) {
        self.budget.unreserve(blocks, units);
    }

    /// Free blocks, including reserved ones.
    pub fn free_blocks(&self) -> u64 {
        self.budget.free_blocks().saturating_sub(self.unread.spare)
    }

    /// Blocks that the host file system can still allocate, minus reservations; `u64::MAX` if it
    /// has space for the whole device, or if this is unknown.
    pub fn host_left(&self) -> u64 {
        self.host.left(&*self.device, &self.budget)
    }

    /// Free units, including reserved ones; a lower bound until all bitmaps were counted.
    pub fn free_units(&self) -> u64 {
        self.budget.free_units()
    }

    /// Reserved blocks and units.
    pub fn reserved(&self) -> (u64, u64) {
        self.budget.reserved()
    }

    /// Blocks that a new reservation of this class could get.
    ///
    /// # Errors
    /// A damaged or unreadable bitmap, as in [`Self::reserve`].
    pub fn available(&self, class: Class) -> Result<u64> {
        let blocks = self.unpromised(class)?;
        Ok(match class {
            _ if class.takes_new_blocks() => blocks.min(self.host_left()),
            _ => blocks,
        })
    }

    /// The error for a refused reservation: the volume or the host file system is full.
    pub fn refusal(&self, blocks: u64, units: u64, class: Class) -> Error {
        let more = blocks.saturating_add(units.saturating_mul(NODE_BLOCKS));
        if !class.takes_new_blocks() {
            return Error::NoSpace;
        }
        let missing = self.host.missing(&*self.device, &self.budget, more);
        if missing == 0 {
            return Error::NoSpace;
        }
        let full = self.device.no_room(missing * BLOCK_SIZE as u64);
        self.host.refuse(&full);
        full
    }

    fn unpromised(&self, class: Class) -> Result<u64> {
        loop {
            match self.budget.available(class) {
                Ok(blocks) => return Ok(blocks),
                Err(Short::Blocks) => return Ok(0),
                Err(Short::Units) => {
                    if !self.count_one()? {
                        return Ok(self.budget.available(class).unwrap_or(0));
                    }
                }
            }
        }
    }

    /// Maximum units of one merge step: half of the unreserved units, but at least half of the
    /// reserve of merges.
    pub fn step_units(&self) -> u64 {
        let spare = self.free_units().saturating_sub(self.reserved().1);
        let spare = spare.min(self.host_left() / NODE_BLOCKS);
        (spare / 2).max(self.standing(Class::Delete) / 2)
    }

    /// Whether so few units are free that the index should grow as little as possible.
    pub fn is_short(&self) -> bool {
        self.free_units() < 3 * self.standing(Class::Ordinary)
    }

    /// Whether the reserve of deletes and merges is complete, in addition to all reservations.
    pub fn is_reserve_whole(&self) -> bool {
        self.free_units().saturating_sub(self.reserved().1) >= self.standing(Class::Rewrite)
    }

    /// Units of the standing reserve that a reservation of this class may not use.
    pub fn standing(&self, class: Class) -> u64 {
        self.budget.floor(class)
    }

    /// Whether an ordinary reservation could get a unit.
    ///
    /// # Errors
    /// A damaged or unreadable bitmap, as in [`Self::reserve`].
    pub fn can_grow(&self) -> Result<bool> {
        let can = self.reserve(0, 1, Class::Ordinary)?;
        if can {
            self.unreserve(0, 1);
        }
        Ok(can)
    }

    /// Blocks that ordinary reservations may not use.
    pub fn kept_blocks(&self) -> u64 {
        self.budget.kept_blocks()
    }

    /// Locks a group and loads its bitmaps if they are not in memory.
    fn lock(&self, index: usize) -> Result<MappedMutexGuard<'_, Maps>> {
        let group = self.group(index)?;
        let mut slot = group.maps.lock();
        let maps = match slot.take() {
            Some(maps) => maps,
            None => Box::new(self.read_maps(index, group)?),
        };
        Ok(MutexGuard::map(slot, |slot| &mut **slot.insert(maps)))
    }

    fn group(&self, index: usize) -> Result<&Group> {
        self.groups
            .get(index)
            .ok_or(Error::Invalid("block beyond the end of the volume"))
    }

    /// Reads a group's bitmap; the caller holds its lock.
    fn read_maps(&self, index: usize, group: &Group) -> Result<Maps> {
        let Some(entry) = self.opened.get(index).copied() else {
            return Ok(Maps::new(Bitmap::free()));
        };
        let read = group::read_bitmap(&*self.device, &self.geometry, index as u64, entry);
        let image = match read {
            Ok(image) => image,
            Err(error) => {
                self.unread.pass(error)?;
                return Ok(self.full_maps(group));
            }
        };
        if !group.counted.load(Ordering::Acquire) {
            let exact = image.count_units();
            let bound = group.units.swap(exact, Ordering::AcqRel);
            // Before `counted` is set: a thread that sees the group counted finds its units in the
            // budget.
            self.budget
                .found_units(u64::from(exact.saturating_sub(bound)));
            group.counted.store(true, Ordering::Release);
            self.uncounted.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(Maps::new(image))
    }

    /// Counts the free units of one more group; false if all are counted. The bitmaps do not stay
    /// in memory.
    fn count_one(&self) -> Result<bool> {
        if self.uncounted.load(Ordering::Acquire) == 0 {
            return Ok(false);
        }
        let mut next = self.counting.lock();
        while let Some(group) = self.groups.get(*next) {
            if !group.is_counted() {
                let maps = group.maps.lock();
                if maps.is_none() {
                    self.read_maps(*next, group)?;
                }
                *next += 1;
                return Ok(true);
            }
            *next += 1;
        }
        Ok(false)
    }

    /// Checks that a run is not empty and within the data area.
    fn check_run(&self, run: BlockRun) -> Result<()> {
        if run.len > 0 && run.start >= self.geometry.data_start() && run.end() <= self.end() {
            return Ok(());
        }
        Err(Error::corrupt(
            run.start,
            "block address",
            format_args!(
                "blocks from {} to {}",
                self.geometry.data_start(),
                self.end()
            ),
            format_args!("{} blocks from {}", run.len, run.start),
        ))
    }
}

/// Splits a run at group boundaries: (group, position within it, length in blocks).
fn parts(run: BlockRun) -> impl Iterator<Item = (usize, u32, u32)> {
    let end = run.end();
    let mut at = run.start;
    std::iter::from_fn(move || {
        let bit = at % GROUP_BLOCKS;
        let len = (GROUP_BLOCKS - bit).min(end.saturating_sub(at));
        let group = (at / GROUP_BLOCKS) as usize;
        at += len;
        (len > 0).then_some((group, bit as u32, len as u32))
    })
}

/// The device block of a position within a group.
fn block_of(group: usize, bit: u32) -> u64 {
    group as u64 * GROUP_BLOCKS + u64::from(bit)
}
