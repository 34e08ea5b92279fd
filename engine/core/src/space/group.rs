//! An allocation group in memory: its lock, its two bitmaps and its counters.
//!
//! Uses the bitmap and the format. The bitmaps are read on first use; until then the group is
//! unchanged, so the table read at open has their location. The counters change only under the lock
//! and may be read without it, as hints. For a group whose bitmap was never read, `units` is a
//! lower bound.

use super::bitmap::{BITS, Bitmap};
use cairnfs_disk::device::Device;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::geometry::{GROUP_BLOCKS, Geometry};
use cairnfs_disk::format::group::GroupEntry;
use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS, checksum};
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The bitmaps of a group.
pub(super) struct Maps {
    /// The blocks that allocation must not use.
    pub live: Bitmap,
    /// The blocks that the index on disk refers to as of the next superblock. A subset of `live`.
    pub image: Bitmap,
    /// `image` differs from the bitmap last written, and the group is in `Space::changed`.
    pub image_changed: bool,
    /// The image as it was pinned, if it has changed since.
    pub pinned: Option<Box<PinnedMaps>>,
    /// Where the search for the next run of free blocks begins.
    pub data_hint: u32,
    /// Where the search for the next block of a broken unit begins.
    pub loose_hint: u32,
    /// Where the search for the next unit begins.
    pub unit_hint: u32,
    /// The merge (`Space::epoch`) that set `unit_hint`.
    pub unit_epoch: u64,
    /// The bitmap could not be read, and the group counts as full.
    pub unread: bool,
}

impl Maps {
    /// Those of a group whose bitmap on the device is `image`.
    pub fn new(image: Bitmap) -> Self {
        Self {
            live: image.clone(),
            image,
            image_changed: false,
            pinned: None,
            data_hint: 0,
            loose_hint: 0,
            unit_hint: 0,
            unit_epoch: u64::MAX,
            unread: false,
        }
    }
}

/// The bitmaps of a group whose image has changed since it was pinned.
pub(super) struct PinnedMaps {
    /// The image as it was pinned.
    pub image: Bitmap,
    /// Blocks of it that were released since.
    pub held: Bitmap,
}

/// An allocation group in memory.
pub(super) struct Group {
    /// `None` until the bitmap is read.
    pub maps: Mutex<Option<Box<Maps>>>,
    /// Free blocks.
    pub free: AtomicU32,
    /// Free units; a lower bound unless `counted`.
    pub units: AtomicU32,
    /// Upper bound of the length of a free run.
    pub longest: AtomicU32,
    /// Whether `units` is exact.
    pub counted: AtomicBool,
}

/// The allocatable blocks of a group: behind the fixed areas, before the end of the volume.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub first: u32,
    pub end: u32,
}

impl Bounds {
    pub fn of(geometry: &Geometry, group: u64) -> Self {
        let start = group * GROUP_BLOCKS;
        let within = |block: u64| block.saturating_sub(start).min(GROUP_BLOCKS) as u32;
        let end = within(geometry.total_blocks);
        Self {
            first: within(geometry.data_start()).min(end),
            end,
        }
    }

    pub fn blocks(self) -> u32 {
        self.end - self.first
    }

    pub fn units(self) -> u32 {
        let unit = NODE_BLOCKS as u32;
        (self.end / unit).saturating_sub(self.first.div_ceil(unit))
    }

    /// Those of a group that is not part of the volume: all of its blocks.
    pub fn whole() -> Self {
        Self {
            first: 0,
            end: BITS,
        }
    }

    /// A bitmap in which only the blocks outside the bounds are in use.
    pub fn empty_map(self) -> Bitmap {
        let mut map = Bitmap::free();
        map.set(0, self.first);
        map.set(self.end, BITS - self.end);
        map
    }
}

impl Group {
    /// A group whose bitmap was not read yet.
    pub fn unread(bounds: Bounds, free: u32) -> Self {
        let used = bounds.blocks().saturating_sub(free);
        Self {
            maps: Mutex::new(None),
            free: AtomicU32::new(free),
            // In the worst case each block in use breaks a different unit.
            units: AtomicU32::new(bounds.units().saturating_sub(used)),
            longest: AtomicU32::new(BITS),
            counted: AtomicBool::new(used == 0 || free < NODE_BLOCKS as u32),
        }
    }

    pub fn free(&self) -> u32 {
        self.free.load(Ordering::Acquire)
    }

    pub fn units(&self) -> u32 {
        self.units.load(Ordering::Acquire)
    }

    pub fn is_counted(&self) -> bool {
        self.counted.load(Ordering::Acquire)
    }

    /// Whether the group may have free blocks of broken units.
    pub fn has_loose(&self) -> bool {
        !self.is_counted() || self.free() > self.units() * NODE_BLOCKS as u32
    }

    /// Whether the group may have a free unit.
    pub fn has_unit(&self) -> bool {
        !self.is_counted() || self.units() > 0
    }

    /// Counts allocated blocks and units. The caller holds the lock.
    pub fn count_taken(&self, blocks: u32, units: u32) {
        self.free.fetch_sub(blocks, Ordering::AcqRel);
        self.units.fetch_sub(units, Ordering::AcqRel);
    }

    /// Counts freed blocks and units. The caller holds the lock.
    pub fn count_given(&self, blocks: u32, units: u32) {
        self.free.fetch_add(blocks, Ordering::AcqRel);
        self.units.fetch_add(units, Ordering::AcqRel);
        self.longest.store(BITS, Ordering::Release);
    }
}

/// Reads and checks a group's bitmap.
pub(super) fn read_bitmap(
    device: &dyn Device,
    geometry: &Geometry,
    group: u64,
    entry: GroupEntry,
) -> Result<Bitmap> {
    let at = geometry.bitmap_block(group, entry.copy);
    let mut block = cairnfs_disk::device::AlignedBuf::zeroed(BLOCK_SIZE);
    device.read(at * BLOCK_SIZE as u64, &mut block)?;
    check_bitmap(&block, geometry, group, entry)
}

/// Checks and decodes the block with a group's bitmap.
pub(super) fn check_bitmap(
    block: &[u8],
    geometry: &Geometry,
    group: u64,
    entry: GroupEntry,
) -> Result<Bitmap> {
    let at = geometry.bitmap_block(group, entry.copy);
    let crc = checksum::crc(block);
    if crc != entry.crc.get() {
        return Err(Error::corrupt(
            at,
            "group bitmap checksum",
            format_args!("{:08x}", entry.crc.get()),
            format_args!("{crc:08x}"),
        ));
    }
    let map = Bitmap::decode(block);
    let free = map.count_free();
    if free != u32::from(entry.free.get()) {
        return Err(Error::corrupt(
            at,
            "group bitmap",
            format_args!("{} free blocks in group {group}", entry.free.get()),
            free,
        ));
    }
    let bounds = Bounds::of(geometry, group);
    let outside = map
        .first_free(0, bounds.first)
        .or_else(|| map.first_free(bounds.end, BITS - bounds.end));
    match outside {
        Some(bit) => Err(Error::corrupt(
            at,
            "group bitmap",
            "blocks outside of the data area in use",
            format_args!("block {} free", group * GROUP_BLOCKS + u64::from(bit)),
        )),
        None => Ok(map),
    }
}
